package sim

import "time"

// Leftovers counts what an engine holds: leases, and sequences that live, run or wait. ok is false if it has ended.
func (e *Engine) Leftovers() (leases, live, running, waiting int, ok bool) {
	ok = e.call(func() {
		leases, live, running, waiting = len(e.leases.open), len(e.live), len(e.running), len(e.waiting)
	})
	return leases, live, running, waiting, ok
}

// HasStuckLoad reports whether a request waits for ever. WaitState calls it in the engine's loop.
func (e *Engine) HasStuckLoad() bool {
	for s := range e.live {
		if s.load == loadStuck {
			return true
		}
	}
	return false
}

// AllDone reports whether no request waits for any sequence. WaitState calls it in the engine's loop.
func (e *Engine) AllDone() bool {
	for s := range e.live {
		if !s.done {
			return false
		}
	}
	return true
}

// Deliver has the engine take a peer's message.
func (e *Engine) Deliver(message string) { e.call(func() { e.notified(message) }) }

// LeaseEnd returns when a lease expires. WaitState calls it in the engine's loop.
func (e *Engine) LeaseEnd(id string) time.Time { return e.leases.open[id].expires }

// HalveLease makes a lease expire half a lease from now, and returns when.
func (e *Engine) HalveLease(id string) (end time.Time) {
	e.call(func() {
		end = time.Now().Add(e.cfg.KV.Lease / 2)
		e.leases.open[id].expires = end
	})
	return end
}

// JoinAddress is joinAddress.
var JoinAddress = joinAddress
