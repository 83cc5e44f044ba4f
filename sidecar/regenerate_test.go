package sidecar

import (
	"encoding/json"
	"fmt"
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

// emojiAskIn is emojiAsk for a shorter stream, also of responses and messages.
func emojiAskIn(t *testing.T, api pd.API, more map[string]any) string {
	t.Helper()
	var q map[string]any
	of := pd.APIChat
	if api == pd.APICompletions {
		of = api
	}
	if err := json.Unmarshal([]byte(emojiAsk(of, nil)), &q); err != nil {
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

// alikeIn is alike for all APIs. A stream of responses or messages has one id of each kind.
func alikeIn(t *testing.T, api pd.API, stream string) string {
	t.Helper()
	if api == pd.APIChat || api == pd.APICompletions {
		return alike(t, stream)
	}
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

// Decode dies after each event of a stream that no engine can go on with from its token ids, and the client gets the bytes of an undisturbed one.
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
		"chat, structured":         {pd.APIChat, map[string]any{"response_format": map[string]any{"type": "json_object"}}, "local", 1, 1},
		"chat, structured, remote": {pd.APIChat, map[string]any{"response_format": map[string]any{"type": "json_object"}}, "remote", 4, 5},
		"chat, a seed":             {pd.APIChat, map[string]any{"seed": 7, "temperature": 1}, "local", 4, 5},
		"chat, penalties":          {pd.APIChat, map[string]any{"frequency_penalty": 0.5, "stream_options": map[string]any{"include_usage": true}}, "local", 3, 1},
		"chat, tools":              {pd.APIChat, map[string]any{"tools": []any{map[string]any{"type": "function", "function": map[string]any{"name": "f"}}}, "seed": 7, "temperature": 1}, "local", 4, 5},
		"chat, ids":                {pd.APIChat, map[string]any{"seed": 7, "temperature": 1, "return_token_ids": true, "logprobs": true}, "local", 4, 1},
		"chat, an image": {pd.APIChat, map[string]any{"messages": []any{map[string]any{"role": "user", "content": []any{
			map[string]any{"type": "text", "text": "what is it"}, map[string]any{"type": "image_url", "image_url": map[string]any{"url": "data:image/gif;base64,R0lGODlh"}}}}}}, "local", 4, 5},
		"completions, penalties": {pd.APICompletions, map[string]any{"presence_penalty": 0.5}, "local", 1, 1},
		"completions, running": {pd.APICompletions, map[string]any{"presence_penalty": 0.5, "logprobs": 1,
			"stream_options": map[string]any{"include_usage": true, "continuous_usage_stats": true}}, "local", 4, 1},
		"completions, a long stop, remote": {pd.APICompletions, map[string]any{"stop": strings.Repeat("a", 1001)}, "remote", 4, 5},
	} {
		t.Run(name, func(t *testing.T) {
			plain, ask := startSim(t, sim.Config{}), emojiAskIn(t, c.api, c.more)
			want := alikeIn(t, c.api, post(t, plain.URL+c.api.Path(), ask).body)
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
				if body := alikeIn(t, c.api, got.body); body != want {
					t.Fatalf("killed after %d of %d events: %s", at, events, difference(body, want))
				}
				onlyEnd := at == events-1 && strings.HasSuffix(want, doneEvent)
				if moved := got.trailer.Get(pd.HeaderContinued); moved != "1" && !onlyEnd {
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
	for _, api := range []pd.API{pd.APIMessages, pd.APIResponses, pd.APIChat, pd.APICompletions} {
		for name, at := range map[string][3]int{"before": {10, 6, 8}, "after": {6, 8, 10}} {
			t.Run(api.String()+", "+name, func(t *testing.T) {
				plain, last := startSim(t, sim.Config{}), startSim(t, sim.Config{})
				var more map[string]any
				if api == pd.APIChat || api == pd.APICompletions {
					more = map[string]any{"presence_penalty": 0.5}
				}
				ask := emojiAskIn(t, api, more)
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
				if body, want := alikeIn(t, api, got.body), alikeIn(t, api, post(t, plain.URL+api.Path(), ask).body); body != want {
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
		"chance, chat":            {pd.APIChat, map[string]any{"temperature": 0.5, "response_format": map[string]any{"type": "json_object"}}, nil, "structured"},
		"several choices":         {pd.APICompletions, map[string]any{"n": 2, "seed": 7, "temperature": 1}, nil, "choices"},
		"the limit, chat":         {pd.APIChat, map[string]any{"presence_penalty": 0.5}, func(c *Config) { c.Continue.Burst = 0 }, "budget"},
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

// A stream with tool calls is generated again. Each call has one id, also if the client gets it in parts of two engines.
func TestToolCallsAreRegenerated(t *testing.T) {
	events := func(id string) []string {
		var all []string
		for _, delta := range []string{`{"role":"assistant","content":""}`, `{"reasoning":"I think"}`, `{"tool_calls":[{"index":0,"id":"call-` + id + `","type":"function","function":{"name":"f","arguments":"{"}}]}`,
			`{"tool_calls":[{"index":0,"function":{"arguments":"\"a\":1"}}]}`, `{"tool_calls":[{"index":0,"function":{"arguments":"}"}}]}`} {
			all = append(all, fmt.Sprintf(`data: {"id":"chatcmpl-%s","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":null}]}`+"\n\n", id, delta))
		}
		return append(all, `data: {"id":"chatcmpl-`+id+`","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}]}`+"\n\n", doneEvent)
	}
	first := events("1")
	for at := 2; at < len(first); at++ {
		decode, other := startEngine(t, then(streams(first[:at]...), closes)), startEngine(t, streams(events("2")...))
		s := startRig(t, decode.addr, goesOn)
		got := post(t, s.url+pd.APIChat.Path(), `{"messages":[],"stream":true,"seed":1,"tools":[{"type":"function","function":{"name":"f"}}]}`, pd.HeaderDestination, decode.addr+","+other.addr)
		want := strings.Join(first, "")
		if at == 2 { // the client has not seen the first engine's call
			want = strings.ReplaceAll(want, "call-1", "call-2")
		}
		if got.body != want {
			t.Errorf("after %d events: %s", at, difference(got.body, want))
		}
		moves := 1.0
		if at == len(first)-1 { // only the end lacks
			moves = 0
		}
		s.mustCount(t, moves, "tandem_continuations_total", "result", "ok")
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
	for api, more := range map[pd.API]map[string]any{pd.APIMessages: nil, pd.APIChat: {"presence_penalty": 0.5}} {
		t.Run(api.String(), func(t *testing.T) { mustStay(t, api, more) })
	}
}

func mustStay(t *testing.T, api pd.API, more map[string]any) {
	t.Helper()
	decode, other, plain := startSim(t, sim.Config{}), startSim(t, sim.Config{}), startSim(t, sim.Config{})
	if err := decode.Faults.Add(fault.Fault{Leg: "decode", Fault: fault.Slow, Arg: fault.Forever, At: "10"}); err != nil {
		t.Fatal(err)
	}
	s, ask := startRig(t, addrOf(decode), goesOn), emojiAskIn(t, api, more)
	resp := mustOpen(t, s.url+api.Path(), ask, pd.HeaderDestination, addrOf(decode)+","+addrOf(other))
	got := readEvent(t, resp.Body)
	s.Evacuate()
	decode.Faults.Clear()
	rest, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if body, want := alikeIn(t, api, got+string(rest)), alikeIn(t, api, post(t, plain.URL+api.Path(), ask).body); body != want {
		t.Error(difference(body, want))
	}
	s.mustCount(t, 0, "tandem_continuations_total", "cause", "left", "result", "ok")
}
