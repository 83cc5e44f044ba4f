package handoff

import (
	"context"
	"sync"
	"time"
)

// stallWatch notices when the whole process stood still: stopped, or its machine frozen or starved.
//
// The age of a hand-off depends on it. A prefill answer that is read after a stall seems fresh, but may have waited in the
// socket during the stall, while the lease ran. The answer's own Date header does not help: it is of another machine's clock.
type stallWatch struct {
	now func() time.Time

	mu         sync.Mutex // guards what follows
	last       time.Time  // of the newest tick
	begin, end time.Time  // the newest stall
}

const (
	// stallTick is the time between two ticks.
	stallTick = 250 * time.Millisecond
	// stallAfter is how late a tick is after a stall: far above a late timer on a busy machine, far below any lease.
	stallAfter = 2 * time.Second
)

func newStallWatch(now func() time.Time) *stallWatch { return &stallWatch{now: now, last: now()} }

// run ticks until ctx ends.
func (w *stallWatch) run(ctx context.Context) {
	tick := time.NewTicker(stallTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.tick()
		}
	}
}

// tick records that the process runs at the returned time, and a stall if the last tick was long ago.
func (w *stallWatch) tick() time.Time {
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.last) > stallAfter {
		w.begin, w.end = w.last, now
	}
	if now.After(w.last) {
		w.last = now
	}
	return now
}

// arrived returns the earliest time at which an answer that was read just now may have arrived. A running process reads it
// at once; right after a stall it may have waited since the stall began, but not since before the given time.
func (w *stallWatch) arrived(since time.Time) time.Time {
	now := w.tick()
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Sub(w.end) > stallAfter || w.end.IsZero() {
		return now
	}
	if w.begin.Before(since) {
		return since
	}
	return w.begin
}
