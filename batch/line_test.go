package batch_test

import (
	"encoding/json"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/batch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, line  string
		want        batch.Line // without Body and Prompt
		body, begin string     // what they are
		code, param string     // of the problem
	}{
		{name: "a chat", line: `{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user"}],"seed":12345678901234567890}}`,
			want: batch.Line{CustomID: "a", Endpoint: "/v1/chat/completions", Model: "m"},
			body: `{"model":"m","messages":[{"role":"user"}],"seed":12345678901234567890}`, begin: `[{"role":"user"}]`},
		{name: "escapes", line: `{"custom_id":"\u00e9\n","method":"POST","url":"/v1/embeddings","body":{"model":"m\"","input":"x"}}`,
			want: batch.Line{CustomID: "é\n", Endpoint: "/v1/embeddings", Model: `m"`}, body: `{"model":"m\"","input":"x"}`, begin: `"x"`},
		{name: "not streamed", line: `{"custom_id":"a","method":"POST","url":"/x","body":{"model":"m","stream":false}}`,
			want: batch.Line{CustomID: "a", Endpoint: "/x", Model: "m"}, body: `{"model":"m","stream":false}`},
		{name: "streamed", line: `{"custom_id":"a","method":"POST","url":"/x","body":{"model":"m","stream":true}}`, code: "invalid_request", param: "body.stream"},
		{name: "not JSON", line: `{"custom_id":`, code: "invalid_json_line"},
		{name: "two values", line: `{} {}`, code: "invalid_json_line"},
		{name: "no object", line: `[1]`, code: "invalid_json_line"},
		{name: "not UTF-8", line: "{\"custom_id\":\"\xff\"}", code: "invalid_json_line"},
		{name: "no custom_id", line: `{"method":"POST","url":"/x","body":{"model":"m"}}`, code: "missing_required_parameter", param: "custom_id"},
		{name: "another case", line: `{"Custom_ID":"a","method":"POST","url":"/x","body":{"model":"m"}}`, code: "missing_required_parameter", param: "custom_id"},
		{name: "a number for custom_id", line: `{"custom_id":1,"method":"POST","url":"/x","body":{"model":"m"}}`, code: "missing_required_parameter", param: "custom_id"},
		{name: "an empty custom_id", line: `{"custom_id":"","method":"POST","url":"/x","body":{"model":"m"}}`, code: "invalid_custom_id", param: "custom_id"},
		{name: "a long custom_id", line: `{"custom_id":"` + strings.Repeat("a", batch.MaxCustomID+1) + `","method":"POST","url":"/x","body":{"model":"m"}}`, code: "invalid_custom_id", param: "custom_id"},
		{name: "GET", line: `{"custom_id":"a","method":"GET","url":"/x","body":{"model":"m"}}`, code: "invalid_method", param: "method"},
		{name: "no body", line: `{"custom_id":"a","method":"POST","url":"/x"}`, code: "missing_required_parameter", param: "body"},
		{name: "a text for body", line: `{"custom_id":"a","method":"POST","url":"/x","body":"{}"}`, code: "missing_required_parameter", param: "body"},
		{name: "no model", line: `{"custom_id":"a","method":"POST","url":"/x","body":{}}`, code: "missing_required_parameter", param: "body.model"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p batch.Parser
			got, problem := p.Parse([]byte(c.line))
			if c.code != "" {
				if problem == nil || problem.Code != c.code || problem.Param != c.param || problem.Message == "" {
					t.Errorf("the problem is %+v, want %s of %q", problem, c.code, c.param)
				}
				return
			}
			if problem != nil {
				t.Fatalf("%+v", problem)
			}
			if string(got.Body) != c.body || string(got.Prompt) != c.begin {
				t.Errorf("body %s, prompt %s", got.Body, got.Prompt)
			}
			if got.Body, got.Prompt = nil, nil; got.CustomID != c.want.CustomID || got.Endpoint != c.want.Endpoint || got.Model != c.want.Model {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestResult(t *testing.T) {
	for _, c := range []struct {
		name   string
		result batch.Result
		ok     bool
		want   string
	}{
		{"an answer", batch.Result{CustomID: "a\"", RequestID: "r", Status: 200, Body: []byte("{\n  \"x\": \"a\\nb\"\r\n}")}, true,
			`{"id":"r","custom_id":"a\"","response":{"status_code":200,"request_id":"r","body":{   "x": "a\nb"  }},"error":null}`},
		{"a refusal", batch.Result{CustomID: "a", RequestID: "r", Status: 400, Body: []byte(`{}`)}, false,
			`{"id":"r","custom_id":"a","response":{"status_code":400,"request_id":"r","body":{}},"error":null}`},
		{"no answer", batch.Result{CustomID: "a", RequestID: "r", Code: batch.CodeExpired}, false,
			`{"id":"r","custom_id":"a","response":null,"error":{"code":"batch_expired","message":"The completion window ended before this request could run."}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := string(c.result.Append(nil))
			if got != c.want+"\n" || c.result.OK() != c.ok {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if !json.Valid([]byte(got)) {
				t.Error("it is not JSON")
			}
		})
	}
}

func BenchmarkLine(b *testing.B) {
	line := []byte(`{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", 200) + `"}]}}`)
	answer := []byte(`{"choices":[{"message":{"content":"` + strings.Repeat("word ", 50) + `"}}]}`)
	var p batch.Parser
	var text []byte
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for b.Loop() {
		parsed, problem := p.Parse(line)
		if problem != nil {
			b.Fatal(problem)
		}
		result := batch.Result{CustomID: parsed.CustomID, RequestID: "batch_req_a_1", Status: 200, Body: answer}
		text = result.Append(text[:0])
	}
}
