package sim

import (
	"context"
	"errors"
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
	e.core.Call(func() { st = e.state() })
	return st
}

func (e *Engine) state() State {
	pool, core, own := e.core.Pool(), e.core.Counts(), e.connector.counts
	return State{
		Blocks:  BlockState{pool.Total(), pool.Used(), pool.Pinned()},
		Expired: own.expired, Released: own.released, StaleReads: own.stale, ForeignReads: own.foreign,
		Requests: core.Requests, Held: core.Held, KVBytesRead: own.kvBytesRead, KVBytesServed: own.kvBytesReleased,
	}
}

// WaitState returns the first state that satisfies ok. The engine's loop calls ok after every change, so ok must not call the
// engine. The error is the context's, with the state at that time, or says that the engine has stopped.
func (e *Engine) WaitState(ctx context.Context, ok func(State) bool) (State, error) {
	var seen State
	err := e.core.WaitFor(ctx, func() bool {
		seen = e.state()
		return ok(seen)
	})
	switch {
	case err == nil:
		return seen, nil
	case errors.Is(err, ErrDead):
		return State{}, err
	}
	return e.State(), err
}
