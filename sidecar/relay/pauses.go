package relay

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pd"
)

// ByVerdict holds one histogram for each verdict that gives an answer. Its index is a pd.Verdict; the other elements are nil.
type ByVerdict [pd.Refused + 1]prometheus.Observer

// NewByVerdict returns the histograms of a vector whose only label is the verdict. They are looked up once, because a lookup
// costs more than an observation.
func NewByVerdict(of prometheus.ObserverVec) *ByVerdict {
	var all ByVerdict
	for _, v := range []pd.Verdict{pd.Local, pd.Remote} {
		all[v] = of.WithLabelValues(v.String())
	}
	return &all
}

// Observe adds a value to the histogram of a verdict, with the exemplar unless that is nil.
func (b *ByVerdict) Observe(v pd.Verdict, value float64, exemplar prometheus.Labels) {
	if to := b[v]; to != nil {
		observe(to, value, exemplar)
	}
}

func observe(to prometheus.Observer, value float64, exemplar prometheus.Labels) {
	if exemplar == nil {
		to.Observe(value)
		return
	}
	to.(prometheus.ExemplarObserver).ObserveWithExemplar(value, exemplar)
}

// pauses observes how long a stream's client waited between two arrivals of tokens. Events that one read brings reach the
// client in one write, so they are one arrival. An arrival costs one observation and no allocation.
//
// The longest pause is observed last, so that it can have the exemplar: one trace for each stream, that of its worst moment.
type pauses struct {
	to      prometheus.Observer // nil: nothing is observed
	last    time.Time           // when tokens arrived; zero = none have
	longest time.Duration       // of those so far, and not observed yet; 0 = there is none
}

// arrived notes that tokens arrived.
func (p *pauses) arrived(now time.Time) {
	if p.to == nil {
		return
	}
	pause := now.Sub(p.last)
	first := p.last.IsZero()
	p.last = now
	if first {
		return
	}
	if pause > p.longest {
		pause, p.longest = p.longest, pause
	}
	if pause > 0 {
		p.to.Observe(pause.Seconds())
	}
}

// end observes the longest pause.
func (p *pauses) end(exemplar prometheus.Labels) {
	if p.longest > 0 {
		observe(p.to, p.longest.Seconds(), exemplar)
		p.longest = 0
	}
}
