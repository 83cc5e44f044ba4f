package api

import (
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/web"
)

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

func (h *handler) serveChat(c *call) {
	f := c.object()
	if f == nil {
		return
	}
	q, err := h.readChat(f)
	if err != nil {
		c.fail(err)
		return
	}
	q.fault = c.Fault
	q.id = "chatcmpl-" + requestID(c.R)
	if h.cfg.Encoding.Role == sim.Encoder {
		h.answerEncoder(c, q)
		return
	}
	g := h.submit(c, q, func() []sim.Request {
		return q.engineRequests(&h.cfg, h.cfg.MaxModelLen, func(int) string { return q.id })
	})
	switch {
	case g == nil:
	case q.stream:
		h.streamChat(c, q, g)
	default:
		h.answerChat(c, q, g)
	}
}

func (h *handler) readChat(f *web.Fields) (*generateRequest, *apiError) {
	if err := checkBefore(f); err != nil {
		return nil, err
	}
	if f.Truthy("top_logprobs") && !f.Truthy("logprobs") {
		return nil, badParameter("top_logprobs", "", "when using `top_logprobs`, `logprobs` must be set to true.").inSchema()
	}
	messages := web.ReadMessages(f)
	q := readCommon(f)
	q.echo = false // chat answers do not repeat the prompt
	if n := f.OptionalInteger("max_completion_tokens"); n != nil {
		q.maxTokens, q.maxTokensName = n, "max_completion_tokens"
	}
	if f.Boolean("logprobs") {
		q.logprobs = f.Integer("top_logprobs", 0)
	}
	if err := problemsOf(f); err != nil {
		return nil, err
	}
	if err := q.checkLimits(); err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, badRequest("Cannot apply chat template to an empty conversation. Provide at least one message.")
	}
	var err *apiError
	if q.images, err = readImages(f.Members["messages"]); err != nil {
		return nil, err
	}
	setSources(q.images, f.Members["ec_transfer_params"])
	images, failed := h.engine.Encode(q.images, q.params.RemotePrefill)
	if failed != nil {
		return nil, engineError(failed)
	}
	q.imageTokens = len(images)
	q.prompts = [][]int{append(images, h.cfg.Model.Tokenizer().Chat(messages)...)}
	q.cutPrompts()
	return q, nil
}

func (h *handler) answerChat(c *call, q *generateRequest, g *sim.Generation) {
	answers, ok := c.collect(g, len(q.requests))
	if !ok {
		return
	}
	body := chatCompletion{
		ID: q.id, Object: "chat.completion", Created: time.Now().Unix(), Model: h.cfg.ServedModelName,
		SystemFingerprint: h.engine.Fingerprint(),
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
	body.KVTransferParams = q.handoff(answers[q.n-1].handoff)
	h.addLoadHeader(c)
	c.JSON(200, body)
}

func (h *handler) streamChat(c *call, q *generateRequest, g *sim.Generation) {
	s := c.stream()
	answers := make([]answer, len(q.requests))
	chunk := chatChunk{ID: q.id, Object: "chat.completion.chunk", Created: time.Now().Unix(), Model: h.cfg.ServedModelName}
	opened := false
	for open := len(q.requests); open > 0; {
		out, ok := c.next(s, g)
		if !ok {
			return
		}
		if !opened { // all choices open together with the first token of one of them
			opened = true
			for i := range q.requests {
				s.Data(q.roleChunk(chunk, i))
			}
		}
		answers[out.Index].add(out)
		event := chunk
		event.Choices = []any{q.chatChunkChoice(out)}
		if q.continuousUsage {
			event.Usage = runningUsage(q, answers, out.Index, true)
		}
		if out.Finish != "" {
			open--
			if !q.includeUsage {
				event.SystemFingerprint = h.engine.Fingerprint()
			}
		}
		s.Data(event)
	}
	if q.includeUsage {
		chunk.Choices = []any{}
		chunk.Usage = finalUsage(q, answers, true)
		chunk.SystemFingerprint = h.engine.Fingerprint()
		s.Data(chunk)
	}
	s.Done()
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

func (q *generateRequest) chatChunkChoice(out sim.Output) any {
	ch := chatRoleChoice{Index: out.Index, Delta: chatDelta{Content: out.Text}}
	var ids []int
	if q.returnTokenIDs {
		ids = []int{out.Token}
	}
	if q.logprobs >= 0 {
		ch.Logprobs = newChatLogprobs([]int{out.Token}, q.logprobs)
	}
	if out.Finish == "" {
		return chatDeltaChoice{ch, ids}
	}
	ch.FinishReason = &out.Finish
	return chatLastChoice{ch, out.StopReason, ids}
}
