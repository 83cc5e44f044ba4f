package sim

import "net/http"

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
	InputTokens              int  `json:"input_tokens"` // without the cached ones, but at the start of a stream
	OutputTokens             int  `json:"output_tokens"`
	CacheCreationInputTokens *int `json:"cache_creation_input_tokens,omitempty"`
	CacheReadInputTokens     *int `json:"cache_read_input_tokens,omitempty"`
}

func (e *Engine) serveMessages(c *call) {
	f := c.object()
	if f == nil {
		return
	}
	q, err := e.readAnthropic(f)
	if err != nil {
		c.fail(err)
		return
	}
	q.fault = c.fault
	q.id = "chatcmpl-" + requestID(c.r)
	seqs, ok := e.accept(c, q, func() []*sequence {
		return q.sequences(e, e.cfg.MaxModelLen, func(int) string { return q.id })
	})
	switch {
	case !ok:
	case q.stream:
		e.streamMessage(c, q, seqs)
	default:
		e.answerMessage(c, q, seqs)
	}
}

func (e *Engine) readAnthropic(f *fields) (*generateRequest, *apiError) {
	f.require("model")
	messages := readMessages(f)
	f.require("max_tokens")
	q := readCommon(f)
	if raw, ok := f.get("system"); ok {
		messages = append([]chatMessage{{"system", contentText(raw)}}, messages...)
	}
	q.maxTokensName = "max_completion_tokens" // into which the engine turns max_tokens
	q.sampling.stop = f.texts("stop_sequences")
	if err := f.err(); err != nil {
		return nil, err
	}
	q.prompts = [][]int{e.tokenizer().chatTokens(messages)}
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
		InputTokens: len(q.prompts[0]) - a.usage.cached, OutputTokens: len(a.tokens),
		CacheCreationInputTokens: &a.usage.created, CacheReadInputTokens: &a.usage.cached,
	}
}

func (e *Engine) answerMessage(c *call, q *generateRequest, seqs []*sequence) {
	answers, apiErr, err := e.collect(c.ctx(), seqs)
	if !c.collected(apiErr, err) {
		return
	}
	a := &answers[0]
	e.addLoadHeader(c)
	c.json(http.StatusOK, message{
		ID: q.id, Type: "message", Role: "assistant", Content: []messageText{{"text", a.text()}}, Model: e.cfg.ServedModelName,
		StopReason: messageStop(a.finish), Usage: newMessageUsage(q, a), KVTransferParams: q.fault.damaged(a.handoff),
	})
}

func (e *Engine) streamMessage(c *call, q *generateRequest, seqs []*sequence) {
	s := c.stream()
	var a answer
	send := func(name string, members ...member) {
		s.event(name, object(append([]member{{"type", name}}, members...)))
	}
	for a.finish == "" {
		out, ok := e.nextOutput(c, s, seqs)
		if !ok {
			return
		}
		if len(a.tokens) == 0 {
			send("message_start", member{"message", object{{"id", q.id}, {"type", "message"}, {"role", "assistant"}, {"content", []any{}},
				{"model", e.cfg.ServedModelName}, {"stop_reason", nil}, {"stop_sequence", nil}, {"usage", messageUsage{InputTokens: len(q.prompts[0])}}}})
			send("content_block_start", member{"content_block", messageText{"text", ""}}, member{"index", 0})
		}
		a.add(out)
		if out.text != "" {
			send("content_block_delta", member{"delta", messageText{"text_delta", out.text}}, member{"index", 0})
		}
	}
	send("content_block_stop", member{"index", 0})
	send("message_delta", member{"delta", object{{"stop_reason", messageStop(a.finish)}, {"stop_sequence", nil}}}, member{"usage", newMessageUsage(q, &a)})
	send("message_stop")
}

func (e *Engine) serveCountTokens(c *call) {
	f := c.object()
	if f == nil {
		return
	}
	messages := readMessages(f)
	if raw, ok := f.get("system"); ok {
		messages = append([]chatMessage{{"system", contentText(raw)}}, messages...)
	}
	if err := f.err(); err != nil {
		c.fail(err)
		return
	}
	n := len(e.tokenizer().chatTokens(messages))
	c.json(http.StatusOK, object{{"input_tokens", n}, {"context_management", object{{"original_input_tokens", n}}}})
}
