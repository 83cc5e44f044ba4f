package answer_test

import (
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
		"whole":    {response(200, whole, right), answer.Answer{Cached: -1, Tokens: []int{1}, Finish: "length", Body: right}},
		"error":    {response(503, whole, `{"error":1}`), answer.Answer{Cached: -1, Body: `{"error":1}`}},
		"no JSON":  {response(502, "text/plain", "gone"), answer.Answer{Cached: -1, Body: "gone"}},
		"streamed": {response(200, stream, ": hello\n"+first+last+"data: [DONE]\n\n"), answer.Answer{Cached: 16, Tokens: []int{1, 2, 3}, Finish: "stop", Done: true}},
		"fails":    {response(200, stream, first+"data: {\"error\":{\"code\":500}}\n\n"), answer.Answer{Cached: -1, Tokens: []int{1, 2}, Failed: `{"code":500}`}},
	} {
		got, err := answer.Read(c.response)
		c.want.Status, c.want.Header = c.response.StatusCode, c.response.Header
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
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
