package handoff

import (
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar/lease"
)

// pending is a hand-off between its two legs. Only its dialect knows what it consists of; the methods here ask the dialect.
type pending struct {
	of       dialect.Handoff // nil: there is none
	finished time.Time       // the earliest time at which prefill may have finished
	target   pd.Target
	hold     *lease.Hold   // until decode's first byte
	answered bool          // decode has answered its leg
	age      time.Duration // when the decode leg was written
}

// newHandoff begins to hold the hand-off of a prefill leg that was sent at the given time.
func (legs *Legs) newHandoff(of dialect.Handoff, sent time.Time, target pd.Target) pending {
	finished := legs.stalls.arrived(sent)
	return pending{of: of, finished: finished, target: target, hold: legs.hold(of, finished)}
}

// hold has the prefill engine renew the lease of a hand-off, if it has one.
func (legs *Legs) hold(of dialect.Handoff, finished time.Time) *lease.Hold {
	leased, ok := of.(dialect.Leased)
	if !ok {
		return nil
	}
	return legs.Leases.Hold(leased.Pin(), finished)
}

// late reports whether it is too late, at the given time, to ask decode to read the hand-off: its blocks may hold another
// prompt by then. Heartbeats extend the limit.
func (h *pending) late(at time.Time) bool {
	leased, ok := h.of.(dialect.Leased)
	if !ok {
		return false
	}
	limit := h.finished.Add(leased.Trust())
	if safe := h.hold.Safe(); safe.After(limit) {
		limit = safe
	}
	return at.After(limit)
}

// pins reports whether the hand-off may still be pinned after decode answered its leg with status.
func (h *pending) pins(status int) bool {
	if r, ok := h.of.(dialect.Releaser); ok {
		return r.Pins(status)
	}
	return pinned(h.of)
}

// blocks returns how many KV blocks the hand-off has, 0 if its protocol does not tell.
func (h *pending) blocks() int {
	if sized, ok := h.of.(dialect.Sized); ok {
		return sized.Blocks()
	}
	return 0
}

// cached returns the count of cached tokens that replaces decode's. ok is false if decode's count is right, or decode has not
// answered.
func (h *pending) cached() (tokens int64, ok bool) {
	if c, corrects := h.of.(dialect.UsageCorrector); corrects && h.answered {
		return c.Cached()
	}
	return 0, false
}
