package dialect

import (
	"context"
	"fmt"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// vllmFiles is the serial protocol of vLLM's connectors without parameters, which llm-d calls shared-storage: prefill stores the
// KV cache under the token ids of the prompt, and decode finds it there by itself. ExampleConnector stores it in files, LMCache
// in a store of its own. Nothing is pinned, and a decode engine that finds nothing computes the prompt. Measured on vLLM 0.32.0.
type vllmFiles struct{ vllmEngine }

func newVLLMFiles(Options) Dialect { return vllmFiles{} }

// Shape implements Dialect: sent at once, the decode leg would find nothing yet.
func (vllmFiles) Shape() Shape { return Serial }

// ContinuesFromIDs implements Continuer.
func (vllmFiles) ContinuesFromIDs() {}

// Attempt implements Dialect.
func (vllmFiles) Attempt(_ context.Context, r *request.Request, _ pd.Target) (Attempt, error) {
	return &filesAttempt{request: r, cached: -1}, nil
}

// filesAttempt is an attempt, and its hand-off when prefill has answered.
type filesAttempt struct {
	request *request.Request
	cached  int64 // tokens of the prompt in prefill's cache; -1: not reported
}

// Prefill implements Attempt.
func (a *filesAttempt) Prefill() (request.Payload, error) {
	e, err := a.request.Edit()
	if err != nil {
		return request.Payload{}, err
	}
	OneToken(a.request, e)
	return e.Payload()
}

// Accept implements Attempt. The store is complete when prefill has answered; the answer says nothing about it.
func (a *filesAttempt) Accept(answer []byte) (Handoff, error) {
	var s body.Scanner
	if err := s.Scan(completionTable, body.Limits{}, answer); err != nil {
		return nil, fmt.Errorf("reading the prefill answer: %w", err)
	}
	if !completed(answer, &s) {
		return nil, ErrNoHandoff
	}
	_, a.cached = usage(a.request.API, func(want int) int64 { return tokens(answer, &s, want) })
	return a, nil
}

// Cached implements UsageCorrector. Decode reports what it read as cached, and prefill may have computed it for this request.
func (a *filesAttempt) Cached() (tokens int64, ok bool) { return a.cached, a.cached >= 0 }

// Decode implements Handoff: the client's request.
func (a *filesAttempt) Decode() (request.Payload, error) { return a.request.Local() }

var (
	_ Dialect        = vllmFiles{}
	_ Unfinisher     = vllmFiles{}
	_ Continuer      = vllmFiles{}
	_ UsageCorrector = (*filesAttempt)(nil)
)
