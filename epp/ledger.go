package epp

import (
	"sync"
	"time"
)

// Ledger holds the reservations of requests between the stream that picked and the stream that accounts for them, by the
// plan's id. One that nobody takes over in time is ended. It is safe for concurrent use.
type Ledger struct {
	patience time.Duration
	mu       sync.Mutex
	waiting  map[string]waiting
	closed   bool
}

type waiting struct {
	reservation *Reservation
	timer       *time.Timer
}

// NewLedger makes a ledger that ends reservations nobody has taken over after patience.
func NewLedger(patience time.Duration) *Ledger {
	return &Ledger{patience: patience, waiting: make(map[string]waiting)}
}

// Hold keeps a reservation until Take, or until the ledger's patience or life is over. An id that is held already is not
// held twice: the earlier reservation ends.
func (l *Ledger) Hold(id string, r *Reservation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		r.End()
		return
	}
	if earlier, ok := l.waiting[id]; ok {
		earlier.timer.Stop()
		earlier.reservation.End()
	}
	// The callback may run before the entry is there; it then waits for the lock.
	l.waiting[id] = waiting{r, time.AfterFunc(l.patience, func() { l.expire(id, r) })}
}

// Take hands over the reservation held under an id. ok is false if there is none: it was made by another replica, before
// a restart, or too long ago.
func (l *Ledger) Take(id string) (r *Reservation, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, ok := l.waiting[id]
	if !ok {
		return nil, false
	}
	w.timer.Stop()
	delete(l.waiting, id)
	return w.reservation, true
}

func (l *Ledger) expire(id string, r *Reservation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w, ok := l.waiting[id]; ok && w.reservation == r {
		delete(l.waiting, id)
		r.End()
	}
}

// Len is how many reservations wait to be taken over.
func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)
}

// Close ends all reservations that wait, and those still to come.
func (l *Ledger) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for id, w := range l.waiting {
		w.timer.Stop()
		w.reservation.End()
		delete(l.waiting, id)
	}
}
