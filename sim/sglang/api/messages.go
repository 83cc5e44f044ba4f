package api

import (
	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/web"
)

// message is the answer of /v1/messages.
type message struct {
	ID         string        `json:"id"`
	Type       string        `json:"type"`
	Role       string        `json:"role"`
	Content    []messageText `json:"content"`
	Model      string        `json:"model"`
	StopReason string        `json:"stop_reason,omitempty"`
	Usage      messageUsage  `json:"usage"`
}

type messageText struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type messageUsage struct {
	InputTokens          int `json:"input_tokens"` // without those below
	OutputTokens         int `json:"output_tokens"`
	CacheReadInputTokens int `json:"cache_read_input_tokens,omitempty"`
}

func (h *handler) serveMessages(c *call) {
	h.serve(c, form{h.readAnthropic, h.cfg.ContextLength, (*run).streamMessage, func(r *run, answers []answer) any {
		a := &answers[0]
		m := newMessage(r.request, a)
		m.Content = append(m.Content, messageText{"text", a.text()})
		m.StopReason, m.Usage.OutputTokens = messageStop(a.finish), len(a.tokens)
		return m
	}})
}

func (h *handler) readAnthropic(c *call, f *web.Fields) (*request, error) {
	q, err := c.readCommon(f)
	if err != nil {
		return nil, err
	}
	q.rids, q.ridList = nil, false // which the real engine does not read here
	if rid := c.R.Header.Get("X-Override-Rid"); rid != "" && h.cfg.HeaderOverrides {
		q.rids = []string{rid}
	}
	f.Require("model")
	messages := web.ReadMessages(f)
	f.Require("max_tokens")
	q.readSampling(f, "max_tokens")
	if raw, ok := f.Get("system"); ok {
		messages = append([]model.Message{{Role: "system", Text: web.ContentText(raw)}}, messages...)
	}
	q.sampling.Stop = f.Texts("stop_sequences")
	if err := c.problemsOf(f); err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, badValue("Messages cannot be empty.")
	}
	q.prompts = [][]int{h.cfg.Model.Tokenizer().Chat(messages)}
	return q, nil
}

func newMessage(q *request, a *answer) message {
	return message{ID: "msg_" + sglang.NewRID(), Type: "message", Role: "assistant", Content: []messageText{}, Model: q.model,
		Usage: messageUsage{InputTokens: len(q.prompts[0]) - a.usage.Cached, CacheReadInputTokens: a.usage.Cached}}
}

func messageStop(finish string) string {
	if finish == "length" {
		return "max_tokens"
	}
	return "end_turn"
}

func (r *run) streamMessage() {
	q, s := r.request, r.call.Stream()
	send := func(name string, members ...pyjson.Member) {
		s.Event(name, pyjson.Object(append([]pyjson.Member{member("type", name)}, members...)))
	}
	begun := false
	begin := func(a *answer) {
		if !begun {
			begun = true
			send("message_start", member("message", newMessage(q, a)))
		}
	}
	open := false
	tokens, finish := 0, ""
	if _, ok := r.events(r.call.Ctx(), func(a *answer, _ int, out core.Output) bool {
		begin(a)
		if a.failure != nil {
			s.Event("error", anthropicError(a.failure, false))
			send("message_stop")
			return false
		}
		if !open && out.Token >= 0 {
			open = true
			send("content_block_start", member("index", 0), member("content_block", messageText{"text", ""}))
		}
		if text := a.last(); text != "" && out.Token >= 0 {
			send("content_block_delta", member("index", 0), member("delta", messageText{"text_delta", text}))
		}
		tokens, finish = len(a.tokens), a.finish
		return true
	}); !ok {
		return
	}
	if open {
		send("content_block_stop", member("index", 0))
	}
	send("message_delta", member("delta", pyjson.Object{member("stop_reason", messageStop(finish))}),
		member("usage", pyjson.Object{member("output_tokens", tokens)}))
	send("message_stop")
}
