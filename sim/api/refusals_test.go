package api_test

import (
	"net/http"
	"testing"

	"github.com/tandem-serving/tandem/sim/simtest"
)

// TestRefusals compares answers with those of the real engine, each to one request (measured, vLLM 0.32.0).
func TestRefusals(t *testing.T) {
	s := simtest.Start(t)
	for _, c := range []struct{ name, path, body, want string }{
		{"lone surrogate", "completions", `{"prompt":"a\ud800b","max_tokens":1}`, `{"error":{"message":"TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]","type":"BadRequestError","param":null,"code":400}}`},
		{"greedy choices", "completions", `{"prompt":"a","max_tokens":1,"n":2,"temperature":0}`, `{"error":{"message":"n must be 1 when using greedy sampling, got 2.","type":"BadRequestError","param":null,"code":400}}`},
		{"several wrong types", "completions", `{"prompt":"a","max_tokens":"x","stream":"zz","n":"q"}`, `{"error":{"message":"3 validation errors:\n  {'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': 'x'}\n  {'type': 'int_parsing', 'loc': 'body.n', 'msg': 'Input should be a valid integer, unable to parse string as an integer', 'input': 'q'}\n  {'type': 'bool_parsing', 'loc': 'body.stream', 'msg': 'Input should be a valid boolean, unable to interpret input', 'input': 'zz'}","type":"Bad Request","param":"body.max_tokens","code":400}}`},
		{"fraction", "completions", `{"prompt":"a","max_tokens":1.5}`, `{"error":{"message":"1 validation error:\n  {'type': 'int_from_float', 'loc': 'body.max_tokens', 'msg': 'Input should be a valid integer, got a number with a fractional part', 'input': '1.5'}","type":"Bad Request","param":"body.max_tokens","code":400}}`},
		{"number for a flag", "completions", `{"prompt":"a","stream":7}`, `{"error":{"message":"1 validation error:\n  {'type': 'bool_parsing', 'loc': 'body.stream', 'msg': 'Input should be a valid boolean, unable to interpret input', 'input': '7'}","type":"Bad Request","param":"body.stream","code":400}}`},
		{"no prompt", "completions", `{"max_tokens":1}`, `{"error":{"message":"Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)","type":"BadRequestError","param":"prompt","code":400}}`},
		{"text for a number", "completions", `{"prompt":"a","temperature":"hot"}`, `{"error":{"message":"1 validation error:\n  {'type': 'float_parsing', 'loc': 'body.temperature', 'msg': 'Input should be a valid number, unable to parse string as a number', 'input': 'hot'}","type":"Bad Request","param":"body.temperature","code":400}}`},
		{"no comma", "completions", `{"model":"tiny" "prompt":1}`, `{"error":{"message":"1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.16', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': \"Expecting ',' delimiter\"}}","type":"Bad Request","param":"body.16","code":400}}`},
		{"comma at the end", "completions", `{"model":"tiny",}`, `{"error":{"message":"1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.16', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting property name enclosed in double quotes'}}","type":"Bad Request","param":"body.16","code":400}}`},
		{"cut off in a string", "completions", `{"model":"tin`, `{"error":{"message":"1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.9', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': 'Unterminated string starting at'}}","type":"Bad Request","param":"body.9","code":400}}`},
		{"more after the end", "completions", `{"model":"tiny"} x`, `{"error":{"message":"1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.17', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': 'Extra data'}}","type":"Bad Request","param":"body.17","code":400}}`},
		{"no value", "completions", `{"model":nope}`, `{"error":{"message":"1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.9', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting value'}}","type":"Bad Request","param":"body.9","code":400}}`},
		{"number for text", "completions", `{"model":3,"prompt":"a"}`, `{"error":{"message":"1 validation error:\n  {'type': 'string_type', 'loc': 'body.model', 'msg': 'Input should be a valid string', 'input': '3'}","type":"Bad Request","param":"body.model","code":400}}`},
		{"stream_options before its type", "completions", `{"prompt":"a","max_tokens":null,"stream_options":3}`, `{"error":{"message":"Stream options can only be defined when ` + "`stream=True`" + `. (parameter=stream_options)","type":"BadRequestError","param":"stream_options","code":400}}`},
		{"top_p", "completions", `{"prompt":"a","max_tokens":1,"top_p":2}`, `{"error":{"message":"top_p must be in (0, 1], got 2.0. (parameter=top_p, value=2.0)","type":"BadRequestError","param":"top_p","code":400}}`},
		{"no choices", "completions", `{"prompt":"a","max_tokens":1,"n":0}`, `{"error":{"message":"n must be at least 1, got 0.","type":"BadRequestError","param":null,"code":400}}`},
		{"negative min_tokens", "completions", `{"prompt":"a","max_tokens":2,"min_tokens":-1}`, `{"error":{"message":"min_tokens must be greater than or equal to 0, got -1.","type":"BadRequestError","param":null,"code":400}}`},
		{"all log probabilities", "completions", `{"prompt":"a","max_tokens":1,"logprobs":-1}`, `{"error":{"message":"Requested sample logprobs of 1024, which is greater than max allowed: 20 (parameter=logprobs, value=1024)","type":"BadRequestError","param":"logprobs","code":400}}`},
		{"no prompts", "completions", `{"prompt":[],"max_tokens":1}`, `{"error":{"message":"You must pass at least one prompt","type":"BadRequestError","param":null,"code":400}}`},
		{"one empty prompt", "completions", `{"prompt":["a",""],"max_tokens":1}`, `{"error":{"message":"The decoder prompt cannot be empty","type":"BadRequestError","param":null,"code":400}}`},
		{"empty conversation", "chat/completions", `{"messages":[],"max_tokens":1}`, `{"error":{"message":"Cannot apply chat template to an empty conversation. Provide at least one message.","type":"BadRequestError","param":null,"code":400}}`},
		{"max_completion_tokens 0", "chat/completions", `{"messages":[{"role":"user","content":"x"}],"max_tokens":1,"max_completion_tokens":0}`, `{"error":{"message":"max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)","type":"BadRequestError","param":"max_tokens","code":400}}`},
		{"max_tokens over the model", "completions", `{"prompt":"a","max_tokens":4097}`, `{"error":{"message":"max_tokens=4097 cannot be greater than max_model_len=4096. Please request fewer output tokens. (parameter=max_tokens, value=4097)","type":"BadRequestError","param":"max_tokens","code":400}}`},
		{"max_completion_tokens over the model", "chat/completions", `{"messages":[{"role":"user","content":"a"}],"max_completion_tokens":20000}`, `{"error":{"message":"max_completion_tokens=20000 cannot be greater than max_model_len=4096. Please request fewer output tokens. (parameter=max_completion_tokens, value=20000)","type":"BadRequestError","param":"max_completion_tokens","code":400}}`},
		{"responses: over the model", "responses", `{"model":"tiny","input":"a","max_output_tokens":20000}`, `{"error":{"message":"max_output_tokens=20000 cannot be greater than max_model_len=4096. Please request fewer output tokens. (parameter=max_output_tokens, value=20000)","type":"BadRequestError","param":"max_output_tokens","code":400}}`},
		{"messages: over the model", "messages", `{"model":"tiny","max_tokens":20000,"messages":[{"role":"user","content":"a"}]}`, `{"type":"error","error":{"type":"BadRequestError","message":"max_completion_tokens=20000 cannot be greater than max_model_len=4096. Please request fewer output tokens. (parameter=max_completion_tokens, value=20000)"}}`},
		{"top_logprobs alone", "chat/completions", `{"messages":[{"role":"user","content":"hi"}],"max_tokens":1,"top_logprobs":2}`, `{"error":{"message":"when using ` + "`top_logprobs`, `logprobs`" + ` must be set to true. (parameter=top_logprobs)","type":"BadRequestError","param":"top_logprobs","code":400}}`},
		{"messages: unknown model", "messages", `{"model":"nope","max_tokens":4,"messages":[{"role":"user","content":"hi"}]}`, `{"type":"error","error":{"type":"NotFoundError","message":"The model ` + "`nope`" + ` does not exist. Valid aliases: tiny."}}`},
		{"messages: counting for an unknown model", "messages/count_tokens", `{"model":"nope","messages":[{"role":"user","content":"hi"}]}`, `{"type":"error","error":{"type":"NotFoundError","message":"The model ` + "`nope`" + ` does not exist. Valid aliases: tiny."}}`},
		{"messages: no max_tokens", "messages", `{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`, `{"error":{"message":"1 validation error:\n  {'type': 'missing', 'loc': 'body.max_tokens', 'msg': 'Field required', 'input': '<dict of 2 items>'}","type":"Bad Request","param":"body.max_tokens","code":400}}`},
		{"responses: no input", "responses", `{"model":"tiny"}`, `{"error":{"message":"1 validation error:\n  {'type': 'missing', 'loc': 'body.input', 'msg': 'Field required', 'input': '<dict of 1 items>'}","type":"Bad Request","param":"body.input","code":400}}`},
		{"negative token", "completions", `{"prompt":[3,-1],"max_tokens":1}`, `{"error":{"message":"1 validation error:\n  {'type': 'greater_than_equal', 'loc': 'body.prompt.1', 'msg': 'Input should be greater than or equal to 0', 'input': '-1'}","type":"Bad Request","param":"body.prompt.1","code":400}}`},
		{"not text", "completions", "\x1f\x8b\xff", `{"detail":"There was an error parsing the body"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := simtest.Do(t, http.MethodPost, s.URL+"/v1/"+c.path, c.body); string(r.Body) != c.want {
				t.Errorf("status %d\n%s\nwant\n%s", r.Status, r.Body, c.want)
			}
		})
	}
}
