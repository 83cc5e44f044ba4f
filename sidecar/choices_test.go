package sidecar

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/madeup"
	"github.com/tandem-serving/tandem/sim/server"
)

// choicesSaid is what an answer for several choices says, whole or streamed.
type choicesSaid struct {
	texts     []string // by index
	ends      []string // finish reasons, by index
	ids       []string // different ones
	usage     string
	errors    int
	done      int // [DONE]
	afterDone bool
}

// readChoices reads an answer for n choices.
func readChoices(t *testing.T, stream bool, answer string, n int) choicesSaid {
	t.Helper()
	said := choicesSaid{texts: make([]string, n), ends: make([]string, n)}
	events := []string{answer}
	if stream {
		events = strings.Split(strings.TrimSuffix(answer, "\n\n"), "\n\n")
	}
	for _, e := range events {
		said.afterDone = said.afterDone || said.done > 0
		if e = strings.TrimPrefix(e, "data: "); e == "[DONE]" {
			said.done++
			continue
		}
		var in struct {
			ID      string
			Error   any
			Usage   json.RawMessage
			Choices []struct {
				Index          int
				Text           string
				Message, Delta struct{ Content string }
				FinishReason   string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte(e), &in); err != nil {
			t.Fatalf("%s: %v", e, err)
		}
		if in.Error != nil {
			said.errors++
			continue
		}
		if !slices.Contains(said.ids, in.ID) {
			said.ids = append(said.ids, in.ID)
		}
		for _, c := range in.Choices {
			said.texts[c.Index] += c.Text + c.Message.Content + c.Delta.Content
			said.ends[c.Index] += c.FinishReason
		}
		if len(in.Usage) > 0 && string(in.Usage) != "null" {
			said.usage += string(in.Usage)
		}
	}
	return said
}

// choicesAsk returns a request for n choices, sampled with a seed.
func choicesAsk(api pd.API, n, seed, tokens int, stream bool) string {
	prompt := `"prompt":"five words are in here"`
	if api == pd.APIChat {
		prompt = `"messages":[{"role":"user","content":"five words are in here"}]`
	}
	options := ""
	if stream {
		options = `,"stream":true,"stream_options":{"include_usage":true}`
	}
	return fmt.Sprintf(`{"model":"tiny",%s,"n":%d,"seed":%d,"temperature":1,"ignore_eos":true,"max_tokens":%d%s}`, prompt, n, seed, tokens, options)
}

// A request for several choices gets what the engine answers to one request for each, as one answer.
func TestChoices(t *testing.T) {
	for _, api := range []pd.API{pd.APICompletions, pd.APIChat} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%v", api, stream), func(t *testing.T) {
				t.Parallel()
				const n, tokens = 3, 6
				prefill, decode := startMadeUp(t, sim.Config{}, sim.Config{})
				plain := startSim(t, sim.Config{})
				s := startRig(t, addrOf(decode), speaks(madeup.Meeting{}))
				reply := post(t, s.url+api.Path(), choicesAsk(api, n, 7, tokens, stream), pd.HeaderPrefill, addrOf(prefill), "TE", "trailers")
				reply.mustBe(t, 200, "remote;reason=external;attempts=1;candidate=0")
				got := readChoices(t, stream, reply.body, n)
				prompt := 0
				for i := range n {
					want := readChoices(t, false, post(t, plain.URL+api.Path(), choicesAsk(api, 1, 7+i, tokens, false)).body, 1)
					if got.texts[i] != want.texts[0] || want.texts[0] == "" || got.ends[i] != "length" {
						t.Errorf("choice %d is %q (%s), want %q", i, got.texts[i], got.ends[i], want.texts[0])
					}
					prompt = usageOf(t, want.usage).Prompt
				}
				if u := usageOf(t, got.usage); u.Prompt != prompt || u.Completion != n*tokens || u.Total != prompt+n*tokens {
					t.Errorf("usage %s, want %d tokens of the prompt", got.usage, prompt)
				}
				ends := 0
				if stream {
					ends = 1
				}
				if len(got.ids) != 1 || got.done != ends || got.afterDone {
					t.Errorf("ids %q, %d ends", got.ids, got.done)
				}
				outcome := reply.header.Get(pd.HeaderOutcome) + reply.trailer.Get(pd.HeaderOutcome)
				if want := fmt.Sprintf("done;prompt=%d;cached=0;completion=%d", prompt, n*tokens); outcome != want {
					t.Errorf("outcome %q, want %q", outcome, want)
				}
				mustFree(t, prefill, decode)
				s.end()
				s.mustCount(t, 1, "tandem_requests_total", "decision", "remote", "code", "200")
				s.mustCount(t, n, "tandem_leg_seconds", "leg", "prefill", "code", "200")
				s.mustCount(t, n, "tandem_leg_seconds", "leg", "decode", "code", "200")
				s.mustCount(t, 0, "tandem_kv_release_total")
				record, _ := s.record(t, reply.header.Get("X-Request-Id"))
				if len(record.Legs) != 2*n || record.Tokens.Completion != n*tokens {
					t.Errorf("record %+v", record)
				}
			})
		}
	}
}

type usageSaid struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

func usageOf(t *testing.T, usage string) (u usageSaid) {
	t.Helper()
	if err := json.Unmarshal([]byte(usage), &u); err != nil {
		t.Errorf("usage %q: %v", usage, err)
	}
	return u
}

// The prompt is computed once: the other choices are sent when the first one's prefill has ended, and find it in the prefix cache.
func TestChoicesWaitForTheFirstPrefill(t *testing.T) {
	t.Parallel()
	var computed atomic.Bool
	begun, done := make(chan struct{}), make(chan struct{})
	prefill := startEngine(t, func(w http.ResponseWriter, r *asked) {
		<-begun
		computed.Store(true)
		meets(200)(w, r)
		close(done)
	}, func(w http.ResponseWriter, r *asked) {
		if !computed.Load() {
			t.Error("a choice was sent before the prompt was computed")
		}
		meets(200)(w, r)
	})
	decode := startEngine(t, func(w http.ResponseWriter, r *asked) {
		close(begun)
		<-done
		says(200, "application/json", wholeAnswer)(w, r)
	}, says(200, "application/json", wholeAnswer))
	s := startRig(t, decode.addr, speaks(madeup.Meeting{}))
	got := post(t, s.url+completionsPath, `{"model":"m","prompt":"x","n":4}`, pd.HeaderPrefill, prefill.addr)
	got.mustBe(t, 200, "remote;reason=external;attempts=1;candidate=0")
	if n := len(prefill.requests()); n != 4 {
		t.Errorf("%d prefill legs", n)
	}
}

// What goes wrong before the answer begins is not noticed by the client, or is told by a status.
func TestChoicesFaults(t *testing.T) {
	cases := []struct {
		name            string
		prefill, decode *fault.Fault
		options         []option
		status          int
		decision        string
		events          int // of errors, in a stream that has begun
	}{
		{name: "a prefill pod fails once", prefill: &fault.Fault{Leg: "prefill", Fault: "status", Arg: "500", Count: 1}, status: 200,
			decision: "remote;reason=external;attempts=2;candidate=1"},
		{name: "decode refuses one", decode: &fault.Fault{Leg: "decode", Fault: "status", Arg: "400", Count: 1}, status: 400,
			decision: "remote;reason=external;attempts=1;candidate=0"},
		{name: "decode fails once", decode: &fault.Fault{Leg: "decode", Fault: "status", Arg: "500", Count: 1}, status: 200,
			decision: "local;reason=transfer-failed;attempts=1;candidate=0"},
		{name: "decode fails once, and the budget is spent", decode: &fault.Fault{Leg: "decode", Fault: "status", Arg: "500", Count: 1}, options: []option{noBudget},
			status: 503, decision: "refused;reason=budget;attempts=1;candidate=0"},
	}
	for _, c := range cases {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%v", c.name, stream), func(t *testing.T) {
				t.Parallel()
				prefill, decode := startMadeUp(t, sim.Config{}, sim.Config{})
				for s, f := range map[*server.Server]*fault.Fault{prefill: c.prefill, decode: c.decode} {
					if f == nil {
						continue
					}
					if err := s.Faults.Add(*f); err != nil {
						t.Fatal(err)
					}
				}
				s := startRig(t, addrOf(decode), append(c.options, speaks(madeup.Meeting{}))...)
				got := post(t, s.url+completionsPath, choicesAsk(pd.APICompletions, 3, 1, 6, stream), pd.HeaderPrefill, addrOf(prefill)+","+addrOf(prefill))
				got.mustBe(t, c.status, c.decision)
				if c.status == 200 {
					if said := readChoices(t, stream, got.body, 3); slices.Contains(said.texts, "") || said.errors > 0 {
						t.Errorf("%+v", said)
					}
				}
				mustFree(t, prefill, decode)
				s.end()
				s.mustCount(t, 1, "tandem_requests_total")
				s.mustCount(t, 0, "tandem_kv_stranded_total")
			})
		}
	}
}

// perSeed answers the leg of choice i, whose request has the seed i, by the i-th act, and calls to abort a leg.
func perSeed(acts ...act) act {
	return untilAbort(func(w http.ResponseWriter, r *asked) {
		for i, a := range acts {
			if strings.Contains(r.body, fmt.Sprintf(`"seed":%d,`, i)) {
				a(w, r)
				return
			}
		}
	})
}

// choiceEvent is an event of one choice.
const choiceEvent = `data: {"id":"a","choices":[{"index":0,"text":" hel"}]}` + "\n\n"

// What goes wrong in one answer after the stream has begun ends it with one error and one end, and ends the other legs.
func TestChoicesStreamFails(t *testing.T) {
	const errorEvent = `data: {"error":{"message":"out of memory","code":500}}` + "\n\n"
	cases := []struct {
		name  string
		fails act
		text  string // in the error
	}{
		{"breaks off", resets, "broke off"},
		{"ends without its last event", streams(), "broke off"},
		{"reports an error", streams(errorEvent, doneEvent), "out of memory"},
		{"reports an error and breaks off", then(streams(errorEvent), resets), "out of memory"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			first, firstLost := noticed(streams(choiceEvent))
			third, thirdLost := noticed(streams(choiceEvent, choiceEvent))
			begun := newGate()
			prefill := startEngine(t, untilAbort(meets(200)))
			decode := startEngine(t, perSeed(first, then(streams(choiceEvent), begun.act, c.fails), third))
			s := startRig(t, decode.addr, speaks(madeup.Meeting{}))
			resp := mustOpen(t, s.url+completionsPath, choicesAsk(pd.APICompletions, 3, 0, 6, true), pd.HeaderPrefill, prefill.addr, "TE", "trailers")
			begun.open(nil, nil)
			b, err := io.ReadAll(resp.Body)
			got := string(b)
			if d := resp.Header.Get(pd.HeaderDecision); resp.StatusCode != 200 || d != "remote;reason=external;attempts=1;candidate=0" || err != nil {
				t.Errorf("%d %s, %v", resp.StatusCode, d, err)
			}
			wait(t, firstLost, "the first leg to be ended")
			wait(t, thirdLost, "the third leg to be ended")
			for i := range 3 {
				if !strings.Contains(got, fmt.Sprintf(`"index":%d`, i)) {
					t.Errorf("no event of choice %d", i)
				}
			}
			if strings.Count(got, `{"error"`) != 1 || !strings.Contains(got, c.text) {
				t.Error(got)
			}
			if outcome := resp.Trailer.Get(pd.HeaderOutcome); outcome != "error" || strings.Count(got, "[DONE]") > 1 {
				t.Errorf("outcome %q of\n%s", outcome, got)
			}
		})
	}
}

// A stream waits for the first event of the slowest choice; what the others send meanwhile is not lost.
func TestChoicesSlow(t *testing.T) {
	t.Parallel()
	const events = 2000
	slow := newGate()
	sent := make(chan struct{})
	prefill, decode := startEngine(t, untilAbort(meets(200))), startEngine(t, perSeed(
		then(streams(slices.Repeat([]string{choiceEvent}, events)...), func(http.ResponseWriter, *asked) { close(sent) }, streams(doneEvent)),
		then(slow.act, streams(choiceEvent, doneEvent))))
	s := startRig(t, decode.addr, speaks(madeup.Meeting{}))
	answers := make(chan reply, 1)
	go func() {
		answers <- post(t, s.url+completionsPath, choicesAsk(pd.APICompletions, 2, 0, 6, true), pd.HeaderPrefill, prefill.addr)
	}()
	wait(t, slow.arrived, "the second choice's leg")
	wait(t, sent, "the first choice to be sent")
	select {
	case <-answers:
		t.Error("the stream has ended without one of its choices")
	default:
	}
	slow.open(nil, nil)
	got := wait(t, answers, "the answer")
	if n := strings.Count(got.body, `"index":0`); got.status != 200 || n != events {
		t.Errorf("%d events of the first choice", n)
	}
	if strings.Count(got.body, `"index":1`) != 1 || !strings.HasSuffix(got.body, doneEvent) || strings.Count(got.body, "[DONE]") != 1 {
		t.Errorf("the stream ends with %s", tail(got.body))
	}
}

// A client that leaves leaves nothing pinned by any of the choices.
func TestChoicesClientGone(t *testing.T) {
	slow := sim.Config{TimeScale: 20}
	for _, at := range []struct {
		name            string
		prefill, decode sim.Config
	}{{"prefill", slow, sim.Config{}}, {"decode", sim.Config{}, slow}} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%v", at.name, stream), func(t *testing.T) {
				t.Parallel()
				prefill, decode := startMadeUp(t, at.prefill, at.decode)
				s := startRig(t, addrOf(decode), speaks(madeup.Meeting{}))
				ask := strings.TrimSuffix(simAsk(1000, 3000, stream), "}") + `,"n":3}`
				l := startLeaver(t, s.url+completionsPath, ask, pd.HeaderPrefill, addrOf(prefill))
				if at.name == "prefill" {
					mustState(t, prefill, "prefill to run", busy)
				} else {
					mustState(t, decode, "three decodes to run", func(st sim.State) bool { return st.Requests == 3 })
				}
				l.mustLeave(t)
				mustFree(t, prefill, decode)
				s.end()
				s.mustCount(t, 0, "tandem_kv_stranded_total")
				s.mustCount(t, 0, "tandem_kv_release_total", "result", "failed")
				s.mustCount(t, 1, "tandem_requests_total", "code", "499")
			})
		}
	}
}

// A refusal of one choice is complete before it goes to the client, also when the streams of the others have begun.
func TestChoicesSlowRefusal(t *testing.T) {
	t.Parallel()
	const refusal = `{"error":{"message":"no"}}`
	begun, aborted := make(chan struct{}), make(chan struct{})
	legs := perSeed(
		then(func(http.ResponseWriter, *asked) { <-aborted }, streams(choiceEvent), func(http.ResponseWriter, *asked) { close(begun) }, hangs),
		then(chunked(400, "application/json", refusal[:9]), func(w http.ResponseWriter, _ *asked) { // the sidecar aborts what was refused
			<-begun
			_, _ = io.WriteString(w, refusal[9:])
		}))
	once := sync.OnceFunc(func() { close(aborted) })
	prefill, decode := startEngine(t, untilAbort(meets(200))), startEngine(t, func(w http.ResponseWriter, r *asked) {
		if r.URL.Path == "/meeting/abort" {
			once()
		}
		legs(w, r)
	})
	s := startRig(t, decode.addr, speaks(madeup.Meeting{}))
	got := post(t, s.url+completionsPath, choicesAsk(pd.APICompletions, 2, 0, 6, true), pd.HeaderPrefill, prefill.addr)
	if got.mustBe(t, 400, "remote;reason=external;attempts=1;candidate=0"); got.body != refusal {
		t.Errorf("body %q", got.body)
	}
}

// An engine that answers in another way than it was asked is no part of an answer.
func TestChoicesOddAnswers(t *testing.T) {
	t.Parallel()
	whole := says(200, "application/json", wholeAnswer)
	for name, acts := range map[string][]act{
		"a stream answered whole":   {streams(firstEvent, doneEvent), whole},
		"nothing":                   {says(200, "application/json", ""), says(200, "application/json", "")},
		"no JSON":                   {says(200, "application/json", "{"), says(200, "application/json", "{")},
		"a whole answer as streams": {whole, streams(firstEvent, doneEvent)},
	} {
		t.Run(name, func(t *testing.T) {
			prefill, decode := startEngine(t, untilAbort(meets(200))), startEngine(t, perSeed(acts...))
			s := startRig(t, decode.addr, speaks(madeup.Meeting{}), noBudget)
			got := post(t, s.url+completionsPath, choicesAsk(pd.APICompletions, 2, 0, 6, name == "a stream answered whole"), pd.HeaderPrefill, prefill.addr)
			if got.status < 500 || got.decision(t).Verdict != pd.Refused {
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
}

// At the end of a drain, the stream of several choices ends with one error that says why, and a request without an answer is refused.
func TestChoicesDrain(t *testing.T) {
	t.Parallel()
	t.Run("stream", func(t *testing.T) {
		one := then(streams(choiceEvent), hangs)
		prefill, decode := startEngine(t, untilAbort(meets(200))), startEngine(t, perSeed(one, one))
		s := startRig(t, decode.addr, speaks(madeup.Meeting{}))
		resp := mustOpen(t, s.url+completionsPath, choicesAsk(pd.APICompletions, 2, 0, 6, true), pd.HeaderPrefill, prefill.addr)
		readEvent(t, resp.Body)
		s.Drain(expired())
		rest, err := io.ReadAll(resp.Body)
		if _, message := lastError(t, pd.APICompletions, string(rest)); err != nil || !strings.Contains(message, "shutting down") || strings.Count(string(rest), "[DONE]") != 1 {
			t.Errorf("rest %s, %v", rest, err)
		}
	})
	t.Run("before the answer", func(t *testing.T) {
		g := newGate()
		prefill := startEngine(t, untilAbort(meets(200)))
		decode := startEngine(t, perSeed(says(200, "application/json", wholeAnswer), g.act))
		s := startRig(t, decode.addr, speaks(madeup.Meeting{}))
		answers := make(chan reply, 1)
		go func() {
			answers <- post(t, s.url+completionsPath, choicesAsk(pd.APICompletions, 2, 0, 6, false), pd.HeaderPrefill, prefill.addr)
		}()
		wait(t, g.arrived, "the second decode leg")
		s.Drain(expired())
		wait(t, answers, "the answer").mustRefuse(t, http.StatusServiceUnavailable, pd.Draining)
	})
}
