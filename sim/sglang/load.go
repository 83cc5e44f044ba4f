package sglang

import (
	"context"
	"math"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
)

// Load is how busy one rank is at one moment.
type Load struct {
	Rank    int
	Running int
	Waiting int // with those in the queues below, but Deferred
	Used    int // tokens, in whole pages; those that only the prefix cache has are free
	Total   int // tokens
	Cached  int // tokens that only the prefix cache has

	Bootstrap int // prefill legs that wait for decode
	Inflight  int // prefill legs whose KV is being read
	Prealloc  int // decode legs without pages
	Transfer  int // decode legs that wait for KV
	Deferred  int // decode legs that have ended, whose pages wait for prefill
}

// Usage returns the used share of the pool, rounded to so many digits.
func (l Load) Usage(digits int) float64 {
	unit := math.Pow10(digits)
	return math.Round(float64(l.Used)/float64(l.Total)*unit) / unit
}

// Loads returns how busy each rank is. A rank that has died has no load.
func (e *Engine) Loads() []Load {
	loads := make([]Load, len(e.ranks))
	for i, r := range e.ranks {
		r.core.Call(func() { loads[i] = r.load() })
	}
	return loads
}

func (r *rank) load() Load {
	size, pool := r.cfg.PageSize, r.core.Pool()
	l := Load{Rank: r.number, Running: r.core.Runs(), Waiting: r.core.Waits(), Used: pool.Used() * size, Total: pool.Total() * size,
		Cached: pool.Cached() * size}
	for s := range r.core.Live() {
		switch legOf(s).stage {
		case bootstrapping:
			l.Bootstrap++
			l.Waiting++
		case inflight:
			l.Inflight++
			l.Waiting++
		case handshaking:
			l.Prealloc++
			l.Waiting++
		case preallocating: // is in the queue
			l.Prealloc++
		case transferring:
			l.Transfer++
			l.Waiting++
		case releasing:
			l.Deferred++
		}
	}
	return l
}

// State is what GET /sim/state answers: of all ranks together.
type State struct {
	Blocks BlockState `json:"blocks"`
	// Requests counts prompts that were queued, Held requests and answers that a slow fault holds back at the moment.
	Requests int64 `json:"requests"`
	Held     int64 `json:"held"`
	// Live counts requests that have not ended, Bootstrap, Inflight, Prealloc and Transfer those of them in the queues of the
	// hand-off.
	Live      int `json:"live"`
	Bootstrap int `json:"bootstrap"`
	Inflight  int `json:"inflight"`
	Prealloc  int `json:"prealloc"`
	Transfer  int `json:"transfer"`
	// Deferred counts decode legs that have ended and whose pages wait for prefill to confirm that it does not write to them.
	Deferred int `json:"deferred"`
	// ForeignReads counts transfers to this engine whose bytes were not the KV of the prompt.
	ForeignReads int64 `json:"foreign_reads"`
	// KVBytesRead is how many bytes of KV this engine has read from others, KVBytesServed how many others have confirmed to have
	// read.
	KVBytesRead   int64 `json:"kv_bytes_read"`
	KVBytesServed int64 `json:"kv_bytes_served"`
}

// BlockState counts pages.
type BlockState struct {
	Total int `json:"total"`
	Used  int `json:"used"`
}

// Idle reports whether the engine holds nothing.
func (s State) Idle() bool { return s.Live == 0 && s.Deferred == 0 && s.Blocks.Used == 0 }

// State reports the engine at one moment, rank after rank. Ranks that have died count nothing.
func (e *Engine) State() (st State) {
	for _, r := range e.ranks {
		r.core.Call(func() { r.addState(&st) })
	}
	return st
}

func (r *rank) addState(st *State) {
	l, counted := r.load(), r.core.Counts()
	st.Blocks.Total += r.core.Pool().Total()
	st.Blocks.Used += r.core.Pool().Used()
	st.Requests += counted.Requests
	st.Held += counted.Held
	for s := range r.core.Live() {
		if !s.Done {
			st.Live++
		}
	}
	st.Bootstrap, st.Inflight, st.Prealloc = st.Bootstrap+l.Bootstrap, st.Inflight+l.Inflight, st.Prealloc+l.Prealloc
	st.Transfer, st.Deferred = st.Transfer+l.Transfer, st.Deferred+l.Deferred
	st.ForeignReads += r.counts.foreign
	st.KVBytesRead += r.counts.kvBytesRead
	st.KVBytesServed += r.counts.kvBytesServed
}

// pollInterval is how often WaitState looks at an engine of several ranks.
const pollInterval = 2 * time.Millisecond

// WaitState returns the first state that satisfies ok, which must not call the engine. It looks after every change, or with several
// ranks once in pollInterval. The error is the context's, with the state at that time, or core.ErrDead.
func (e *Engine) WaitState(ctx context.Context, ok func(State) bool) (State, error) {
	if len(e.ranks) == 1 {
		r := e.ranks[0]
		var found State
		err := r.core.WaitFor(ctx, func() bool {
			found = State{}
			r.addState(&found)
			return ok(found)
		})
		if err == nil {
			return found, nil
		}
		return e.State(), err
	}
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		st := e.State()
		if ok(st) {
			return st, nil
		}
		select {
		case <-tick.C:
		case <-e.crashed:
			return st, core.ErrDead
		case <-ctx.Done():
			return st, ctx.Err()
		}
	}
}
