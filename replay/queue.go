package replay

import (
	"context"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/flow"
	"github.com/tandem-serving/tandem/epp/setup"
	"github.com/tandem-serving/tandem/pd"
)

// arrival is a request that has arrived, and has not been picked for.
type arrival struct {
	world    *world
	of       *Record
	asked    *epp.Request
	prepared int // preparers that have returned
	adds     []func(*epp.Request)
}

// waiting is what requests wait for before they are picked for. Nothing blocks: preparers are asked again when a pick has ended, and
// the queue tells which requests may pass.
type waiting struct {
	queue      *flow.Controller // nil: requests do not wait for capacity
	preparers  []epp.NamedPreparer
	unprepared []*arrival // that wait for preparers
	retrying   bool       // they are to be asked again
	queued     bool       // requests are in the queue
	looking    bool       // it is to look for capacity
}

// newQueue returns the queue of a configuration; nil if requests do not wait for capacity.
func (w *world) newQueue(b *config.Built, interval time.Duration) *flow.Controller {
	if b.Queues == nil {
		return nil
	}
	settings, gate := setup.Queues(b, setup.Pages{Pool: &w.loads, Clock: &w.clock, Interval: interval, Stale: w.options.Stale})
	return flow.New(settings, gate, flow.Options{Clock: &w.clock, Waiting: func(any bool) { w.waiting.queued = any }})
}

// capacity has the queue look for capacity, because a page was read, or load has ended.
func (w *world) capacity() {
	if !w.waiting.queued || w.waiting.looking {
		return
	}
	w.waiting.looking = true
	w.clock.after(0, func() {
		w.waiting.looking = false
		w.waiting.queue.SnapshotChanged()
	})
}

// ended is the context of preparers: where they would wait they return an error.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// prepare asks the preparers, and again later where they would wait, but no longer than their timeouts.
func (a *arrival) prepare() {
	w := a.world
	for ; a.prepared < len(w.waiting.preparers); a.prepared++ {
		p := w.waiting.preparers[a.prepared]
		add, err := p.Prepare(ended(), a.asked)
		if late := a.of.Due + p.Timeout(); err != nil && w.clock.now < late {
			w.waiting.unprepared = append(w.waiting.unprepared, a)
			w.clock.after(late-w.clock.now, w.retry)
			return
		}
		if add != nil {
			a.adds = append(a.adds, add)
		}
	}
	for _, add := range a.adds {
		add(a.asked)
	}
	a.admit()
}

// retry asks preparers again.
func (w *world) retry() {
	if w.waiting.retrying || len(w.waiting.unprepared) == 0 {
		return
	}
	w.waiting.retrying = true
	w.clock.after(0, func() {
		all := w.waiting.unprepared
		w.waiting.unprepared, w.waiting.retrying = nil, false
		for _, a := range all {
			a.prepare()
		}
	})
}

// admit has the request picked for at once, or when the queue lets it pass.
func (a *arrival) admit() {
	w := a.world
	if w.waiting.queue == nil {
		a.choose(epp.Pass{})
		return
	}
	w.waiting.queue.Begin(a.asked, func(pass epp.Pass, err error) {
		w.clock.after(0, func() { // the queue may be locked
			a.of.Queued = w.clock.now - a.of.Due
			if err != nil {
				a.refuse(err)
				return
			}
			a.choose(pass)
			w.waiting.queue.Settled(a.asked, pass)
		})
	})
}

// refuse ends the request.
func (a *arrival) refuse(err error) {
	a.of.Reason, a.of.Refused = pd.AsRefusal(err).Reason, true
	a.world.ended(a.of)
	a.world.retry()
}
