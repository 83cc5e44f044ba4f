package api_test

import (
	"net/http"
	"regexp"
	"testing"

	"github.com/tandem-serving/tandem/sim/simtest"
)

// variable are the parts of answers that differ from run to run.
var variable = regexp.MustCompile(`(cmpl-)[0-9a-f]{32}|("created":)\d+|("(?:text|content)":)"[^"]*"|("encoded_opaque_state":)"[^"]*"|("first_gen_tokens":)\[\d+\]`)

// TestForms holds the forms of answers to the models of trtllm-serve: which members there are, and in which order.
func TestForms(t *testing.T) {
	engine := simtest.TRTLLM(t)
	message := []any{map[string]any{"role": "user", "content": "a"}}
	for name, c := range map[string]struct {
		path string
		body map[string]any
		want string
	}{
		"completion": {"/v1/completions", map[string]any{"model": "m", "prompt": []int{20, 30}, "max_tokens": 1, "ignore_eos": true},
			`{"id":"cmpl-*","object":"text_completion","created":*,"model":"m","choices":[{"index":0,"text":*,"token_ids":null,"logprobs":null,"context_logits":null,"finish_reason":"length",` +
				`"stop_reason":null,"disaggregated_params":null,"avg_decoded_tokens_per_iter":null}],` +
				`"usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}},"prompt_token_ids":null}`},
		"context": {"/v1/completions", map[string]any{"model": "m", "prompt": []int{20, 30}, "max_tokens": 4, "ignore_eos": true,
			"disaggregated_params": map[string]any{"request_type": "context_only", "disagg_request_id": 1 << 60}},
			`{"id":"cmpl-*","object":"text_completion","created":*,"model":"m","choices":[{"index":0,"text":*,"token_ids":null,"logprobs":null,"context_logits":null,"finish_reason":"not_finished",` +
				`"stop_reason":null,"disaggregated_params":{"request_type":"context_only","first_gen_tokens":*,"first_gen_log_probs":null,"first_gen_logits":null,` +
				`"ctx_request_id":1152921504606846976,"encoded_opaque_state":*,"draft_tokens":null,"disagg_request_id":1152921504606846976,"ctx_dp_rank":0,` +
				`"ctx_info_endpoint":null,"schedule_style":null,"ctx_usage":null},"avg_decoded_tokens_per_iter":null}],` +
				`"usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}},"prompt_token_ids":[20,30]}`},
		"chat": {"/v1/chat/completions", map[string]any{"model": "m", "messages": message, "max_completion_tokens": 1, "ignore_eos": true},
			`{"id":"chatcmpl-*","object":"chat.completion","created":*,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":*,"reasoning_content":null,"reasoning":null,` +
				`"tool_calls":[]},"logprobs":null,"finish_reason":"length","stop_reason":null,"mm_embedding_handle":null,"disaggregated_params":null,"avg_decoded_tokens_per_iter":null}],` +
				`"usage":{"prompt_tokens":N,"total_tokens":N,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}},"prompt_token_ids":null}`},
		"streamed chat": {"/v1/chat/completions", map[string]any{"model": "m", "messages": message, "max_tokens": 1, "ignore_eos": true, "stream": true, "stream_options": map[string]any{}},
			`data: {"id":"chatcmpl-*","object":"chat.completion.chunk","created":*,"model":"m","choices":[{"index":0,"delta":{"role":"assistant"}}]} ` + "\n\n" +
				`data: {"id":"chatcmpl-*","object":"chat.completion.chunk","created":*,"model":"m","choices":[{"index":0,"delta":{"content":*},"finish_reason":"length"}]} ` + "\n\n" +
				`data: {"id":"chatcmpl-*","object":"chat.completion.chunk","created":*,"model":"m","choices":[],"usage":{"prompt_tokens":N,"total_tokens":N,"completion_tokens":1,` +
				`"prompt_tokens_details":{"cached_tokens":0}}} ` + "\n\ndata: [DONE]\n\n"},
		"streamed completion": {"/v1/completions", map[string]any{"model": "m", "prompt": "a", "max_tokens": 1, "ignore_eos": true, "stream": true},
			`data: {"id":"cmpl-*","object":"text_completion","created":*,"model":"m","choices":[{"index":0,"text":*,"token_ids":null,"logprobs":null,"finish_reason":"length","stop_reason":null,` +
				`"avg_decoded_tokens_per_iter":null}],"usage":null}` + "\n\ndata: [DONE]\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := simtest.Post(t, engine.URL+c.path, c.body)
			got := variable.ReplaceAllString(string(r.Body), "$1$2$3$4$5*")
			got = regexp.MustCompile(`"(prompt_tokens|total_tokens)":\d{2,}`).ReplaceAllString(got, `"$1":N`)
			if r.Status != http.StatusOK || got != c.want {
				t.Errorf("status %d:\n%s, want\n%s", r.Status, got, c.want)
			}
		})
	}
}

// The engine is recognised by what its pages lack, too.
func TestOtherPaths(t *testing.T) {
	engine := simtest.TRTLLM(t)
	for path, status := range map[string]int{"/v1/messages": http.StatusNotFound, "/model_info": http.StatusNotFound, "/v1/completions": http.StatusMethodNotAllowed} {
		if r := simtest.Do(t, http.MethodGet, engine.URL+path, ""); r.Status != status {
			t.Errorf("%s: %d, want %d", path, r.Status, status)
		}
	}
}
