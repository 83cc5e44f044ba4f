package api

import (
	"net/http"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/web"
)

// message is the answer of /v1/messages.
type message struct {
	ID               string        `json:"id"`
	Type             string        `json:"type"`
	Role             string        `json:"role"`
	Content          []messageText `json:"content"`
	Model            string        `json:"model"`
	StopReason       string        `json:"stop_reason"`
	Usage            messageUsage  `json:"usage"`
	KVTransferParams any           `json:"kv_transfer_params,omitempty"`
}

type messageText struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

type messageUsage struct {
	InputTokens              int  `json:"input_tokens"` // without those below, which only the start of a stream counts
	OutputTokens             int  `json:"output_tokens"`
	CacheCreationInputTokens *int `json:"cache_creation_input_tokens,omitempty"`
	CacheReadInputTokens     *int `json:"cache_read_input_tokens,omitempty"`
}

func (h *handler) serveMessages(c *call) {
	f := c.object()
	if f == nil {
		return
	}
	q, err := h.readAnthropic(f)
	if err != nil {
		c.fail(err)
		return
	}
	q.fault = c.Fault
	q.id = "chatcmpl-" + requestID(c.R)
	g := h.submit(c, q, func() []sim.Request {
		return q.engineRequests(&h.cfg, h.cfg.MaxModelLen, func(int) string { return q.id })
	})
	switch {
	case g == nil:
	case q.stream:
		h.streamMessage(c, q, g)
	default:
		h.answerMessage(c, q, g)
	}
}

func (h *handler) readAnthropic(f *web.Fields) (*generateRequest, *apiError) {
	f.Require("model")
	messages := web.ReadMessages(f)
	if raw, ok := f.Require("max_tokens"); ok && string(raw) == "null" { // which the other APIs take for a missing limit
		f.Wrong("int_type", "max_tokens", "Input should be a valid integer", raw)
	}
	q := readCommon(f)
	if raw, ok := f.Get("system"); ok {
		messages = append([]model.Message{{Role: "system", Text: web.ContentText(raw)}}, messages...)
	}
	q.maxTokensName = "max_completion_tokens" // the engine renames max_tokens
	q.sampling.Stop = f.Texts("stop_sequences")
	if err := problemsOf(f); err != nil {
		return nil, err
	}
	q.prompts = [][]int{h.cfg.Model.Tokenizer().Chat(messages)}
	return q, q.checkLimits()
}

func messageStop(finish string) string {
	if finish == "length" {
		return "max_tokens"
	}
	return "end_turn"
}

func newMessageUsage(q *generateRequest, a *answer) messageUsage {
	return messageUsage{
		InputTokens: len(q.prompts[0]) - a.usage.Cached - a.usage.Created, OutputTokens: len(a.tokens),
		CacheCreationInputTokens: &a.usage.Created, CacheReadInputTokens: &a.usage.Cached,
	}
}

func (h *handler) answerMessage(c *call, q *generateRequest, g *sim.Generation) {
	answers, ok := c.collect(g, len(q.requests))
	if !ok {
		return
	}
	a := &answers[0]
	h.addLoadHeader(c)
	c.JSON(http.StatusOK, message{
		ID: q.id, Type: "message", Role: "assistant", Content: []messageText{{"text", a.text()}}, Model: h.cfg.ServedModelName,
		StopReason: messageStop(a.finish), Usage: newMessageUsage(q, a), KVTransferParams: q.handoff(a.handoff),
	})
}

func (h *handler) streamMessage(c *call, q *generateRequest, g *sim.Generation) {
	s := c.stream()
	var a answer
	send := func(name string, members ...pyjson.Member) {
		s.Event(name, append(pyjson.Object{member("type", name)}, members...))
	}
	for a.finish == "" {
		out, ok := c.next(s, g)
		if !ok {
			return
		}
		if len(a.tokens) == 0 {
			send("message_start", member("message", pyjson.Object{member("id", q.id), member("type", "message"), member("role", "assistant"),
				member("content", []any{}), member("model", h.cfg.ServedModelName), member("stop_reason", nil), member("stop_sequence", nil),
				member("usage", messageUsage{InputTokens: len(q.prompts[0])})}))
			send("content_block_start", member("content_block", messageText{"text", ""}), member("index", 0))
		}
		a.add(out)
		if out.Text != "" {
			send("content_block_delta", member("delta", messageText{"text_delta", out.Text}), member("index", 0))
		}
	}
	send("content_block_stop", member("index", 0))
	send("message_delta", member("delta", pyjson.Object{member("stop_reason", messageStop(a.finish)), member("stop_sequence", nil)}),
		member("usage", newMessageUsage(q, &a)))
	send("message_stop")
}

func (h *handler) serveCountTokens(c *call) {
	f := c.object()
	if f == nil {
		return
	}
	messages := web.ReadMessages(f)
	if raw, ok := f.Get("system"); ok {
		messages = append([]model.Message{{Role: "system", Text: web.ContentText(raw)}}, messages...)
	}
	name, err := f.Text("model", ""), problemsOf(f)
	if err == nil && name != "" && name != h.cfg.ServedModelName {
		err = unknownModel(name, h.cfg.ServedModelName)
	}
	if err != nil {
		c.fail(err)
		return
	}
	n := len(h.cfg.Model.Tokenizer().Chat(messages))
	c.JSON(http.StatusOK, pyjson.Object{member("input_tokens", n),
		member("context_management", pyjson.Object{member("original_input_tokens", n)})})
}
