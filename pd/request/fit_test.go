package request_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

const (
	split   = request.FitSplit
	local   = request.FitLocal
	doubted = request.FitDoubted
)

// wrongNumbers are values that no engine takes for a count, or that some take and some do not.
var wrongNumbers = []string{`"1"`, `1.0`, `1.5`, `1e2`, `true`, `[]`, `[1]`, `{}`, `NaN`, `9223372036854775808`, `-9223372036854775809`}

// TestFitOfMembers puts each value beside what makes a plain request.
func TestFitOfMembers(t *testing.T) {
	cases := []struct {
		member string
		values []string
		fit    request.Fit
	}{
		{"model", []string{`"m"`, `""`, `null`}, split},
		{"model", []string{`7`, `true`, `["m"]`, `{}`}, doubted},
		{"stream", []string{`true`, `false`, `null`}, split},
		{"stream", []string{`1`, `0`, `"true"`, `[]`, `{}`}, doubted},
		{"stream_options", []string{`null`}, split},
		{"stream_options", []string{`{}`, `{"include_usage":true}`, `true`, `"x"`, `[]`, `1`}, doubted}, // without a stream
		{"max_tokens", []string{`1`, `300`, `null`, `9223372036854775807`}, split},
		{"max_tokens", append(wrongNumbers, `0`, `-1`), doubted},
		{"max_completion_tokens", []string{`1`, `300`, `null`}, split},
		{"max_completion_tokens", append(wrongNumbers, `0`, `-1`), doubted},
		{"max_output_tokens", []string{`1`, `300`, `null`}, split},
		{"max_output_tokens", append(wrongNumbers, `0`, `-1`), doubted},
		{"min_tokens", []string{`0`, `1`, `16`}, split},
		{"min_tokens", append(wrongNumbers, `-1`, `null`), doubted}, // vLLM's null is an error, too
		{"n", []string{`1`, `null`}, split},
		{"n", []string{`2`, `100`, `9223372036854775807`}, local},
		{"n", append(wrongNumbers, `0`, `-1`), doubted},
		{"best_of", []string{`1`, `null`}, split},
		{"best_of", []string{`2`}, local},
		{"best_of", append(wrongNumbers, `0`, `-1`), doubted},
		{"use_beam_search", []string{`false`, `null`}, split},
		{"use_beam_search", []string{`true`, `"true"`, `1`}, local},
		{"prompt_embeds", []string{`null`}, split},
		{"prompt_embeds", []string{`"AAAA"`, `["AAAA"]`, `[]`}, local}, // a second prompt
		{"prompt_logprobs", []string{`null`}, split},
		{"prompt_logprobs", []string{`0`, `1`, `-1`, `true`, `"1"`}, local},
		{"logprobs", []string{`null`, `false`, `true`, `0`, `5`}, split}, // of what is generated
		{"echo", []string{`true`, `false`, `null`}, split},
		{"tool_choice", []string{`"auto"`, `"required"`, `null`, `{"type":"function"}`}, split},
		{"kv_transfer_params", []string{`null`, `{}`, `[]`, `"x"`, `7`}, split}, // replaced on every path
		{"sampling_params", []string{`null`, `{}`, `7`}, split},
		{"vllm_xargs", []string{`null`, `{"kv_transfer_params":1}`, `7`}, split},
		{"unknown", []string{`1`, `null`, `{}`}, split},
	}
	for _, c := range cases {
		for _, value := range c.values {
			for _, api := range []pd.API{pd.APIChat, pd.APICompletions} {
				in := fmt.Sprintf(`{"messages":[{}],"prompt":"x",%q:%s}`, c.member, value)
				if got := asked(t, api, in).Fit(); got != c.fit {
					t.Errorf("%s %s: got %d, want %d", api, in, got, c.fit)
				}
			}
		}
	}
}

func TestFit(t *testing.T) {
	cases := []struct {
		name string
		api  pd.API
		in   string
		fit  request.Fit
	}{
		{"plain chat", pd.APIChat, `{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":9}`, split},
		{"plain completion", pd.APICompletions, `{"model":"m","prompt":"x"}`, split},

		{"no messages", pd.APIChat, `{"prompt":"x"}`, doubted},
		{"messages null", pd.APIChat, `{"messages":null}`, doubted},
		{"messages a string", pd.APIChat, `{"messages":"x"}`, doubted},
		{"messages an object", pd.APIChat, `{"messages":{}}`, doubted},
		{"no prompt", pd.APICompletions, `{"messages":[]}`, doubted},
		{"prompt null", pd.APICompletions, `{"prompt":null}`, doubted},
		{"prompt a number", pd.APICompletions, `{"prompt":7}`, doubted},
		{"prompt an object", pd.APICompletions, `{"prompt":{}}`, doubted},

		{"a list of one text", pd.APICompletions, `{"prompt":["a"]}`, split},
		{"a list of two texts", pd.APICompletions, `{"prompt":["a","b"]}`, local},
		{"a list of two texts, the second empty", pd.APICompletions, `{"prompt":["a",""]}`, local},
		{"tokens", pd.APICompletions, `{"prompt":[1,2]}`, split},
		{"one token", pd.APICompletions, `{"prompt":[1]}`, split},
		{"tokens after white space", pd.APICompletions, "{\"prompt\":[ \n\t\r 1 , 2 ]}", split},
		{"a list of one prompt in tokens", pd.APICompletions, `{"prompt":[[1,2]]}`, split},
		{"a list of two prompts in tokens", pd.APICompletions, `{"prompt":[[1],[2]]}`, local},
		{"two prompts after white space", pd.APICompletions, "{\"prompt\":[ \n\t\r [1],[2]]}", local},
		{"two prompts as objects", pd.APICompletions, `{"prompt":[{},{}]}`, local},
		{"two prompts of no known sort", pd.APICompletions, `{"prompt":[null,true]}`, local},
		{"no prompts", pd.APICompletions, `{"prompt":[]}`, split}, // refused by prefill as by decode
		{"a list of prompts beside a chat", pd.APIChat, `{"messages":[],"prompt":["a","b"]}`, local},

		{"echo and logprobs", pd.APICompletions, `{"prompt":"x","echo":true,"logprobs":1}`, local},
		{"echo and no logprobs but 0", pd.APICompletions, `{"prompt":"x","echo":true,"logprobs":0}`, local},
		{"echo, and logprobs null", pd.APICompletions, `{"prompt":"x","echo":true,"logprobs":null}`, split},
		{"echo, and logprobs false", pd.APICompletions, `{"prompt":"x","echo":true,"logprobs":false}`, split},
		{"no echo, but logprobs", pd.APICompletions, `{"prompt":"x","echo":false,"logprobs":1}`, split},
		{"echo null, and logprobs", pd.APICompletions, `{"prompt":"x","echo":null,"logprobs":1}`, split},
		{"echo that engines take for true", pd.APICompletions, `{"prompt":"x","echo":1,"logprobs":1}`, local},
		{"echo twice, the last counts", pd.APICompletions, `{"prompt":"x","echo":true,"logprobs":1,"echo":false}`, split},

		{"stream_options with a stream", pd.APIChat, `{"messages":[],"stream":true,"stream_options":{}}`, split},
		{"stream_options with stream null", pd.APIChat, `{"messages":[],"stream":null,"stream_options":{}}`, doubted},
		{"stream_options of a wrong type, with a stream", pd.APIChat, `{"messages":[],"stream":true,"stream_options":[]}`, doubted},

		{"min_tokens at the limit", pd.APICompletions, `{"prompt":"x","min_tokens":5,"max_tokens":5}`, split},
		{"min_tokens above the limit", pd.APICompletions, `{"prompt":"x","min_tokens":6,"max_tokens":5}`, doubted},
		{"min_tokens above the completion limit", pd.APIChat, `{"messages":[],"min_tokens":6,"max_tokens":9,"max_completion_tokens":5}`, doubted},
		{"min_tokens above a limit that does not count", pd.APIChat, `{"messages":[],"min_tokens":6,"max_tokens":5,"max_completion_tokens":9}`, split},
		{"min_tokens without a limit", pd.APIChat, `{"messages":[],"min_tokens":600,"max_tokens":null}`, split},
		{"min_tokens at the limit of completions", pd.APICompletions, `{"prompt":"x","min_tokens":16,"max_tokens":null}`, split},
		{"min_tokens above the limit of completions", pd.APICompletions, `{"prompt":"x","min_tokens":17}`, doubted},
		{"min_tokens above the limit of completions, chat's given", pd.APICompletions, `{"prompt":"x","min_tokens":6,"max_tokens":5,"max_completion_tokens":9}`, doubted},

		{"a wrong member spelled by an escape", pd.APICompletions, `{"prompt":"x","max\u005ftokens":"7"}`, doubted},
		{"doubted goes before local", pd.APICompletions, `{"prompt":["a","b"],"n":2,"max_tokens":0}`, doubted},

		{"a list", pd.APIChat, `[]`, doubted},
		{"a string", pd.APIChat, `"x"`, doubted},
		{"null", pd.APICompletions, `null`, doubted},
		{"a number", pd.APICompletions, `7`, doubted},

		{"responses", pd.APIResponses, `{"input":"x"}`, split},
		{"responses, a conversation", pd.APIResponses, `{"input":[{"role":"user","content":"x"}],"max_output_tokens":5,"stream":true}`, split},
		{"responses without input", pd.APIResponses, `{"messages":[],"prompt":"x"}`, doubted},
		{"responses, input null", pd.APIResponses, `{"input":null}`, doubted},
		{"responses, input an object", pd.APIResponses, `{"input":{}}`, doubted},
		{"responses, min_tokens above the limit", pd.APIResponses, `{"input":"x","min_tokens":6,"max_output_tokens":5,"max_tokens":9}`, doubted},
		{"responses, stored", pd.APIResponses, `{"input":"x","store":true}`, split},
		{"responses in the background", pd.APIResponses, `{"input":"x","background":true}`, local},
		{"responses not in the background", pd.APIResponses, `{"input":"x","background":false}`, split},
		{"responses, background null", pd.APIResponses, `{"input":"x","background":null}`, split},
		{"responses that go on", pd.APIResponses, `{"input":"x","previous_response_id":"resp_1"}`, local},
		{"responses that do not go on", pd.APIResponses, `{"input":"x","previous_response_id":null}`, split},
		{"responses, truncated", pd.APIResponses, `{"input":"x","truncation":"auto"}`, local},
		{"responses, not truncated", pd.APIResponses, `{"input":"x","truncation":"disabled"}`, split},
		{"responses, truncation null", pd.APIResponses, `{"input":"x","truncation":null}`, split},
		{"responses without tools", pd.APIResponses, `{"input":"x","tools":[]}`, split},
		{"responses with functions", pd.APIResponses, `{"input":"x","tools":[{"type":"function","name":"f"},{"name":"g","type":"f\u0075nction"}]}`, split},
		{"responses with a tool of the engine", pd.APIResponses, `{"input":"x","tools":[{"type":"function"},{"type":"code_interpreter"}]}`, local},
		{"responses with a tool of no type", pd.APIResponses, `{"input":"x","tools":[{"type":"function"},{"name":"g"}]}`, local},
		{"responses with a tool whose type is no text", pd.APIResponses, `{"input":"x","tools":[{"type":7}]}`, local},
		{"responses with more tools than are looked at", pd.APIResponses, `{"input":"x","tools":[` + strings.Repeat(`{"type":"function"},`, 2000) + `{"type":"mcp"}]}`, local},
		{"what binds responses, in chat", pd.APIChat, `{"messages":[],"background":true,"previous_response_id":"x","truncation":"auto","tools":[{"type":"mcp"}]}`, split},

		{"messages", pd.APIMessages, `{"messages":[],"max_tokens":5}`, split},
		{"messages that are none", pd.APIMessages, `{"messages":"x","max_tokens":5}`, doubted},
		{"messages without a limit", pd.APIMessages, `{"messages":[]}`, doubted},
		{"messages, limit null", pd.APIMessages, `{"messages":[],"max_tokens":null}`, doubted},
		{"messages with another limit", pd.APIMessages, `{"messages":[],"max_completion_tokens":5}`, doubted},
		{"messages that think", pd.APIMessages, `{"messages":[],"max_tokens":2048,"thinking":{"type":"enabled","budget_tokens":1024}}`, split},
		{"messages that think too long", pd.APIMessages, `{"messages":[],"max_tokens":1024,"thinking":{"type":"enabled","budget_tokens":1024}}`, doubted},
		{"messages that think for no number", pd.APIMessages, `{"messages":[],"max_tokens":2048,"thinking":{"type":"enabled","budget_tokens":"1"}}`, doubted},
		{"messages that do not think", pd.APIMessages, `{"messages":[],"max_tokens":5,"thinking":{"type":"disabled"}}`, split},
		{"generate", pd.APIGenerate, `{"token_ids":[1],"sampling_params":{}}`, split},
		{"generate with parameters", pd.APIGenerate, `{"token_ids":[1,2],"sampling_params":{"max_tokens":9,"min_tokens":2,"n":1,"prompt_logprobs":null},"stream":true}`, split},
		{"generate without parameters", pd.APIGenerate, `{"token_ids":[1]}`, doubted},
		{"generate, parameters null", pd.APIGenerate, `{"token_ids":[1],"sampling_params":null}`, doubted},
		{"generate from nothing", pd.APIGenerate, `{"token_ids":[],"sampling_params":{}}`, doubted},
		{"generate from a text", pd.APIGenerate, `{"token_ids":"x","sampling_params":{}}`, doubted},
		{"generate from lists", pd.APIGenerate, `{"token_ids":[[1]],"sampling_params":{}}`, doubted},
		{"generate no tokens", pd.APIGenerate, `{"token_ids":[1],"sampling_params":{"max_tokens":0}}`, doubted},
		{"generate, min_tokens above the limit", pd.APIGenerate, `{"token_ids":[1],"sampling_params":{"max_tokens":2,"min_tokens":3}}`, doubted},
		{"generate, min_tokens above the default limit", pd.APIGenerate, `{"token_ids":[1],"sampling_params":{"min_tokens":17}}`, doubted},
		{"generate two choices", pd.APIGenerate, `{"token_ids":[1],"sampling_params":{"n":2}}`, local},
		{"generate with prompt log probabilities", pd.APIGenerate, `{"token_ids":[1],"sampling_params":{"prompt_logprobs":1}}`, local},
		{"SGLang", pd.APISGLang, `{"text":"x","n":2,"sampling_params":{"n":1}}`, local},
		{"SGLang, two choices", pd.APISGLang, `{"text":"x","sampling_params":{"n":2}}`, local},
		{"SGLang, parameters of each prompt", pd.APISGLang, `{"text":["x","y"],"sampling_params":[{"n":2},{"n":2}]}`, local},
		{"embeddings", pd.APIEmbeddings, `{"input":"x"}`, local},
		{"another", pd.APIOther, `{}`, local},
		{"a wrong member of another API", pd.APIMessages, `{"max_tokens":"5"}`, doubted},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := asked(t, c.api, c.in).Fit(); got != c.fit {
				t.Errorf("%s: got %d, want %d", c.in, got, c.fit)
			}
		})
	}
}

func TestStream(t *testing.T) {
	for in, want := range map[string]bool{
		`{}`: false, `{"stream":true}`: true, `{"stream":false}`: false, `{"stream":null}`: false, `{"stream":"true"}`: false,
		`{"str\u0065am":true}`: true, `{"metadata":{"stream":true}}`: false, `[true]`: false,
	} {
		if got := asked(t, pd.APIChat, in).Stream(); got != want {
			t.Errorf("%s: got %v", in, got)
		}
	}
}

func TestNeedsMoreThanOneToken(t *testing.T) {
	cases := []struct {
		choice string
		want   bool
	}{
		{`"required"`, true},
		{`"requir\u0065d"`, true},
		{`{"type":"function","function":{"name":"f"}}`, true},
		{`{}`, true},
		{`"auto"`, false},
		{`"none"`, false},
		{`"Required"`, false},
		{`"required "`, false},
		{`null`, false},
		{`true`, false},
		{`["required"]`, false},
	}
	for _, c := range cases {
		if got := asked(t, pd.APIChat, `{"messages":[],"tool_choice":`+c.choice+`}`).NeedsMoreThanOne(); got != c.want {
			t.Errorf("%s: got %v", c.choice, got)
		}
	}
	if asked(t, pd.APIChat, `{"messages":[{"tool_choice":"required"}]}`).NeedsMoreThanOne() {
		t.Error("forced by a member of a message")
	}
	for api, want := range map[pd.API]bool{pd.APIMessages: true, pd.APIChat: false} {
		if got := asked(t, api, `{"messages":[],"max_tokens":4096,"thinking":{"type":"enabled","budget_tokens":1024}}`).NeedsMoreThanOne(); got != want {
			t.Errorf("a budget for thinking in %s: got %v", api, got)
		}
	}
}

// Engines and proxies disagree on which of two counts, so neither gets to choose.
func TestControlledMembersOccurOnce(t *testing.T) {
	for _, name := range []string{
		"model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "n", "best_of",
		"prompt", "messages", "tool_choice", "kv_transfer_params", "sampling_params",
	} {
		for _, second := range []string{name, fmt.Sprintf(`\u%04x%s`, name[0], name[1:])} {
			in := fmt.Sprintf(`{"%s":1,"x":2,"%s":1}`, name, second)
			_, _, err := scan(pd.APIChat, []byte(in))
			if d, ok := err.(*body.DuplicateError); !ok || d.Path != name {
				t.Errorf("%s: got %v", in, err)
			}
		}
	}
}

func TestStripped(t *testing.T) {
	table := request.Base.Members()
	want := map[string]bool{
		"kv_transfer_params": true, "sampling_params.extra_args.kv_transfer_params": true, "vllm_xargs.kv_transfer_params": true,
		"ec_transfer_params": true, "sampling_params.extra_args.ec_transfer_params": true, "vllm_xargs.ec_transfer_params": true,
		"bootstrap_host": true, "bootstrap_port": true, "bootstrap_room": true,
	}
	for i := range table.Wants() {
		if path := table.Path(i); request.Base.Strips(i) != want[path] {
			t.Errorf("%s: got %v", path, request.Base.Strips(i))
		}
		delete(want, table.Path(i))
	}
	if len(want) > 0 {
		t.Errorf("not looked for: %v", want)
	}
}

// Further members keep the indices of the base ones, and a sink is added to a member that both want.
func TestNewTable(t *testing.T) {
	plain := request.Base.Members()
	table := request.NewTable(nil, body.Want{Path: "temperature"}, body.Want{Path: "prompt", Sink: true}, body.Want{Path: "messages.*.content", Sink: true})
	more := table.Members()
	if n := plain.Wants(); more.Wants() != n+2 || more.Path(n) != "temperature" || more.Path(n+1) != "messages.*.content" {
		t.Fatalf("%d wants, %d more", n, more.Wants()-n)
	}
	for i := range plain.Wants() {
		if more.Path(i) != plain.Path(i) {
			t.Errorf("want %d is %s, was %s", i, more.Path(i), plain.Path(i))
		}
	}
	in := []byte(`{"prompt":"abc","n":2,"messages":[{"content":"def"}],"stream":true}`)
	sunk := map[string]string{}
	var s body.Scanner
	s.Reset(more, body.Limits{}, func(want int, piece []byte, _ bool) { sunk[more.Path(want)] += string(piece) })
	if _, err := s.Write(in); err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"prompt": "abc", "messages.*.content": "def"}; !maps.Equal(sunk, want) {
		t.Errorf("sunk %q, want %q", sunk, want)
	}
	var b body.Body
	b.Append(in)
	if r := table.Request(pd.APICompletions, &b, &s); !r.Stream() || r.Fit() != request.FitLocal {
		t.Errorf("stream %v, fit %v", r.Stream(), r.Fit())
	}
	s.Reset(more, body.Limits{}, nil)
	if _, err := s.Write([]byte(`{"prompt":1,"prompt":2}`)); err == nil {
		t.Error("a prompt with a sink may occur twice")
	}
}
