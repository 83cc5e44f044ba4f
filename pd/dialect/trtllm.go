package dialect

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// trtllm is the serial protocol of TensorRT-LLM's trtllm-serve, which its own proxy calls context first: the context engine computes
// the prompt and the first token, and describes its KV cache in choices[0].disaggregated_params; the generation engine gets that
// object back, and the ids of the prompt. Taken from the source of TensorRT-LLM 1.2 and its proxy; not measured.
type trtllm struct{ trtllmEngine }

func newTRTLLM(Options) Dialect { return trtllm{} }

// Shape implements Dialect.
func (trtllm) Shape() Shape { return Serial }

// Attempt implements Dialect.
func (trtllm) Attempt(_ context.Context, r *request.Request, _ pd.Target) (Attempt, error) {
	return &trtllmAttempt{request: r, api: r.API, asks: streamAsked(r), id: newTRTLLMID(), cached: -1}, nil
}

// trtllmEngine has what trtllm-serve does whatever the order of the legs is.
type trtllmEngine struct{}

const (
	trtllmParams    = "disaggregated_params"
	trtllmPromptIDs = "prompt_token_ids"
)

// Strips implements Stripper. prompt_token_ids stays: without a hand-off it is the prompt.
func (trtllmEngine) Strips() []string { return []string{trtllmParams, trtllmPromptIDs + "_b64"} }

// Controls implements Controller.
func (trtllmEngine) Controls() []string { return []string{trtllmPromptIDs} }

// Splits implements Splitter. With echo the generation engine would repeat ids in place of the prompt's text.
func (trtllmEngine) Splits(r *request.Request) bool {
	return r.API == pd.APIChat || r.API == pd.APICompletions && !r.Has("echo")
}

// IdleTimeout implements IdleLimiter, with the time of TensorRT-LLM's own proxy.
func (trtllmEngine) IdleTimeout() time.Duration { return time.Second }

// KeepsLimits implements LimitKeeper: a context engine ends by itself after the first token.
func (trtllmEngine) KeepsLimits() {}

// trtllmPages are the calls that clients may send to an engine, besides those that generate. The others stop the engine, change its
// weights or its cache, or read what can be read only once (/kv_cache_events, /perf_metrics).
var trtllmPages = map[string][]string{
	http.MethodGet:  {"/health", "/health_generate", "/version", "/v1/models", "/metrics", "/prometheus/metrics"},
	http.MethodPost: {"/v1/embeddings"},
}

// trtllmStored begins the path of a stored response.
const trtllmStored = "/v1/responses/"

// Passes implements PathLimiter.
func (trtllmEngine) Passes(method, path string) bool {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	id, stored := strings.CutPrefix(path, trtllmStored)
	return slices.Contains(trtllmPages[method], path) ||
		stored && (method == http.MethodGet || method == http.MethodDelete) && strings.HasPrefix(id, "resp_") && !strings.ContainsAny(id, "/.")
}

// trtllmCancelled is in an answer that the engine has not finished. Quotes in a text are escaped, so no text contains it.
var trtllmCancelled = body.NewMark(`"finish_reason":"cancelled"`, 'f')

// Unfinished implements Unfinisher.
func (trtllmEngine) Unfinished(answer []byte) bool { return trtllmCancelled.In(answer) }

// ClientsAbort implements Unfinisher: only an engine that is being stopped cancels requests whose client waits.
func (trtllmEngine) ClientsAbort() bool { return false }

// OwnFailure implements StatusReader: trtllm-serve answers every failure with 400, and those of a transfer with this message.
func (trtllmEngine) OwnFailure(answer []byte) bool {
	var said struct{ Message string }
	return json.Unmarshal(answer, &said) == nil && strings.Contains(strings.ToLower(said.Message), "kv cache transfer")
}

// minTRTLLMID: engines count their own requests below.
const minTRTLLMID = 1 << 42

// newTRTLLMID draws the id of a request at both engines: a positive number of 64 bits. The proxy of TensorRT-LLM makes it of a clock and
// its own number; random ids need no number for each sidecar.
func newTRTLLMID() string {
	var b [8]byte
	for {
		rand.Read(b[:]) // never fails
		if id := binary.BigEndian.Uint64(b[:]) >> 1; id >= minTRTLLMID {
			return strconv.FormatUint(id, 10)
		}
	}
}

// trtllmAttempt is an attempt, and its hand-off when the context engine has answered.
type trtllmAttempt struct {
	request *request.Request
	api     pd.API
	asks    streaming
	id      string // disagg_request_id
	params  []byte // of the generation leg
	ids     []byte // of the prompt, as the context engine wrote them; nil: it wrote none
	cached  int64  // tokens of the prompt in the context engine's cache; -1: not known, or the generation engine tells it
}

// Prefill implements Attempt.
func (a *trtllmAttempt) Prefill() (request.Payload, error) {
	return trtllmPrefill(a.request, `{"request_type":"context_only","disagg_request_id":`+a.id+`}`)
}

// trtllmPrefill returns the body of a context leg. It must not stream, and its limits are the client's.
func trtllmPrefill(r *request.Request, params string) (request.Payload, error) {
	e, err := r.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	if r.Stream() {
		e.Set("stream", jsonFalse)
		e.Drop("stream_options")
	}
	e.Set(trtllmParams, []byte(params))
	return e.Payload()
}

// Accept implements Attempt. A context engine may end a request by its first token. It then drops the KV cache, and its answer is the
// client's.
func (a *trtllmAttempt) Accept(answer []byte) (Handoff, error) {
	said, err := readTRTLLM(answer)
	if err != nil {
		return nil, err
	}
	if !said.goesOn() {
		return said.finished(a.api, a.asks)
	}
	if a.params, err = said.generation(a.id); err != nil {
		return nil, err
	}
	a.ids, a.cached = said.ids, -1
	if !said.tellsUsage {
		a.cached = said.cached
	}
	return a, nil
}

// Decode implements Handoff.
func (a *trtllmAttempt) Decode() (request.Payload, error) {
	e, err := a.generation()
	if err != nil {
		return request.Payload{}, err
	}
	return e.Payload()
}

// generation begins a leg with the hand-off. With the ids of the prompt the generation engine need not tokenize it again.
func (a *trtllmAttempt) generation() (*request.Edit, error) {
	e, err := a.request.Edit()
	if err != nil {
		return nil, err
	}
	e.Set(trtllmParams, a.params)
	if a.ids != nil {
		e.Set(map[pd.API]string{pd.APIChat: trtllmPromptIDs, pd.APICompletions: "prompt"}[a.api], a.ids)
	}
	return e, nil
}

// Discard implements Releaser: a leg of one token, which the first token of the context engine completes. An engine takes up to a
// second to notice that a connection was closed, and reads the KV cache in that time.
func (a *trtllmAttempt) Discard() (request.Payload, error) {
	e, err := a.generation()
	if err != nil {
		return request.Payload{}, err
	}
	if !a.request.Stream() {
		e.Set("stream", jsonTrue)
	}
	e.Drop("min_tokens")
	e.Drop("max_completion_tokens")
	e.Set("max_tokens", jsonOne)
	return e.Payload()
}

// Settle implements Releaser. An engine that got a request has submitted it within some milliseconds; the rest is for a busy one.
func (*trtllmAttempt) Settle() time.Duration { return 250 * time.Millisecond }

// Pins implements Releaser: no failure of a generation engine releases anything.
func (*trtllmAttempt) Pins(status int) bool { return status >= http.StatusBadRequest }

// ReleaseRequest implements RequestReleaser: no request releases a hand-off unread, so this one reads it, and asks for no token but the
// context engine's. It needs no model: engines serve one, and answer to every name.
func (a *trtllmAttempt) ReleaseRequest() (path string, b []byte) {
	prompt := a.ids
	if prompt == nil {
		prompt = []byte(`[0]`)
	}
	return trtllmRelease(prompt, a.params)
}

// trtllmRelease returns a request of one token that reads a hand-off.
func trtllmRelease(prompt, params []byte) (path string, b []byte) {
	return pd.APICompletions.Path(), bytes.Join([][]byte{
		[]byte(`{"model":"tandem-release","max_tokens":1,"prompt":`), prompt, []byte(`,"` + trtllmParams + `":`), params, []byte(`}`),
	}, nil)
}

// ReadsOnce implements OnceReleaser.
func (*trtllmAttempt) ReadsOnce() {}

// Released implements RequestReleaser.
func (*trtllmAttempt) Released(status int) bool { return status == http.StatusOK }

// Tries implements RequestReleaser: a second request would wait for a hand-off that is gone.
func (*trtllmAttempt) Tries() (n int, pause time.Duration) { return 1, 0 }

// Cached implements UsageCorrector: generation engines that do not take the context engine's usage count their own cache.
func (a *trtllmAttempt) Cached() (tokens int64, ok bool) { return a.cached, a.cached >= 0 }

var (
	_ Dialect        = trtllm{}
	_ Stripper       = trtllm{}
	_ Controller     = trtllm{}
	_ Splitter       = trtllm{}
	_ LimitKeeper    = trtllm{}
	_ IdleLimiter    = trtllm{}
	_ PathLimiter    = trtllm{}
	_ Unfinisher     = trtllm{}
	_ StatusReader   = trtllm{}
	_ Releaser       = (*trtllmAttempt)(nil)
	_ OnceReleaser   = (*trtllmAttempt)(nil)
	_ UsageCorrector = (*trtllmAttempt)(nil)
)

// trtllmAnswer is what a context engine answers.
type trtllmAnswer struct {
	whole      []byte
	finish     string
	params     []byte // of the first choice, as the engine wrote them
	ids        []byte // of the prompt, as the engine wrote them; nil = none
	usage      []byte // nil = none
	cached     int64  // tokens; -1 = not told
	tellsUsage bool   // the generation engine takes the usage of the context engine
}

// The members of an answer, in the order of trtllmTable.
const (
	trtChoices = iota + 7
	trtPromptIDs
	trtUsage
)

// trtllmTable finds, after the members of answerTable, those of a context engine's answer.
var trtllmTable = body.NewTable(append(slices.Clip(answerWants), body.Want{Path: "choices", Once: true}, body.Want{Path: trtllmPromptIDs, Once: true},
	body.Want{Path: "usage", Once: true})...)

// The members of disaggregated_params, in the order of trtllmParamsTable.
const (
	trtType = iota
	trtContextID
	trtID
	trtFirst
	trtContextUsage
)

var trtllmParamsTable = body.NewTable(
	body.Want{Path: "request_type", Once: true},
	body.Want{Path: "ctx_request_id", Once: true},
	body.Want{Path: "disagg_request_id", Once: true},
	body.Want{Path: "first_gen_tokens", Once: true},
	body.Want{Path: "ctx_usage", Once: true}, // since TensorRT-LLM 1.2; older ones refuse members that they do not know
)

// readTRTLLM reads the answer to a context leg. Of the long ones, the ids of the prompt, only the extent is read.
func readTRTLLM(answer []byte) (*trtllmAnswer, error) {
	var s body.Scanner
	if err := s.Scan(trtllmTable, body.Limits{}, answer); err != nil {
		return nil, fmt.Errorf("reading the prefill answer: %w", err)
	}
	m, ok := s.Find(trtChoices)
	if !ok {
		return nil, ErrNoHandoff
	}
	var choices []struct {
		Finish string          `json:"finish_reason"`
		Params json.RawMessage `json:"disaggregated_params"`
	}
	if err := json.Unmarshal(answer[m.Value.Start:m.Value.End], &choices); err != nil {
		return nil, fmt.Errorf("reading the choices of the prefill answer: %w", err)
	}
	if len(choices) != 1 {
		return nil, fmt.Errorf("the prefill answer has %d choices, want 1", len(choices))
	}
	said := &trtllmAnswer{whole: answer, finish: choices[0].Finish, params: choices[0].Params}
	if len(said.params) == 0 || string(said.params) == "null" {
		return nil, errNoTRTLLMParams
	}
	if m, ok := s.Find(trtPromptIDs); ok && m.Kind == body.Array && (m.Count == 0 || m.First == body.Number) {
		said.ids = answer[m.Value.Start:m.Value.End]
	}
	if m, ok := s.Find(trtUsage); ok && m.Kind == body.Object {
		said.usage = answer[m.Value.Start:m.Value.End]
	}
	said.cached = tokens(answer, &s, aCachedTokens)
	return said, nil
}

var errNoTRTLLMParams = fmt.Errorf("%w (choices[0].disaggregated_params, of a trtllm-serve with cache_transceiver_config)", ErrNoHandoff)

// goesOn reports whether the generation engine has to go on after the first token.
func (said *trtllmAnswer) goesOn() bool {
	return said.finish == "length" || said.finish == "not_finished"
}

// generation returns the parameters of the generation leg: those of the answer, byte for byte but for the type of the request and the
// usage. id is that of the request.
func (said *trtllmAnswer) generation(id string) ([]byte, error) {
	var s body.Scanner
	if err := s.Scan(trtllmParamsTable, body.Limits{Depth: 16}, said.params); err != nil {
		return nil, fmt.Errorf("hand-off object: %w", err)
	}
	kind, ok := s.Find(trtType)
	if s.Root().Kind != body.Object || !ok || kind.Kind != body.String {
		return nil, errors.New("hand-off lacks a string request_type")
	}
	if m, ok := s.Find(trtContextID); !ok || !isID(m, said.params) {
		return nil, errors.New("hand-off lacks a number ctx_request_id")
	}
	if m, ok := s.Find(trtID); !ok || string(said.params[m.Value.Start:m.Value.End]) != id {
		return nil, errors.New("hand-off is of another request: its disagg_request_id is not the one that was sent")
	}
	if m, ok := s.Find(trtFirst); !ok || m.Kind != body.Array || m.First != body.Number {
		return nil, errors.New("hand-off lacks a list first_gen_tokens")
	}
	var b body.Body
	b.Append(said.params)
	var e body.Edit
	e.Reset(&b, s.Root())
	e.Replace(kind, []byte(`"generation_only"`))
	if m, ok := s.Find(trtContextUsage); ok && said.usage != nil {
		e.Replace(m, said.usage)
		said.tellsUsage = true
	}
	segments, err := e.Segments(nil)
	if err != nil {
		return nil, err
	}
	return bytes.Join(segments, nil), nil
}

// isID reports whether a member is an integer that fits into 64 bits.
func isID(m body.Member, of []byte) bool {
	_, err := strconv.ParseInt(string(of[m.Value.Start:m.Value.End]), 10, 64)
	return m.Kind == body.Number && err == nil
}
