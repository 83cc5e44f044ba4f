package api

import (
	"cmp"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/web"
)

// chatCompletion is the body of /v1/chat/completions.
type chatCompletion struct {
	ID       string       `json:"id"`
	Object   string       `json:"object"`
	Created  int64        `json:"created"`
	Model    string       `json:"model"`
	Choices  []chatChoice `json:"choices"`
	Usage    usage        `json:"usage"`
	Metadata metadata     `json:"metadata"`
}

type chatChoice struct {
	Index        int           `json:"index"`
	Message      chatMessage   `json:"message"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
	MatchedStop  any           `json:"matched_stop"`
}

type chatMessage struct {
	Role             string `json:"role"`
	Content          string `json:"content"`
	ReasoningContent *any   `json:"reasoning_content"`
}

type chatChunk struct {
	ID      string            `json:"id"`
	Object  string            `json:"object"`
	Created int64             `json:"created"`
	Model   string            `json:"model"`
	Choices []chatChunkChoice `json:"choices"`
	Usage   *usage            `json:"usage,omitempty"`
}

type chatChunkChoice struct {
	Index        int           `json:"index"`
	Delta        chatDelta     `json:"delta"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
	MatchedStop  any           `json:"matched_stop"`
}

type chatDelta struct {
	ReasoningContent *any    `json:"reasoning_content"`
	Role             string  `json:"role,omitempty"`
	Content          *string `json:"content,omitempty"`
}

func (h *handler) serveChat(c *call) {
	h.serve(c, form{h.readChat, h.cfg.ContextLength, (*run).streamChat, func(r *run, answers []answer) any {
		q := r.request
		body := chatCompletion{ID: q.id, Object: "chat.completion", Created: time.Now().Unix(), Model: q.model, Usage: usage{chunkUsage: newUsage(q, answers)},
			Metadata: newMetadata(&answers[0])}
		for i := range answers {
			a := &answers[i]
			ch := chatChoice{Index: i, Message: chatMessage{Role: "assistant", Content: a.text()}, FinishReason: a.finishName(), MatchedStop: a.matched()}
			if q.logprobs >= 0 {
				ch.Logprobs = newChatLogprobs(a.tokens, q.logprobs)
			}
			body.Choices = append(body.Choices, ch)
		}
		return body
	}})
}

func (h *handler) readChat(c *call, f *web.Fields) (*request, error) {
	q, err := c.readCommon(f)
	if err != nil {
		return nil, err
	}
	messages := web.ReadMessages(f)
	q.readSampling(f, "max_tokens")
	if n := f.OptionalInteger("max_completion_tokens"); n != nil {
		q.maxTokens = n
	}
	if f.Boolean("logprobs") {
		q.logprobs = f.Integer("top_logprobs", 0)
	}
	if err := c.problemsOf(f); err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, badValue("Messages cannot be empty.")
	}
	q.model = cmp.Or(q.model, h.cfg.ServedModelName)
	q.prompts = [][]int{h.cfg.Model.Tokenizer().Chat(messages)}
	return q, nil
}

func (r *run) streamChat() {
	q, s := r.request, r.call.Stream()
	chunk := chatChunk{ID: q.id, Object: "chat.completion.chunk", Created: time.Now().Unix(), Model: q.model}
	send := func(index int, delta chatDelta, a *answer, tokens []int) {
		event := chunk
		ch := chatChunkChoice{Index: index, Delta: delta}
		if a != nil {
			ch.FinishReason, ch.MatchedStop = a.finishName(), a.matched()
		}
		if q.logprobs >= 0 && len(tokens) > 0 {
			ch.Logprobs = newChatLogprobs(tokens, q.logprobs)
		}
		event.Choices = []chatChunkChoice{ch}
		s.Data(event)
	}
	all := q.newAnswers()
	if _, ok := r.events(r.call.Ctx(), func(a *answer, index int, out core.Output) bool {
		if a.failure != nil {
			s.Raw(streamError(a.failure))
			s.Done()
			return false
		}
		if len(all[index].tokens) == 0 {
			send(index, chatDelta{Role: "assistant", Content: new(string)}, nil, nil)
		}
		all[index] = *a
		if text := a.last(); text != "" && out.Token >= 0 {
			send(index, chatDelta{Content: &text}, nil, newTokens(out))
		}
		if a.finish != "" {
			send(index, chatDelta{}, a, nil)
		}
		return true
	}); !ok {
		return
	}
	if q.includeUsage {
		chunk.Choices, chunk.Usage = []chatChunkChoice{}, &usage{chunkUsage: newUsage(q, all)}
		s.Data(chunk)
	}
	s.Done()
}
