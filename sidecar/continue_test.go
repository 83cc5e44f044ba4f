package sidecar

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/server"
)

// goesOn lets streams go on at another engine.
var goesOn = set(func(c *Config) { c.Continue.Times = 3 })

// emojiTokens is how many tokens the streams of these tests have.
const emojiTokens = 60

// emojiAsk returns a greedy request for a stream of letters, and of bytes of which some form characters of two and four bytes.
func emojiAsk(api pd.API, more map[string]any) string {
	var bytes []int
	for _, c := range []byte("ab\u00e9😀") {
		bytes = append(bytes, model.FirstByte+int(c))
	}
	q := map[string]any{"model": "tiny", "max_tokens": emojiTokens, "stream": true, "temperature": 0, "allowed_token_ids": bytes,
		"ignore_eos": true}
	switch api {
	case pd.APIChat:
		q["messages"] = []any{map[string]any{"role": "user", "content": "how do 😀 feel about caches of keys and values"}}
	default:
		q["prompt"] = "how do 😀 feel about caches of keys and values"
	}
	maps.Copy(q, more)
	b, err := json.Marshal(q)
	if err != nil {
		panic(err) // numbers and strings always marshal
	}
	return string(b)
}

// occurs stands for a stop string of three characters that occurs late in the text for the first time.
const occurs = "occurs"

// withStop is emojiAsk with a stop string that occurs in place of occurs.
func withStop(t *testing.T, url string, api pd.API, more map[string]any) string {
	t.Helper()
	ask := emojiAsk(api, more)
	if !strings.Contains(ask, occurs) {
		return ask
	}
	more = maps.Clone(more)
	for _, name := range []string{"stop", "stream_options"} {
		delete(more, name)
	}
	more["stream"] = false
	var answer struct {
		Choices []struct {
			Text    string
			Message struct{ Content string }
		}
	}
	if err := json.Unmarshal([]byte(post(t, url+api.Path(), emojiAsk(api, more)).body), &answer); err != nil {
		t.Fatal(err)
	}
	text := []rune(answer.Choices[0].Text + answer.Choices[0].Message.Content)
	for at := min(len(text), 30) / 2; at+3 < len(text); at++ {
		if stop := string(text[at : at+3]); strings.Index(string(text), stop) == len(string(text[:at])) && !strings.ContainsRune(stop, '\ufffd') {
			quoted, err := json.Marshal(stop)
			if err != nil {
				t.Fatal(err)
			}
			return strings.ReplaceAll(ask, `"`+occurs+`"`, string(quoted))
		}
	}
	t.Fatalf("no text of three characters occurs once in %q", string(text))
	return ""
}

var fingerprint = regexp.MustCompile(`"system_fingerprint":"[^"]*"`) // of the engine that ended the stream

var createdCache = regexp.MustCompile(`,"created_cache_tokens":\d+`) // only the first engine, and only of chat, says it

var ownMembers = regexp.MustCompile(`"id":"[^"]*","object":"([^"]*)","created":\d+`)

// alike replaces what two runs of one request may differ in: the id and the time, of which one answer has one each.
func alike(t *testing.T, stream string) string {
	t.Helper()
	distinct := map[string]bool{}
	for _, own := range ownMembers.FindAllString(stream, -1) {
		distinct[own] = true
	}
	if len(distinct) > 1 {
		t.Errorf("one stream with several ids, times or objects: %v", distinct)
	}
	stream = createdCache.ReplaceAllString(stream, "")
	return fingerprint.ReplaceAllString(ownMembers.ReplaceAllString(stream, `"object":"$1"`), `"system_fingerprint":"…"`)
}

// difference returns the first events in which two streams differ.
func difference(got, want string) string {
	a, b := strings.SplitAfter(got, "\n\n"), strings.SplitAfter(want, "\n\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("event %d is\n%swant\n%s", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d events, want %d", len(a), len(b))
}

// die has an engine die after some events of its next stream.
func die(events int) fault.Fault {
	return fault.Fault{Leg: "decode", Fault: fault.Crash, At: strconv.Itoa(events)}
}

// Decode dies after each event of a stream, and the client gets the bytes of an undisturbed one.
func TestStreamGoesOnAtEveryToken(t *testing.T) {
	for name, c := range map[string]struct {
		api  pd.API
		more map[string]any
		step int // events between two tries, but for the first and the last ones
	}{
		"completions":              {pd.APICompletions, nil, 1},
		"completions, usage":       {pd.APICompletions, map[string]any{"stream_options": map[string]any{"include_usage": true}}, 7},
		"completions, running":     {pd.APICompletions, map[string]any{"stream_options": map[string]any{"include_usage": true, "continuous_usage_stats": true}}, 7},
		"completions, ids":         {pd.APICompletions, map[string]any{"return_token_ids": true}, 7},
		"completions, logprobs":    {pd.APICompletions, map[string]any{"logprobs": 1}, 7},
		"completions, least":       {pd.APICompletions, map[string]any{"min_tokens": 50, "ignore_eos": false}, 7},
		"completions, stop":        {pd.APICompletions, map[string]any{"stop": []string{"é"}, "min_tokens": 20}, 7},
		"chat":                     {pd.APIChat, nil, 1},
		"chat, ids":                {pd.APIChat, map[string]any{"return_token_ids": true}, 7},
		"completions, stops":       {pd.APICompletions, map[string]any{"stop": []string{occurs, "never"}}, 2},
		"completions, stops, all":  {pd.APICompletions, map[string]any{"stop": []string{occurs, "xyz"}, "stream_options": map[string]any{"include_usage": true, "continuous_usage_stats": true}}, 9},
		"completions, stops, none": {pd.APICompletions, map[string]any{"stop": []string{"never😀"}}, 9},
		"completions, stop stays":  {pd.APICompletions, map[string]any{"stop": occurs, "include_stop_str_in_output": true, "logprobs": 1, "return_token_ids": true}, 9},
		"completions, stop late":   {pd.APICompletions, map[string]any{"stop": occurs, "min_tokens": 45}, 9},
		"chat, stops":              {pd.APIChat, map[string]any{"stop": []string{occurs, "never"}, "stream_options": map[string]any{"include_usage": true}}, 2},
		"chat, stops, no limit":    {pd.APIChat, map[string]any{"stop": occurs, "max_tokens": nil}, 9},
		"chat, logprobs":           {pd.APIChat, map[string]any{"logprobs": true}, 9},
		"chat, alternatives": {pd.APIChat, map[string]any{"logprobs": true, "top_logprobs": 2, "return_token_ids": true,
			"allowed_token_ids": []int{model.FirstByte + 'a', model.FirstByte + 'd', model.FirstByte + '\n', model.FirstByte + '"'}}, 9},
		"chat, no limit": {pd.APIChat, map[string]any{"max_tokens": nil, "stop_token_ids": []int{model.FirstByte + 'a'}, "min_tokens": 30}, 7},
	} {
		t.Run(name, func(t *testing.T) {
			prefill, other, plain := startSim(t, sim.Config{}), startSim(t, sim.Config{}), startSim(t, sim.Config{})
			ask := withStop(t, plain.URL, c.api, c.more)
			want := alike(t, post(t, plain.URL+c.api.Path(), ask).body)
			events := strings.Count(want, "data: ")
			post(t, other.URL+c.api.Path(), ask) // its cache has the prompt too, as usage says
			for at := 1; at < events; at++ {
				if at > 1 && at%c.step != 0 && at < events-3 {
					continue
				}
				decode := startSim(t, sim.Config{})
				if err := decode.Faults.Add(die(at)); err != nil {
					t.Fatal(err)
				}
				s := startRig(t, addrOf(decode), goesOn)
				got := post(t, s.url+c.api.Path(), ask, pd.HeaderPrefill, addrOf(prefill), pd.HeaderDestination, addrOf(decode)+","+addrOf(other), "TE", "trailers")
				if body := alike(t, got.body); body != want {
					t.Fatalf("killed after %d of %d events: %s", at, events, difference(body, want))
				}
				if moved := got.trailer.Get(pd.HeaderContinued); moved != "1" && at < events-2 {
					t.Errorf("killed after %d events: moved %q times", at, moved)
				}
				s.end()
				mustFree(t, prefill, other)
			}
		})
	}
}

// A request of unknown length, as Envoy sends it on, goes on where one engine serves it too.
func TestStreamOfUnknownLengthGoesOn(t *testing.T) {
	prefill, other, plain := startSim(t, sim.Config{}), startSim(t, sim.Config{}), startSim(t, sim.Config{})
	ask := emojiAsk(pd.APIChat, nil)
	want := alike(t, post(t, plain.URL+pd.APIChat.Path(), ask).body)
	for name, header := range map[string][]string{"remote": {pd.HeaderPrefill, addrOf(prefill)}, "local": nil} {
		t.Run(name, func(t *testing.T) {
			decode := startSim(t, sim.Config{})
			if err := decode.Faults.Add(die(20)); err != nil {
				t.Fatal(err)
			}
			s := startRig(t, addrOf(decode), goesOn)
			resp, err := open(t, within(t), http.MethodPost, s.url+pd.APIChat.Path(), io.MultiReader(strings.NewReader(ask)),
				append(header, pd.HeaderDestination, addrOf(decode)+","+addrOf(other))...)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			if got := alike(t, string(got)); got != want {
				t.Error(difference(got, want))
			}
		})
	}
	t.Run("too long", func(t *testing.T) {
		engine := startEngine(t, streams(firstEvent, doneEvent))
		s := startRig(t, engine.addr, goesOn)
		long := `{"model":"m","prompt":"` + strings.Repeat("a", 3<<20) + `","stream":true}`
		resp, err := open(t, within(t), http.MethodPost, s.url+completionsPath, io.MultiReader(strings.NewReader(long)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if got := engine.requests(); len(got) != 1 || got[0].body != long {
			t.Errorf("%d requests, the first one not as it was sent", len(got))
		}
	})
}

// A stream goes on as often as it may, and then ends with an error.
func TestStreamGoesOnAgain(t *testing.T) {
	for _, times := range []int{2, 1} {
		t.Run(fmt.Sprint(times), func(t *testing.T) {
			plain, last := startSim(t, sim.Config{}), startSim(t, sim.Config{})
			decode, second := startSim(t, sim.Config{}), startSim(t, sim.Config{})
			for i, e := range []*fault.List{decode.Faults, second.Faults} {
				if err := e.Add(die(10 + i)); err != nil {
					t.Fatal(err)
				}
			}
			s := startRig(t, addrOf(decode), set(func(c *Config) { c.Continue.Times = times }))
			ask := emojiAsk(pd.APICompletions, nil)
			got := post(t, s.url+completionsPath, ask, pd.HeaderDestination, addrOf(decode)+","+addrOf(second)+","+addrOf(last), "TE", "trailers")
			want := alike(t, post(t, plain.URL+completionsPath, ask).body)
			if times == 2 {
				if body := alike(t, got.body); body != want {
					t.Error(difference(body, want))
				}
				s.mustCount(t, 2, "tandem_continuations_total", "result", "ok")
				return
			}
			if kind, _ := lastError(t, pd.APICompletions, got.body); kind == "" {
				t.Errorf("no error at the end of %s", got.body)
			}
			s.mustCount(t, 1, "tandem_continuations_total", "result", "times")
		})
	}
}

// A stream does not come back to an engine that has broken it off and lives, whether that was to go on with it or to answer from the beginning.
func TestStreamAvoidsEnginesThatFailedIt(t *testing.T) {
	for name, lost := range map[string]fault.Fault{
		"goes on": {Leg: fault.LegDecode, Fault: fault.ResetAfter, At: "10"},
		"anew":    {Leg: fault.LegDecode, Fault: fault.ResetBefore},
	} {
		t.Run(name, func(t *testing.T) {
			plain, decode, second, third := startSim(t, sim.Config{}), startSim(t, sim.Config{}), startSim(t, sim.Config{}), startSim(t, sim.Config{})
			if err := decode.Faults.Add(lost); err != nil {
				t.Fatal(err)
			}
			if err := second.Faults.Add(fault.Fault{Leg: fault.LegDecode, Fault: fault.ResetAfter, At: "3"}); err != nil {
				t.Fatal(err)
			}
			s := startRig(t, addrOf(decode), set(func(c *Config) { c.Continue.Times = 2 })) // once for each engine that fails
			ask := emojiAsk(pd.APICompletions, nil)
			got := post(t, s.url+completionsPath, ask, pd.HeaderDestination, addrOf(decode)+","+addrOf(second)+","+addrOf(third))
			if body, want := alike(t, got.body), alike(t, post(t, plain.URL+completionsPath, ask).body); body != want {
				t.Error(difference(body, want))
			}
			mustFree(t, second, third)
		})
	}
}

// The prefill pod of a request goes on with it, if that is allowed.
func TestStreamGoesOnAtPrefill(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		prefill, decode, plain := startSim(t, sim.Config{}), startSim(t, sim.Config{}), startSim(t, sim.Config{})
		if err := decode.Faults.Add(die(20)); err != nil {
			t.Fatal(err)
		}
		s := startRig(t, addrOf(decode), goesOn, set(func(c *Config) { c.Continue.OnPrefill = allowed }))
		ask := emojiAsk(pd.APICompletions, nil)
		got := post(t, s.url+completionsPath, ask, pd.HeaderPrefill, addrOf(prefill))
		whole := alike(t, got.body) == alike(t, post(t, plain.URL+completionsPath, ask).body)
		if whole != allowed {
			t.Errorf("allowed %v: %s", allowed, got.body)
		}
		if !allowed {
			s.mustCount(t, 1, "tandem_continuations_total", "result", "no-engine")
		}
	}
}

// What cannot be continued exactly ends as before, and says why.
func TestStreamDoesNotGoOn(t *testing.T) {
	for name, c := range map[string]struct {
		api    pd.API
		more   map[string]any
		change func(*Config)
		result string
	}{
		"penalties":  {pd.APICompletions, map[string]any{"presence_penalty": 0.5, "temperature": 1}, nil, "penalties"},
		"structured": {pd.APICompletions, map[string]any{"structured_outputs": map[string]any{"regex": "[ab]*"}, "temperature": 1}, nil, "structured"},
		"format":     {pd.APIChat, map[string]any{"response_format": map[string]any{"type": "json_object"}, "temperature": 1}, nil, "structured"},
		"stop":       {pd.APICompletions, map[string]any{"stop": strings.Repeat("a", 1001), "temperature": 1}, nil, "stop"},
		"tools":      {pd.APIChat, map[string]any{"tools": []any{map[string]any{"type": "function"}}, "temperature": 1}, nil, "tools"},
		"choices":    {pd.APICompletions, map[string]any{"n": 2, "temperature": 1}, nil, "choices"},
		"batch":      {pd.APICompletions, map[string]any{"prompt": []string{"a", "b"}}, nil, "choices"},
		"logprobs":   {pd.APIChat, map[string]any{"prompt_logprobs": 1, "temperature": 1}, nil, "logprobs"},
		"budget":     {pd.APICompletions, nil, func(c *Config) { c.Continue.Burst = 0 }, "budget"},
		"memory":     {pd.APICompletions, nil, func(c *Config) { c.Continue.Memory = 10 }, "memory"},
	} {
		t.Run(name, func(t *testing.T) {
			decode, other := startSim(t, sim.Config{}), startSim(t, sim.Config{})
			if err := decode.Faults.Add(die(20)); err != nil {
				t.Fatal(err)
			}
			change := func(*Config) {}
			if c.change != nil {
				change = c.change
			}
			s := startRig(t, addrOf(decode), goesOn, set(change))
			got := post(t, s.url+c.api.Path(), emojiAsk(c.api, c.more), pd.HeaderDestination, addrOf(decode)+","+addrOf(other))
			if kind, _ := lastError(t, c.api, got.body); got.status != http.StatusOK || kind == "" {
				t.Errorf("%d %s", got.status, got.body)
			}
			if strings.Contains(got.body, `"token_ids":[`) {
				t.Errorf("the client gets ids that it has not asked for: %s", got.body)
			}
			s.mustCount(t, 1, "tandem_continuations_total", "result", c.result)
		})
	}
}

// Only engines that are allowed get prompts, and only at the request of a picker.
func TestStreamGoesOnOnlyWhereAllowed(t *testing.T) {
	decode, other := startSim(t, sim.Config{}), startSim(t, sim.Config{})
	if err := decode.Faults.Add(die(5)); err != nil {
		t.Fatal(err)
	}
	secret := set(func(c *Config) { c.Trust.Secrets = func() pd.Secrets { return pd.Secrets{"0123456789abcdef"} } })
	s := startRig(t, addrOf(decode), goesOn, secret)
	got := post(t, s.url+completionsPath, emojiAsk(pd.APICompletions, nil), pd.HeaderDestination, addrOf(other))
	if kind, _ := lastError(t, pd.APICompletions, got.body); kind == "" {
		t.Errorf("%d %s", got.status, got.body)
	}
	s.mustCount(t, 1, "tandem_continuations_total", "result", "no-engine")
}

// leisurely is an engine that takes a fifth of a second for each token, so that a stream of longTokens runs for a minute.
var leisurely = sim.Config{TimeScale: 100}

const longTokens = 300

// longAsk is emojiAsk for a stream of longTokens.
func longAsk(more map[string]any) string {
	all := map[string]any{"max_tokens": longTokens}
	maps.Copy(all, more)
	return emojiAsk(pd.APICompletions, all)
}

// filed has streams go on at the pods in a file, which may be written later.
func filed(file string) option {
	return set(func(c *Config) { c.Continue.Discovery = "file:" + file })
}

// A stream leaves an engine that is to end, between two tokens, and the engine is free before the stream has ended.
func TestStreamsAreEvacuated(t *testing.T) {
	for name, c := range map[string]struct {
		more map[string]any
		free bool
	}{
		"can go on": {nil, true},
		"cannot":    {map[string]any{"presence_penalty": 0.5}, false},
	} {
		t.Run(name, func(t *testing.T) {
			decode, other, plain := startSim(t, sim.Config{TimeScale: 20}), startSim(t, sim.Config{}), startSim(t, sim.Config{})
			if err := other.Faults.Add(fault.Fault{Leg: "decode", Fault: fault.Slow, Arg: fault.Forever, At: "20"}); err != nil {
				t.Fatal(err)
			}
			s := startRig(t, addrOf(decode), goesOn)
			ask := emojiAsk(pd.APICompletions, c.more)
			resp := mustOpen(t, s.url+completionsPath, ask, pd.HeaderDestination, addrOf(decode)+","+addrOf(other))
			first := readEvent(t, resp.Body)
			s.Evacuate()
			if c.free {
				mustState(t, decode, "the stream to leave", free)
				if open := s.open(); open != 0 {
					t.Errorf("%v requests need the engine", open)
				}
			}
			other.Faults.Clear()
			rest, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			want := alike(t, post(t, plain.URL+completionsPath, ask).body)
			if got := alike(t, first+string(rest)); got != want {
				t.Error(difference(got, want))
			}
			if c.free {
				s.mustCount(t, 1, "tandem_continuations_total", "cause", "left", "result", "ok")
			}
		})
	}
}

// Fifty streams leave their engine, long before they end, and each is whole. None of them counts for the budget of streams whose engine has
// failed.
func TestManyStreamsAreEvacuated(t *testing.T) {
	const streams = 50
	decode := startSim(t, sim.Config{TimeScale: 40, KV: sim.KVConfig{Blocks: 2048}})
	other, plain := startSim(t, sim.Config{KV: sim.KVConfig{Blocks: 2048}}), startSim(t, sim.Config{})
	s := startRig(t, addrOf(decode), goesOn, set(func(c *Config) { c.Continue.Burst = 0 }))
	ask := func(i int) string { return longAsk(map[string]any{"prompt": fmt.Sprintf("stream %d 😀", i)}) }
	type answer struct {
		of    int
		first string
		rest  io.Reader
		err   error
	}
	begun, ctx := make(chan answer, streams), within(t)
	for i := range streams {
		go func() {
			resp, err := open(t, ctx, http.MethodPost, s.url+completionsPath, strings.NewReader(ask(i)), pd.HeaderDestination, addrOf(decode)+","+addrOf(other))
			if err != nil {
				begun <- answer{err: err}
				return
			}
			t.Cleanup(func() { resp.Body.Close() })
			first := make([]byte, 10)
			_, err = io.ReadFull(resp.Body, first)
			begun <- answer{i, string(first), resp.Body, err}
		}()
	}
	var all []answer
	for range streams {
		a := wait(t, begun, "a stream to begin")
		if a.err != nil {
			t.Fatal(a.err)
		}
		all = append(all, a)
	}
	began := time.Now()
	s.Evacuate()
	mustState(t, decode, "the streams to leave", free)
	t.Logf("%d streams left within %v", streams, time.Since(began).Round(time.Millisecond))
	for _, a := range all {
		rest, err := io.ReadAll(a.rest)
		if err != nil {
			t.Fatal(err)
		}
		want := alike(t, post(t, plain.URL+completionsPath, ask(a.of)).body)
		if got := alike(t, a.first+string(rest)); got != want {
			t.Errorf("stream %d: %s", a.of, difference(got, want))
		}
	}
	s.mustCount(t, streams, "tandem_continuations_total", "cause", "left", "result", "ok")
}

// Only some streams at once wait for the other engine. The rest go on at their own until it is their turn, or until they end.
func TestFewStreamsLeaveAtOnce(t *testing.T) {
	const streams, atOnce = 40, 32
	decode := startSim(t, sim.Config{TimeScale: 20, KV: sim.KVConfig{Blocks: 2048}})
	other, plain := startSim(t, sim.Config{KV: sim.KVConfig{Blocks: 2048}}), startSim(t, sim.Config{})
	if err := other.Faults.Add(fault.Fault{Leg: "decode", Fault: fault.Slow, Arg: fault.Forever}); err != nil {
		t.Fatal(err)
	}
	s := startRig(t, addrOf(decode), goesOn)
	ask := func(i int) string {
		return emojiAsk(pd.APICompletions, map[string]any{"prompt": fmt.Sprintf("stream %d 😀", i)})
	}
	type stream struct {
		of   int
		text string
		err  error
	}
	ended, ctx := make(chan stream, streams), within(t)
	for i := range streams {
		go func() {
			resp, err := open(t, ctx, http.MethodPost, s.url+completionsPath, strings.NewReader(ask(i)), pd.HeaderDestination, addrOf(decode)+","+addrOf(other))
			if err != nil {
				ended <- stream{i, "", err}
				return
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			ended <- stream{i, string(b), err}
		}()
	}
	mustState(t, decode, "the streams to come", func(st sim.State) bool { return st.Requests >= streams })
	s.Evacuate()
	for n := range streams {
		if n == streams-atOnce { // the rest have ended at their own engine
			if held := other.Engine.State().Held; held != atOnce {
				t.Errorf("%d streams wait for the other engine, want %d", held, atOnce)
			}
			other.Faults.Clear()
		}
		got := wait(t, ended, "a stream to end")
		if got.err != nil {
			t.Fatal(got.err)
		}
		want := alike(t, post(t, plain.URL+completionsPath, ask(got.of)).body)
		if text := alike(t, got.text); text != want {
			t.Errorf("stream %d: %s", got.of, difference(text, want))
		}
	}
	s.mustCount(t, atOnce, "tandem_continuations_total", "cause", "left", "result", "ok")
}

// Streams that have left go on after SIGTERM for the time of the evacuation, all others for that of the drain.
func TestDrainOutlastsMovedStreams(t *testing.T) {
	for name, c := range map[string]struct {
		evacuated time.Duration
		whole     bool
	}{
		"with a time of its own": {time.Hour, true},
		"without":                {0, false},
	} {
		t.Run(name, func(t *testing.T) {
			decode, other, plain := startSim(t, leisurely), startSim(t, sim.Config{}), startSim(t, sim.Config{})
			if err := other.Faults.Add(fault.Fault{Leg: "decode", Fault: fault.Slow, Arg: fault.Forever, At: "20"}); err != nil {
				t.Fatal(err)
			}
			s := startRig(t, addrOf(decode), goesOn, set(func(c2 *Config) { c2.Fallback.Drain, c2.Continue.Evacuated = time.Nanosecond, c.evacuated }))
			leaves, stays := longAsk(nil), longAsk(map[string]any{"presence_penalty": 0.5})
			pods := addrOf(decode) + "," + addrOf(other)
			moved, kept := mustOpen(t, s.url+completionsPath, leaves, pd.HeaderDestination, pods), mustOpen(t, s.url+completionsPath, stays, pd.HeaderDestination, pods)
			s.Evacuate()
			if err := s.Ready(); err == nil || !strings.Contains(err.Error(), "evacuated") {
				t.Errorf("readiness: %v", err)
			}
			mustState(t, other, "the stream to come", func(st sim.State) bool { return st.Held > 0 })
			until(t, "one stream needs the engine", func() bool { return s.open() == 1 })
			drained := startDrain(t, s, within(t))
			mustEnd := func(resp *http.Response, whole bool) {
				t.Helper()
				got, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				if whole {
					if got, want := alike(t, string(got)), alike(t, post(t, plain.URL+completionsPath, leaves).body); got != want {
						t.Error(difference(got, want))
					}
				} else if _, message := lastError(t, pd.APICompletions, string(got)); !strings.Contains(message, "shutting down") {
					t.Errorf("the stream ends with %q", message)
				}
			}
			mustEnd(kept, false)
			if c.whole {
				other.Faults.Clear()
			}
			mustEnd(moved, c.whole)
			wait(t, drained, "the drain to end")
			other.Faults.Clear()
		})
	}
}

// A stream leaves the engine that has gone on with it for one that is found only then, by way of both sidecars.
func TestStreamLeavesAgain(t *testing.T) {
	decode, second, third, plain := startSim(t, leisurely), startSim(t, leisurely), startSim(t, sim.Config{}), startSim(t, sim.Config{})
	file := filepath.Join(t.TempDir(), "pods")
	s, of2 := startRig(t, addrOf(decode), goesOn), startRig(t, addrOf(second), goesOn, filed(file))
	write(t, file, strings.TrimPrefix(of2.url, "http://")+"\n"+addrOf(third)+"\n")
	ask := longAsk(map[string]any{"stream_options": map[string]any{"include_usage": true}})
	resp := mustOpen(t, s.url+completionsPath, ask, pd.HeaderDestination, addrOf(decode)+","+strings.TrimPrefix(of2.url, "http://"))
	s.Evacuate()
	mustState(t, decode, "the stream to leave", free)
	mustState(t, second, "the stream to come", busy)
	of2.Evacuate()
	mustState(t, second, "the stream to leave again", free)
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	want := alike(t, post(t, plain.URL+completionsPath, ask).body)
	if body := alike(t, string(got)); body != want {
		t.Error(difference(body, want))
	}
	for _, r := range []*rig{s, of2} {
		r.mustCount(t, 1, "tandem_continuations_total", "cause", "left", "result", "ok")
	}
}

// That a stream has left engines which were to end does not count for how often it may go on when one dies.
func TestStreamThatHasLeftSurvivesADeath(t *testing.T) {
	decode, second, third, fourth, plain := startSim(t, leisurely), startSim(t, leisurely), startSim(t, sim.Config{}), startSim(t, sim.Config{}), startSim(t, sim.Config{})
	if err := third.Faults.Add(die(20)); err != nil {
		t.Fatal(err)
	}
	file, once := filepath.Join(t.TempDir(), "pods"), set(func(c *Config) { c.Continue.Times = 1 })
	s, of2 := startRig(t, addrOf(decode), once), startRig(t, addrOf(second), once, filed(file))
	write(t, file, addrOf(third)+"\n")
	pods := []string{addrOf(decode), strings.TrimPrefix(of2.url, "http://"), addrOf(fourth)}
	resp := mustOpen(t, s.url+completionsPath, longAsk(nil), pd.HeaderDestination, strings.Join(pods, ","))
	s.Evacuate()
	mustState(t, second, "the stream to come", busy)
	of2.Evacuate()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	want := alike(t, post(t, plain.URL+completionsPath, longAsk(nil)).body)
	if body := alike(t, string(got)); body != want {
		t.Error(difference(body, want))
	}
	of2.mustCount(t, 1, "tandem_continuations_total", "cause", "left", "result", "ok")
	of2.mustCount(t, 1, "tandem_continuations_total", "result", "no-engine") // after the death, and not "times"
	s.mustCount(t, 2, "tandem_continuations_total", "result", "ok")
}

// A stream that two pods which are both to end send to each other moves as often as it may.
func TestStreamGoesToAndFro(t *testing.T) {
	first, second, plain := startSim(t, sim.Config{TimeScale: 10}), startSim(t, sim.Config{TimeScale: 10}), startSim(t, sim.Config{})
	file := filepath.Join(t.TempDir(), "pods")
	var pods []string
	var rigs []*rig
	for _, e := range []*server.Server{first, second} {
		r := startRig(t, addrOf(e), goesOn, filed(file))
		r.Evacuate()
		rigs, pods = append(rigs, r), append(pods, strings.TrimPrefix(r.url, "http://"))
	}
	write(t, file, strings.Join(pods, "\n")+"\n")
	ask := emojiAsk(pd.APICompletions, nil)
	got := post(t, rigs[0].url+completionsPath, ask)
	want := alike(t, post(t, plain.URL+completionsPath, ask).body)
	if body := alike(t, got.body); body != want {
		t.Error(difference(body, want))
	}
	moves := 0.0
	for _, r := range rigs {
		moves += r.count(t, "tandem_continuations_total", "cause", "left", "result", "ok")
	}
	if moves != 8 { // handoff.maxLeaves
		t.Errorf("moved %v times, want 8", moves)
	}
}

// A stream goes on neither at its own pod nor at one that is not allowed.
func TestFoundPods(t *testing.T) {
	for name, c := range map[string]struct {
		itself bool
		allow  []intake.AllowRule
	}{
		"itself":      {true, loopback},
		"not allowed": {false, []intake.AllowRule{{Prefix: netip.MustParsePrefix("127.0.0.1/32"), Port: 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			decode, other := startSim(t, sim.Config{}), startSim(t, sim.Config{})
			if err := decode.Faults.Add(die(20)); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "pods")
			s := startRig(t, addrOf(decode), goesOn, filed(file), set(func(cfg *Config) { cfg.Trust.Allow = c.allow }))
			pod := addrOf(other)
			if c.itself {
				pod = strings.TrimPrefix(s.url, "http://")
			}
			write(t, file, pod+"\n")
			got := post(t, s.url+completionsPath, emojiAsk(pd.APICompletions, nil))
			if kind, _ := lastError(t, pd.APICompletions, got.body); kind == "" {
				t.Errorf("%d %s", got.status, got.body)
			}
			s.mustCount(t, 1, "tandem_continuations_total", "result", "no-engine")
		})
	}
}
