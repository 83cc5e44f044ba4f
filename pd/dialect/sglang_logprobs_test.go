package dialect_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
)

// The answers are those of SGLang 0.5.23, shortened.
func TestSGLangLogprobs(t *testing.T) {
	const (
		own  = `{"text":"a","output_ids":[1],"meta_info":{"id":"x","input_token_logprobs":[[null,7,null],[-2.5,8,null]],"output_token_logprobs":[[-0.5,1,null]]}}`
		own2 = `{"text":"b","output_ids":[2],"meta_info":{"id":"y","input_token_logprobs":[[null,9,null]],"output_token_logprobs":[[-0.5,2,null]]}}`
		top  = `{"text":"a","meta_info":{"input_token_logprobs":[[-2.5,8,null]],"input_top_logprobs":[null,[[-1,5,null]]],"input_token_ids_logprobs":[null],"output_token_ids_logprobs":[[[-9,301,null]]]}}`
		echo = `{"choices":[{"index":0,"text":"p a","logprobs":{"text_offset":[-1,-1,-1],"token_logprobs":[null,-2.5,-0.5],"tokens":["p"," q","a"],"top_logprobs":[null,{" q":-1},{"a":-0.5}]}},` +
			`{"index":1,"text":"r b","logprobs":{"text_offset":[-1,-1],"token_logprobs":[null,-0.5],"tokens":["r","b"],"top_logprobs":[]}}]}`
	)
	cases := []struct {
		name    string
		api     pd.API
		in      string
		prefill string
		decode  [][2]string // answer or events, and what they become
	}{
		{"own call", pd.APISGLang, `{"text":"x","return_logprob":true,"logprob_start_len":0}`, own, [][2]string{{
			`{"meta_info":{"input_token_logprobs":[],"output_token_logprobs":[[-0.5,1,null]]},"text":"a"}`,
			`{"meta_info":{"input_token_logprobs":[[null,7,null],[-2.5,8,null]],"output_token_logprobs":[[-0.5,1,null]]},"text":"a"}`,
		}}},
		{"every event of the own call", pd.APISGLang, `{"text":"x","return_logprob":true,"logprob_start_len":0,"stream":true}`, own, [][2]string{
			{`{"text":"a","meta_info":{"input_token_logprobs":[]}}`, `{"text":"a","meta_info":{"input_token_logprobs":[[null,7,null],[-2.5,8,null]]}}`},
			{`{"text":"ab","meta_info":{"input_token_logprobs":[]}}`, `{"text":"ab","meta_info":{"input_token_logprobs":[[null,7,null],[-2.5,8,null]]}}`},
			{`[DONE]`, `[DONE]`},
			{`{"error":{"message":"x"}}`, `{"error":{"message":"x"}}`},
		}},
		{"several prompts", pd.APISGLang, `{"text":["x","y"],"return_logprob":true,"logprob_start_len":0}`, "[" + own + "," + own2 + "]", [][2]string{{
			`[{"meta_info":{"input_token_logprobs":[]}}, {"meta_info":{"input_token_logprobs":[]}}]`,
			`[{"meta_info":{"input_token_logprobs":[[null,7,null],[-2.5,8,null]]}}, {"meta_info":{"input_token_logprobs":[[null,9,null]]}}]`,
		}}},
		{"events of several prompts", pd.APISGLang, `{"text":["x","y"],"return_logprob":true,"logprob_start_len":0,"stream":true}`, "[" + own + "," + own2 + "]", [][2]string{
			{`{"meta_info":{"input_token_logprobs":[]},"index":1}`, `{"meta_info":{"input_token_logprobs":[[null,9,null]]},"index":1}`},
			{`{"meta_info":{"input_token_logprobs":[]},"index":0}`, `{"meta_info":{"input_token_logprobs":[[null,7,null],[-2.5,8,null]]},"index":0}`},
			{`{"meta_info":{"input_token_logprobs":[]},"index":2}`, `{"meta_info":{"input_token_logprobs":[]},"index":2}`},
		}},
		{"alternatives, and certain ids", pd.APISGLang, `{"text":"x","return_logprob":true,"token_ids_logprob":[301]}`, top, [][2]string{{
			`{"meta_info":{"input_token_logprobs":[],"input_top_logprobs":[],"input_token_ids_logprobs":[],"output_token_ids_logprobs":[null,[[-8,301,null]]]}}`,
			`{"meta_info":{"input_token_logprobs":[[-2.5,8,null]],"input_top_logprobs":[null,[[-1,5,null]]],"input_token_ids_logprobs":[null],"output_token_ids_logprobs":[[[-9,301,null]],[[-8,301,null]]]}}`,
		}}},
		{"echo", pd.APICompletions, `{"prompt":["x","y"],"echo":true,"logprobs":1}`, echo, [][2]string{{
			`{"choices":[{"index":0,"logprobs":{"text_offset":[-1,-1],"token_logprobs":[-0.5,-0.7],"tokens":["a","c"],"top_logprobs":[{"a":-0.5},{"c":-0.7}]}},{"index":1,"logprobs":{"text_offset":[],"token_logprobs":[],"tokens":[],"top_logprobs":[]}}]}`,
			`{"choices":[{"index":0,"logprobs":{"text_offset":[-1,-1,-1,-1],"token_logprobs":[null,-2.5,-0.5,-0.7],"tokens":["p"," q","a","c"],"top_logprobs":[null,{" q":-1},{"a":-0.5},{"c":-0.7}]}},{"index":1,"logprobs":{"text_offset":[-1],"token_logprobs":[null],"tokens":["r"],"top_logprobs":[]}}]}`,
		}}},
		{"the first event of each prompt of an echo", pd.APICompletions, `{"prompt":["x","y"],"echo":true,"logprobs":1,"stream":true}`, echo, [][2]string{
			{`{"choices":[{"index":1,"logprobs":{"tokens":["b"]}}]}`, `{"choices":[{"index":1,"logprobs":{"tokens":["r","b"]}}]}`},
			{`{"choices":[{"index":0,"logprobs":{"tokens":["a"]}}]}`, `{"choices":[{"index":0,"logprobs":{"tokens":["p"," q","a"]}}]}`},
			{`{"choices":[{"index":0,"logprobs":{"tokens":["c"]}}]}`, `{"choices":[{"index":0,"logprobs":{"tokens":["c"]}}]}`},
			{`{"choices":[],"usage":{}}`, `{"choices":[],"usage":{}}`},
			{`{"choices":[{"index":0,"logprobs":null}]}`, `{"choices":[{"index":0,"logprobs":null}]}`},
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h, err := sglangAttempt(t, c.api, c.in).Accept([]byte(c.prefill))
			if err != nil {
				t.Fatal(err)
			}
			complete := h.(dialect.Completer)
			if !complete.Lacks() {
				t.Fatal("decode's answer is taken for complete")
			}
			for _, d := range c.decode {
				if got := string(complete.Complete([]byte(d[0]))); got != d[1] {
					t.Errorf("%s\nbecame\n%s\nwant\n%s", d[0], got, d[1])
				}
			}
		})
	}
}

// Requests without log probabilities of the prompt need nothing of prefill's answer.
func TestSGLangLacksNothing(t *testing.T) {
	for in, api := range map[string]pd.API{
		`{"text":"x"}`:                       pd.APISGLang,
		`{"text":"x","return_logprob":true}`: pd.APISGLang,
		`{"text":"x","return_logprob":true,"logprob_start_len":-1}`:    pd.APISGLang,
		`{"text":"x","return_logprob":false,"logprob_start_len":0}`:    pd.APISGLang,
		`{"prompt":"x","logprobs":3}`:                                  pd.APICompletions,
		`{"prompt":"x","echo":true}`:                                   pd.APICompletions,
		`{"messages":[],"logprobs":true,"top_logprobs":2,"echo":true}`: pd.APIChat,
	} {
		if sglangAttempt(t, api, in).(dialect.Completer).Lacks() {
			t.Errorf("%s: decode's answer is taken for incomplete", in)
		}
	}
}

// An answer of prefill that cannot be read gives no hand-off: the client would get an answer without what it has asked for.
func TestSGLangLogprobsUnreadable(t *testing.T) {
	for _, answer := range []string{`{"meta_info":[]}`, `{"meta_info":7}`} {
		if _, err := sglangAttempt(t, pd.APISGLang, `{"text":"x","return_logprob":true,"logprob_start_len":0}`).Accept([]byte(answer)); err == nil {
			t.Errorf("%s was accepted", answer)
		}
	}
}

func sglangAttempt(t *testing.T, api pd.API, in string) dialect.Attempt {
	t.Helper()
	d, _ := dialect.New("sglang", dialect.Options{})
	a, err := d.Attempt(t.Context(), asked(t, api, in), pd.Target{Host: "10.0.0.7", Port: 8000})
	if err != nil {
		t.Fatal(err)
	}
	return a
}
