package sidecar

import "sync"

// budget is a token bucket over requests, not over time: every request adds a share of a token, every local prefill of a
// request that was planned remote takes one. An outage of prefill can so shift at most that share of the load to decode,
// whatever the load is.
type budget struct {
	ratio, burst float64

	mu     sync.Mutex // guards tokens
	tokens float64
}

func newBudget(ratio float64, burst int) *budget {
	return &budget{ratio: ratio, burst: float64(burst), tokens: float64(burst)}
}

// earn adds one request's share.
func (b *budget) earn() {
	b.mu.Lock()
	b.tokens = min(b.burst, b.tokens+b.ratio)
	b.mu.Unlock()
}

// take spends one token if there is one.
func (b *budget) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	// Ten tenths added up are a little less than one.
	if b.tokens < 1-1e-9 {
		return false
	}
	b.tokens = max(0, b.tokens-1)
	return true
}

// left is the number of tokens in the bucket.
func (b *budget) left() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tokens
}
