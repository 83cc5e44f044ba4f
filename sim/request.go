package sim

import (
	"errors"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/metrics"
)

// What vLLM's engine shares with engines of other protocols.
type (
	// Sampling says how tokens are drawn and when the answer ends.
	Sampling = core.Sampling
	// Output is one token of an answer, or the error that ends it. The Result of a prefill leg's last one is its *Handoff.
	Output = core.Output
	// PromptUsage says how many tokens of a prompt were cached, and how many this request added to the cache.
	PromptUsage = core.PromptUsage
	// Generation is the answers to requests that were submitted together.
	Generation = core.Generation
)

// The errors that end a request in the engine.
var (
	// ErrDead says that the engine has died or was closed.
	ErrDead = core.ErrDead
	// ErrBusy says that admission refused the request.
	ErrBusy = core.ErrBusy
	// ErrLoadFailed says that KV could not be read, and that the policy is FailLoad.
	ErrLoadFailed = errors.New("loading KV failed")
)

// Request asks for one answer to one prompt.
type Request struct {
	ID       string // the engine's request id, which hand-offs name
	Prompt   []int  // the engine keeps it, and appends to it
	Sampling Sampling
	Transfer TransferParams
	Salt     string // prompts of different salts share no cached blocks
	Stale    bool   // the hand-off's lease ends at once, and its blocks are overwritten
}

// Submit queues requests together. The error is ErrBusy or ErrDead.
func (e *Engine) Submit(requests []Request) (*Generation, error) {
	list := make([]core.Request, len(requests))
	for i, r := range requests {
		list[i] = core.Request{ID: r.ID, Prompt: r.Prompt, Sampling: r.Sampling, Salt: r.Salt, Leg: &leg{params: r.Transfer, stale: r.Stale}}
	}
	g, err := e.core.Submit(list)
	if errors.Is(err, ErrBusy) {
		e.connector.metrics.AddTo(metrics.AdmissionRejections, "max_num_queued_reqs", 1)
	}
	return g, err
}

// ResetPrefixCache empties the prefix cache.
func (e *Engine) ResetPrefixCache() {
	e.core.Call(func() {
		e.core.Pool().Reset()
		if ev := e.connector.events; ev != nil {
			ev.cleared()
		}
	})
}
