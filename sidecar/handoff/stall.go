package handoff

import (
	"context"
	"sync"
	"time"
)

// stallWatch notices that the whole process stood still: stopped, or its machine frozen or starved.
//
// It is what makes the age of a hand-off true. A prefill answer read after a stall seems fresh, but may have waited in the
// socket all the time, with the lease running. The answer's own Date header does not help: it is of another machine's clock.
type stallWatch struct {
	now func() time.Time

	mu         sync.Mutex // guards what follows
	last       time.Time  // the newest sign of life
	begin, end time.Time  // the newest stall
}

const (
	// stallTick is how often the watch gives a sign of life.
	stallTick = 250 * time.Millisecond
	// stallAfter is the silence that counts as a stall: far above a late timer on a busy machine, far below any lease.
	stallAfter = 2 * time.Second
)

func newStallWatch(now func() time.Time) *stallWatch { return &stallWatch{now: now, last: now()} }

// run gives signs of life until ctx ends.
func (w *stallWatch) run(ctx context.Context) {
	tick := time.NewTicker(stallTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.alive()
		}
	}
}

// alive records a sign of life at now, and a stall if the one before was long ago.
func (w *stallWatch) alive() time.Time {
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
	now := w.alive()
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
