package request

import (
	"strconv"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// Request is the complete body of a client's request, with its scan.
type Request struct {
	API    pd.API
	Body   *body.Body
	scan   *body.Scanner
	table  *Table
	choice int // 0 for a client's request; else it is for one choice of that, counted from 1
}

// Request pairs a body with its scan by t.Members. The caller must not change either while the request is in use.
func (t *Table) Request(api pd.API, b *body.Body, scan *body.Scanner) *Request {
	return &Request{API: api, Body: b, scan: scan, table: t}
}

// Fit says whether a request can be split: its prompt computed on another pod than its tokens.
type Fit uint8

const (
	// FitSplit is a request that prefill and decode engines can share.
	FitSplit Fit = iota
	// FitLocal is a valid request that one hand-off cannot carry, such as one with n > 1.
	FitLocal
	// FitDoubted is a request that the engine refuses, or may refuse. It goes to the decode engine, even if the client
	// forbade local prefill, because the engine's own error explains it best.
	FitDoubted
)

// Fit returns the fit by the controlled members. A request that the engine's front end refuses must not be prefilled: the
// prefill leg overwrites the wrong members, so prefill accepts it, decode refuses the original, and the blocks stay pinned
// until their lease expires.
func (r *Request) Fit() Fit {
	if r.API == pd.APISGLang {
		return FitLocal // other engines have the same path, and read something else there
	}
	return r.fit(r.batch() || r.promptLogprobs())
}

// FitSGLang is Fit for SGLang's engines: their hand-off carries several prompts, prefill's answer has log probabilities of prompts, and
// their own call is one of theirs. Members that they read in their own way do not make a request doubtful, only those that decide how
// the request is run.
func (r *Request) FitSGLang() Fit {
	if r.API == pd.APISGLang {
		return r.fitOwn()
	}
	switch fit := r.fit(false); {
	case fit == FitDoubted && r.scan.Root().Kind == body.Object && r.kind(wStream, body.True, body.False) && r.one(wN):
		return FitSplit
	default:
		return fit
	}
}

// fitOwn is FitSGLang for SGLang's own call. Parameters in a list are for one prompt each.
func (r *Request) fitOwn() Fit {
	n, has := r.number(wSamplingN)
	switch {
	case r.scan.Root().Kind != body.Object, !r.kind(wStream, body.True, body.False), has && n < 1, r.kind(wText) && r.kind(wInputIDs) && r.kind(wInputEmbeds):
		return FitDoubted
	case !r.one(wSamplingN), !r.kind(wSamplingParams, body.Object), !r.kind(wInputEmbeds):
		return FitLocal
	}
	return FitSplit
}

// PrefillLogprobs reports whether a client of SGLang asks for log probabilities that only the prefill engine computes: of the prompt, or
// of certain ids in place of the first token.
func (r *Request) PrefillLogprobs() bool {
	switch r.API {
	case pd.APISGLang:
		start, ok := r.number(wLogprobStart)
		return !r.kind(wReturnLogprob, body.False) && (!r.kind(wLogprobStart, body.Number) || ok && start != -1 || !r.kind(wTokenIDsLogprob))
	case pd.APICompletions:
		return r.echoLogprobs()
	}
	return false
}

// fit is Fit, except that unshared says whether the request has something that the engines' hand-off does not carry.
func (r *Request) fit(unshared bool) Fit {
	switch {
	case r.doubted():
		return FitDoubted
	case !r.API.Splittable(), !r.one(wN), !r.one(wBestOf), unshared, !r.kind(wBeamSearch, body.False),
		!r.kind(wPromptEmbeds): // further prompts besides prompt
		return FitLocal
	case r.API == pd.APISGLang && (!r.one(wSamplingN) || !r.kind(wSamplingParams, body.Object)): // parameters in a list: n is in each
		return FitLocal
	case r.API == pd.APIResponses && r.boundResponse(), r.API == pd.APIGenerate && (!r.one(wSamplingN) || !r.kind(wSamplingPromptLogprobs)):
		return FitLocal
	}
	return FitSplit
}

// Stream reports whether the client asked for a stream.
func (r *Request) Stream() bool { return r.is(wStream, body.True) }

// NeedsMoreThanOne reports whether some engines refuse the request if its token limit is 1, as in a prefill leg: tool_choice
// forces a tool call, or a budget for thinking must be below the limit.
func (r *Request) NeedsMoreThanOne() bool {
	if r.API == pd.APIMessages && !r.kind(wThinkingBudget) {
		return true
	}
	m, ok := r.scan.Find(wToolChoice)
	if !ok {
		return false
	}
	return m.Kind == body.Object || r.text(m) == "required"
}

// doubted reports whether a controlled member has a type or value that engines refuse, or accept only by coercion rules
// that differ between versions.
func (r *Request) doubted() bool {
	if r.scan.Root().Kind != body.Object {
		return true
	}
	for _, want := range [...]int{wMaxTokens, wMaxCompletionTokens, wMaxOutputTokens, wN, wBestOf} {
		if n, ok := r.number(want); ok && n < 1 {
			return true
		}
	}
	if n, ok := r.number(wMinTokens); ok && (n < 0 || r.limit() >= 0 && n > r.limit()) || r.is(wMinTokens, body.Null) {
		return true
	}
	if !r.kind(wModel, body.String) || !r.kind(wStreamOptions, body.Object) || !r.kind(wStream, body.True, body.False) {
		return true
	}
	if r.is(wStreamOptions, body.Object) && !r.Stream() {
		return true
	}
	switch r.API {
	case pd.APIChat:
		return !r.is(wMessages, body.Array)
	case pd.APICompletions:
		return !r.is(wPrompt, body.Array) && !r.is(wPrompt, body.String)
	case pd.APIResponses:
		return !r.is(wInput, body.Array) && !r.is(wInput, body.String)
	case pd.APIMessages:
		return !r.is(wMessages, body.Array) || r.badThinking()
	case pd.APIGenerate:
		return r.badSampling()
	}
	return false
}

// badSampling reports whether a request of the generate API lacks its token ids or its sampling_params, which are required, or
// has limits that engines refuse.
func (r *Request) badSampling() bool {
	ids, ok := r.scan.Find(wTokenIDs)
	if !ok || ids.Kind != body.Array || ids.First != body.Number || !r.is(wSamplingParams, body.Object) {
		return true
	}
	for _, want := range [...]int{wSamplingMax, wSamplingN} {
		if n, ok := r.number(want); ok && n < 1 {
			return true
		}
	}
	n, ok := r.number(wSamplingMin)
	return ok && (n < 0 || r.limit() >= 0 && n > r.limit()) || r.is(wSamplingMin, body.Null)
}

// badThinking reports whether a request of the messages API lacks its limit, which is required, or has a budget for thinking
// that is not below it. vLLM does not compare the two in a prefill leg.
func (r *Request) badThinking() bool {
	limit, ok := r.number(wMaxTokens)
	budget, thinks := r.number(wThinkingBudget)
	return !ok || thinks && (budget < 0 || budget >= limit)
}

// defaultLimit is the default limit of the completions API of OpenAI and vLLM, and of vLLM's sampling parameters (tokens).
const defaultLimit = 16

// limits lists the members with the largest number of tokens to generate. The first one that is present counts.
var limits = map[pd.API][]int{
	pd.APIChat:        {wMaxCompletionTokens, wMaxTokens},
	pd.APICompletions: {wMaxTokens},
	pd.APIResponses:   {wMaxOutputTokens},
	pd.APIMessages:    {wMaxTokens},
	pd.APIGenerate:    {wSamplingMax},
}

// limit returns the largest number of tokens to generate, -1 if the request has none.
func (r *Request) limit() int64 {
	for _, want := range limits[r.API] {
		if n, ok := r.number(want); ok {
			return n
		}
	}
	if r.API == pd.APICompletions || r.API == pd.APIGenerate {
		return defaultLimit
	}
	return -1
}

// one reports whether a count of choices is absent, null or 1. The request for one choice of several has none of these counts.
func (r *Request) one(want int) bool {
	n, ok := r.number(want)
	return !ok || n == 1 || r.choice > 0 && n <= int64(r.choices())
}

// batch reports whether the prompt is a list of several prompts. A list of numbers is one prompt in tokens.
func (r *Request) batch() bool {
	m, ok := r.scan.Find(wPrompt)
	return ok && m.Kind == body.Array && m.Count > 1 && m.First != body.Number
}

// promptLogprobs reports whether the client asks for log probabilities of the prompt: decode then computes the whole prompt
// again, so that a transfer saves nothing.
func (r *Request) promptLogprobs() bool {
	if m, ok := r.scan.Find(wPromptLogprobs); ok && m.Kind != body.Null {
		return true
	}
	return r.echoLogprobs()
}

// echoLogprobs reports whether a completion is to repeat its prompt with log probabilities.
func (r *Request) echoLogprobs() bool {
	m, ok := r.scan.Find(wLogprobs)
	return ok && m.Kind != body.Null && m.Kind != body.False && !r.kind(wEcho, body.False)
}

// is reports whether a member is present with this kind.
func (r *Request) is(want int, kind body.Kind) bool {
	m, ok := r.scan.Find(want)
	return ok && m.Kind == kind
}

// kind reports whether a member is absent, null or of one of the kinds.
func (r *Request) kind(want int, kinds ...body.Kind) bool {
	m, ok := r.scan.Find(want)
	if !ok || m.Kind == body.Null {
		return true
	}
	for _, k := range kinds {
		if m.Kind == k {
			return true
		}
	}
	return false
}

// number returns an integer member. ok is false if it is absent or null. Anything that is not plainly an integer gives -1,
// which no engine accepts.
func (r *Request) number(want int) (n int64, ok bool) {
	m, found := r.scan.Find(want)
	if !found || m.Kind == body.Null {
		return 0, false
	}
	if m.Kind != body.Number {
		return -1, true
	}
	n, err := strconv.ParseInt(string(r.Body.Bytes(m.Value)), 10, 64)
	if err != nil {
		return -1, true
	}
	return n, true
}
