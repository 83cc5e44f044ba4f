package sim

import "time"

// Leftovers counts what an engine holds: leases, and sequences that live, run or wait. ok is false if it has ended.
func (e *Engine) Leftovers() (leases, live, running, waiting int, ok bool) {
	ok = e.core.Call(func() {
		for range e.core.Live() {
			live++
		}
		leases, running, waiting = len(e.connector.leases.open), e.core.Runs(), e.core.Waits()
	})
	return leases, live, running, waiting, ok
}

// HasStuckLoad reports whether a request waits for ever. WaitState calls it in the engine's loop.
func (e *Engine) HasStuckLoad() bool {
	for s := range e.core.Live() {
		if legOf(s).stuck {
			return true
		}
	}
	return false
}

// AllDone reports whether no request waits for any sequence. WaitState calls it in the engine's loop.
func (e *Engine) AllDone() bool {
	for s := range e.core.Live() {
		if !s.Done {
			return false
		}
	}
	return true
}

// Deliver has the engine take a peer's message.
func (e *Engine) Deliver(message string) { e.core.Call(func() { e.connector.notified(message) }) }

// LeaseEnd returns when a lease expires. WaitState calls it in the engine's loop.
func (e *Engine) LeaseEnd(id string) time.Time { return e.connector.leases.open[id].expires }

// HalveLease makes a lease expire half a lease from now, and returns when.
func (e *Engine) HalveLease(id string) (end time.Time) {
	e.core.Call(func() {
		end = time.Now().Add(e.cfg.KV.Lease / 2)
		e.connector.leases.open[id].expires = end
	})
	return end
}

// JoinAddress is joinAddress.
var JoinAddress = joinAddress

// Releases returns how many releases an engine of MoRIIOConnector has got for prompts that are not computed yet. The engine's loop calls
// it.
func (e *Engine) Releases() int { return len(e.connector.moriio.released) }

// Deaf reports whether a notice has ended the reader of notices. The engine's loop calls it.
func (e *Engine) Deaf() bool { return e.connector.moriio.deaf }
