package dialect

import (
	"errors"
	"slices"
	"strconv"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// The members of a request Tandem looks at, in the order of requestWants.
const (
	wModel = iota
	wStream
	wStreamOptions
	wMaxTokens
	wMaxCompletionTokens
	wMaxOutputTokens
	wMinTokens
	wN
	wBestOf
	wPrompt
	wMessages
	wToolChoice
	wParams
	wSamplingParams
	wExtraParams
	wXargsParams
	wEncoderParams
	wExtraEncoderParams
	wXargsEncoderParams
	wBootstrapHost
	wBootstrapPort
	wBootstrapRoom
	wEcho
	wLogprobs
	wPromptLogprobs
	wBeamSearch
	wPromptEmbeds
)

// requestWants lists the controlled members (Once: a second one is refused, because engines and proxies disagree on which
// of two counts) and those that only decide whether a request can be split.
//
// Engine parameters reach vLLM by three ways: at top level, in sampling_params.extra_args (generate) and in vllm_xargs,
// which vLLM copies into the same extra_args. Those of the KV cache have a counterpart for what encoders computed
// (ec_transfer_params); SGLang's are the bootstrap members at top level.
var requestWants = []body.Want{
	{Path: "model", Once: true},
	{Path: "stream", Once: true},
	{Path: "stream_options", Once: true},
	{Path: "max_tokens", Once: true},
	{Path: "max_completion_tokens", Once: true},
	{Path: "max_output_tokens", Once: true},
	{Path: "min_tokens", Once: true},
	{Path: "n", Once: true},
	{Path: "best_of", Once: true},
	{Path: "prompt", Once: true},
	{Path: "messages", Once: true},
	{Path: "tool_choice", Once: true},
	{Path: "kv_transfer_params", Once: true},
	{Path: "sampling_params", Once: true},
	{Path: "sampling_params.extra_args.kv_transfer_params"},
	{Path: "vllm_xargs.kv_transfer_params"},
	{Path: "ec_transfer_params"},
	{Path: "sampling_params.extra_args.ec_transfer_params"},
	{Path: "vllm_xargs.ec_transfer_params"},
	{Path: "bootstrap_host"},
	{Path: "bootstrap_port"},
	{Path: "bootstrap_room"},
	{Path: "echo"},
	{Path: "logprobs"},
	{Path: "prompt_logprobs"},
	{Path: "use_beam_search"},
	{Path: "prompt_embeds"},
}

var requestTable = body.NewTable(requestWants...)

// RequestTable is what a request body is scanned for, whatever the dialect.
func RequestTable() *body.Table { return requestTable }

// RequestTableWith is a table for those who want more of a request than a dialect does: the members of RequestTable under
// their own indices, so that NewRequest takes a scan by either, then the others in their order. One of the same path as a
// member of RequestTable is not added: it only turns that member's Sink on.
func RequestTableWith(more ...body.Want) *body.Table {
	wants := slices.Clone(requestWants)
	for _, w := range more {
		k := slices.IndexFunc(requestWants, func(have body.Want) bool { return have.Path == w.Path })
		if k < 0 {
			wants = append(wants, w)
		} else {
			wants[k].Sink = w.Sink
		}
	}
	return body.NewTable(wants...)
}

// Stripped reports whether a member of RequestTable must never reach an engine as a client sent it: it would aim the
// engine at memory of the client's choosing, and an incomplete one ends the engine.
func Stripped(want int) bool {
	return want == wParams || want >= wExtraParams && want <= wBootstrapRoom
}

// Request is a request body, whole and scanned.
type Request struct {
	API  pd.API
	Body *body.Body
	scan *body.Scanner
}

// NewRequest pairs a body with the scan of it by RequestTable or a table of RequestTableWith. Both must stay unchanged
// while the request lives.
func NewRequest(api pd.API, b *body.Body, scan *body.Scanner) *Request {
	return &Request{API: api, Body: b, scan: scan}
}

// Fit says what may be done with a request.
type Fit uint8

// The fits.
const (
	FitSplit   Fit = iota // both legs
	FitLocal              // a valid request that one hand-off cannot carry
	FitDoubted            // the engine will, or may, refuse it: no prefill engine is to be bothered with it
)

// Fit looks at the controlled members. A request whose members the engine's own front end would refuse must not be
// prefilled: priming overwrites the very members that are wrong, prefill then accepts, decode refuses the original, and
// the KV cache is held for nobody.
func (r *Request) Fit() Fit {
	switch {
	case r.doubted():
		return FitDoubted
	case !r.API.Splittable(), !r.one(wN), !r.one(wBestOf), r.batch(), r.promptLogprobs(), !r.kind(wBeamSearch, body.False),
		!r.kind(wPromptEmbeds): // prompts of their own, beside prompt
		return FitLocal
	}
	return FitSplit
}

// Stream reports whether the client asked for a stream.
func (r *Request) Stream() bool { return r.is(wStream, body.True) }

// ForcedTool reports whether tool_choice forces a tool call. Some engines answer such a request with an error as soon as
// its token limit is 1, which is what priming sets.
func (r *Request) ForcedTool() bool {
	m, ok := r.scan.Find(wToolChoice)
	if !ok {
		return false
	}
	choice, err := body.Text(r.Body.Bytes(m.Value))
	return m.Kind == body.Object || err == nil && choice == "required"
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
	}
	return false
}

// completionsLimit is what the completions API generates at most if it is not told (tokens): OpenAI's default, and vLLM's.
const completionsLimit = 16

// limit is the largest number of tokens the request may generate, -1 if it does not say. Completions know max_tokens alone.
func (r *Request) limit() int64 {
	completions := r.API == pd.APICompletions
	if n, ok := r.number(wMaxCompletionTokens); ok && !completions {
		return n
	}
	if n, ok := r.number(wMaxTokens); ok {
		return n
	}
	if completions {
		return completionsLimit
	}
	return -1
}

// one reports whether a count is absent, null or 1.
func (r *Request) one(want int) bool {
	n, ok := r.number(want)
	return !ok || n == 1
}

// batch reports whether the prompt is a list of several prompts. A list of numbers is one prompt in tokens.
func (r *Request) batch() bool {
	m, ok := r.scan.Find(wPrompt)
	return ok && m.Kind == body.Array && m.Count > 1 && m.First != body.Number
}

// promptLogprobs reports whether log probabilities of the prompt are asked for: they make decode compute all of the
// prompt again, so a transfer would be for nothing.
func (r *Request) promptLogprobs() bool {
	if m, ok := r.scan.Find(wPromptLogprobs); ok && m.Kind != body.Null {
		return true
	}
	m, ok := r.scan.Find(wLogprobs)
	return ok && m.Kind != body.Null && m.Kind != body.False && !r.kind(wEcho, body.False)
}

// is reports whether a member is present with one kind.
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

// number reads an integer member. Absent and null give ok false; anything that is not plainly an integer gives a number
// no engine accepts.
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

var errNotObject = errors.New("request body is not a JSON object")

// edit begins an edit that takes out what clients may not send, but for the one member that legs set.
func (r *Request) edit() (*body.Edit, error) {
	if r.scan.Root().Kind != body.Object {
		return nil, errNotObject
	}
	e := &body.Edit{}
	e.Reset(r.Body, r.scan.Root())
	for _, m := range r.scan.Members() {
		if Stripped(m.Want) && m.Want != wParams {
			e.Remove(m)
		}
	}
	return e, nil
}

// set replaces a top-level member or adds it.
func (r *Request) set(e *body.Edit, want int, value []byte) {
	if m, ok := r.scan.Find(want); ok {
		e.Replace(m, value)
		return
	}
	e.Add(r.scan.Root(), requestTable.Path(want), value)
}

// drop removes a top-level member if it is there.
func (r *Request) drop(e *body.Edit, want int) {
	if m, ok := r.scan.Find(want); ok {
		e.Remove(m)
	}
}

// Local gives the body for the local engine: as it came, less what clients may not send.
func (r *Request) Local() (Leg, error) {
	if !r.strips() {
		return Leg{Segments: r.Body.Segments(), Length: r.Body.Len()}, nil
	}
	e, err := r.edit()
	if err != nil {
		return Leg{}, err
	}
	r.drop(e, wParams)
	return leg(e)
}

// strips reports whether there is anything to take out, be it in an object that a later one of the same name hides: which
// of the two counts is the reader's choice.
func (r *Request) strips() bool {
	for _, m := range r.scan.Members() {
		if Stripped(m.Want) {
			return true
		}
	}
	return false
}

func leg(e *body.Edit) (Leg, error) {
	segments, err := e.Segments(nil)
	if err != nil {
		return Leg{}, err
	}
	return Leg{Segments: segments, Length: e.Len()}, nil
}
