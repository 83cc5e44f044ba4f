package api

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/web"
)

// completionDefaultTokens is the length of an answer to /v1/completions without max_tokens, in tokens.
const completionDefaultTokens = 16

// completion is the answer of /v1/completions; members in the engine's order.
type completion struct {
	ID       string             `json:"id"`
	Object   string             `json:"object"`
	Created  int64              `json:"created"`
	Model    string             `json:"model"`
	Choices  []completionChoice `json:"choices"`
	Usage    usage              `json:"usage"`
	Metadata metadata           `json:"metadata"`
}

type completionChoice struct {
	Index        int           `json:"index"`
	Text         string        `json:"text"`
	Logprobs     *textLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
	MatchedStop  any           `json:"matched_stop"`
	TokenIDs     []int         `json:"token_ids,omitempty"`
}

type completionChunk struct {
	ID      string             `json:"id"`
	Object  string             `json:"object"`
	Created int64              `json:"created"`
	Model   string             `json:"model"`
	Choices []completionChoice `json:"choices"`
	Usage   *chunkUsage        `json:"usage"`
}

// metadata is at the end of every whole answer.
type metadata struct {
	WeightVersion  string `json:"weight_version"`
	WeightVersions any    `json:"weight_versions"`
}

func newMetadata(a *answer) metadata { return metadata{"default", weightVersions(len(a.tokens))} }

// usage has the token counts of a whole answer.
type usage struct {
	chunkUsage
	CompletionTokensDetails *any `json:"completion_tokens_details"`
}

// chunkUsage has the token counts at the end of a stream of completions.
type chunkUsage struct {
	PromptTokens        int          `json:"prompt_tokens"`
	TotalTokens         int          `json:"total_tokens"`
	CompletionTokens    int          `json:"completion_tokens"`
	PromptTokensDetails cacheDetails `json:"prompt_tokens_details"`
	ReasoningTokens     int          `json:"reasoning_tokens"`
}

type cacheDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// newUsage counts each prompt once, and all choices.
func newUsage(q *request, answers []answer) chunkUsage {
	var u chunkUsage
	for i, p := range q.prompts {
		u.PromptTokens += len(p)
		u.PromptTokensDetails.CachedTokens += answers[i*q.n].usage.Cached
	}
	for _, a := range answers {
		u.CompletionTokens += len(a.tokens)
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

func (h *handler) serveCompletions(c *call) {
	h.serve(c, form{h.readCompletion, completionDefaultTokens, (*run).streamCompletion, func(r *run, answers []answer) any {
		q := r.request
		body := completion{ID: q.id, Object: "text_completion", Created: time.Now().Unix(), Model: q.model, Usage: usage{chunkUsage: newUsage(q, answers)},
			Metadata: newMetadata(&answers[0])}
		for i := range answers {
			body.Choices = append(body.Choices, q.completionChoice(i, &answers[i], answers[i].text(), answers[i].tokens))
		}
		return body
	}})
}

// emptyPrompt reports whether no prompt of a body has tokens.
func emptyPrompt(raw json.RawMessage) bool {
	var list []json.RawMessage
	empty := func(v json.RawMessage) bool { return slices.Contains([]string{`""`, "[]", "null"}, string(v)) }
	return empty(raw) || json.Unmarshal(raw, &list) == nil && !slices.ContainsFunc(list, func(v json.RawMessage) bool { return !empty(v) })
}

func (h *handler) readCompletion(c *call, f *web.Fields) (*request, error) {
	q, err := c.readCommon(f)
	if err != nil {
		return nil, err
	}
	q.readSampling(f, "max_tokens")
	raw, ok := f.Require("prompt")
	q.addPrompts(f, "prompt", h.cfg.Model.Tokenizer())
	if n := f.OptionalInteger("logprobs"); n != nil {
		q.logprobs = *n
	}
	if err := c.problemsOf(f); err != nil {
		return nil, err
	}
	if ok && emptyPrompt(raw) {
		return nil, badValue("Prompt cannot be empty")
	}
	q.model = cmp.Or(q.model, h.cfg.ServedModelName)
	return q, nil
}

func (q *request) completionChoice(index int, a *answer, text string, tokens []int) completionChoice {
	ch := completionChoice{Index: index, Text: text, FinishReason: a.finishName(), MatchedStop: a.matched()}
	if q.logprobs >= 0 {
		ch.Logprobs = newTextLogprobs(tokens, q.logprobs)
	}
	if q.returnTokenIDs {
		ch.TokenIDs = tokens
	}
	return ch
}

func (r *run) streamCompletion() {
	q, s := r.request, r.call.Stream()
	chunk := completionChunk{ID: q.id, Object: "text_completion", Created: time.Now().Unix(), Model: q.model}
	all := q.newAnswers()
	if _, ok := r.events(r.call.Ctx(), func(a *answer, index int, out core.Output) bool {
		if a.failure != nil {
			s.Raw(streamError(a.failure))
			s.Done()
			return false
		}
		all[index] = *a
		event := chunk
		event.Choices = []completionChoice{q.completionChoice(index, a, a.last(), newTokens(out))}
		s.Data(event)
		return true
	}); !ok {
		return
	}
	if q.includeUsage {
		u := newUsage(q, all)
		chunk.Choices, chunk.Usage = []completionChoice{}, &u
		s.Data(chunk)
	}
	s.Done()
}

// newTokens returns the tokens that came with an output.
func newTokens(out core.Output) []int {
	if out.Token < 0 {
		return nil
	}
	return []int{out.Token}
}
