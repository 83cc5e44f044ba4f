package lease

import (
	"errors"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// The timer of each engine sends its heartbeats, for each hold twice in the time for which one renews it, so that one may get
// lost. A heartbeat includes all holds that are due within 1/beatTogether of a lease, so that an engine with many holds gets
// one a second at most.
const beatTogether = 30

// arm sets the timer to at, or to the end of the engine's pause if that is later, unless it is set to an earlier time. The
// caller holds Registry.mu.
func (b *Registry) arm(e *engine, at time.Time) {
	if e.ranks == nil && e.again.After(at) {
		at = e.again
	}
	if e.beating || e.set && !at.Before(e.setFor) {
		return
	}
	wait := max(time.Until(at), 0)
	pending := false
	if e.timer == nil {
		e.timer = time.AfterFunc(wait, func() { b.beat(e) })
	} else {
		pending = e.timer.Reset(wait)
	}
	if !pending {
		b.work.Add(1) // beat or disarm calls Done
	}
	e.set, e.setFor = true, at
}

// disarm stops the timer. The caller holds Registry.mu.
func (b *Registry) disarm(e *engine) {
	e.set = false
	if e.timer != nil && e.timer.Stop() {
		b.work.Done()
	}
}

// rearm sets the timer for the next hold that is due. The caller holds Registry.mu.
func (b *Registry) rearm(e *engine) {
	if len(e.holds) == 0 {
		return
	}
	next := e.holds[0].due
	for _, h := range e.holds {
		if h.due.Before(next) {
			next = h.due
		}
	}
	b.arm(e, next)
}

// beat sends the heartbeats that are due.
func (b *Registry) beat(e *engine) {
	defer b.work.Done()
	b.mu.Lock()
	if b.closed || e.beating {
		b.mu.Unlock()
		return
	}
	e.set = false
	sent := time.Now()
	due := b.collect(e, sent)
	if len(due) == 0 {
		b.rearm(e)
		b.mu.Unlock()
		return
	}
	e.beating = true
	b.mu.Unlock()

	err := b.deliver(b.ctx, &delivery{engine: e, messages: b.heartbeats(due)})

	b.mu.Lock()
	e.beating = false
	if err == nil {
		b.counts.Beats++
		prolong(due, sent.Add(b.renewal), time.Now())
	} else {
		b.counts.FailedBeats++
	}
	b.rearm(e)
	closed := b.closed
	b.mu.Unlock()
	if err != nil && !closed && !errors.Is(err, errNotConnected) {
		b.warnings.Warn("a heartbeat failed", "engine", e.id, "hand_offs", len(due), "error", err)
	}
}

// collect returns the holds that are due, and sets their next times. It ends those that were not renewed in time, because
// their blocks may belong to another request. The caller holds Registry.mu.
func (b *Registry) collect(e *engine, now time.Time) (due []*Hold) {
	together := now.Add(b.config.Lease / beatTogether)
	for i := len(e.holds) - 1; i >= 0; i-- { // from the end, because ending one moves the last to its place
		h := e.holds[i]
		switch {
		case !now.Before(h.until):
			h.end()
		case !h.due.After(together):
			h.due = now.Add(b.renewal / 2)
			due = append(due, h)
		}
	}
	return due
}

// prolong records that the engine was notified in time. The caller holds Registry.mu.
func prolong(holds []*Hold, until, now time.Time) {
	for _, h := range holds {
		if !now.Before(h.until) {
			continue
		}
		h.held = true
		if until.After(h.until) {
			h.until = until
		}
	}
}

// heartbeats returns as few messages as possible that name the holds. Hold has checked that each can be named.
func (b *Registry) heartbeats(holds []*Hold) [][]byte {
	ids := make([]string, len(holds))
	for i, h := range holds {
		ids[i] = h.id
	}
	return b.notices.Heartbeats(ids, transfer.MaxMessage)
}
