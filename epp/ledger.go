package epp

import (
	"sync"
	"time"
)

// Ledger holds decisions, with their reservations, between the stream that picked and the stream that accounts for the
// request, by the plan's id. It ends the reservation if no stream takes the decision in time. It is safe for concurrent use.
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

// NewLedger makes a ledger that ends a reservation if no stream takes it within patience.
func NewLedger(patience time.Duration, clock Clock) *Ledger {
	return &Ledger{patience: patience, clock: clock, waiting: make(map[string]waiting)}
}

// Hold keeps a decision until Take, until the ledger's patience has passed, or until Close. If the id is in use, the earlier
// reservation ends.
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
	// The function may run before the entry is stored; it then waits for the lock.
	l.waiting[id] = waiting{d, l.clock.AfterFunc(l.patience, func() { l.expire(id, d) })}
}

// Take removes and returns the decision with an id. ok is false if there is none: another replica made it, or it was made
// before a restart, or too long ago.
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

// Len returns how many decisions wait for Take.
func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// Close ends the reservations of all waiting decisions, and of those to come.
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
