package flow

import (
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Eviction says whether running requests of negative priority are ended for more important ones that wait.
type Eviction struct {
	On bool
	// Grace is how long after the end of a request the gate may still count it.
	Grace time.Duration
}

const (
	// mostEvicted is how many running requests are evicted before the capacity that this has freed is measured again.
	mostEvicted = 2
	// confirmWithin is how long an evicted request may take to end. Then others may be evicted although it has not.
	confirmWithin = 10 * time.Second
)

// Running counts the requests that run, and chooses those that are evicted. It is an epp.PickObserver, and a prometheus.Collector.
type Running struct {
	clock   epp.Clock
	counted tally
	names   atomic.Bool // see NameClients

	mu      sync.Mutex
	victims heap[*victim] // that may be evicted: the lowest priority first, and the newest of it
	seq     uint64
	round   uint64    // of evictions
	evicted int       // requests of the latest round that have not ended
	issued  time.Time // when that round was chosen
	freed   time.Time // when the last request of it had ended
}

// NewRunning makes a Running.
func NewRunning(clock epp.Clock) *Running {
	r := &Running{clock: clock}
	r.victims = heap[*victim]{less: (*victim).before, place: func(v *victim, i int) { v.index = i }}
	return r
}

// victim is a running request that may be evicted. It is an epp.Ender.
type victim struct {
	running     *Running
	counted     *series
	reservation *epp.Reservation
	priority    int
	seq         uint64 // in the order of picks
	round       uint64 // in which it was chosen
	index       int    // among the victims; -1 = it was chosen, or has ended
	ended       bool
}

func (v *victim) before(other *victim) bool {
	if v.priority != other.priority {
		return v.priority < other.priority
	}
	return v.seq > other.seq
}

// Picked implements epp.PickObserver.
func (r *Running) Picked(_ *epp.Round, _ []epp.Candidate, d *epp.Decision) {
	s := r.counted.of(d.Origin)
	s.add(1, 0)
	if d.Origin.Priority >= 0 {
		d.Reservation.OnEnd(s)
		return
	}
	v := &victim{running: r, counted: s, reservation: d.Reservation, priority: d.Origin.Priority}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	v.seq = r.seq
	r.victims.push(v)
	d.Reservation.OnEnd(v)
}

// Ended implements epp.Ender for requests that are not evicted.
func (s *series) Ended() { s.add(-1, 0) }

// Ended implements epp.Ender.
func (v *victim) Ended() {
	v.counted.Ended()
	r := v.running
	r.mu.Lock()
	defer r.mu.Unlock()
	v.ended = true
	if v.index >= 0 {
		r.victims.remove(v.index)
	} else {
		r.confirm(v)
	}
}

// confirm notes that a chosen request takes no capacity any more, or that it cannot be evicted. The caller holds mu.
func (r *Running) confirm(v *victim) {
	if v.round != r.round || r.evicted == 0 {
		return
	}
	if r.evicted--; r.evicted == 0 {
		r.freed = r.clock.Now()
	}
}

// shortage is what requests that wait lack.
type shortage struct {
	priority            int
	saturation, ceiling float64
	grace               time.Duration
}

// choose returns running requests to be evicted for requests that wait, and when to ask again: the zero time if there are none.
//
// The mean share of a running request in the saturation says how many it takes. There is no second round until all requests of the
// first one have ended, and the gate shows it: otherwise requests would be evicted for capacity that is already free.
func (r *Running) choose(s shortage) (chosen []*victim, again time.Time) {
	now := r.clock.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.victims.len() == 0 || r.victims.top().priority >= s.priority {
		return nil, time.Time{}
	}
	if r.evicted > 0 {
		if late := r.issued.Add(confirmWithin); now.Before(late) {
			return nil, late
		}
		r.evicted, r.freed = 0, now
	}
	if shows := r.freed.Add(s.grace); now.Before(shows) {
		return nil, shows
	}
	n := max(1, math.Ceil((s.saturation-s.ceiling)*float64(r.counted.sum())/s.saturation))
	r.round++
	for len(chosen) < int(min(n, mostEvicted)) && r.victims.len() > 0 && r.victims.top().priority < s.priority {
		v := r.victims.top()
		r.victims.remove(0)
		v.round = r.round
		chosen = append(chosen, v)
	}
	r.evicted, r.issued = len(chosen), now
	return chosen, now.Add(confirmWithin)
}

// evict ends a chosen request. One that is not ready for that stays.
func (v *victim) evict() {
	why := pd.Refuse(pd.Evicted, "More important requests need the capacity that this request had. Try again later.")
	why.Token = pd.TokenEvicted
	if v.reservation.Evict(why) {
		return
	}
	r := v.running
	r.mu.Lock()
	defer r.mu.Unlock()
	if !v.ended {
		r.confirm(v)
		r.victims.push(v)
	}
}

// evictFor evicts running requests for the most important ones that wait because the first stage is full. The stage that splits
// requests empties by itself when prompts are computed. The caller holds mu.
func (c *Controller) evictFor(in *configured, now time.Time) {
	eviction := &in.settings.Eviction
	if !eviction.On || c.opt.Running == nil || c.waiting.Load() == 0 {
		return
	}
	s, asked := shortage{grace: eviction.Grace}, c.asked[laneFirst].Load()
	s.saturation = in.gate.Saturation(false, asked, c.pendingAt(laneFirst, c.pendingAt(laneSplit, epp.InFlight{})), 0)
	for _, b := range c.bands {
		s.priority = b.priority
		s.ceiling, _ = c.ceiling(in, b.priority, s.saturation)
		if b.requests == 0 || isBelow(s.saturation, s.ceiling) || s.ceiling == 0 { // those with a ceiling of 0 are not to pass
			continue
		}
		chosen, again := c.opt.Running.choose(s)
		if !again.IsZero() {
			c.lookAt(again, now)
		}
		for _, v := range chosen {
			// Sending to a gateway may take time, and the controller is locked.
			c.opt.Clock.AfterFunc(0, func() {
				v.evict()
				c.SnapshotChanged()
			})
		}
		return
	}
}

// Describe implements prometheus.Collector.
func (r *Running) Describe(out chan<- *prometheus.Desc) { out <- theirRunningDesc }

// NameClients sets whether the metrics say which models and fairness ids clients named. Clients choose these texts freely, so they
// are on no page of a picker without flow control; its requests are counted by their priority alone. A Controller sets it.
func (r *Running) NameClients(names bool) { r.names.Store(names) }

// Collect implements prometheus.Collector.
func (r *Running) Collect(out chan<- prometheus.Metric) {
	names, running := r.names.Load(), map[epp.Origin]int64{}
	r.counted.atLeastOne(func(o epp.Origin, requests, _ int64) {
		if !names {
			o = epp.Origin{Flow: epp.DefaultFlow, Priority: o.Priority}
		}
		running[o] += requests
	})
	for o, requests := range running {
		out <- prometheus.MustNewConstMetric(theirRunningDesc, prometheus.GaugeValue, float64(requests), o.Model, o.Target, o.Flow,
			strconv.Itoa(o.Priority))
	}
}
