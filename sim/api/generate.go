package api

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/web"
)

// generated is the answer of /inference/v1/generate: tokens for tokens.
type generated struct {
	RequestID             string               `json:"request_id"`
	Model                 string               `json:"model"`
	Created               int64                `json:"created"`
	Usage                 usage                `json:"usage"`
	PromptLogprobs        []promptAlternatives `json:"prompt_logprobs"`
	PromptTokenIDLogprobs *any                 `json:"prompt_token_id_logprobs"`
	PromptTokenIDs        []int                `json:"prompt_token_ids"`
	MMPlaceholders        *any                 `json:"mm_placeholders"`
	Metrics               *any                 `json:"metrics"`
	KVTransferParams      any                  `json:"kv_transfer_params"`
	ECTransferParams      *any                 `json:"ec_transfer_params"`
	OutputMode            string               `json:"output_mode"`
	Choices               []generatedChoice    `json:"choices"`
}

type generatedChunk struct {
	RequestID  string            `json:"request_id"`
	Usage      *chunkUsage       `json:"usage"`
	OutputMode string            `json:"output_mode"`
	Choices    []generatedChoice `json:"choices"`
}

type generatedChoice struct {
	Index          int             `json:"index"`
	FinishReason   *string         `json:"finish_reason"`
	StopReason     any             `json:"stop_reason"`
	TokenIDs       []int           `json:"token_ids"`
	RoutedExperts  *any            `json:"routed_experts"`
	SamplingMask   *any            `json:"sampling_mask"`
	WeightVersions []weightVersion `json:"weight_versions"`
	Logprobs       *any            `json:"logprobs"`
}

// weightVersion says which weights generated which tokens of an answer.
type weightVersion struct {
	Version string `json:"version"`
	Start   int    `json:"start"`
	End     int    `json:"end"`
}

// tokensMode is the only output_mode here.
const tokensMode = "tokens"

func (h *handler) serveGenerate(c *call) {
	if !h.cfg.ScaleOut {
		h.serveScaleOut(c)
		return
	}
	f := c.object()
	if f == nil {
		return
	}
	q, err := h.readGenerate(f)
	if err != nil {
		c.fail(err)
		return
	}
	q.fault = c.Fault
	q.id = "generate-tokens-" + requestID(c.R)
	g := h.submit(c, q, func() []sim.Request {
		return q.engineRequests(&h.cfg, completionDefaultTokens, func(int) string { return q.id })
	})
	switch {
	case g == nil:
	case q.stream:
		h.streamGenerated(c, q, g)
	default:
		h.answerGenerated(c, q, g)
	}
}

// readGenerate reads the sampling parameters from an object of their own, and all else from the body.
func (h *handler) readGenerate(f *web.Fields) (*generateRequest, *apiError) {
	top, sampling := readCommon(f), &web.Fields{Members: map[string]json.RawMessage{}}
	if raw, ok := f.Require("sampling_params"); ok && json.Unmarshal(raw, &sampling.Members) != nil {
		f.Wrong("dict_type", "sampling_params", "Input should be a valid dictionary", raw)
	}
	q := readCommon(sampling)
	q.model, q.stream, q.includeUsage, q.salt, q.params = top.model, top.stream, top.includeUsage, top.salt, top.params
	f.Require("token_ids")
	if ids := f.Integers("token_ids"); len(ids) > 0 {
		q.addTokens(f, ids)
	}
	f.Problems = append(f.Problems, sampling.Problems...)
	if err := problemsOf(f); err != nil {
		return nil, err
	}
	return q, q.checkLimits()
}

func newGeneratedChoice(index int, a *answer, tokens []int) generatedChoice {
	ch := generatedChoice{Index: index, TokenIDs: tokens}
	if a.finish != "" {
		ch.FinishReason, ch.StopReason = &a.finish, a.stopReason
		ch.WeightVersions = []weightVersion{{Version: "default", End: len(a.tokens)}}
	}
	return ch
}

func (h *handler) answerGenerated(c *call, q *generateRequest, g *sim.Generation) {
	answers, ok := c.collect(g, len(q.requests))
	if !ok {
		return
	}
	body := generated{RequestID: q.id, Model: h.cfg.ServedModelName, Created: time.Now().Unix(), Usage: totalUsage(q, answers, false),
		KVTransferParams: q.handoff(answers[q.n-1].handoff), OutputMode: tokensMode}
	for i := range answers {
		body.Choices = append(body.Choices, newGeneratedChoice(i, &answers[i], answers[i].tokens))
	}
	h.addLoadHeader(c)
	c.JSON(http.StatusOK, body)
}

func (h *handler) streamGenerated(c *call, q *generateRequest, g *sim.Generation) {
	s := c.stream()
	answers := make([]answer, len(q.requests))
	for open := len(answers); open > 0; {
		out, ok := c.next(s, g)
		if !ok {
			return
		}
		a := &answers[out.Index]
		a.add(out)
		if out.Finish != "" {
			open--
		}
		s.Data(generatedChunk{RequestID: q.id, OutputMode: tokensMode, Choices: []generatedChoice{newGeneratedChoice(out.Index, a, []int{out.Token})}})
	}
	if q.includeUsage {
		s.Data(generatedChunk{RequestID: q.id, Usage: finalUsage(q, answers, false), OutputMode: tokensMode, Choices: []generatedChoice{}})
	}
	s.Done()
}
