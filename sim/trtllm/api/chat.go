package api

import (
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/web"
)

// newID returns the id of an answer.
func newID(prefix string) string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}

func (h *handler) serveChat(c *call) {
	h.serve(c, form{readChat, (*run).streamChat, func(r *run, answers []answer) any {
		choices := make([]any, len(answers))
		for i := range answers {
			a := &answers[i]
			message := pyjson.Object{member("role", "assistant"), member("content", a.text), member("reasoning_content", nil), member("reasoning", nil),
				member("tool_calls", []any{})}
			choices[i] = pyjson.Object{member("index", i), member("message", message), member("logprobs", nil), member("finish_reason", r.finishReason(a)),
				member("stop_reason", a.stopReason), member("mm_embedding_handle", nil), member("disaggregated_params", r.handedOver(a)),
				member("avg_decoded_tokens_per_iter", nil)}
		}
		return pyjson.Object{member("id", r.request.id), member("object", "chat.completion"), member("created", time.Now().Unix()), member("model", r.request.model),
			member("choices", choices), member("usage", r.usageOf(answers)), member("prompt_token_ids", r.promptIDs())}
	}})
}

func readChat(h *handler, f *web.Fields) *request {
	forbid(f, append([]string{"messages", "prompt_token_ids", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "reasoning_effort", "add_generation_prompt",
		"documents", "chat_template", "chat_template_kwargs", "cache_salt", "agent_hierarchy", "conversation_params"}, sampling...)...)
	q := readCommon(f)
	q.id = newID("chatcmpl-")
	if n := f.OptionalInteger("max_completion_tokens"); n != nil {
		q.limit = n
	}
	messages := web.ReadMessages(f)
	if _, ids := f.Get("prompt_token_ids"); ids {
		q.prompt = f.Integers("prompt_token_ids")
	} else if len(messages) > 0 {
		q.prompt = h.cfg.Model.Tokenizer().Chat(messages)
	}
	return q
}

// streamChat leaves out members that are null, as the real one does for chat.
func (r *run) streamChat() {
	q, s := r.request, r.call.Stream()
	created, begun := time.Now().Unix(), false
	chunk := func(choices []any, more ...pyjson.Member) {
		s.Raw("data: " + string(pyjson.Encode(append(pyjson.Object{member("id", q.id), member("object", "chat.completion.chunk"), member("created", created),
			member("model", q.model), member("choices", choices)}, more...))) + " \n\n")
	}
	answers, ok := r.events(func(a *answer, _ core.Output) bool {
		if !begun {
			begun = true
			for i := range q.n {
				chunk([]any{pyjson.Object{member("index", i), member("delta", pyjson.Object{member("role", "assistant")})}})
			}
		}
		choice := pyjson.Object{member("index", a.index), member("delta", pyjson.Object{member("content", a.last)})}
		if reason := r.finishReason(a); reason != nil {
			choice = append(choice, member("finish_reason", reason))
		}
		if a.stopReason != nil {
			choice = append(choice, member("stop_reason", a.stopReason))
		}
		chunk([]any{choice})
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
