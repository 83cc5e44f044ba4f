package sim

import "time"

// chatCompletion is the body of /v1/chat/completions.
type chatCompletion struct {
	ID                string               `json:"id"`
	Object            string               `json:"object"`
	Created           int64                `json:"created"`
	Model             string               `json:"model"`
	Choices           []chatChoice         `json:"choices"`
	ServiceTier       *string              `json:"service_tier"`
	SystemFingerprint string               `json:"system_fingerprint"`
	Usage             usage                `json:"usage"`
	PromptLogprobs    []promptAlternatives `json:"prompt_logprobs"`
	PromptTokenIDs    []int                `json:"prompt_token_ids"`
	PromptText        *string              `json:"prompt_text"`
	unused
}

type chatChoice struct {
	Index         int           `json:"index"`
	Message       answerMessage `json:"message"`
	Logprobs      *chatLogprobs `json:"logprobs"`
	FinishReason  string        `json:"finish_reason"`
	StopReason    any           `json:"stop_reason"`
	TokenIDs      []int         `json:"token_ids"`
	RoutedExperts *any          `json:"routed_experts"`
}

type answerMessage struct {
	Role         string `json:"role"`
	Content      string `json:"content"`
	Refusal      *any   `json:"refusal"`
	Annotations  *any   `json:"annotations"`
	Audio        *any   `json:"audio"`
	FunctionCall *any   `json:"function_call"`
	Reasoning    *any   `json:"reasoning"`
}

type chatChunk struct {
	ID                string      `json:"id"`
	Object            string      `json:"object"`
	Created           int64       `json:"created"`
	Model             string      `json:"model"`
	Choices           []any       `json:"choices"`
	Usage             *chunkUsage `json:"usage,omitempty"`
	SystemFingerprint string      `json:"system_fingerprint,omitempty"`
}

// chatRoleChunk opens a choice.
type chatRoleChunk struct {
	chatChunk
	PromptTokenIDs []int   `json:"prompt_token_ids"`
	PromptText     *string `json:"prompt_text"`
}

type chatDelta struct {
	Role    string `json:"role,omitempty"`
	Content string `json:"content"`
}

type chatRoleChoice struct {
	Index        int           `json:"index"`
	Delta        chatDelta     `json:"delta"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
}

type chatDeltaChoice struct {
	chatRoleChoice
	TokenIDs []int `json:"token_ids"`
}

type chatLastChoice struct {
	chatRoleChoice
	StopReason any   `json:"stop_reason"`
	TokenIDs   []int `json:"token_ids"`
}

func (e *Engine) serveChat(c *call) {
	f := c.object()
	if f == nil {
		return
	}
	q, err := e.readChat(f)
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
		e.streamChat(c, q, seqs)
	default:
		e.answerChat(c, q, seqs)
	}
}

func (e *Engine) readChat(f *fields) (*generateRequest, *apiError) {
	if err := checkBefore(f); err != nil {
		return nil, err
	}
	if f.truthy("top_logprobs") && !f.truthy("logprobs") {
		return nil, badParameter("top_logprobs", "", "when using `top_logprobs`, `logprobs` must be set to true.").inSchema()
	}
	messages := readMessages(f)
	q := readCommon(f)
	q.echo = false // chat answers never repeat the prompt
	if n := f.optionalInteger("max_completion_tokens"); n != nil {
		q.maxTokens, q.maxTokensName = n, "max_completion_tokens"
	}
	if f.boolean("logprobs") {
		q.logprobs = f.integer("top_logprobs", 0)
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	if err := q.checkLimits(); err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, badRequest("Cannot apply chat template to an empty conversation. Provide at least one message.")
	}
	q.prompts = [][]int{e.tokenizer().chatTokens(messages)}
	return q, nil
}

func (e *Engine) answerChat(c *call, q *generateRequest, seqs []*sequence) {
	answers, apiErr, err := e.collect(c.ctx(), seqs)
	if !c.collected(apiErr, err) {
		return
	}
	body := chatCompletion{
		ID: q.id, Object: "chat.completion", Created: time.Now().Unix(), Model: e.cfg.ServedModelName,
		SystemFingerprint: e.identity.fingerprint,
		Usage:             totalUsage(q, answers, true),
	}
	for i, a := range answers {
		ch := chatChoice{Index: i, Message: answerMessage{Role: "assistant", Content: a.text()}, FinishReason: a.finish, StopReason: a.stopReason}
		if q.returnTokenIDs {
			ch.TokenIDs = a.tokens
		}
		if q.logprobs >= 0 {
			ch.Logprobs = newChatLogprobs(a.tokens, q.logprobs)
		}
		body.Choices = append(body.Choices, ch)
	}
	if q.returnTokenIDs {
		body.PromptTokenIDs = q.prompts[0]
	}
	body.KVTransferParams = q.fault.damaged(answers[q.n-1].handoff)
	e.addLoadHeader(c)
	c.json(200, body)
}

func (e *Engine) streamChat(c *call, q *generateRequest, seqs []*sequence) {
	s := c.stream()
	answers := make([]answer, len(seqs))
	chunk := chatChunk{ID: q.id, Object: "chat.completion.chunk", Created: time.Now().Unix(), Model: e.cfg.ServedModelName}
	opened := false
	for open := len(seqs); open > 0; {
		out, ok := e.nextOutput(c, s, seqs)
		if !ok {
			return
		}
		if !opened { // all choices open together with the first token of one of them
			opened = true
			for i := range seqs {
				s.data(q.roleChunk(chunk, i))
			}
		}
		answers[out.index].add(out)
		event := chunk
		event.Choices = []any{q.chatChunkChoice(out)}
		if q.continuousUsage {
			event.Usage = runningUsage(q, answers, out.index, true)
		}
		if out.finish != "" {
			open--
			if !q.includeUsage {
				event.SystemFingerprint = e.identity.fingerprint
			}
		}
		s.data(event)
	}
	if q.includeUsage {
		chunk.Choices = []any{}
		chunk.Usage = finalUsage(q, answers, true)
		chunk.SystemFingerprint = e.identity.fingerprint
		s.data(chunk)
	}
	s.done()
}

func (q *generateRequest) roleChunk(chunk chatChunk, index int) chatRoleChunk {
	first := chatRoleChunk{chatChunk: chunk}
	first.Choices = []any{chatRoleChoice{Index: index, Delta: chatDelta{Role: "assistant"}}}
	if q.continuousUsage {
		first.Usage = runningUsage(q, make([]answer, q.n), index, true)
	}
	if q.returnTokenIDs {
		first.PromptTokenIDs = q.prompts[0]
	}
	return first
}

func (q *generateRequest) chatChunkChoice(out output) any {
	ch := chatRoleChoice{Index: out.index, Delta: chatDelta{Content: out.text}}
	var ids []int
	if q.returnTokenIDs {
		ids = []int{out.token}
	}
	if q.logprobs >= 0 {
		ch.Logprobs = newChatLogprobs([]int{out.token}, q.logprobs)
	}
	if out.finish == "" {
		return chatDeltaChoice{ch, ids}
	}
	ch.FinishReason = &out.finish
	return chatLastChoice{ch, out.stopReason, ids}
}
