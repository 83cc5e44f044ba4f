package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

var (
	// ErrNoWay: the engine cannot be notified, and nothing was sent, so that another way may be tried.
	ErrNoWay = errors.New("the prefill engine cannot be notified directly: try another way")
	// ErrReleased: the hand-off was released before, with whatever outcome.
	ErrReleased = errors.New("the hand-off was released before")
)

// notHeld is the index of a hold for which no heartbeats are sent.
const notHeld = -1

// Hold is one hand-off. Its methods are safe for concurrent use, and for nil, which is no hand-off.
type Hold struct {
	book     *Book
	engine   *engine // nil: it cannot be notified
	why      error   // of that
	id       string
	released atomic.Bool

	// Guarded by Book.mu.
	until time.Time
	held  bool      // a heartbeat arrived
	due   time.Time // of the next heartbeat
	at    int       // in engine.holds, or notHeld
}

// Until is the time until which the prefill engine keeps the blocks at least: a lease after it finished, and the dialect's
// Renewal after the sending of a heartbeat that every rank got. It is the zero time for nil.
func (h *Hold) Until() time.Time {
	if h == nil {
		return time.Time{}
	}
	h.book.mu.Lock()
	defer h.book.mu.Unlock()
	return h.until
}

// Safe is the time until which a decode engine may be asked to read a hand-off that heartbeats have renewed: it leaves a sixth
// of a lease for the way there. Without a heartbeat that arrived it is the zero time, and the caller decides how long to trust
// the lease. A heartbeat that comes too late does not move it.
func (h *Hold) Safe() time.Time {
	if h == nil {
		return time.Time{}
	}
	h.book.mu.Lock()
	defer h.book.mu.Unlock()
	if !h.held {
		return time.Time{}
	}
	return h.until.Add(-h.book.config.Lease / 6)
}

// Ready reports whether Release can expect to reach the engine without meeting it first.
func (h *Hold) Ready() bool {
	if h == nil || h.engine == nil || h.released.Load() || down(h.book.config.Notifier) {
		return false
	}
	h.book.mu.Lock()
	defer h.book.mu.Unlock()
	return h.engine.ranks != nil
}

// End ends the heartbeats: decode sends its own by now, or the hand-off is released in another way. Ending a hold again does
// nothing. A heartbeat that has been sent may still arrive, which does no harm.
func (h *Hold) End() {
	if h == nil || h.engine == nil {
		return
	}
	h.book.mu.Lock()
	defer h.book.mu.Unlock()
	h.end()
}

// end removes the hold from its engine. The caller holds Book.mu.
func (h *Hold) end() {
	if h.at == notHeld {
		return
	}
	holds := h.engine.holds
	last := len(holds) - 1
	holds[h.at] = holds[last]
	holds[h.at].at = h.at
	holds[last] = nil
	h.engine.holds = holds[:last]
	h.at = notHeld
}

// Release ends the hold, and notifies every rank of the engine that the hand-off will not be read. It must not be called while
// a decode engine may be reading. An engine that is not known yet is met first, for as long as ctx allows.
//
// Nil means that all ranks were notified. Errors: ErrNoWay if nothing was sent; ErrReleased for a second call, which does
// nothing; after all others, a rank may have been notified or not, and another way could notify it twice, which engines take
// for a read of blocks that belong to other requests by now.
func (h *Hold) Release(ctx context.Context) error {
	if h == nil {
		return fmt.Errorf("releasing a hand-off: %w: %w", ErrNoWay, errNoBook)
	}
	if h.released.Swap(true) {
		return fmt.Errorf("releasing hand-off %s: %w", h.id, ErrReleased)
	}
	sent, err := h.release(ctx)
	if err != nil && !sent {
		err = fmt.Errorf("%w: %w", ErrNoWay, err)
	}
	if err != nil {
		return fmt.Errorf("releasing hand-off %s: %w", h.id, err)
	}
	return nil
}

// release reports whether anything was, or may have been, sent.
func (h *Hold) release(ctx context.Context) (sent bool, err error) {
	if h.engine == nil {
		return false, h.why
	}
	e, err := h.leaveTo()
	if err != nil {
		return false, err
	}
	defer h.book.leave(e)
	x := &delivery{engine: e, messages: [][]byte{h.book.notices.Release(h.id)}}
	err = h.book.deliver(ctx, x)
	return x.sent > 0 || x.unsure, err
}

// leaveTo ends the hold and begins a use of its engine, which is added again if it was evicted after the hold had ended.
func (h *Hold) leaveTo() (*engine, error) {
	b := h.book
	b.mu.Lock()
	defer b.mu.Unlock()
	h.end()
	e := h.engine
	if e.evicted {
		var err error
		if e, err = b.place(e.key); err != nil {
			return nil, err
		}
	}
	e.busy++
	return e, nil
}
