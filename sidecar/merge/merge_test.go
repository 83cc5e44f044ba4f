package merge_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/merge"
)

func TestWhole(t *testing.T) {
	cases := []struct {
		name    string
		api     pd.API
		answers []string
		want    string
	}{
		{"completions", pd.APICompletions, []string{
			`{"id":"a","created":1,"choices":[{"index":0,"text":"x"}],"usage":{"prompt_tokens":40,"total_tokens":44,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":0}}}`,
			`{"id":"b","created":2,"choices":[{"index":0,"text":"y"}],"usage":{"prompt_tokens":40,"total_tokens":43,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":32}}}`,
		}, `{"id":"a","created":1,"choices":[{"index":0,"text":"x"},{"index":1,"text":"y"}],"usage":{"prompt_tokens":40,"total_tokens":47,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":32}}}`},
		{"the bytes stay", pd.APIChat, []string{
			"{\"choices\" : [ { \"message\":{\"content\":\"\\u00e9 \xff\"} , \"index\" : 0 } ], \"x\":1e400 }\n", `{"choices":[{"index":0,"logprob":-2.054424524307251}],"x":2}`, `{"choices":[{}]}`,
		}, "{\"choices\" : [{ \"message\":{\"content\":\"\\u00e9 \xff\"} , \"index\" : 0 },{\"index\":1,\"logprob\":-2.054424524307251},{}], \"x\":1e400 }\n"},
		{"a choice's own index, not one inside it", pd.APIChat, []string{
			`{"choices":[{"message":{"tool_calls":[{"index":0}]},"index":0}]}`, `{"choices":[{"message":{"tool_calls":[{"index":0}]},"index":0}]}`,
		}, `{"choices":[{"message":{"tool_calls":[{"index":0}]},"index":0},{"message":{"tool_calls":[{"index":0}]},"index":1}]}`},
		{"a batch", pd.APICompletions, []string{
			`{"choices":[{"index":0,"text":"a0"},{"index":1,"text":"b0"}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}`,
			`{"choices":[{"index":0,"text":"a1"},{"index":1,"text":"b1"}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}`,
			`{"choices":[{"index":0,"text":"a2"},{"index":1,"text":"b2"}],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}`,
		}, `{"choices":[{"index":0,"text":"a0"},{"index":1,"text":"a1"},{"index":2,"text":"a2"},{"index":3,"text":"b0"},{"index":4,"text":"b1"},{"index":5,"text":"b2"}],` +
			`"usage":{"prompt_tokens":5,"completion_tokens":6,"total_tokens":11}}`},
		{"reasoning", pd.APIChat, []string{
			`{"choices":[],"usage":{"completion_tokens":5,"reasoning_tokens":0,"completion_tokens_details":null}}`,
			`{"choices":[],"usage":{"completion_tokens":6,"reasoning_tokens":2,"completion_tokens_details":{"reasoning_tokens":2}}}`,
			`{"choices":[],"usage":{"completion_tokens":7,"reasoning_tokens":3,"completion_tokens_details":{"reasoning_tokens":3}}}`,
		}, `{"choices":[],"usage":{"completion_tokens":18,"reasoning_tokens":5,"completion_tokens_details":{"reasoning_tokens":5}}}`},
		{"no usage", pd.APIChat, []string{`{"choices":[],"usage":null}`, `{"choices":[],"usage":null}`}, `{"choices":[],"usage":null}`},
		{"generate of SGLang", pd.APISGLang, []string{` {"text":"x", "meta_info":{"id":"a"}}`, `{"text":"y","meta_info":{"id":"b"}}`},
			`[{"text":"x", "meta_info":{"id":"a"}},{"text":"y","meta_info":{"id":"b"}}]`},
		{"generate of SGLang, a batch", pd.APISGLang, []string{`[{"t":"a0"}, {"t":"b0"}]`, `[{"t":"a1"}, {"t":"b1"}]`},
			`[{"t":"a0"},{"t":"a1"},{"t":"b0"},{"t":"b1"}]`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := merge.Whole(c.api, rawAnswers(c.answers))
			if err != nil || string(got) != c.want {
				t.Errorf("got\n%s (%v), want\n%s", got, err, c.want)
			}
		})
	}
}

func rawAnswers(texts []string) [][]byte {
	raw := make([][]byte, len(texts))
	for i, text := range texts {
		raw[i] = []byte(text)
	}
	return raw
}

func TestWholeOfOtherForm(t *testing.T) {
	for _, c := range []struct {
		name    string
		api     pd.API
		answers []string
	}{
		{"no JSON", pd.APIChat, []string{`{"choices":[]}`, `{"choices":[]`}},
		{"no choices", pd.APIChat, []string{`{"choices":[]}`, `{}`}},
		{"choices that are no list", pd.APIChat, []string{`{"choices":[]}`, `{"choices":{}}`}},
		{"fewer choices", pd.APIChat, []string{`{"choices":[{}]}`, `{"choices":[]}`}},
		{"generate, text", pd.APISGLang, []string{`{}`, `"x"`}},
		{"generate, no JSON", pd.APISGLang, []string{`{}`, `{`}},
		{"generate, fewer prompts", pd.APISGLang, []string{`[{},{}]`, `[{}]`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, err := merge.Whole(c.api, rawAnswers(c.answers)); err == nil || !strings.Contains(err.Error(), "choice 1") {
				t.Errorf("%s, %v", got, err)
			}
		})
	}
}

// fed is a chunk of a choice's stream.
type fed struct {
	choice int
	chunk  string
}

// feed merges chunks.
func feed(t testing.TB, api pd.API, n int, chunks ...fed) (*merge.Stream, string) {
	t.Helper()
	s := merge.NewStream(api, n)
	var out []byte
	for _, f := range chunks {
		var err error
		if out, err = s.Feed(out, f.choice, []byte(f.chunk)); err != nil {
			t.Fatal(err)
		}
	}
	return s, string(out)
}

// events is the text of a stream.
func events(data ...string) string {
	var b strings.Builder
	for _, d := range data {
		fmt.Fprintf(&b, "data: %s\n\n", d)
	}
	return b.String()
}

func TestStream(t *testing.T) {
	const done = "[DONE]"
	usage := func(completion int) string {
		return fmt.Sprintf(`{"id":"%d","choices":[],"usage":{"prompt_tokens":9,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`, completion, 9+completion, completion, completion)
	}
	cases := []struct {
		name   string
		api    pd.API
		chunks []fed
		want   string
		done   bool
	}{
		{"events leave as they come, with one id and the choice's index", pd.APIChat, []fed{
			{1, events(`{"id":"b","created":2,"choices":[{"index":0,"delta":{"role":"assistant"}}]}`)},
			{0, events(`{"id":"a","created":1,"choices":[{"index":0,"delta":{"role":"assistant"}}]}`)},
			{1, events(`{"id":"b","created":2,"choices":[{"index":0,"delta":{"content":"x"}}]}`)},
		}, events(
			`{"id":"b","created":2,"choices":[{"index":1,"delta":{"role":"assistant"}}]}`,
			`{"id":"b","created":2,"choices":[{"index":0,"delta":{"role":"assistant"}}]}`,
			`{"id":"b","created":2,"choices":[{"index":1,"delta":{"content":"x"}}]}`), false},
		{"chunks end anywhere", pd.APIChat, []fed{
			{0, `data: {"id":"a","cho`}, {1, "data: {\"id\":\"b\",\"choices\":[{\"index\":0}]}\n"}, {0, "ices\":[{\"index\":0}]}\n\nda"}, {1, "\n"}, {0, "ta: [DONE]\n\n"},
		}, events(`{"id":"a","choices":[{"index":0}]}`, `{"id":"a","choices":[{"index":1}]}`), false},
		{"usage and end come once, at the end", pd.APIChat, []fed{
			{1, events(`{"id":"b","choices":[{"index":0}],"usage":null}`, usage(4), done)},
			{0, events(`{"id":"a","choices":[{"index":0}],"usage":null}`, usage(3), done)},
			{2, events(`{"id":"c","choices":[{"index":0}],"usage":null}`, usage(5), done)},
		}, events(`{"id":"b","choices":[{"index":1}],"usage":null}`, `{"id":"b","choices":[{"index":0}],"usage":null}`, `{"id":"b","choices":[{"index":2}],"usage":null}`,
			`{"id":"b","choices":[],"usage":{"prompt_tokens":9,"total_tokens":21,"completion_tokens":12,"prompt_tokens_details":{"cached_tokens":4}}}`, done), true},
		{"no usage", pd.APIChat, []fed{{0, events(done)}, {1, events(done)}, {2, events(done)}}, events(done), true},
		{"usage of each event stays", pd.APIChat, []fed{{1, events(`{"choices":[{"index":0}],"usage":{"completion_tokens":1}}`)}},
			events(`{"choices":[{"index":1}],"usage":{"completion_tokens":1}}`), false},
		{"a batch", pd.APICompletions, []fed{{0, events(`{"choices":[{"index":1}]}`)}, {2, events(`{"choices":[{"index":2}]}`)}},
			events(`{"choices":[{"index":3}]}`, `{"choices":[{"index":8}]}`), false},
		{"an error ends all", pd.APIChat, []fed{
			{0, events(`{"choices":[{"index":0}]}`)}, {1, events(`{"error":{"message":"x"}}`)}, {0, events(`{"choices":[{"index":0}]}`, usage(1), done)}, {1, events(done)}, {2, events(`{"choices":[]}`)},
		}, events(`{"choices":[{"index":0}]}`, `{"error":{"message":"x"}}`, done), true},
		{"comments, other events and what is no JSON", pd.APIChat, []fed{{0, ": ping\n\n"}, {1, "event: x\ndata: {\"id\":1}\n\n"}, {1, "data: oops\n\n"}, {1, "data: {\"choices\":\ndata: [{\"index\":0}]}\n\n"}},
			": ping\n\nevent: x\ndata: {\"id\":1}\n\ndata: oops\n\ndata: {\"choices\":\ndata: [{\"index\":0}]}\n\n", false},
		{"generate of SGLang", pd.APISGLang, []fed{
			{2, events(`{"text":"x","meta_info":{"id":"a"}}`)}, {0, events(`{}`)}, {1, events(`{"index":1,"text":"x"}`)}, {2, events(done)}, {0, events(done)}, {1, events(done)},
		}, events(`{"text":"x","meta_info":{"id":"a"},"index":2}`, `{"index":0}`, `{"index":4,"text":"x"}`, done), true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, got := feed(t, c.api, 3, c.chunks...)
			if got != c.want || s.Done() != c.done {
				t.Errorf("got\n%swant\n%s(done %v)", got, c.want, s.Done())
			}
		})
	}
}

func TestStreamTellsHowFarItIs(t *testing.T) {
	s, _ := feed(t, pd.APIChat, 2, fed{1, events(`{"choices":[]}`, "[DONE]")})
	if _, failed := s.Failed(); failed || s.Done() || s.Ended(0) || !s.Ended(1) {
		t.Error("one of two streams has ended")
	}
	if _, err := s.Feed(nil, 0, []byte(events(`{"error":{}}`))); err != nil {
		t.Fatal(err)
	}
	if choice, failed := s.Failed(); !failed || choice != 0 || s.Done() || s.Ended(0) {
		t.Error("the other stream has failed")
	}
}

// Answers of a real engine to requests for one choice, merged, have the form of its answer to a request for two.
func TestRecordings(t *testing.T) {
	for api, name := range map[pd.API]string{pd.APICompletions: "completions", pd.APIChat: "chat", pd.APISGLang: "generate"} {
		t.Run(name, func(t *testing.T) {
			one, want := recording(t, name+"-whole-n1"), recording(t, name+"-whole-n2")
			got, err := merge.Whole(api, [][]byte{one, one})
			if err != nil {
				t.Fatal(err)
			}
			mustHaveForm(t, got, want)
			stream := string(recording(t, name+"-stream-n1"))
			_, merged := feed(t, api, 2, fed{0, stream}, fed{1, stream})
			wantForms, gotForms := formsOf(t, string(recording(t, name+"-stream-n2"))), formsOf(t, merged)
			if !slices.Equal(gotForms, wantForms) {
				t.Errorf("events\n%s\nwant\n%s", strings.Join(gotForms, "\n"), strings.Join(wantForms, "\n"))
			}
			if end := merged[strings.LastIndex(merged[:len(merged)-2], "\n\n"):]; end != "\n\n"+events("[DONE]") || strings.Count(merged, "[DONE]") != 1 {
				t.Errorf("the stream ends with %q", end)
			}
		})
	}
}

func recording(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// formsOf returns the different forms of a stream's events, sorted.
func formsOf(t *testing.T, stream string) (forms []string) {
	t.Helper()
	for data := range strings.SplitSeq(stream, "\n\n") {
		if data = strings.TrimPrefix(data, "data: "); strings.HasPrefix(data, "{") {
			forms = append(forms, formOf(t, []byte(data)))
		}
	}
	slices.Sort(forms)
	return slices.Compact(forms)
}

func mustHaveForm(t *testing.T, got, want []byte) {
	t.Helper()
	if got, want := formOf(t, got), formOf(t, want); got != want {
		t.Errorf("form\n%s\nwant\n%s", got, want)
	}
}

// differs are members of a whole answer of SGLang that depend on whether the prompt was cached.
var differs = []string{"storage_prefetch_wait", "storage_staging_wait", "prefill_finished_time", "cached_tokens_details"}

// formOf returns the members of an answer in their order, with the indices of the choices and the sorts of the values.
func formOf(t *testing.T, answer []byte) string {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(answer))
	var b strings.Builder
	var value func(name string)
	value = func(name string) {
		token, err := d.Token()
		if err != nil {
			t.Fatalf("%s: %v", answer, err)
		}
		switch v := token.(type) {
		case json.Delim:
			fmt.Fprint(&b, v)
			for d.More() {
				key := name
				if v == '{' {
					k, _ := d.Token()
					key = k.(string)
					if slices.Contains(differs, key) {
						var skipped json.RawMessage
						_ = d.Decode(&skipped)
						continue
					}
					fmt.Fprintf(&b, "%s:", key)
				}
				value(key)
			}
			end, _ := d.Token()
			fmt.Fprint(&b, end)
		case nil:
			b.WriteString("null,")
		default:
			if name == "index" {
				fmt.Fprintf(&b, "%v,", v)
				return
			}
			if name != "output_ids" { // as many as there are tokens
				fmt.Fprintf(&b, "%T,", v)
			}
		}
	}
	value("")
	return b.String()
}
