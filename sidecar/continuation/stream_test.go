package continuation

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// read reads a request, where other engines may have parsers or not.
func read(t testing.TB, api pd.API, text string, parsers bool) (*Request, Refusal) {
	t.Helper()
	var b body.Body
	b.Append([]byte(text))
	return Read(api, &b, parsers)
}

const ask = `{"model":"m","prompt":"x","max_tokens":10,"stream":true}`

// start begins a stream of a request.
func start(t testing.TB, api pd.API, text string, memory int64) *Stream {
	t.Helper()
	return startWith(t, api, text, memory, true)
}

func startWith(t testing.TB, api pd.API, text string, memory int64, parsers bool) *Stream {
	t.Helper()
	r, why := read(t, api, text, parsers)
	if why != "" {
		t.Fatalf("%s is refused: %s", text, why)
	}
	return NewStream(r, pd.NewBufferedBytes(memory))
}

// event is one of a completion, as vLLM writes it.
func event(text, finish, promptIDs, ids string) string {
	return fmt.Sprintf(`data: {"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":%q,"logprobs":null,"finish_reason":%s,"stop_reason":null,"prompt_token_ids":%s,"token_ids":%s}]}`+"\n\n",
		text, finish, promptIDs, ids)
}

// feed gives events to a stream, and returns what the client gets.
func feed(t testing.TB, s *Stream, events ...string) string {
	t.Helper()
	var out strings.Builder
	split := body.Events{}
	if err := split.Feed([]byte(strings.Join(events, "")), func(e body.Event) error {
		e = s.Event(e)
		out.Write(e.Raw)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestEventsLoseWhatWasNotAskedFor(t *testing.T) {
	s := start(t, pd.APICompletions, ask, 1<<20)
	got := feed(t, s, event("a", "null", "[1, 2,3]", "[4]"), event("", "null", "null", "[5]"), event("b", "null", "null", "[6]"), "data: [DONE]\n\n")
	want := event("a", "null", "null", "null") + event("", "null", "null", "null") + event("b", "null", "null", "null") + "data: [DONE]\n\n"
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if leg := string(bytes.Join(s.Leg(0).Segments, nil)); !strings.HasPrefix(leg, `{"prompt":[1, 2,3,4,5,6],"max_tokens":7,`) {
		t.Error(leg)
	}
}

// Text that quotes the marks of events changes nothing.
func TestTextLikeMarks(t *testing.T) {
	s := start(t, pd.APICompletions, ask, 1<<20)
	text := `"token_ids":[9] "text":"" "finish_reason":"stop"`
	if got, want := feed(t, s, event(text, "null", "[1]", "[4]")), event(text, "null", "null", "null"); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if s.finished || s.count != 1 {
		t.Errorf("finished %v after %d ids", s.finished, s.count)
	}
}

// An event without text waits for the next one with text: if that never comes, the client has seen nothing of it.
func TestUnfinishedCharactersAreHeldBack(t *testing.T) {
	s := start(t, pd.APICompletions, ask, 1<<20)
	first := event("a", "null", "null", "null")
	if got := feed(t, s, event("a", "null", "[1]", "[4]"), event("", "null", "null", "[5]"), event("", "null", "null", "[6]")); got != first {
		t.Errorf("%s\nwant\n%s", got, first)
	}
	leg := string(bytes.Join(s.Leg(0).Segments, nil))
	if want := `{"prompt":[1,4],"max_tokens":9,"stream":true,"return_token_ids":true,"model":"m"}`; leg != want {
		t.Errorf("%s\nwant\n%s", leg, want)
	}
	s.Moved()
	if held := s.Held(); len(held) > 0 {
		t.Errorf("held after the stream has moved: %s", held)
	}
}

func TestNextEngineSpeaksAsTheFirst(t *testing.T) {
	s := start(t, pd.APICompletions, ask, 1<<20)
	feed(t, s, event("a", "null", "[1,2]", "[4]"))
	s.Moved()
	next := strings.NewReplacer("cmpl-1", "cmpl-other", `"created":7`, `"created":99`)
	got := feed(t, s, next.Replace(event("b", `"length"`, "[1,2,4]", "[5]")),
		`data: {"id":"cmpl-other","object":"text_completion","created":99,"model":"m","choices":[],"usage":{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":3}}}`+"\n\n")
	want := event("b", `"length"`, "null", "null") +
		`data: {"id":"cmpl-1","object":"text_completion","created":7,"model":"m","choices":[],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":2}}}` + "\n\n"
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if end := string(s.End()); end != "data: [DONE]\n\n" {
		t.Errorf("only the end lacks: %q", end)
	}
}

// An event with several ids may end within a character although it has text.
func TestSeveralIDs(t *testing.T) {
	s := start(t, pd.APICompletions, ask, 1<<20)
	feed(t, s, event("a", "null", "[1]", "[4, 5,6]"))
	if !s.Several() {
		t.Fatal("not noticed")
	}
	if got := string(s.Question()); got != `{"tokens":[1,4, 5,6]}` {
		t.Error(got)
	}
	if err := s.Answer([]byte(`{"prompt":"a\ufffd"}`)); err != nil || s.count != 2 {
		t.Errorf("%d ids after one was dropped, %v", s.count, err)
	}
	if leg := string(bytes.Join(s.Leg(0).Segments, nil)); !strings.HasPrefix(leg, `{"prompt":[1,4, 5],"max_tokens":8,`) {
		t.Error(leg)
	}
	if err := s.Answer([]byte(`{"prompt":"a"}`)); err != nil || s.Question() != nil {
		t.Errorf("asked again, %v", err)
	}
}

func TestQuestionIsShort(t *testing.T) {
	s := start(t, pd.APICompletions, ask, 1<<20)
	var ids []string
	for i := range 40 {
		ids = append(ids, fmt.Sprint(i))
	}
	feed(t, s, event("a", "null", "[1]", "["+strings.Join(ids, ",")+"]"))
	if got, want := string(s.Question()), `{"tokens":[`+strings.Join(ids[40-window:], ",")+`]}`; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestAnswersToQuestions(t *testing.T) {
	for answer, ends := range map[string]bool{`{"prompt":"a"}`: true, `{"prompt":"😀"}`: true, `{"prompt":"a\ufffd"}`: false, "{\"prompt\":\"a\ufffd\"}": false, `{}`: false, `x`: false, `{"prompt":1}`: false} {
		s := start(t, pd.APICompletions, `{"prompt":"x","max_tokens":10,"stream":true,"return_token_ids":true}`, 1<<20) // none of the ids can be dropped
		feed(t, s, event("a", "null", "[1]", "[4,5]"))
		if err := s.Answer([]byte(answer)); (err == nil) != ends {
			t.Errorf("%s: %v", answer, err)
		}
	}
	for answer, length := range map[string]int64{`{"data":[{"id":"m","max_model_len":4096}]}`: 4096, `{"data":[{"max_model_len":null},{"max_model_len":7}]}`: 7, `{"data":[]}`: 0, `x`: 0} {
		if n, ok := ModelLength([]byte(answer)); n != length || ok != (length > 0) {
			t.Errorf("%s: %d, %v", answer, n, ok)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		api  pd.API
		text string
		want Refusal
	}{
		{pd.APICompletions, ask, ""},
		{pd.APIChat, `{"messages":[{"content":"x"},{"content":[{"type":"text","text":"y"}]},{"content":null}],"stream":true}`, ""},
		{pd.APIChat, `{"messages":[{"content":[{"type":"text","text":"y"},{"type":"image_url"}]}],"stream":true}`, Media},
		{pd.APIChat, `{"messages":[{"content":[{"image_url":"y"}]}],"stream":true}`, Media},
		{pd.APIChat, `{"messages":[{"content":[{"type":"im\u0061ge_url"}]}],"stream":true}`, Media},
		{pd.APIMessages, ask, OtherAPI},
		{pd.APICompletions, `{"prompt":"x"}`, Whole},
		{pd.APICompletions, `{"prompt":["x"],"stream":true}`, Choices},
		{pd.APICompletions, `{"prompt":[1,2],"stream":true}`, ""},
		{pd.APICompletions, `{"prompt":"x","stream":true,"n":1,"seed":3,"temperature":0,"stop":null,"frequency_penalty":0}`, ""},
		{pd.APICompletions, `{"prompt":"x","stream":true,"seed":3,"temperature":0.5}`, Seed},
		{pd.APICompletions, `{"prompt":"x","stream":true,"seed":3}`, Seed},
		{pd.APICompletions, `{"prompt":"x","stream":true,"seed":-1}`, ""},
		{pd.APICompletions, `{"prompt":"x","stream":true,"frequency_penalty":0.1}`, Penalties},
		{pd.APICompletions, `{"prompt":"x","stream":true,"stop":"\n"}`, ""},
		{pd.APICompletions, `{"prompt":"x","stream":true,"stop":["\n","é"]}`, ""},
		{pd.APICompletions, `{"prompt":"x","stream":true,"stop":["\n","ab"]}`, ""},
		{pd.APICompletions, `{"prompt":"x","stream":true,"stop":"` + strings.Repeat("é", longestStop+1) + `"}`, Stop},
		{pd.APICompletions, `{"prompt":"x","stream":true,"stop":[""]}`, Stop},
		{pd.APICompletions, `{"prompt":"x","stream":true,"stop":"ab","include_stop_str_in_output":1}`, Unreadable},
		{pd.APIChat, `{"messages":[],"stream":true,"logprobs":true,"top_logprobs":20}`, ""},
		{pd.APIChat, `{"messages":[],"stream":true,"logprobs":1}`, Logprobs},
		{pd.APIChat, `{"messages":[],"stream":true,"logprobs":true,"top_logprobs":21}`, Logprobs},
		{pd.APIChat, `{"messages":[],"stream":true,"logprobs":true,"logprob_token_ids":[1]}`, Logprobs},
		{pd.APIChat, `{"messages":[],"stream":true,"tools":[{}],"tool_choice":"none"}`, Tools},
		{pd.APIChat, `{"messages":[],"stream":true,"tools":[{"function":{"strict":false}}],"tool_choice":"auto","parallel_tool_calls":true}`, ""},
		{pd.APIChat, `{"messages":[],"stream":true,"tools":[{}],"stop":[]}`, ""},
		{pd.APIChat, `{"messages":[],"stream":true,"tools":[{}],"stop":"x"}`, Stop},
		{pd.APIChat, `{"messages":[],"stream":true,"tools":[{}],"tool_choice":"required"}`, Structured},
		{pd.APIChat, `{"messages":[],"stream":true,"tools":[{}],"tool_choice":{"type":"function"}}`, Structured},
		{pd.APIChat, `{"messages":[],"stream":true,"tools":[{}],"parallel_tool_calls":false}`, Structured},
		{pd.APIChat, `{"messages":[],"stream":true,"tools":[{},{"function":{"strict":true}}]}`, Structured},
		{pd.APICompletions, `{"prompt":"x","stream":true,"tools":[{}]}`, Tools},
		{pd.APICompletions, `{"prompt":"x","stream":true,"stop":3}`, Stop},
		{pd.APICompletions, `{"prompt":"x","stream":true,"min_tokens":-1}`, Unreadable},
		{pd.APICompletions, `{"prompt":"x","stream":true,"max_tokens":"7"}`, Unreadable},
		{pd.APICompletions, `{"prompt":"x","stream":true`, Unreadable},
	} {
		if _, why := read(t, c.api, c.text, true); why != c.want {
			t.Errorf("%s: %q, want %q", c.text, why, c.want)
		}
	}
}

// A stream whose events are not as expected loses nothing, and does not go on.
func TestOtherEvents(t *testing.T) {
	for name, events := range map[string][]string{
		"no ids":        {event("a", "null", "null", "null")},
		"spaces":        {`data: {"id": "x", "created": 1, "choices": [{"text": "a", "finish_reason": null, "token_ids": [1]}]}` + "\n\n"},
		"two lines":     {"data: {\ndata: }\n\n"},
		"carriage":      {"data: {}\r\n\r\n"},
		"no id":         {"data: {}\n\n"},
		"no JSON":       {"data: hello\n\n"},
		"ends with key": {`data: {"id":"x","created":1,"token_ids":` + "\n\n"},
		"open list":     {`data: {"id":"x","created":1,"a":1,"token_ids":[1,2` + "\n\n"},
		"open prompt":   {`data: {"id":"x","created":1,"prompt_token_ids":[1,2` + "\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, pd.APICompletions, ask, 1<<20)
			if got, want := feed(t, s, events...), strings.Join(events, ""); got != want {
				t.Errorf("%q, want %q", got, want)
			}
			if s.Refusal() == "" {
				t.Error("it would go on")
			}
		})
	}
}

func TestChatThatIsParsed(t *testing.T) {
	const form = `data: {"id":"c","created":1,"choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":null,"token_ids":[4]}]}` + "\n\n"
	const role = `data: {"id":"c","created":1,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":[1]}` + "\n\n"
	for delta, want := range map[string]Refusal{`{"content":"x"}`: "", `{"content":""}`: "", `{"reasoning":"x"}`: Parsed, `{"tool_calls":[]}`: Parsed, `{}`: Parsed, `{"role":"x"}`: Parsed} {
		for _, parsers := range []bool{true, false} {
			s := startWith(t, pd.APIChat, `{"messages":[],"stream":true,"max_tokens":5}`, 1<<20, parsers)
			feed(t, s, role, fmt.Sprintf(form, delta))
			want := want
			if parsers && !strings.Contains(delta, "role") {
				want = ""
			}
			if got := s.Refusal(); got != want {
				t.Errorf("%s, parsers %t: %q, want %q", delta, parsers, got, want)
			}
			if parses := s.Parsing() != nil; parses != (parsers && !strings.Contains(delta, "content") && want == "") {
				t.Errorf("%s, parsers %t: parsed %t", delta, parsers, parses)
			}
		}
	}
}

// An engine that may parse the text sends events without a delta only to one that has asked for ids.
func TestChatWithoutDelta(t *testing.T) {
	const form = `data: {"id":"c","object":"chat.completion.chunk","created":1,"choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":null,"token_ids":%s}]}` + "\n\n"
	const role = `data: {"id":"c","object":"chat.completion.chunk","created":1,"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"prompt_token_ids":%s}` + "\n\n"
	s := start(t, pd.APIChat, `{"messages":[],"stream":true,"max_tokens":9}`, 1<<20)
	got := feed(t, s, fmt.Sprintf(role, "[1]"), fmt.Sprintf(form, `{}`, "[4]"), fmt.Sprintf(form, `{"content":"a"}`, "[5]"), fmt.Sprintf(form, `{}`, "[6]"))
	want := fmt.Sprintf(role, "null") + fmt.Sprintf(form, `{"content":"a"}`, "null")
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if why := s.Refusal(); why != "" {
		t.Error(why)
	}
	if leg := string(bytes.Join(s.Leg(0).Segments, nil)); !strings.HasPrefix(leg, `{"prompt":[1,4,5],"max_tokens":7,`) {
		t.Error(leg)
	}
	s.Moved()
	next := strings.ReplaceAll(event("", "null", "[1,4,5]", "[6]")+event("b", "null", "null", "[7]"), `"model":"m",`, "")
	if got, want := feed(t, s, next), fmt.Sprintf(form, `{"content":"b"}`, "null"); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestMemory(t *testing.T) {
	of, _ := read(t, pd.APICompletions, ask, true)
	mem := pd.NewBufferedBytes(firstSent + 5)
	for _, c := range []struct {
		prompt string
		want   Refusal
	}{{"1,2,3", ""}, {"1,2,3,4", Memory}} {
		s := NewStream(of, mem)
		feed(t, s, event("a", "null", "["+c.prompt+"]", "[4]"), event("", "null", "null", "[5]"), event("b", "null", "null", "[6]"))
		if got := s.Refusal(); got != c.want {
			t.Errorf("%s: %q, want %q", c.prompt, got, c.want)
		}
		s.Close()
		if mem.Bytes() != 0 {
			t.Errorf("%v bytes stay counted", mem.Bytes())
		}
	}
}

func TestEventAllocs(t *testing.T) {
	for name, begin := range steadyStreams {
		s, e := begin(t)
		for range 100 {
			s.Event(e)
		}
		s.grow(1 << 20)
		if n := testing.AllocsPerRun(100, func() { s.Event(e) }); n > 0 {
			t.Errorf("%s: %v allocations for an event", name, n)
		}
	}
}

// steadyStreams begin streams, and return the event that most of them are.
var steadyStreams = map[string]func(t testing.TB) (*Stream, body.Event){
	"text": func(t testing.TB) (*Stream, body.Event) {
		s := start(t, pd.APICompletions, `{"prompt":"x","max_tokens":1000000000,"stream":true}`, 1<<40)
		feed(t, s, event("a", "null", "[1]", "[4]"))
		return s, parsed(t, event(" hello", "null", "null", "[1234]"))
	},
	"reasoning": func(t testing.TB) (*Stream, body.Event) {
		s := start(t, pd.APIChat, `{"messages":[],"stream":true}`, 1<<40)
		feed(t, s, opening, chatEvent(`{"reasoning":"a"}`, "null", "[4]"))
		return s, parsed(t, chatEvent(`{"reasoning":" hello"}`, "null", "[1234]"))
	},
	"arguments": func(t testing.TB) (*Stream, body.Event) {
		s := start(t, pd.APIChat, askTools, 1<<40)
		feed(t, s, opening, chatEvent(`{"tool_calls":[{"id":"call-1","type":"function","index":0,"function":{"name":"f"}}]}`, "null", "[4]"))
		return s, parsed(t, chatEvent(`{"tool_calls":[{"index":0,"function":{"arguments":" hello"}}]}`, "null", "[1234]"))
	},
}

func parsed(t testing.TB, text string) (e body.Event) {
	split := body.Events{}
	if err := split.Feed([]byte(text), func(of body.Event) error {
		e = body.Event{Raw: bytes.Clone(of.Raw)}
		e.Data = e.Raw[len(dataStart) : len(e.Raw)-len(dataEnd)]
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return e
}

func BenchmarkEvent(b *testing.B) {
	for name, begin := range steadyStreams {
		b.Run(name, func(b *testing.B) {
			s, e := begin(b)
			b.ReportAllocs()
			for b.Loop() {
				s.Event(e)
			}
		})
	}
}
