package sidecar

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
)

// hangsAfter does what an act does, and then answers nothing more, no health check either.
func hangsAfter(e **fakeEngine, first act) act {
	return func(w http.ResponseWriter, r *asked) {
		first(w, r)
		(*e).hang()
		hangs(w, r)
	}
}

// half begins a whole answer.
func half(w http.ResponseWriter, _ *asked) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", fmt.Sprint(len(wholeAnswer)))
	_, _ = w.Write([]byte(wholeAnswer[:len(wholeAnswer)/2]))
	flush(w)
}

func nothing(http.ResponseWriter, *asked) {}

// A request whose answer is lost before the client has seen any of it is answered by another engine, which gets it as the client has sent it.
func TestLostAnswerIsAskedAnew(t *testing.T) {
	t.Parallel()
	const dead = `{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","code":500}}`
	const created = "event: response.created\ndata: {\"type\":\"response.created\"}\n\n"
	const start = "event: message_start\ndata: {\"type\":\"message_start\"}\n\n"
	const role = `data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	const responses = created + "event: response.completed\ndata: {\"type\":\"response.completed\"}\n\n"
	const messages = start + "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	const tools = role + `data: {"id":"c","choices":[{"index":0,"delta":{"tool_calls":[]}}]}` + "\n\n" + doneEvent
	whole := says(http.StatusOK, "application/json", wholeAnswer)
	var decode *fakeEngine
	for name, c := range map[string]struct {
		api   pd.API
		more  string // of the request
		lost  act    // what the first engine does
		cause string
		right act
		want  string
	}{
		"breaks off":                    {pd.APICompletions, "", resets, "broken", whole, wholeAnswer},
		"breaks off within the answer":  {pd.APIChat, "", breaks("application/json", "{"), "broken", whole, wholeAnswer},
		"hangs":                         {pd.APIMessages, "", hangsAfter(&decode, nothing), "hung", whole, wholeAnswer},
		"hangs within the answer":       {pd.APIResponses, "", hangsAfter(&decode, half), "hung", whole, wholeAnswer},
		"dies":                          {pd.APIGenerate, "", then(func(http.ResponseWriter, *asked) { decode.failHealth() }, says(500, "application/json", dead)), "error", whole, wholeAnswer},
		"stream of responses":           {pd.APIResponses, `,"stream":true`, then(streams(created), resets), "broken", streams(responses), responses},
		"stream of responses hangs":     {pd.APIResponses, `,"stream":true`, hangsAfter(&decode, streams(created)), "hung", streams(responses), responses},
		"stream of messages":            {pd.APIMessages, `,"stream":true`, then(streams(start), closes), "broken", streams(messages), messages},
		"stream of messages, an error":  {pd.APIMessages, `,"stream":true`, streams(start, "event: error\ndata: {\"type\":\"error\",\"error\":{}}\n\n"), "", streams(messages), messages},
		"stream that could not move":    {pd.APIChat, `,"stream":true,"use_beam_search":true`, then(streams(role), resets), "broken", streams(tools), tools},
		"stream that could not move, 2": {pd.APICompletions, `,"stream":true,"presence_penalty":1`, resets, "broken", streams(wholeStream), wholeStream},
	} {
		for way, header := range ways {
			t.Run(name+", "+way, func(t *testing.T) {
				prefill, other := startEngine(t, offering(handoffParams)), startEngine(t, c.right)
				decode = startEngine(t, c.lost)
				s := startRig(t, decode.addr, noticing, goesOn)
				body := strings.TrimSuffix(askIn(c.api, false), "}")
				body = strings.Replace(body, `"stream":false,`, "", 1) + c.more + "}"
				got := post(t, s.url+c.api.Path(), body, append(header(prefill), pd.HeaderDestination, decode.addr+","+other.addr, "TE", "trailers")...)
				if got.status != http.StatusOK || got.body != c.want || got.header.Get(pd.HeaderRetry) != "" {
					t.Errorf("%d %s, want %s", got.status, got.body, c.want)
				}
				if moved := got.header.Get(pd.HeaderContinued); moved != "1" {
					t.Errorf("moved %q times", moved)
				}
				other.mustSee(t, body)
				if moved := other.only(t).Header.Get(pd.HeaderContinued); moved != "1" {
					t.Errorf("the other engine is told %q", moved)
				}
				if way == "remote" && got.decision(t).Verdict != pd.Local {
					t.Errorf("decision %v of a prompt that decode has computed", got.decision(t))
				}
				more := []string{}
				if c.cause != "" && way == "local" { // else decode is tried again before
					more = []string{"cause", c.cause}
				}
				s.mustCount(t, 1, "tandem_continuations_total", append(more, "result", "anew")...)
			})
		}
	}
}

// What must not be computed elsewhere is refused as before, so that the proxy tries another pod.
func TestLostAnswerIsNotAskedAnew(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		mode   string
		result string // "": it is not counted
		asked  int    // how often the other engine was
	}{
		"off":        {func(c *Config) { c.Continue.Times = 0 }, "", "", 0},
		"forced":     {nil, pd.ModeForce.String(), "", 0},
		"budget":     {func(c *Config) { c.Continue.Burst = 0 }, "", "budget", 0},
		"denied":     {func(c *Config) { c.Trust.Secrets = func() pd.Secrets { return pd.Secrets{"0123456789abcdef"} } }, "", "no-engine", 0},
		"both fail":  {nil, "", "failed", 1},
		"other full": {nil, "", "failed", 1},
	} {
		t.Run(name, func(t *testing.T) {
			prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, resets)
			other := startEngine(t, map[bool]act{true: says(503, "application/json", "{}"), false: resets}[name == "other full"])
			change := func(*Config) {}
			if c.change != nil {
				change = c.change
			}
			s := startRig(t, decode.addr, goesOn, set(change))
			header := []string{pd.HeaderDestination, decode.addr + "," + other.addr}
			want := pd.NoEndpoint
			if c.mode != "" {
				header, want = append(header, pd.HeaderPrefill, prefill.addr, pd.HeaderMode, c.mode), pd.PrefillFailed
			}
			got := post(t, s.url+completionsPath, ask(false).body, header...)
			if d := got.decision(t); d.Verdict != pd.Refused || d.Reason != want || got.header.Get(pd.HeaderRetry) != "1" {
				t.Errorf("%d %v %s", got.status, d, got.body)
			}
			if n := len(other.requests()); n != c.asked {
				t.Errorf("the other engine was asked %d times, want %d", n, c.asked)
			}
			if c.result == "" {
				s.mustCount(t, 0, "tandem_continuations_total")
				return
			}
			s.mustCount(t, 1, "tandem_continuations_total", "result", c.result)
		})
	}
}

// A request that the local engine never got is left to the proxy: a hung or dead engine would otherwise use up the budget.
func TestUnreachableEngineIsLeftToTheProxy(t *testing.T) {
	other := startEngine(t, says(http.StatusOK, "application/json", wholeAnswer))
	gone := refusingAddr(t)
	s := startRig(t, gone, goesOn)
	got := post(t, s.url+completionsPath, ask(false).body, pd.HeaderDestination, gone+","+other.addr)
	got.mustRefuse(t, http.StatusServiceUnavailable, pd.NoEndpoint)
	other.mustSee(t)
}

// An engine that answers a stream with an error of the request is believed if no other one can answer it.
func TestErrorOfAStreamReachesTheClient(t *testing.T) {
	decode, other := startEngine(t, streams(errorEvent, doneEvent)), startEngine(t, streams(errorEvent, doneEvent))
	s := startRig(t, decode.addr, goesOn)
	got := post(t, s.url+completionsPath, ask(true).body, pd.HeaderDestination, decode.addr+","+other.addr)
	if got.status != http.StatusOK || got.body != errorEvent+doneEvent {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// The engine that has begun to answer anew may die too: a stream goes on from there, and a whole answer is asked of a third engine, as
// often as they may.
func TestAnswerIsLostAgain(t *testing.T) {
	for _, stream := range []bool{true, false} {
		for _, times := range []int{2, 1} {
			t.Run(fmt.Sprintf("stream %t, %d times", stream, times), func(t *testing.T) {
				plain, third := startSim(t, sim.Config{}), startSim(t, sim.Config{})
				decode, second := startEngine(t, resets), startEngine(t, breaks("application/json", "{")).addr
				if stream {
					dying := startSim(t, sim.Config{})
					if err := dying.Faults.Add(die(20)); err != nil {
						t.Fatal(err)
					}
					second = addrOf(dying)
				}
				ask := emojiAsk(pd.APICompletions, map[string]any{"stream": stream})
				s := startRig(t, decode.addr, set(func(c *Config) { c.Continue.Times = times }))
				got := post(t, s.url+completionsPath, ask, pd.HeaderDestination, decode.addr+","+second+","+addrOf(third), "TE", "trailers")
				if times == 1 {
					if kind, _ := lastErrorOf(t, stream, got.body); kind == "" {
						t.Errorf("%d %s", got.status, got.body)
					}
					s.mustCount(t, 1, "tandem_continuations_total", "result", "times")
					return
				}
				if want := alike(t, post(t, plain.URL+completionsPath, ask).body); got.status != http.StatusOK || alike(t, got.body) != want {
					t.Errorf("%d %s\nwant\n%s", got.status, got.body, want)
				}
				if moved := got.header.Get(pd.HeaderContinued) + got.trailer.Get(pd.HeaderContinued); moved != map[bool]string{true: "12", false: "2"}[stream] {
					t.Errorf("moved %q times", moved)
				}
			})
		}
	}
}

// lastErrorOf is lastError, or the error of an answer that is no stream.
func lastErrorOf(t *testing.T, stream bool, answer string) (kind, message string) {
	t.Helper()
	if stream {
		return lastError(t, pd.APICompletions, answer)
	}
	var e openAIError
	if err := json.Unmarshal([]byte(answer), &e); err != nil {
		t.Fatalf("%s: %v", answer, err)
	}
	return e.Error.Code, e.Error.Message
}
