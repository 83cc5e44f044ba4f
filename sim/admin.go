package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
)

// State is what GET /sim/state answers.
type State struct {
	Blocks BlockState `json:"blocks"`
	// Expired counts leases that ran out.
	Expired int64 `json:"expired"`
	// Released counts leases that a notification ended: after a read, or because no engine will read.
	Released int64 `json:"released"`
	// StaleReads counts notifications for hand-offs whose lease had run out: what was read may have been overwritten.
	StaleReads int64 `json:"stale_reads"`
	// ForeignReads counts loads, at the reader, whose bytes were not the KV of the prompt.
	ForeignReads int64 `json:"foreign_reads"`
	// Requests counts HTTP requests that were queued.
	Requests int64 `json:"requests"`
	// Held counts requests, or answers, that a slow fault holds back at the moment.
	Held int64 `json:"held"`
	// KVBytesRead is what this engine has loaded from others, in bytes that really moved.
	KVBytesRead int64 `json:"kv_bytes_read"`
	// KVBytesServed is the size, in bytes, of the hand-offs that a notification ended. Reads are one-sided: the owner
	// does not see them, and a hand-off that was released without being read counts as well.
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
		Blocks:  BlockState{e.pool.total(), e.pool.used(), e.pool.pinned},
		Expired: e.counts.expired, Released: e.counts.released, StaleReads: e.counts.stale, ForeignReads: e.counts.foreign,
		Requests: e.counts.requests, Held: e.counts.held, KVBytesRead: e.counts.kvBytesRead, KVBytesServed: e.counts.kvBytesReleased,
	}
}

// waiter is a caller that waits for a state.
type waiter struct {
	ok      func(State) bool
	reached chan State // holds one
}

// served answers a waiter whose state has come.
func (e *Engine) served(w waiter) bool {
	st := e.state()
	if !w.ok(st) {
		return false
	}
	w.reached <- st
	return true
}

// WaitState returns the first state that satisfies ok, which is asked after every change, in the engine's loop: it must
// not call the engine. The error is the context's, or says that the engine has stopped; the state is then the last one
// that could be had.
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

// Admin serves the simulator's own interface, for a listener of its own: POST and DELETE /sim/faults, GET /sim/state.
func (e *Engine) Admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /sim/faults", e.postFault)
	mux.HandleFunc("DELETE /sim/faults", func(w http.ResponseWriter, _ *http.Request) {
		e.ClearFaults()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /sim/state", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if _, err := w.Write(encodeJSON(e.State())); err != nil {
			return // the caller has left
		}
	})
	return mux
}

// maxFaultBody bounds what is read of a posted fault, in bytes.
const maxFaultBody = 64 << 10

func (e *Engine) postFault(w http.ResponseWriter, r *http.Request) {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxFaultBody))
	d.DisallowUnknownFields()
	var f Fault
	err := d.Decode(&f)
	if err == nil {
		err = e.AddFault(f)
	}
	if err != nil {
		http.Error(w, fmt.Sprintf("reading the fault: %v", err), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
