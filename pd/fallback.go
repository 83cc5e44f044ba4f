package pd

import (
	"math"
	"sync/atomic"
)

// The defaults of a FallbackBudget: the share of all requests that may be prefilled locally although they were planned
// remote, and how many such requests at once.
const (
	FallbackRatio = 0.1
	FallbackBurst = 20
)

// FallbackBudget is a token bucket over requests, not over time. Every request adds a share of a token; each local prefill of
// a request that was planned remote takes one token. So an outage of prefill shifts at most that share of the load to decode,
// whatever the load is. A request that must not be prefilled locally, and whose hand-off was lost, takes one for each further
// remote prefill. It is safe for concurrent use.
type FallbackBudget struct {
	ratio, burst float64

	tokens atomic.Uint64 // bits of a float64; while the budget is full, requests only read it
}

// NewFallbackBudget makes a full budget. ratio is what a request adds, 0..1; burst is the capacity in tokens.
func NewFallbackBudget(ratio float64, burst int) *FallbackBudget {
	b := &FallbackBudget{ratio: ratio, burst: float64(burst)}
	b.tokens.Store(math.Float64bits(b.burst))
	return b
}

// NewEarnedBudget makes an empty budget, so that what it allows is never more than its share of the requests so far. The parameters are those
// of NewFallbackBudget.
func NewEarnedBudget(ratio float64, burst int) *FallbackBudget {
	return &FallbackBudget{ratio: ratio, burst: float64(burst)}
}

// Earn adds the share of one request.
func (b *FallbackBudget) Earn() {
	for {
		before := b.tokens.Load()
		tokens := math.Float64frombits(before)
		if tokens >= b.burst || b.tokens.CompareAndSwap(before, math.Float64bits(min(b.burst, tokens+b.ratio))) {
			return
		}
	}
}

// rounding is above the error of adding ten tenths.
const rounding = 1e-9

// Has reports whether there is a token.
func (b *FallbackBudget) Has() bool { return b.Left() >= 1-rounding }

// Take spends one token if there is one.
func (b *FallbackBudget) Take() bool { return b.TakeLeaving(0) }

// TakeLeaving spends one token if this many are left then, for requests that need one more.
func (b *FallbackBudget) TakeLeaving(reserve int) bool {
	for {
		before := b.tokens.Load()
		tokens := math.Float64frombits(before)
		if tokens < float64(1+reserve)-rounding {
			return false
		}
		if b.tokens.CompareAndSwap(before, math.Float64bits(max(0, tokens-1))) {
			return true
		}
	}
}

// Burst returns the capacity in tokens. A budget of less than one never has any.
func (b *FallbackBudget) Burst() float64 { return b.burst }

// Left returns the number of tokens in the bucket.
func (b *FallbackBudget) Left() float64 { return math.Float64frombits(b.tokens.Load()) }
