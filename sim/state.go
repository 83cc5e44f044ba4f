package sim

import (
	"context"
	"slices"
)

// State is what GET /sim/state answers.
type State struct {
	Blocks BlockState `json:"blocks"`
	// Expired counts leases that expired.
	Expired int64 `json:"expired"`
	// Released counts leases that a notification ended: after a read, or because no engine will read the KV.
	Released int64 `json:"released"`
	// StaleReads counts notifications for hand-offs whose lease had expired: the KV that was read may have been overwritten.
	StaleReads int64 `json:"stale_reads"`
	// ForeignReads counts loads of this engine whose bytes were not the KV of the prompt.
	ForeignReads int64 `json:"foreign_reads"`
	// Requests counts HTTP requests that were queued.
	Requests int64 `json:"requests"`
	// Held counts requests and answers that a slow fault holds back at the moment.
	Held int64 `json:"held"`
	// KVBytesRead is how many bytes of KV this engine has read from others.
	KVBytesRead int64 `json:"kv_bytes_read"`
	// KVBytesServed is the size, in bytes, of the hand-offs that a notification ended. The owner does not see reads, so
	// hand-offs that were released without being read count as well.
	KVBytesServed int64 `json:"kv_bytes_served"`
}

// BlockState counts the blocks that can be handed out.
type BlockState struct {
	Total  int `json:"total"`
	Used   int `json:"used"`   // held by requests or leases
	Pinned int `json:"pinned"` // of these, by leases
}

// State reports the engine at one moment. An engine that has stopped reports zeros.
func (e *Engine) State() (st State) {
	e.call(func() { st = e.state() })
	return st
}

func (e *Engine) state() State {
	return State{
		Blocks:  BlockState{e.pool.Total(), e.pool.Used(), e.pool.Pinned()},
		Expired: e.counts.expired, Released: e.counts.released, StaleReads: e.counts.stale, ForeignReads: e.counts.foreign,
		Requests: e.counts.requests, Held: e.counts.held, KVBytesRead: e.counts.kvBytesRead, KVBytesServed: e.counts.kvBytesReleased,
	}
}

// waiter is a caller that waits for a state.
type waiter struct {
	ok      func(State) bool
	reached chan State // has room for one
}

// reached answers a waiter if the engine is in its state.
func (e *Engine) reached(w waiter) bool {
	st := e.state()
	if !w.ok(st) {
		return false
	}
	w.reached <- st
	return true
}

// WaitState returns the first state that satisfies ok. The engine's loop calls ok after every change, so ok must not call the
// engine. The error is the context's, with the state at that time, or says that the engine has stopped.
func (e *Engine) WaitState(ctx context.Context, ok func(State) bool) (State, error) {
	w := waiter{ok, make(chan State, 1)}
	if !e.post(func() { e.waiters = append(e.waiters, w) }) {
		return State{}, errStopped
	}
	select {
	case st := <-w.reached:
		return st, nil
	case <-e.stopped:
		return State{}, errStopped
	case <-ctx.Done():
		e.call(func() {
			e.waiters = slices.DeleteFunc(e.waiters, func(other waiter) bool { return other.reached == w.reached })
		})
		return e.State(), ctx.Err()
	}
}

// HoldRequest counts a request as held back in State.Held, until the caller calls end.
func (e *Engine) HoldRequest() (end func()) {
	e.post(func() { e.counts.held++ })
	return func() { e.post(func() { e.counts.held-- }) }
}
