package sidecar

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
)

// emojiAskIn is emojiAsk in the form of responses or messages, for a shorter stream.
func emojiAskIn(t *testing.T, api pd.API, more map[string]any) string {
	t.Helper()
	var q map[string]any
	if err := json.Unmarshal([]byte(emojiAsk(pd.APIChat, nil)), &q); err != nil {
		t.Fatal(err)
	}
	q["max_tokens"] = 24
	if api == pd.APIResponses {
		q["max_output_tokens"], q["input"] = q["max_tokens"], "how do 😀 feel about caches of keys and values"
		delete(q, "max_tokens")
		delete(q, "messages")
	}
	maps.Copy(q, more)
	b, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var (
	madeUpIDs = regexp.MustCompile(`"(resp_|msg_|chatcmpl-)[0-9a-f-]+"`)
	createdAt = regexp.MustCompile(`"created_at":\d+`)
)

// alikeIn is alike for a stream of responses or messages: it has one id of each kind.
func alikeIn(t *testing.T, stream string) string {
	t.Helper()
	for _, own := range []*regexp.Regexp{madeUpIDs, createdAt} {
		values := map[string]string{}
		for _, m := range own.FindAllStringSubmatch(stream, -1) {
			kind := m[len(m)-1]
			if own == createdAt {
				kind = ""
			}
			if other, ok := values[kind]; ok && other != m[0] {
				t.Errorf("one stream with %s and %s", other, m[0])
			}
			values[kind] = m[0]
		}
	}
	return createdAt.ReplaceAllString(madeUpIDs.ReplaceAllString(stream, `"${1}1"`), `"created_at":1`)
}

// Decode dies after each event of a stream of responses or messages, and the client gets the bytes of an undisturbed one.
func TestStreamIsRegeneratedAtEveryToken(t *testing.T) {
	for name, c := range map[string]struct {
		api         pd.API
		more        map[string]any
		way         string
		first, step int // events of the first try, and between two of them; after the first ones a hand-off is not yet read
	}{
		"messages":                 {pd.APIMessages, nil, "local", 1, 1},
		"messages, remote":         {pd.APIMessages, nil, "remote", 4, 5},
		"responses":                {pd.APIResponses, nil, "local", 1, 1},
		"responses, remote":        {pd.APIResponses, nil, "remote", 4, 5},
		"responses, a seed":        {pd.APIResponses, map[string]any{"seed": 7, "temperature": 1}, "local", 4, 5},
		"messages, stop sequences": {pd.APIMessages, map[string]any{"stop_sequences": []string{"never😀"}}, "local", 4, 5},
	} {
		t.Run(name, func(t *testing.T) {
			plain, ask := startSim(t, sim.Config{}), emojiAskIn(t, c.api, c.more)
			want := alikeIn(t, post(t, plain.URL+c.api.Path(), ask).body)
			events := strings.Count(want, "data: ")
			if events < 12 {
				t.Fatalf("an undisturbed stream has %d events: %s", events, want)
			}
			if c.way == "remote" { // the usage of an undisturbed pair says less of caches
				events--
			}
			for at := c.first; at < events; at += c.step {
				prefill, decode, other := startSim(t, sim.Config{}), startSim(t, sim.Config{}), startSim(t, sim.Config{})
				if err := decode.Faults.Add(die(at)); err != nil {
					t.Fatal(err)
				}
				s := startRig(t, addrOf(decode), goesOn)
				header := []string{pd.HeaderDestination, addrOf(decode) + "," + addrOf(other), "TE", "trailers"}
				if c.way == "remote" {
					header = append(header, pd.HeaderPrefill, addrOf(prefill))
				}
				got := post(t, s.url+c.api.Path(), ask, header...)
				if body := alikeIn(t, got.body); body != want {
					t.Fatalf("killed after %d of %d events: %s", at, events, difference(body, want))
				}
				if moved := got.trailer.Get(pd.HeaderContinued); moved != "1" {
					t.Errorf("killed after %d of %d events: moved %q times", at, events, moved)
				}
				s.end()
				mustFree(t, prefill, other)
			}
		})
	}
}

// The engine that generates a stream again dies too, before it has said all that the client has, and after it.
func TestStreamIsRegeneratedAgain(t *testing.T) {
	for _, api := range []pd.API{pd.APIMessages, pd.APIResponses} {
		for name, at := range map[string][3]int{"before": {10, 6, 8}, "after": {6, 8, 10}} {
			t.Run(api.String()+", "+name, func(t *testing.T) {
				plain, last, ask := startSim(t, sim.Config{}), startSim(t, sim.Config{}), emojiAskIn(t, api, nil)
				pods := ""
				var local string
				for i, events := range at {
					e := startSim(t, sim.Config{})
					if err := e.Faults.Add(die(events)); err != nil {
						t.Fatal(err)
					}
					if i == 0 {
						local = addrOf(e)
					}
					pods += addrOf(e) + ","
				}
				s := startRig(t, local, goesOn)
				got := post(t, s.url+api.Path(), ask, pd.HeaderDestination, pods+addrOf(last))
				if body, want := alikeIn(t, got.body), alikeIn(t, post(t, plain.URL+api.Path(), ask).body); body != want {
					t.Error(difference(body, want))
				}
				s.mustCount(t, 3, "tandem_continuations_total", "result", "ok")
			})
		}
	}
}

// A stream whose text another engine would not say again ends with the API's own error event, and says why.
func TestStreamIsNotRegenerated(t *testing.T) {
	const messages, responses = pd.APIMessages, pd.APIResponses
	for name, c := range map[string]struct {
		api    pd.API
		more   map[string]any
		change func(*Config)
		result string
	}{
		"chance":                  {messages, map[string]any{"temperature": 0.5}, nil, "sampled"},
		"the engine's default":    {messages, map[string]any{"temperature": nil}, nil, "sampled"},
		"a seed that is none":     {messages, map[string]any{"temperature": 1, "seed": 1}, nil, "sampled"},
		"chance, responses":       {responses, map[string]any{"temperature": 1}, nil, "sampled"},
		"tools of the engine":     {responses, map[string]any{"tools": []any{map[string]any{"type": "web_search"}}}, nil, "tools"},
		"memory":                  {messages, nil, func(c *Config) { c.Continue.Memory = 10 }, "memory"},
		"the limit":               {responses, nil, func(c *Config) { c.Continue.Burst = 0 }, "budget"},
		"an engine of other text": {messages, nil, nil, "differs"},
	} {
		t.Run(name, func(t *testing.T) {
			decode, other := startSim(t, sim.Config{}), startSim(t, sim.Config{})
			if err := decode.Faults.Add(die(8)); err != nil {
				t.Fatal(err)
			}
			pods := addrOf(decode) + "," + addrOf(other)
			if c.result == "differs" {
				const start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"chatcmpl-1\"}}\n\n"
				pods = addrOf(decode) + "," + startEngine(t, streams(start, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"text\",\"text\":\"\"},\"index\":0}\n\n",
					"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"other "+strings.Repeat("text", 50)+"\"},\"index\":0}\n\n",
					"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")).addr
			}
			change := func(*Config) {}
			if c.change != nil {
				change = c.change
			}
			s := startRig(t, addrOf(decode), goesOn, set(change))
			got := post(t, s.url+c.api.Path(), emojiAskIn(t, c.api, c.more), pd.HeaderDestination, pods)
			if kind, _ := lastError(t, c.api, got.body); got.status != http.StatusOK || kind == "" {
				t.Errorf("%d %s", got.status, got.body)
			}
			if strings.Contains(got.body, "other text") {
				t.Errorf("the client gets another text: %s", got.body)
			}
			s.mustCount(t, 1, "tandem_continuations_total", "result", c.result)
		})
	}
}

// An engine's error event in the middle of a stream that is not generated again reaches the client as it is.
func TestErrorInAStreamOfMessages(t *testing.T) {
	const block = "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"content_block\":{\"type\":\"text\",\"text\":\"\"},\"index\":0}\n\n"
	const failure = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"internal_error\",\"message\":\"EngineCore died\"}}\n\n"
	decode := startEngine(t, streams(block, failure))
	s := startRig(t, decode.addr, goesOn)
	got := post(t, s.url+pd.APIMessages.Path(), emojiAskIn(t, pd.APIMessages, nil))
	if got.body != block+failure {
		t.Errorf("%d %s", got.status, got.body)
	}
	s.mustCount(t, 1, "tandem_continuations_total", "cause", "error", "result", "no-engine")
}

// A stream that would be generated again stays at an engine that is to end.
func TestRegeneratedStreamsStay(t *testing.T) {
	decode, other, plain := startSim(t, sim.Config{}), startSim(t, sim.Config{}), startSim(t, sim.Config{})
	if err := decode.Faults.Add(fault.Fault{Leg: "decode", Fault: fault.Slow, Arg: fault.Forever, At: "10"}); err != nil {
		t.Fatal(err)
	}
	s, ask := startRig(t, addrOf(decode), goesOn), emojiAskIn(t, pd.APIMessages, nil)
	resp := mustOpen(t, s.url+pd.APIMessages.Path(), ask, pd.HeaderDestination, addrOf(decode)+","+addrOf(other))
	got := readEvent(t, resp.Body)
	s.Evacuate()
	decode.Faults.Clear()
	rest, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if body, want := alikeIn(t, got+string(rest)), alikeIn(t, post(t, plain.URL+pd.APIMessages.Path(), ask).body); body != want {
		t.Error(difference(body, want))
	}
	s.mustCount(t, 0, "tandem_continuations_total", "cause", "left", "result", "ok")
}
