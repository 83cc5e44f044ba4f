package serving

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// testRegeneration has streams of responses and messages break off after every third event, and streams of chat and completions that no engine
// can go on with from their token ids six times each: another decode engine generates them again, and the client reads one stream with
// the text of an undisturbed one.
func testRegeneration(t *testing.T) {
	p := engines.pair(t, engines.failing)
	other := engines.recomputing.Address()
	cut := harness.NewCutter(t, p.Decode.Addr)
	breaks := harness.StartSidecar(t, cut.Addr, "--continue-times=1", "--continue-burst=1000")
	for _, api := range []pd.API{pd.APIResponses, pd.APIMessages} {
		for _, remote := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, remote %t", api, remote), func(t *testing.T) {
				// Messages cannot ask for answers that go on beyond the model's own end, with which a few prompts are answered at once.
				var ask, undisturbed string
				for tries := 0; strings.Count(undisturbed, "data: ") < 20; tries++ {
					if tries == 10 {
						t.Fatalf("each of ten undisturbed streams is short: %s", undisturbed)
					}
					call := p.Ask(api, 40, true)
					call.Tokens = 60
					ask = string(call.Body(p.Model))
					undisturbed = streamOf(t, "http://"+other, api, ask)
				}
				want, total := outline(t, undisturbed), strings.Count(undisturbed, "data: ")
				var header []string
				if remote {
					header = []string{pd.HeaderPrefill, p.Prefill.Addr}
				}
				step := 3 // sidecar.TestStreamIsRegeneratedAtEveryToken tries each
				if *short {
					step = 11
				}
				for at := 5; at < total; at += step { // until the fifth one it is asked anew
					cut.After.Store(int64(at))
					got := streamOf(t, "http://"+breaks.Addr("http"), api, ask, append(header, pd.HeaderDestination, cut.Addr+","+other)...)
					if got := outline(t, got); got != want {
						t.Errorf("broken off after %d of %d events:\n%s\nwant\n%s", at, total, got, want)
					}
				}
			})
		}
	}
	tools := []any{map[string]any{"type": "function", "function": map[string]any{"name": "note", "strict": true, "parameters": map[string]any{"type": "object",
		"properties": map[string]any{"text": map[string]any{"type": "string", "minLength": 300}}, "required": []string{"text"}, "additionalProperties": false}}}}
	numbers := map[string]any{"type": "array", "items": map[string]any{"type": "integer"}, "minItems": 40}
	for name, c := range map[string]struct {
		api     pd.API
		members map[string]any
	}{
		"chat, JSON": {pd.APIChat, map[string]any{"ignore_eos": false,
			"response_format": map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "numbers", "schema": numbers}}}},
		"chat, a regular expression": {pd.APIChat, map[string]any{"ignore_eos": false, "structured_outputs": map[string]any{"regex": "[a-z]{300}[0-9]{20}"}}},
		"chat, a seed":               {pd.APIChat, map[string]any{"seed": 7, "temperature": 1}},
		"chat, penalties":            {pd.APIChat, map[string]any{"frequency_penalty": 0.5}},
		"chat, some tool":            {pd.APIChat, map[string]any{"ignore_eos": false, "tools": tools, "tool_choice": "required", "seed": 7, "temperature": 1}},
		"chat, a tool by name": {pd.APIChat, map[string]any{"ignore_eos": false, "tools": tools, "seed": 7, "temperature": 1,
			"tool_choice": map[string]any{"type": "function", "function": map[string]any{"name": "note"}}}},
		"completions, penalties": {pd.APICompletions, map[string]any{"presence_penalty": 0.5}},
	} {
		for _, remote := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, remote %t", name, remote), func(t *testing.T) {
				call := p.Ask(c.api, 40, true)
				call.Tokens, call.Members = 60, c.members
				ask := string(withoutIDs(call.Body(p.Model)))
				undisturbed := streamOf(t, "http://"+other, c.api, ask)
				want, total := read(t, undisturbed), strings.Count(undisturbed, "data: ")
				called := len(want.calls) == 1 && len(want.calls[0].arguments) > 10
				if calls := c.members["tools"] != nil; total < 10 || calls != called {
					t.Fatalf("an undisturbed stream has %d events: %s", total, undisturbed)
				}
				var header []string
				if remote {
					header = []string{pd.HeaderPrefill, p.Prefill.Addr}
				}
				for at := 3; at < total; at += max(1, total/6) { // until the third one it is asked anew
					cut.After.Store(int64(at))
					stream := streamOf(t, "http://"+breaks.Addr("http"), c.api, ask, append(header, pd.HeaderDestination, cut.Addr+","+other)...)
					if got := read(t, stream); !got.equals(want) {
						t.Errorf("broken off after %d of %d events:\n%+v\nwant\n%+v", at, total, got, want)
					}
				}
			})
		}
	}
	p.MustRelease(t, p.Prefill.Metric(t, harness.Expiries))
}

var (
	madeUp = regexp.MustCompile(`"(resp_|msg_|chatcmpl-)[0-9a-zA-Z_-]+"|"(created_at)":\d+`)
	// caches are what the usage says of an engine's prefix cache, with the input tokens of messages, which leave the cached ones out.
	caches = regexp.MustCompile(`"(cached_tokens|cache_write_tokens|cache_creation_input_tokens|cache_read_input_tokens|input_tokens)":\d+,?`)
	aDelta = regexp.MustCompile(`"(?:text|delta)":"((?:[^"\\]|\\.)*)"`)
	aCount = regexp.MustCompile(`"sequence_number":(\d+),?`)
)

// outline returns the events of a stream of responses or messages, with the text of successive ones joined: how it is cut into events is not
// part of the answer. It checks that the stream has one id of each kind, one time, and numbers in order.
func outline(t *testing.T, stream string) string {
	t.Helper()
	one := map[string]string{}
	for _, m := range madeUp.FindAllStringSubmatch(stream, -1) {
		if first, ok := one[m[1]+m[2]]; ok && first != m[0] {
			t.Errorf("one stream with %s and %s", first, m[0])
		}
		one[m[1]+m[2]] = m[0]
	}
	for i, m := range aCount.FindAllStringSubmatch(stream, -1) {
		if m[1] != fmt.Sprint(i) {
			t.Errorf("event %d has the number %s", i, m[1])
			break
		}
	}
	var out strings.Builder
	var events body.Events
	var last string
	if err := events.Feed([]byte(stream), func(e body.Event) error {
		name := string(e.Name)
		if text := aDelta.FindSubmatch(e.Data); text != nil && (strings.HasSuffix(name, ".delta") || name == "content_block_delta") {
			if name != last {
				out.WriteString("\n" + name + " ")
			}
			out.Write(text[1])
		} else {
			data := aCount.ReplaceAllString(caches.ReplaceAllString(madeUp.ReplaceAllString(string(e.Data), `"$1$2"`), ""), "")
			out.WriteString("\n" + name + " " + data)
		}
		last = name
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}
