package upstream

import (
	"context"
	"math"
	"sync"
	"time"
)

// Pacer bounds the requests in flight by what the upstream can take (AIMD). The limit doubles each round of answers until the upstream first
// says that it is full; then it grows by one request a round, and halves each time the upstream says so again. It does not grow
// while answers waited in the picker's queue, or take much longer than they did at best: more requests would only wait. Where the picker tells
// how much headroom online requests have to their goals, the limit grows only while that is enough, and falls when it is not.
type Pacer struct {
	most  int
	wake  chan struct{} // a request may be sent; holds one
	mu    sync.Mutex
	limit float64
	known bool // the upstream has said that it is full
	bound bool // requests wait for the limit

	inflight    int
	pausedUntil time.Time
	halved      time.Time
	yielded     time.Time     // when the limit was last lowered for want of headroom
	headroom    float64       // as last told; NaN: not known
	latency     time.Duration // moving average
	best        time.Duration // least latency; it rises slowly, because the load and the prompts change
	observed    time.Time     // when latency was last measured
}

const (
	startLimit = 4
	// queueBound is how long an answer may have waited in the picker's queue before the limit stops growing.
	queueBound = 250 * time.Millisecond
	// slower is how much longer than at best answers may take before the limit stops growing: engines that batch answer each
	// request later, and all of them sooner, up to about this factor.
	slower = 4
	// forgetBest is how long it takes until answers count as slow by what has become usual.
	forgetBest = 10 * time.Minute
	// longestPause bounds Retry-After: a proxy that asks for hours must not stop batches that another one would serve.
	longestPause = time.Minute
	// ampleHeadroom is the share of their goals that the times of online requests must leave for the limit to grow, and leastHeadroom the one
	// below which it falls: by a tenth, or by three while goals are missed. What the picker tells is of some ten seconds, so a lower
	// limit shows late: the limit falls at most once in yieldEvery.
	ampleHeadroom = 0.2
	leastHeadroom = 0.1
	yieldEvery    = 5 * time.Second
	// alonePause is how long the upstream is left alone that has refused the only request in flight, and has not said when to come back.
	alonePause = 100 * time.Millisecond
)

// NewPacer returns a Pacer of at most so many requests in flight.
func NewPacer(most int) *Pacer {
	return &Pacer{most: most, wake: make(chan struct{}, 1), limit: min(startLimit, float64(most)), headroom: math.NaN()}
}

// Acquire waits until a request may be sent. End it with Answered, Full, Evicted or Failed.
func (p *Pacer) Acquire(ctx context.Context) error {
	for {
		pause, ok := p.try(time.Now())
		if ok {
			return nil
		}
		var over <-chan time.Time
		if pause > 0 {
			timer := time.NewTimer(pause)
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-ctx.Done():
			p.signal() // the signal may have come to this caller
			return ctx.Err()
		case <-p.wake:
		case <-over:
		}
	}
}

// try takes a slot, or returns how long all requests have to wait; 0: until one has ended.
func (p *Pacer) try(now time.Time) (pause time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pause = p.pausedUntil.Sub(now); pause > 0 {
		return pause, false
	}
	if p.bound = p.inflight >= int(p.limit); p.bound {
		return 0, false
	}
	if p.inflight++; p.inflight < int(p.limit) {
		p.signal()
	}
	return 0, true
}

func (p *Pacer) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Answered ends a request that the upstream has served. queued is how long it waited for capacity, headroom the share of their goals that
// online requests leave, NaN if it is not known.
func (p *Pacer) Answered(took, queued time.Duration, headroom float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.observe(took)
	p.inflight--
	switch p.headroom = headroom; {
	case headroom < leastHeadroom:
		p.yield(time.Now())
	case headroom < ampleHeadroom: // more requests would take it
	case p.bound && queued < queueBound && p.latency < slower*p.best:
		step := 1.0
		if p.known {
			step = 1 / p.limit
		}
		p.limit = min(p.limit+step, float64(p.most))
	}
	p.signal()
}

// yield lowers the limit, because online requests come near to their goals, or miss them. A limit that is already 1 becomes a pause.
func (p *Pacer) yield(now time.Time) {
	if now.Sub(p.yielded) < yieldEvery {
		return
	}
	share := 0.9
	if p.headroom < 0 {
		share = 0.7
	}
	if p.limit <= 1 {
		p.pause(now.Add(yieldEvery))
	}
	p.limit, p.known, p.yielded = max(1, p.limit*share), true, now
}

// observe has the average follow an answer's time within about 16 answers, and the best time rise to the average within forgetBest.
func (p *Pacer) observe(took time.Duration) {
	now := time.Now()
	if p.latency == 0 {
		p.latency, p.best, p.observed = took, took, now
	}
	p.latency += (took - p.latency) / 16
	p.best += time.Duration(float64(p.latency-p.best) * min(1, float64(now.Sub(p.observed))/float64(forgetBest)))
	p.best = max(min(p.best, p.latency), time.Millisecond)
	p.observed = now
}

// Full ends a request that the upstream has refused because it has no capacity. No request is sent for retryAfter, or, if the limit cannot be
// halved any more, for alonePause.
func (p *Pacer) Full(retryAfter time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.inflight--
	// The requests that are in flight when the limit is halved are refused for the same reason.
	if now.Sub(p.halved) > max(p.latency, 100*time.Millisecond) {
		p.limit, p.known, p.halved = max(1, p.limit/2), true, now
	}
	if p.limit <= 1 {
		retryAfter = max(retryAfter, alonePause)
	}
	p.pause(now.Add(min(retryAfter, longestPause)))
	p.signal()
}

// Evicted ends a request that the picker has ended for a more important one. The limit stays, although it grows slowly from now on: the picker
// evicts as many requests as it must, and has the others, and those that are sent again, wait until there is capacity.
func (p *Pacer) Evicted() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inflight--
	p.known = true
	p.signal()
}

// Failed ends a request that had no answer, or one that says nothing about capacity.
func (p *Pacer) Failed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inflight--
	p.signal()
}

// Pause has no request sent for a while.
func (p *Pacer) Pause(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pause(time.Now().Add(d))
}

func (p *Pacer) pause(until time.Time) {
	if until.After(p.pausedUntil) {
		p.pausedUntil = until
	}
}

// State returns how many requests may be, and are, in flight.
func (p *Pacer) State() (limit, inflight int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int(p.limit), p.inflight
}

// Headroom returns the share of their goals that online requests leave, as the latest answer had it; NaN if it had none.
func (p *Pacer) Headroom() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.headroom
}
