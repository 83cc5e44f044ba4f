package flow

import (
	"sync"
	"sync/atomic"

	"github.com/tandem-serving/tandem/epp"
)

// mostSeries is how many series a tally has, besides those for the rest: clients choose fairness ids and models.
const mostSeries = 1000

// restOf is what further requests are counted by.
const restOf = "other"

// tally counts requests by their origin. Its series are never removed: an autoscaler that finds none cannot tell that from a failure.
type tally struct {
	mu     sync.RWMutex
	series map[epp.Origin]*series
}

// series are the requests of one origin, or of the rest of a priority.
type series struct {
	requests, bytes atomic.Int64
}

func (s *series) add(n, bytes int64) {
	s.requests.Add(n)
	s.bytes.Add(bytes)
}

// of returns the series of an origin, the one for the rest if there are as many as may.
func (t *tally) of(o epp.Origin) *series {
	t.mu.RLock()
	s, ok := t.series[o]
	t.mu.RUnlock()
	if ok {
		return s
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.series) >= mostSeries {
		o = epp.Origin{Flow: restOf, Priority: o.Priority, Model: restOf, Target: restOf}
	}
	if s, ok = t.series[o]; ok {
		return s
	}
	if t.series == nil {
		t.series = make(map[epp.Origin]*series)
	}
	s = &series{}
	t.series[o] = s
	return s
}

// atLeastOne calls f for all series, or for one without requests if there are none.
func (t *tally) atLeastOne(f func(o epp.Origin, requests, bytes int64)) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if len(t.series) == 0 {
		f(epp.Origin{Flow: epp.DefaultFlow}, 0, 0)
	}
	for o, s := range t.series {
		f(o, s.requests.Load(), s.bytes.Load())
	}
}

// sum returns how many requests all series have.
func (t *tally) sum() (requests int64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, s := range t.series {
		requests += s.requests.Load()
	}
	return requests
}
