package api

import (
	"encoding/json"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/web"
)

func (h *handler) serveCompletions(c *call) {
	h.serve(c, form{readCompletion, (*run).streamCompletion, func(r *run, answers []answer) any {
		choices := make([]any, len(answers))
		for i := range answers {
			a := &answers[i]
			choices[i] = pyjson.Object{member("index", i), member("text", a.text), member("token_ids", nil), member("logprobs", nil), member("context_logits", nil),
				member("finish_reason", r.finishReason(a)), member("stop_reason", a.stopReason), member("disaggregated_params", r.handedOver(a)),
				member("avg_decoded_tokens_per_iter", nil)}
		}
		return pyjson.Object{member("id", r.request.id), member("object", "text_completion"), member("created", time.Now().Unix()), member("model", r.request.model),
			member("choices", choices), member("usage", r.usageOf(answers)), member("prompt_token_ids", r.promptIDs())}
	}})
}

func readCompletion(h *handler, f *web.Fields) *request {
	forbid(f, append([]string{"prompt", "suffix", "return_context_logits", "detokenize", "conversation_params"}, sampling...)...)
	q := readCommon(f)
	q.id = newID("cmpl-")
	raw, ok := f.Require("prompt")
	if !ok {
		return q
	}
	var text string
	switch {
	case json.Unmarshal(raw, &text) == nil:
		q.prompt = h.cfg.Model.Tokenizer().Split(text)
	case json.Unmarshal(raw, &q.prompt) == nil:
	default: // batches are not simulated
		f.Wrong("string_type", "prompt", "Input should be a valid string", raw)
	}
	return q
}

func (r *run) streamCompletion() {
	q, s := r.request, r.call.Stream()
	created := time.Now().Unix()
	chunk := func(choices []any, more ...pyjson.Member) {
		s.Data(append(pyjson.Object{member("id", q.id), member("object", "text_completion"), member("created", created), member("model", q.model), member("choices", choices)}, more...))
	}
	answers, ok := r.events(func(a *answer, _ core.Output) bool {
		chunk([]any{pyjson.Object{member("index", a.index), member("text", a.last), member("token_ids", nil), member("logprobs", nil),
			member("finish_reason", r.finishReason(a)), member("stop_reason", a.stopReason), member("avg_decoded_tokens_per_iter", nil)}}, member("usage", nil))
		return true
	})
	if !ok {
		return
	}
	if q.usage {
		chunk([]any{}, member("usage", r.usageOf(answers)))
	}
	s.Done()
}
