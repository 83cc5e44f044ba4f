package pd

import "sync"

// The defaults of a FallbackBudget: the share of all requests that may be prefilled locally although they were planned
// remote, and how many such requests at once.
const (
	FallbackRatio = 0.1
	FallbackBurst = 20
)

// FallbackBudget is a token bucket over requests, not over time. Every request adds a share of a token; each local prefill of
// a request that was planned remote takes one token. So an outage of prefill shifts at most that share of the load to decode,
// whatever the load is. It is safe for concurrent use.
type FallbackBudget struct {
	ratio, burst float64

	mu     sync.Mutex // guards tokens
	tokens float64
}

// NewFallbackBudget makes a full budget. ratio is what a request adds, 0..1; burst is the capacity in tokens.
func NewFallbackBudget(ratio float64, burst int) *FallbackBudget {
	return &FallbackBudget{ratio: ratio, burst: float64(burst), tokens: float64(burst)}
}

// Earn adds the share of one request.
func (b *FallbackBudget) Earn() {
	b.mu.Lock()
	b.tokens = min(b.burst, b.tokens+b.ratio)
	b.mu.Unlock()
}

// rounding is above the error of adding ten tenths.
const rounding = 1e-9

// Has reports whether there is a token.
func (b *FallbackBudget) Has() bool { return b.Left() >= 1-rounding }

// Take spends one token if there is one.
func (b *FallbackBudget) Take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tokens < 1-rounding {
		return false
	}
	b.tokens = max(0, b.tokens-1)
	return true
}

// Left returns the number of tokens in the bucket.
func (b *FallbackBudget) Left() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tokens
}
