package answer_test

import (
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/answer"
	"github.com/tandem-serving/tandem/pd"
)

func response(status int, kind, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(body))}
}

const (
	whole  = "application/json"
	stream = "text/event-stream; charset=utf-8"
	first  = `data: {"choices":[{"token_ids":[1,2],"delta":{"content":"a"}}]}` + "\n\n"
	last   = `data: {"choices":[{"token_ids":[3],"text":"b","finish_reason":"stop"}]}` + "\n\n" +
		`data: {"choices":[],"usage":{"prompt_tokens_details":{"cached_tokens":16}}}` + "\n\n"
)

func TestRead(t *testing.T) {
	const right = `{"choices":[{"token_ids":[1],"message":{"content":"a"},"finish_reason":"length"}]}`
	for name, c := range map[string]struct {
		response *http.Response
		want     answer.Answer
	}{
		"whole":   {response(200, whole, right), answer.Answer{Cached: -1, Tokens: []int{1}, Texts: []string{"a"}, Finish: "length", Body: right}},
		"error":   {response(503, whole, `{"error":1}`), answer.Answer{Cached: -1, Body: `{"error":1}`}},
		"no JSON": {response(502, "text/plain", "gone"), answer.Answer{Cached: -1, Body: "gone"}},
		"streamed": {response(200, stream, ": hello\n"+first+last+"data: [DONE]\n\n"), answer.Answer{Cached: 16, Tokens: []int{1, 2, 3}, Texts: []string{"ab"}, Finish: "stop", Done: true,
			Usage: []byte(`{"prompt_tokens_details":{"cached_tokens":16}}`)}},
		"fails": {response(200, stream, first+"data: {\"error\":{\"code\":500}}\n\n"), answer.Answer{Cached: -1, Tokens: []int{1, 2}, Texts: []string{"a"}, Failed: `{"code":500}`}},
	} {
		got, err := answer.Read(c.response)
		c.want.Status, c.want.Header = c.response.StatusCode, c.response.Header
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}

// The APIs with named events have no ids: their texts count, and each text once.
func TestReadNamedEvents(t *testing.T) {
	const (
		usage   = `{"input_tokens":5,"input_tokens_details":{"cached_tokens":4}}`
		read    = `{"input_tokens":1,"cache_read_input_tokens":4}`
		created = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"output\":[],\"usage\":null}}\n\n"
		text    = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"ab\"}\n\n" +
			"event: response.output_text.done\ndata: {\"type\":\"response.output_text.done\",\"text\":\"ab\"}\n\n"
		started = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[],\"usage\":{\"input_tokens\":5}}}\n\n"
		block   = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"ab\"}}\n\n"
		stopped = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\":" + read + "}\n\n" +
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
		failure = `{"type":"error","code":"internal","message":"gone"}`
	)
	ended := func(name string) string {
		return fmt.Sprintf("event: %s\ndata: {\"type\":%[1]q,\"response\":{\"output\":[{\"content\":[{\"text\":\"ab\"}]}],\"usage\":%s}}\n\n", name, usage)
	}
	ab := []int{'a', 'b'}
	for name, c := range map[string]struct {
		kind, body string
		want       answer.Answer
	}{
		"responses":             {whole, `{"output":[{"content":[{"text":"a"},{"text":"b"}]}],"usage":` + usage + `}`, answer.Answer{Cached: 4, Tokens: ab, Usage: []byte(usage)}},
		"responses, streamed":   {stream, created + text + ended("response.completed"), answer.Answer{Cached: 4, Tokens: ab, Usage: []byte(usage), Done: true}},
		"responses, incomplete": {stream, created + text + ended("response.incomplete"), answer.Answer{Cached: 4, Tokens: ab, Usage: []byte(usage), Done: true}},
		"responses, broken":     {stream, created + text + "event: error\ndata: " + failure + "\n\n", answer.Answer{Cached: -1, Tokens: ab, Failed: failure}},
		"messages":              {whole, `{"type":"message","content":[{"text":"ab"}],"usage":` + read + `}`, answer.Answer{Cached: 4, Tokens: ab, Usage: []byte(read)}},
		"messages, streamed":    {stream, started + block + stopped, answer.Answer{Cached: 4, Tokens: ab, Usage: []byte(read), Done: true}},
		"messages, broken": {stream, started + block + "event: error\ndata: {\"type\":\"error\",\"error\":" + failure + "}\n\n",
			answer.Answer{Cached: -1, Tokens: ab, Usage: []byte(`{"input_tokens":5}`), Failed: failure}},
	} {
		r := response(200, c.kind, c.body)
		got, err := answer.Read(r)
		c.want.Status, c.want.Header, c.want.Texts = r.StatusCode, r.Header, []string{"ab"}
		if c.kind == whole {
			c.want.Body = c.body
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}

// Answers of SGLang's generate API repeat everything so far, and those to several prompts are a list.
func TestReadGenerate(t *testing.T) {
	const (
		one   = `{"text":"a","output_ids":[1],"meta_info":{"finish_reason":null,"prompt_tokens":9,"completion_tokens":1,"cached_tokens":4}}`
		two   = `{"text":"ab","output_ids":[1,2],"meta_info":{"finish_reason":{"type":"length","length":2},"prompt_tokens":9,"completion_tokens":2,"cached_tokens":4}}`
		other = `{"text":"c","output_ids":[3],"index":1,"meta_info":{"finish_reason":{"type":"length","length":1},"prompt_tokens":5,"completion_tokens":1,"cached_tokens":0}}`
		gone  = `{"type":"abort","message":"gone","status_code":500}`
		fails = `{"text":"","output_ids":[],"meta_info":{"finish_reason":` + gone + `}}`
	)
	type seen struct {
		Tokens              []int
		Texts               []string
		Usage, End, Failure string
		Cached              int
	}
	for name, c := range map[string]struct {
		kind, body string
		want       seen
	}{
		"whole":    {whole, two, seen{[]int{1, 2}, []string{"ab"}, `{"prompt_tokens":9,"completion_tokens":2}`, "length", "", 4}},
		"streamed": {stream, "data: " + one + "\n\ndata: " + two + "\n\ndata: [DONE]\n\n", seen{[]int{1, 2}, []string{"ab"}, `{"prompt_tokens":9,"completion_tokens":2}`, "length", "", 4}},
		"several":  {whole, "[" + two + "," + other + "]", seen{[]int{1, 2, 3}, []string{"ab", "c"}, `{"prompt_tokens":14,"completion_tokens":3}`, "length", "", 4}},
		"several, streamed": {stream, "data: " + other + "\n\ndata: " + one + "\n\ndata: " + two + "\n\ndata: [DONE]\n\n",
			seen{[]int{1, 2, 3}, []string{"ab", "c"}, `{"prompt_tokens":14,"completion_tokens":3}`, "length", "", 4}},
		"aborted": {stream, "data: " + fails + "\n\ndata: [DONE]\n\n", seen{nil, []string{""}, `{"prompt_tokens":0,"completion_tokens":0}`, "abort", gone, 0}},
	} {
		got, err := answer.Read(response(200, c.kind, c.body))
		if have := (seen{got.Tokens, got.Texts, string(got.Usage), got.Finish, got.Failed, got.Cached}); err != nil || !reflect.DeepEqual(have, c.want) {
			t.Errorf("%s: %+v, %v, want %+v", name, have, err, c.want)
		}
	}
}

func TestReadDecision(t *testing.T) {
	r := response(200, whole, "{}")
	r.Header.Set(pd.HeaderDecision, "remote;reason=uncached;attempts=1;candidate=0")
	if got, err := answer.Read(r); err != nil || got.Decision.Verdict != pd.Remote || got.Decision.Reason != pd.Uncached {
		t.Errorf("decision %v, %v", got.Decision, err)
	}
	r.Header.Set(pd.HeaderDecision, "perhaps")
	if got, err := answer.Read(r); err == nil {
		t.Errorf("decision %v is read where there is none", got.Decision)
	}
}

// What is no answer of the API is told of, with what was read before.
func TestReadBroken(t *testing.T) {
	for name, c := range map[string]struct {
		response *http.Response
		tokens   int
	}{
		"no object":       {response(200, whole, "[]"), 0},
		"cut":             {response(200, whole, `{"choices":[{"token_ids":[1]}`), 0},
		"line of no kind": {response(200, stream, first+"hello\n\n"), 2},
		"broken event":    {response(200, stream, first+"data: {\n\n"), 2},
		"another type":    {response(200, stream, first+"event: ping\ndata: {\"type\":\"pong\"}\n\n"), 2},
		"after the last":  {response(200, stream, first+"data: {\"type\":\"message_stop\"}\n\n"+last), 2},
		"choice too far":  {response(200, stream, first+"data: {\"choices\":[{\"index\":-1}]}\n\n"), 2},
		"after the end":   {response(200, stream, first+"data: [DONE]\n\n"+last), 2},
	} {
		if got, err := answer.Read(c.response); err == nil || len(got.Tokens) != c.tokens {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestFailedWell(t *testing.T) {
	for failed, want := range map[string]bool{`{"message":"gone","type":"x","code":1}`: true, `{"message":"gone"}`: false, `{"type":"x"}`: false,
		`"gone"`: false, "": false} {
		if got := (answer.Answer{Failed: failed}).FailedWell(); got != want {
			t.Errorf("%q: %v, want %v", failed, got, want)
		}
	}
}
