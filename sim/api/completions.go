package api

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/web"
)

// completionDefaultTokens is the length of an answer to /v1/completions without max_tokens, in tokens.
const completionDefaultTokens = 16

// completion is the answer of /v1/completions; members in the engine's order, null for those without a value.
type completion struct {
	ID                string             `json:"id"`
	Object            string             `json:"object"`
	Created           int64              `json:"created"`
	Model             string             `json:"model"`
	Choices           []completionChoice `json:"choices"`
	ServiceTier       *string            `json:"service_tier"`
	SystemFingerprint string             `json:"system_fingerprint"`
	Usage             usage              `json:"usage"`
	unused
}

// unused are the members at the end of every whole answer.
type unused struct {
	KVTransferParams any  `json:"kv_transfer_params"`
	ECTransferParams any  `json:"ec_transfer_params"` // of encoders
	Metrics          *any `json:"metrics"`
}

type completionChoice struct {
	Index          int                  `json:"index"`
	Text           string               `json:"text"`
	Logprobs       *textLogprobs        `json:"logprobs"`
	FinishReason   string               `json:"finish_reason"`
	StopReason     any                  `json:"stop_reason"`
	TokenIDs       []int                `json:"token_ids"`
	PromptLogprobs []promptAlternatives `json:"prompt_logprobs"`
	PromptTokenIDs []int                `json:"prompt_token_ids"`
	RoutedExperts  *any                 `json:"routed_experts"`
}

type completionChunk struct {
	ID                string                  `json:"id"`
	Object            string                  `json:"object"`
	Created           int64                   `json:"created"`
	Model             string                  `json:"model"`
	Choices           []completionChunkChoice `json:"choices"`
	Usage             *chunkUsage             `json:"usage,omitempty"`
	SystemFingerprint string                  `json:"system_fingerprint,omitempty"`
}

type completionChunkChoice struct {
	Index          int           `json:"index"`
	Text           string        `json:"text"`
	Logprobs       *textLogprobs `json:"logprobs"`
	FinishReason   *string       `json:"finish_reason"`
	StopReason     any           `json:"stop_reason"`
	PromptTokenIDs []int         `json:"prompt_token_ids"`
	TokenIDs       []int         `json:"token_ids"`
}

func (h *handler) serveCompletions(c *call) {
	f := c.object()
	if f == nil {
		return
	}
	q, err := h.readCompletion(f)
	if err != nil {
		c.fail(err)
		return
	}
	q.fault = c.Fault
	q.id = "cmpl-" + requestID(c.R)
	g := h.submit(c, q, func() []sim.Request {
		return q.engineRequests(&h.cfg, completionDefaultTokens, func(i int) string { return q.id + "-" + strconv.Itoa(i) })
	})
	switch {
	case g == nil:
	case q.stream:
		h.streamCompletion(c, q, g)
	default:
		h.answerCompletion(c, q, g)
	}
}

func (h *handler) readCompletion(f *web.Fields) (*generateRequest, *apiError) {
	if err := checkBefore(f); err != nil {
		return nil, err
	}
	if raw, ok := f.Get("prompt"); !ok || string(raw) == `""` {
		return nil, badParameter("prompt", "", "Either prompt or prompt_embeds must be provided and non-empty.").inSchema()
	}
	q := readCommon(f)
	q.readPrompts(f, h.cfg.Model.Tokenizer())
	if n := f.OptionalInteger("logprobs"); n != nil {
		q.logprobs = *n
		if *n < 0 {
			q.logprobs = h.cfg.Model.Vocabulary // -1 asks for all
		}
	}
	if err := problemsOf(f); err != nil {
		return nil, err
	}
	q.cutPrompts()
	return q, q.checkLimits()
}

func (h *handler) answerCompletion(c *call, q *generateRequest, g *sim.Generation) {
	answers, ok := c.collect(g, len(q.requests))
	if !ok {
		return
	}
	body := completion{
		ID: q.id, Object: "text_completion", Created: time.Now().Unix(), Model: h.cfg.ServedModelName,
		SystemFingerprint: h.engine.Fingerprint(),
		Usage:             totalUsage(q, answers, false),
	}
	for i, a := range answers {
		body.Choices = append(body.Choices, q.completionChoice(i, a))
	}
	// The answer has the hand-off of the first prompt, and of its last choice. The blocks of the others stay pinned until their
	// leases expire.
	body.KVTransferParams = q.handoff(answers[q.n-1].handoff)
	h.addLoadHeader(c)
	c.JSON(200, body)
}

func (q *generateRequest) completionChoice(i int, a answer) completionChoice {
	prompt := i / q.n
	ch := completionChoice{Index: i, Text: a.text(), FinishReason: a.finish, StopReason: a.stopReason}
	if q.echo {
		ch.Text = q.texts[prompt] + ch.Text
	}
	if q.returnTokenIDs {
		ch.TokenIDs, ch.PromptTokenIDs = a.tokens, q.prompts[prompt]
	}
	if q.logprobs >= 0 {
		var tokens []int
		if q.echo {
			tokens = q.prompts[prompt]
			ch.PromptLogprobs = promptLogprobs(tokens, q.logprobs)
		}
		ch.Logprobs = newTextLogprobs(append(tokens[:len(tokens):len(tokens)], a.tokens...), len(tokens), q.logprobs, 0)
	}
	return ch
}

func (h *handler) streamCompletion(c *call, q *generateRequest, g *sim.Generation) {
	s := c.stream()
	answers := make([]answer, len(q.requests))
	offsets := make([]int, len(q.requests)) // of log probabilities: those of the tokens' names, which may be longer than the text
	chunk := completionChunk{ID: q.id, Object: "text_completion", Created: time.Now().Unix(), Model: h.cfg.ServedModelName}
	for open := len(q.requests); open > 0; {
		out, ok := c.next(s, g)
		if !ok {
			return
		}
		a := &answers[out.Index]
		offset := offsets[out.Index]
		offsets[out.Index] += utf8.RuneCountInString(model.TokenName(out.Token))
		a.add(out)
		event := chunk
		event.Choices = []completionChunkChoice{q.completionChunkChoice(out, a, offset)}
		if q.continuousUsage {
			event.Usage = runningUsage(q, answers, out.Index, false)
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
		chunk.Choices = []completionChunkChoice{}
		chunk.Usage = finalUsage(q, answers, false)
		chunk.SystemFingerprint = h.engine.Fingerprint()
		s.Data(chunk)
	}
	s.Done()
}

func (q *generateRequest) completionChunkChoice(out sim.Output, a *answer, offset int) completionChunkChoice {
	prompt := out.Index / q.n
	first := len(a.tokens) == 1
	ch := completionChunkChoice{Index: out.Index, Text: out.Text, StopReason: out.StopReason}
	if out.Finish != "" {
		ch.FinishReason = &out.Finish
	}
	if q.echo && first {
		ch.Text = q.texts[prompt] + ch.Text
	}
	if q.returnTokenIDs {
		ch.TokenIDs = []int{out.Token}
		if first {
			ch.PromptTokenIDs = q.prompts[prompt]
		}
	}
	if q.logprobs >= 0 {
		ch.Logprobs = newTextLogprobs([]int{out.Token}, 0, q.logprobs, offset)
	}
	return ch
}
