package sim

import (
	"strconv"
	"time"
)

// completionDefaultTokens is the length of an answer to /v1/completions that asks for none.
const completionDefaultTokens = 16

// completion is the body of /v1/completions; members in the engine's order, null where there is nothing.
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
	ECTransferParams *any `json:"ec_transfer_params"`
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

func (e *Engine) serveCompletions(c *call) {
	f := c.object()
	if f == nil {
		return
	}
	q, err := e.readCompletion(f)
	if err != nil {
		c.fail(err)
		return
	}
	q.fault = c.fault
	q.id = "cmpl-" + requestID(c.r)
	seqs, ok := e.accept(c, q, func() []*sequence {
		return q.sequences(e, completionDefaultTokens, func(i int) string { return q.id + "-" + strconv.Itoa(i) })
	})
	switch {
	case !ok:
	case q.stream:
		e.streamCompletion(c, q, seqs)
	default:
		e.answerCompletion(c, q, seqs)
	}
}

func (e *Engine) readCompletion(f *fields) (*generateRequest, *apiError) {
	if err := checkBefore(f); err != nil {
		return nil, err
	}
	if raw, ok := f.get("prompt"); !ok || string(raw) == `""` {
		return nil, badParameter("prompt", "", "Either prompt or prompt_embeds must be provided and non-empty.").inSchema()
	}
	q := readCommon(f)
	q.readPrompts(f, e.tokenizer())
	if n := f.optionalInteger("logprobs"); n != nil {
		q.logprobs = *n
		if *n < 0 {
			q.logprobs = e.cfg.Model.Vocabulary // -1 asks for all
		}
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	return q, q.checkLimits()
}

func (e *Engine) tokenizer() tokenizer { return tokenizer{e.cfg.Model.Vocabulary} }

func (e *Engine) answerCompletion(c *call, q *generateRequest, seqs []*sequence) {
	answers, apiErr, err := e.collect(c.ctx(), seqs)
	if !c.collected(apiErr, err) {
		return
	}
	body := completion{
		ID: q.id, Object: "text_completion", Created: time.Now().Unix(), Model: e.cfg.ServedModelName,
		SystemFingerprint: e.identity.fingerprint,
		Usage:             totalUsage(q, answers, false),
	}
	for i, a := range answers {
		body.Choices = append(body.Choices, q.completionChoice(i, a))
	}
	// Of several prompts the first one's hand-off is given out, of several choices the last one's: the others are
	// stranded until their leases end.
	body.KVTransferParams = q.fault.damaged(answers[q.n-1].handoff)
	e.addLoadHeader(c)
	c.json(200, body)
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

func (e *Engine) streamCompletion(c *call, q *generateRequest, seqs []*sequence) {
	s := c.stream()
	answers := make([]answer, len(seqs))
	chunk := completionChunk{ID: q.id, Object: "text_completion", Created: time.Now().Unix(), Model: e.cfg.ServedModelName}
	for open := len(seqs); open > 0; {
		out, ok := e.nextOutput(c, s, seqs)
		if !ok {
			return
		}
		a := &answers[out.index]
		offset := len(a.text())
		a.add(out)
		event := chunk
		event.Choices = []completionChunkChoice{q.completionChunkChoice(out, a, offset)}
		if q.continuousUsage {
			event.Usage = runningUsage(q, answers, out.index, false)
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
		chunk.Choices = []completionChunkChoice{}
		chunk.Usage = finalUsage(q, answers, false)
		chunk.SystemFingerprint = e.identity.fingerprint
		s.data(chunk)
	}
	s.done()
}

// nextOutput waits for the next token of a stream. False: the stream has ended, here or at the client.
func (e *Engine) nextOutput(c *call, s *stream, seqs []*sequence) (output, bool) {
	out, err := seqs[0].out.next(c.ctx())
	if err != nil {
		e.abort(seqs)
		return out, false
	}
	if out.err != nil {
		e.abort(seqs)
		s.fail(out.err)
		return out, false
	}
	return out, true
}

func (q *generateRequest) completionChunkChoice(out output, a *answer, offset int) completionChunkChoice {
	prompt := out.index / q.n
	first := len(a.tokens) == 1
	ch := completionChunkChoice{Index: out.index, Text: out.text, StopReason: out.stopReason}
	if out.finish != "" {
		ch.FinishReason = &out.finish
	}
	if q.echo && first {
		ch.Text = q.texts[prompt] + ch.Text
	}
	if q.returnTokenIDs {
		ch.TokenIDs = []int{out.token}
		if first {
			ch.PromptTokenIDs = q.prompts[prompt]
		}
	}
	if q.logprobs >= 0 {
		ch.Logprobs = newTextLogprobs([]int{out.token}, 0, q.logprobs, offset)
	}
	return ch
}
