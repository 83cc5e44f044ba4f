package epp

import (
	"sync"
	"time"
)

// Ledger holds decisions, with their reservations, between the stream that picked and the stream that accounts for the
// request, by the plan's id. It ends the reservation of a decision that no stream takes over in time. It is safe for
// concurrent use.
type Ledger struct {
	patience time.Duration
	clock    Clock
	mu       sync.Mutex
	waiting  map[string]waiting
	closed   bool
}

type waiting struct {
	decision *Decision
	timer    Timer
}

// NewLedger makes a ledger that ends reservations which no stream has taken over after patience.
func NewLedger(patience time.Duration, clock Clock) *Ledger {
	return &Ledger{patience: patience, clock: clock, waiting: make(map[string]waiting)}
}

// Hold keeps a decision until Take, until the ledger's patience is over, or until Close. An id that is held already is not
// held twice: the earlier reservation ends.
func (l *Ledger) Hold(id string, d *Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		d.Reservation.End()
		return
	}
	if earlier, ok := l.waiting[id]; ok {
		earlier.timer.Stop()
		earlier.decision.Reservation.End()
	}
	// The function may run before the entry is there; it then waits for the lock.
	l.waiting[id] = waiting{d, l.clock.AfterFunc(l.patience, func() { l.expire(id, d) })}
}

// Take hands over the decision held under an id. ok is false if there is none: it was made by another replica, before a
// restart, or too long ago.
func (l *Ledger) Take(id string) (d *Decision, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, ok := l.waiting[id]
	if !ok {
		return nil, false
	}
	w.timer.Stop()
	delete(l.waiting, id)
	return w.decision, true
}

func (l *Ledger) expire(id string, d *Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w, ok := l.waiting[id]; ok && w.decision == d {
		delete(l.waiting, id)
		d.Reservation.End()
	}
}

// Len is how many decisions wait to be taken over.
func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// Close ends the reservations of all decisions that wait, and of those still to come.
func (l *Ledger) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for id, w := range l.waiting {
		w.timer.Stop()
		w.decision.Reservation.End()
		delete(l.waiting, id)
	}
}
