package read_test

import (
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// sglang is the head of a call of SGLang's own, where it is to be read.
func sglang() read.Head {
	h := post(pd.APISGLang)
	h.Reads = epp.NewAPISet(pd.APISGLang)
	return h
}

func generate(t *testing.T, body string) *epp.Request {
	t.Helper()
	r, err := readBody(sglang(), 0, blocks, body, 3)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return r
}

// TestSGLangSplits: which requests only SGLang's hand-offs carry.
func TestSGLangSplits(t *testing.T) {
	for _, c := range []struct {
		name string
		api  pd.API
		body string
		want bool
	}{
		{"every hand-off carries it", pd.APIChat, `{"messages":[]}`, false},
		{"several choices", pd.APIChat, `{"messages":[],"n":3}`, true},
		{"more choices than one request may have", pd.APIChat, `{"messages":[],"n":1000}`, false},
		{"several prompts", pd.APICompletions, `{"prompt":["x","y"]}`, true},
		{"log probabilities of the prompt", pd.APICompletions, `{"prompt":["x","y"],"echo":true,"logprobs":1}`, true},
		{"embeddings", pd.APIEmbeddings, `{"input":"x"}`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if r := mustRead(t, c.api, c.body); r.SGLangSplits != c.want {
				t.Errorf("read %+v", r)
			}
		})
	}
}

// TestSGLang: what is read of SGLang's own call.
func TestSGLang(t *testing.T) {
	for _, c := range []struct {
		name, body string
		tokens     int
		stream     bool
		fit        request.Fit
	}{
		{"text", `{"text":"` + words(9) + `","sampling_params":{"max_new_tokens":16}}`, 9, false, request.FitSplit},
		{"token ids", `{"input_ids":[1,2,3,4,5,6,7,8,9],"stream":true}`, 9, true, request.FitSplit},
		{"several texts", `{"text":["abcd","efgh"]}`, 2, false, request.FitSplit},
		{"several lists of ids", `{"input_ids":[[1,2],[3]]}`, 3, false, request.FitSplit},
		{"several choices", `{"text":"abcd","sampling_params":{"n":3}}`, 1, false, request.FitSplit},
		{"log probabilities of the prompt", `{"text":"abcd","return_logprob":true,"logprob_start_len":0}`, 1, false, request.FitSplit},
		{"nothing", `{}`, 0, false, request.FitLocal},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := generate(t, c.body)
			if r.API != pd.APISGLang || r.Prompt.Tokens != c.tokens || r.Stream != c.stream || r.Fit != c.fit {
				t.Errorf("read %+v", r)
			}
		})
	}
	first := generate(t, `{"text":"`+words(12)+`"}`).Prompt.Blocks
	if n := shared(t, first, generate(t, `{"text":"`+words(20)+`"}`).Prompt.Blocks); n != len(first) {
		t.Errorf("a prompt shares %d of its %d blocks with a longer one", n, len(first))
	}
	if n := shared(t, first, generate(t, `{"text":"`+words(12)+`","extra_key":"mine"}`).Prompt.Blocks); n != 0 {
		t.Errorf("prompts of different keys share %d blocks", n)
	}
}

// TestSGLangIsNotRewritten: its call has no model, so a rewrite of the pool adds none.
func TestSGLangIsNotRewritten(t *testing.T) {
	const body = `{"text":"a"}`
	if q, out, err := rewrite(sglang(), aliases, body, 0); err != nil || string(out) != body || q.Rewrite != "" {
		t.Errorf("%s, %+v, %v", out, q, err)
	}
}

// TestUnread: the requests of an API that is not to be read are passed through, whatever they hold.
func TestUnread(t *testing.T) {
	const body = "no JSON at all"
	for name, h := range map[string]read.Head{
		"SGLang's, unless a parser is listed":         post(pd.APISGLang),
		"vLLM's, whose path ends with that of SGLang": {Method: "POST", Path: "/inference/v1/generate", Reads: epp.NewAPISet(pd.APISGLang)},
		"chat, with a parser for messages":            {Method: "POST", Path: "/v1/chat/completions", Reads: epp.NewAPISet(pd.APIMessages)},
		"anything, with no parser for it":             {Method: "POST", Path: "/v1/completions", Mode: []string{"nonsense"}, Reads: epp.NewAPISet()},
	} {
		r, err := readBody(h, 0, blocks, body, 0)
		if err != nil || r.API != pd.APIOther || r.Bytes != int64(len(body)) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	h := post(pd.APIMessages)
	h.Reads = epp.NewAPISet(pd.APIMessages)
	if r, err := readBody(h, 0, blocks, `{"model":"m"}`, 0); err != nil || r.Model != "m" {
		t.Errorf("messages, with a parser for them: %+v, %v", r, err)
	}
}
