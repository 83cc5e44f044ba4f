package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/trtllm"
	"github.com/tandem-serving/tandem/sim/web"
)

// sampling are the members that both APIs have.
var sampling = []string{"model", "frequency_penalty", "logit_bias", "logprobs", "n", "presence_penalty", "seed", "stop", "stream", "stream_options", "temperature", "top_p",
	"user", "prompt_ignore_length", "best_of", "use_beam_search", "top_k", "top_p_min", "min_p", "repetition_penalty", "length_penalty", "early_stopping",
	"stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens", "spaces_between_special_tokens",
	"truncate_prompt_tokens", "lora_request", "echo", "add_special_tokens", "response_format", "disaggregated_params", "max_tokens"}

// paramsMembers are those of disaggregated_params.
var paramsMembers = []string{"request_type", "first_gen_tokens", "first_gen_log_probs", "first_gen_logits", "ctx_request_id", "encoded_opaque_state", "draft_tokens",
	"disagg_request_id", "ctx_dp_rank", "ctx_info_endpoint", "schedule_style", "ctx_usage"}

// forbid adds a problem for each member that a request model does not know.
func forbid(f *web.Fields, known ...string) {
	var odd []string
	for name := range f.Members {
		if !slices.Contains(known, name) {
			odd = append(odd, name)
		}
	}
	slices.Sort(odd)
	for _, name := range odd {
		f.Wrong("extra_forbidden", name, "Extra inputs are not permitted", f.Members[name])
	}
}

// request is what both APIs have in common once their bodies are read.
type request struct {
	model    string
	id       string
	prompt   []int
	n        int
	stream   bool
	usage    bool // at the end of the stream
	sampling core.Sampling
	limit    *int // of the answer
	salt     string
	params   *trtllm.Params
}

// readCommon reads the members that both APIs have.
func readCommon(f *web.Fields) *request {
	q := &request{model: f.Text("model", ""), n: f.Integer("n", 1), stream: f.Boolean("stream"), limit: f.OptionalInteger("max_tokens"), salt: f.Text("cache_salt", ""),
		sampling: core.Sampling{MinTokens: f.Integer("min_tokens", 0), IgnoreEOS: f.Boolean("ignore_eos"), Stop: f.Texts("stop"), StopTokens: f.Integers("stop_token_ids"),
			IncludeStop: f.Boolean("include_stop_str_in_output"), Seed: uint64(f.Integer("seed", 0))}}
	f.Require("model")
	if raw := f.Object("stream_options"); raw != nil {
		o := web.ReadObject(raw)
		forbid(o, "include_usage", "continuous_usage_stats")
		_, set := o.Get("include_usage")
		q.usage = o.Boolean("include_usage") || !set
		f.Problems = append(f.Problems, o.Problems...)
		if !q.stream {
			f.Wrong("value_error", "stream_options", "Value error, Stream options can only be defined when stream is true.", raw)
		}
	}
	q.params = readParams(f)
	return q
}

// readParams reads disaggregated_params as they were written: ids are not rounded to floats.
func readParams(f *web.Fields) *trtllm.Params {
	raw := f.Object("disaggregated_params")
	if raw == nil {
		return nil
	}
	o := web.ReadObject(raw)
	forbid(o, paramsMembers...)
	o.Require("request_type")
	p := &trtllm.Params{CachedOfContext: -1}
	d := json.NewDecoder(bytes.NewReader(raw))
	if err := d.Decode(p); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			o.Wrong("int_type", wrong.Field, "Input should be a valid "+wrong.Type.String(), raw)
		}
	}
	for i := range o.Problems {
		o.Problems[i].Loc = strings.Replace(o.Problems[i].Loc, "body.", "body.disaggregated_params.", 1)
	}
	f.Problems = append(f.Problems, o.Problems...)
	var usage struct {
		Usage *struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"ctx_usage"`
	}
	if json.Unmarshal(raw, &usage) == nil && usage.Usage != nil {
		p.CachedOfContext = usage.Usage.Details.Cached
	}
	return p
}

// refusal is why the engine refuses a request, in its own words.
type refusal string

// Error implements error.
func (r refusal) Error() string { return string(r) }

func refuse(format string, args ...any) error { return refusal(fmt.Sprintf(format, args...)) }

// check returns what the engine refuses.
func (q *request) check(cfg *trtllm.Config) error {
	switch {
	case len(q.prompt) == 0:
		return refusal("list index out of range") // of the real one, too
	case slices.ContainsFunc(q.prompt, func(id int) bool { return id < 0 || id >= cfg.Model.Vocabulary }):
		return refuse("Token ID out of range (%d)", cfg.Model.Vocabulary)
	case q.n < 1:
		return refuse("require best_of >= n >= 1, got best_of=%d, n=%d", q.n, q.n)
	case q.limit != nil && *q.limit < 1:
		return refuse("require max_tokens >= 1, got %d", *q.limit)
	case len(q.prompt) >= cfg.MaxSeqLen:
		return refuse("default_max_tokens (%d) must be greater than 0, max_seq_len (%d) - prompt length (%d)", cfg.MaxSeqLen-len(q.prompt), cfg.MaxSeqLen, len(q.prompt))
	}
	p := q.params
	if p == nil {
		return nil
	}
	switch p.RequestType {
	case trtllm.ContextOnly, trtllm.GenerationOnly, trtllm.Both:
	default:
		return refuse("Unknown request type: %s. Must be context_only, generation_only or context_and_generation", p.RequestType)
	}
	return q.checkLegs(p)
}

const (
	errNoState = refusal("Context phase params must be set for disaggregated serving generation only requests")
	errNoID    = refusal("disagg_request_id or ctx_request_id is required")
	errChoices = refusal("disaggregated serving supports one sequence for each request")
)

// checkLegs returns what is wrong with the parameters of a hand-off.
func (q *request) checkLegs(p *trtllm.Params) error {
	switch {
	case p.RequestType == trtllm.Both:
		return nil
	case q.n > 1:
		return errChoices
	case p.DisaggRequestID == nil && p.CtxRequestID == nil:
		return errNoID
	case p.RequestType == trtllm.ContextOnly:
		if q.stream {
			return refusal("context_only requests cannot be streamed")
		}
		return nil
	}
	first := p.ScheduleStyle != nil && *p.ScheduleStyle == trtllm.GenerationFirst
	if first && p.CtxInfoEndpoint == nil || !first && (p.EncodedOpaqueState == nil || len(p.FirstGenTokens) == 0) {
		return errNoState
	}
	return nil
}

// run is the generation of all choices of a request.
type run struct {
	handler    *handler
	call       *call
	request    *request
	generation *core.Generation
}

// form is how the requests of one API are read and answered.
type form struct {
	read   func(h *handler, f *web.Fields) *request
	stream func(r *run)
	whole  func(r *run, answers []answer) any
}

// serve serves a call that generates.
func (h *handler) serve(c *call, in form) {
	f := c.object()
	if f == nil {
		return
	}
	q := in.read(h, f)
	if c.problems(f) {
		return
	}
	if err := q.check(&h.cfg); err != nil {
		c.fail(http.StatusBadRequest, err.Error())
		return
	}
	limit := h.cfg.MaxSeqLen - len(q.prompt)
	if q.limit != nil {
		limit = min(limit, *q.limit)
	}
	q.sampling.MaxTokens = limit
	g, err := h.engine.Submit(&trtllm.Request{Prompt: q.prompt, Sampling: q.sampling, Salt: q.salt, Params: q.params}, q.n)
	if err != nil {
		fault.Cut(c.W, true) // the process has ended
		return
	}
	defer g.Abort()
	r := &run{h, c, q, g}
	if q.stream {
		in.stream(r)
		return
	}
	if answers, ok := r.events(func(*answer, core.Output) bool { return true }); ok {
		c.JSON(http.StatusOK, in.whole(r, answers))
	}
}

// answer is what the engine has generated for one choice.
type answer struct {
	index      int
	tokens     []int
	text, last string
	finish     string
	stopReason any
	usage      core.PromptUsage
}

// events calls see for each output, until all answers have ended. It returns false if the request has failed, or its client has left,
// which the engine sees only once in a while. A stream that fails ends without an event, as its connection does.
func (r *run) events(see func(a *answer, out core.Output) bool) ([]answer, bool) {
	answers := make([]answer, r.request.n)
	ctx, cancel := r.poll()
	defer cancel()
	for open := len(answers); open > 0; {
		out, err := r.generation.Next(ctx)
		switch {
		case err != nil:
			fault.Cut(r.call.W, false) // nothing reads it
			return nil, false
		case errors.Is(out.Err, core.ErrDead), out.Err != nil && r.request.stream:
			fault.Cut(r.call.W, true)
			return nil, false
		case out.Err != nil:
			r.call.fail(http.StatusBadRequest, "Error in kv cache transfer for generation requests")
			return nil, false
		}
		a := &answers[out.Index]
		a.index = out.Index
		if a.last = ""; out.Token >= 0 {
			a.tokens, a.last, a.usage = append(a.tokens, out.Token), out.Text, out.Usage
			a.text += out.Text
		}
		if a.finish, a.stopReason = out.Finish, out.StopReason; a.finish != "" {
			open--
		}
		if !see(a, out) {
			return nil, false
		}
	}
	return answers, true
}

// poll returns a context that ends at the first look at the client after it has left.
func (r *run) poll() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	tick := time.NewTicker(r.handler.cfg.Times.Poll)
	go func() {
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if r.call.Ctx().Err() != nil {
					cancel()
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, cancel
}

// finishReason is null until an answer has ended. A context leg that hands over has not.
func (r *run) finishReason(a *answer) any {
	if p := r.request.params; p != nil && p.RequestType == trtllm.ContextOnly && a.finish == "length" && (r.request.limit == nil || *r.request.limit > 1) {
		return "not_finished"
	}
	if a.finish == "" {
		return nil
	}
	return a.finish
}

// usageOf counts the prompt once, and all choices.
func (r *run) usageOf(answers []answer) pyjson.Object {
	generated := 0
	for i := range answers {
		generated += len(answers[i].tokens)
	}
	n := len(r.request.prompt)
	return pyjson.Object{member("prompt_tokens", n), member("total_tokens", n+generated), member("completion_tokens", generated),
		member("prompt_tokens_details", pyjson.Object{member("cached_tokens", answers[0].usage.Cached)})}
}

// handedOver returns the disaggregated_params of an answer, nil for requests that are no context legs.
func (r *run) handedOver(a *answer) any {
	p := r.request.params
	if p == nil || p.RequestType != trtllm.ContextOnly {
		return nil
	}
	id, state, rank := p.DisaggRequestID, r.handler.engine.OpaqueState(), 0
	if id == nil {
		id = p.CtxRequestID
	}
	return trtllm.Params{RequestType: trtllm.ContextOnly, FirstGenTokens: a.tokens, CtxRequestID: id, EncodedOpaqueState: &state, DisaggRequestID: id, CtxDPRank: &rank,
		ScheduleStyle: p.ScheduleStyle}
}

// promptIDs returns the prompt_token_ids of an answer, nil for requests that are no context legs.
func (r *run) promptIDs() any {
	if p := r.request.params; p == nil || p.RequestType != trtllm.ContextOnly {
		return nil
	}
	return r.request.prompt
}
