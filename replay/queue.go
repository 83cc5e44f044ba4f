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
	picker   *picker
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

// newQueue returns the queue of a configuration; nil if requests do not wait for capacity. running knows the requests that it may evict.
func (p *picker) newQueue(b *config.Built, interval time.Duration, running *flow.Running) *flow.Controller {
	if b.Queues == nil {
		return nil
	}
	settings, gate := setup.Queues(b, setup.Pages{Pool: &p.loads, Clock: &p.world.clock, Interval: interval, Stale: p.world.options.Stale,
		Others: p.world.others()})
	return flow.New(settings, gate, flow.Options{Clock: &p.world.clock, Running: running, Waiting: func(any bool) { p.waiting.queued = any }})
}

// capacity has the queue look for capacity, because a page was read, or load has ended.
func (p *picker) capacity() {
	if !p.waiting.queued || p.waiting.looking {
		return
	}
	p.waiting.looking = true
	p.world.clock.after(0, func() {
		p.waiting.looking = false
		p.waiting.queue.SnapshotChanged()
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
	k := a.picker
	for ; a.prepared < len(k.waiting.preparers); a.prepared++ {
		p := k.waiting.preparers[a.prepared]
		add, err := p.Prepare(ended(), a.asked)
		if late := a.of.Due + p.Timeout(); err != nil && k.world.clock.now < late {
			k.waiting.unprepared = append(k.waiting.unprepared, a)
			k.world.clock.after(late-k.world.clock.now, k.retry)
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
func (p *picker) retry() {
	if p.waiting.retrying || len(p.waiting.unprepared) == 0 {
		return
	}
	p.waiting.retrying = true
	p.world.clock.after(0, func() {
		all := p.waiting.unprepared
		p.waiting.unprepared, p.waiting.retrying = nil, false
		for _, a := range all {
			a.prepare()
		}
	})
}

// admit has the request picked for at once, or when the queue lets it pass.
func (a *arrival) admit() {
	p := a.picker
	if p.waiting.queue == nil {
		a.choose(epp.Pass{})
		return
	}
	p.waiting.queue.Begin(a.asked, func(pass epp.Pass, err error) {
		p.world.clock.after(0, func() { // the queue may be locked
			a.of.Queued = p.world.clock.now - a.of.Due
			if err != nil {
				a.refuse(err)
				return
			}
			a.choose(pass)
			p.waiting.queue.Settled(a.asked, pass)
		})
	})
}

// refuse ends the request.
func (a *arrival) refuse(err error) {
	a.of.Reason, a.of.Refused = pd.AsRefusal(err).Reason, true
	a.picker.world.ended(a.of)
	a.picker.retry()
}
