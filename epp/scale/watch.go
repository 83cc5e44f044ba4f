package scale

import (
	"sync"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// watch knows the endpoints of a pool and what waits for them, and has sizes computed each Interval. It is an epp.BacklogFollower, and safe for
// concurrent use.
type watch struct {
	clock   epp.Clock
	compute func(now time.Time)

	own       sync.Mutex // guards what follows
	endpoints map[*epp.Endpoint]bool
	timer     epp.Timer   // nil: no endpoint has joined yet
	notify    func()      // nil: nothing is told
	backlog   epp.Backlog // nil: no request waits
	closed    bool
}

func newWatch(clock epp.Clock, compute func(now time.Time)) *watch {
	return &watch{clock: clock, compute: compute, endpoints: map[*epp.Endpoint]bool{}}
}

// Notify has changed called whenever sizes were computed.
func (w *watch) Notify(changed func()) {
	w.own.Lock()
	defer w.own.Unlock()
	w.notify = changed
}

// FollowBacklog implements epp.BacklogFollower.
func (w *watch) FollowBacklog(b epp.Backlog) {
	w.own.Lock()
	defer w.own.Unlock()
	w.backlog = b
}

// waits returns what waits in the picker.
func (w *watch) waits() epp.InFlight {
	w.own.Lock()
	defer w.own.Unlock()
	if w.backlog == nil {
		return epp.InFlight{}
	}
	return w.backlog.Backlog()
}

// begin has the first interval begin, unless it has, and returns what is called when sizes were computed.
func (w *watch) begin() (notify func()) {
	w.own.Lock()
	defer w.own.Unlock()
	w.start()
	return w.notify
}

// start sets the timer of the first interval. The caller holds the mutex.
func (w *watch) start() {
	if w.timer == nil && !w.closed {
		w.timer = w.clock.AfterFunc(Interval, w.tick)
	}
}

// Close ends the computation of sizes.
func (w *watch) Close() error {
	w.own.Lock()
	defer w.own.Unlock()
	w.closed = true
	if w.timer != nil {
		w.timer.Stop()
	}
	return nil
}

// join adds an endpoint, in place of its other versions.
func (w *watch) join(e *epp.Endpoint) {
	w.own.Lock()
	defer w.own.Unlock()
	w.forget(e)
	w.endpoints[e] = true
	w.start()
}

// leave removes an endpoint. last says that no other one is of the same replica.
func (w *watch) leave(e *epp.Endpoint) (last bool) {
	w.own.Lock()
	defer w.own.Unlock()
	w.forget(e)
	replica := replicaOf(e)
	last = true
	for other := range w.endpoints {
		last = last && replicaOf(other) != replica
	}
	return last
}

// forget removes all versions of an endpoint. The caller holds the mutex.
func (w *watch) forget(e *epp.Endpoint) {
	for other := range w.endpoints {
		if other.Is(e) {
			delete(w.endpoints, other)
		}
	}
}

// each calls f with each endpoint.
func (w *watch) each(f func(e *epp.Endpoint)) {
	w.own.Lock()
	defer w.own.Unlock()
	for e := range w.endpoints {
		f(e)
	}
}

// tick computes the sizes, and has itself called again.
func (w *watch) tick() {
	w.compute(w.clock.Now())
	if notify := w.again(); notify != nil {
		notify()
	}
}

// again sets the timer of the next interval, and returns what is to be called now.
func (w *watch) again() (notify func()) {
	w.own.Lock()
	defer w.own.Unlock()
	if w.closed {
		return nil
	}
	w.timer = w.clock.AfterFunc(Interval, w.tick)
	return w.notify
}
