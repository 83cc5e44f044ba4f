package serving

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/vllm"
	"github.com/tandem-serving/tandem/pd"
)

// parsingFlags have an engine parse reasoning and calls of tools, also for others, and say what a prompt asks for.
var parsingFlags = []string{"--reasoning-parser=qwen3", "--tool-call-parser=hermes", "--enable-auto-tool-choice", "--enable-scale-out",
	"--logits-processors=scripted:Scripted"}

// testParsedStreams breaks streams of chat off whose engine parses reasoning and calls of tools: another engine goes on, and parses the rest.
func testParsedStreams(t *testing.T) {
	model := parsingModel(t)
	var first, other *realengine.Engine
	var starting sync.WaitGroup
	for name, to := range map[string]**realengine.Engine{"parses": &first, "parses, too": &other} {
		starting.Go(func() { *to = startEngine(t, vllm.Options{Name: name, Model: model, Args: parsingFlags}) })
	}
	starting.Wait()
	if t.Failed() {
		return
	}
	cut := harness.NewCutter(t, first.Address())
	s := harness.StartSidecar(t, cut.Addr, "--continue-times=1", "--continue-burst=1000")
	peer := harness.StartSidecar(t, other.Address()).Addr("http")
	const thought = "<think>\nThe user é asks 😀 for the weather.\n</think>\n\n"
	const calls = `Let me look 🌦.
<tool_call>
{"name": "weather", "arguments": {"city": "Zürich 🏔", "days": [1, 2]}}
</tool_call>
<tool_call>
{"name": "time", "arguments": {}}
</tool_call>`
	tools := []any{tool("weather"), tool("time")}
	for name, c := range map[string]struct {
		says    string
		members map[string]any
	}{
		"reasoning":                           {thought + "It is sunny 🌞 é.", nil},
		"reasoning, sampled":                  {thought + "It is sunny.", map[string]any{"temperature": 1}},
		"reasoning, tools":                    {thought + calls, map[string]any{"tools": tools}},
		"tools":                               {"<think>\n\n</think>\n\n" + calls, map[string]any{"tools": tools, "tool_choice": "auto", "temperature": 0.7}},
		"tools that are not called, logprobs": {thought + "It is sunny 🌞.", map[string]any{"tools": tools, "logprobs": true}},
		"reasoning, ids":                      {thought + "It is sunny.", map[string]any{"return_token_ids": true}},
		"reasoning, generated again":          {thought + "It is sunny 🌞. No more.", map[string]any{"temperature": 0, "stop": []string{"No"}}},
	} {
		t.Run(name, func(t *testing.T) {
			body := scripted(t, c.says, c.members)
			undisturbed := streamOf(t, "http://"+other.Address(), pd.APIChat, body)
			want, total := read(t, undisturbed), strings.Count(undisturbed, "data: ")
			if c.members["tools"] != nil && strings.Contains(c.says, "tool_call") && (len(want.calls) != 2 || want.finish != "tool_calls") || want.reasoning == "" && strings.HasPrefix(c.says, thought) {
				t.Fatalf("the engine parses nothing:\n%s", undisturbed)
			}
			step := 3
			if *short {
				step = 13
			}
			for at := 2; at < total; at += step {
				cut.After.Store(int64(at))
				resp := openStream(t, "http://"+s.Addr("http"), pd.APIChat, body, pd.HeaderDestination, cut.Addr+","+peer)
				if got := read(t, streamIn(t, resp)); !got.equals(want) {
					t.Errorf("broken off after %d of %d events:\n%+v\nwant\n%+v", at, total, got, want)
				}
			}
		})
	}
	t.Run("evacuated", func(t *testing.T) { testParsedStreamsLeave(t, first.Address(), other.Address()) })
}

// testParsedStreamsLeave ends an engine's pod while it generates reasoning: another one goes on with all of its streams.
func testParsedStreamsLeave(t *testing.T, first, other string) {
	const streams = 8
	s := harness.StartSidecar(t, first, "--continue-times=1", "--drain-timeout=1s", "--evacuate-timeout=5m")
	body := scripted(t, "<think>\n"+strings.Repeat("é 😀 the block of a cache. ", 32)+"</think>\n\nDone.", nil)
	want := read(t, streamOf(t, "http://"+other, pd.APIChat, body))
	var running []*http.Response
	for range streams {
		running = append(running, openStream(t, "http://"+s.Addr("http"), pd.APIChat, body, pd.HeaderDestination, first+","+other))
	}
	began := time.Now()
	out, err := harness.Output("tandem", "drain", "--engine="+first, "--sidecar="+s.Addr("metrics"), "--evacuate="+s.Addr("admin"), "--settle=0s", "--timeout=1m")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%d streams left within %v", streams, time.Since(began).Round(time.Millisecond))
	for _, resp := range running {
		if got := read(t, streamIn(t, resp)); !got.equals(want) {
			t.Errorf("%+v\nwant\n%+v", got, want)
		}
		if moved := resp.Trailer.Get(pd.HeaderContinued); moved != "1" {
			t.Errorf("moved %q times", moved)
		}
	}
}

// scripted makes the body of a chat that is answered with a text.
func scripted(t *testing.T, says string, more map[string]any) string {
	t.Helper()
	members := map[string]any{"model": realengine.Model, "stream": true, "stream_options": map[string]any{"include_usage": true}, "max_tokens": 1500,
		"messages": []any{map[string]any{"role": "user", "content": "say " + hex.EncodeToString([]byte(says))}}}
	maps.Copy(members, more)
	body, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// tool is a tool that a request offers.
func tool(name string) map[string]any {
	return map[string]any{"type": "function", "function": map[string]any{"name": name, "parameters": map[string]any{"type": "object"}}}
}

// parsingModel makes a copy of the tests' model whose vocabulary has the marks of parsers, in the place of other tokens.
func parsingModel(t *testing.T) string {
	t.Helper()
	from, err := realengine.Find("vllm")
	if err != nil {
		t.Fatal(err)
	}
	to := t.TempDir()
	files, err := os.ReadDir(from.Model)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join(from.Model, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if f.Name() == "tokenizer.json" {
			content = withMarks(t, content)
		}
		if err := os.WriteFile(filepath.Join(to, f.Name()), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// withMarks puts the marks into a tokenizer, in the place of the last tokens that merges make.
func withMarks(t *testing.T, tokenizer []byte) []byte {
	t.Helper()
	var all map[string]any
	if err := json.Unmarshal(tokenizer, &all); err != nil {
		t.Fatal(err)
	}
	model := all["model"].(map[string]any)
	vocabulary, merges := model["vocab"].(map[string]any), model["merges"].([]any)
	total := len(vocabulary)
	marks := []string{"<think>", "</think>", "<tool_call>", "</tool_call>"}
	for name, id := range maps.Clone(vocabulary) {
		if at := total - 1 - int(id.(float64)); at < len(marks) {
			delete(vocabulary, name)
			vocabulary[marks[at]] = id
			all["added_tokens"] = append(all["added_tokens"].([]any), map[string]any{"id": id, "content": marks[at], "single_word": false, "lstrip": false,
				"rstrip": false, "normalized": false, "special": false})
		}
	}
	model["merges"] = merges[:len(merges)-len(marks)]
	made, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return made
}
