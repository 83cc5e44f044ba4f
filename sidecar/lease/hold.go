package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

var (
	// ErrNoWay says that the engine cannot be notified and nothing was sent, so that another way of release may be tried.
	ErrNoWay = errors.New("the prefill engine cannot be notified directly: try another way")
	// ErrReleased says that Release was called before, whatever its result.
	ErrReleased = errors.New("the hand-off was released before")
)

// notHeld is the index of a hold for which no heartbeats are sent.
const notHeld = -1

// Hold is one hand-off that is being renewed. Its methods are safe for concurrent use. A nil Hold is no hand-off.
type Hold struct {
	registry *Registry
	engine   *engine // nil: the engine cannot be notified
	why      error   // why engine is nil
	id       string
	released atomic.Bool

	// Registry.mu guards the fields below.
	until time.Time
	held  bool      // a heartbeat arrived
	due   time.Time // of the next heartbeat
	at    int       // in engine.holds, or notHeld
}

// Until returns the time until which the prefill engine keeps the blocks at least: a lease after it finished, or the
// dialect's Renewal after the sending of a heartbeat that every rank got. It is the zero time for nil.
func (h *Hold) Until() time.Time {
	if h == nil {
		return time.Time{}
	}
	h.registry.mu.Lock()
	defer h.registry.mu.Unlock()
	return h.until
}

// Safe returns the time until which decode may be asked to read a hand-off that heartbeats have renewed, which leaves a sixth
// of a lease for the way. It is zero if no heartbeat has arrived; the caller then decides how long to trust the lease. A
// heartbeat that comes too late does not change it.
func (h *Hold) Safe() time.Time {
	if h == nil {
		return time.Time{}
	}
	h.registry.mu.Lock()
	defer h.registry.mu.Unlock()
	if !h.held {
		return time.Time{}
	}
	return h.until.Add(-h.registry.config.Lease / 6)
}

// Ready reports whether Release can expect to reach the engine without connecting to it first.
func (h *Hold) Ready() bool {
	if h == nil || h.engine == nil || h.released.Load() || down(h.registry.config.Notifier) {
		return false
	}
	h.registry.mu.Lock()
	defer h.registry.mu.Unlock()
	return h.engine.ranks != nil
}

// End ends the heartbeats, because decode now sends its own, or the hand-off is released in another way. Further calls do
// nothing. A heartbeat that was sent before may arrive later, which does no harm.
func (h *Hold) End() {
	if h == nil || h.engine == nil {
		return
	}
	h.registry.mu.Lock()
	defer h.registry.mu.Unlock()
	h.end()
}

// end removes the hold from its engine. The caller holds Registry.mu.
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

// Release ends the hold, and notifies every rank of the engine that no engine will read the hand-off. It must not be called
// while a decode engine may be reading. Release first connects to an unknown engine, for as long as ctx allows.
//
// Nil means that all ranks were notified. ErrNoWay means that nothing was sent, ErrReleased that this is a second call, which
// does nothing. After other errors a rank may have been notified, and another way could notify it twice, which engines take
// for a read of blocks that by now belong to other requests.
func (h *Hold) Release(ctx context.Context) error {
	if h == nil {
		return fmt.Errorf("releasing a hand-off: %w: %w", ErrNoWay, errNoRegistry)
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

// release reports whether a message was, or may have been, sent.
func (h *Hold) release(ctx context.Context) (sent bool, err error) {
	if h.engine == nil {
		return false, h.why
	}
	e, err := h.leaveTo()
	if err != nil {
		return false, err
	}
	defer h.registry.leave(e)
	x := &delivery{engine: e, messages: [][]byte{h.registry.notices.Release(h.id)}}
	err = h.registry.deliver(ctx, x)
	return x.sent > 0 || x.unsure, err
}

// leaveTo ends the hold and begins a use of its engine, which it adds again if the engine was evicted after the hold had
// ended.
func (h *Hold) leaveTo() (*engine, error) {
	b := h.registry
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
