package report

import (
	"fmt"
	"html/template"
	"math"
	"strings"
)

// load shows the load of each endpoint over time, all on the same scales.
type load struct {
	Endpoints []endpoint
	More      int // endpoints that are not drawn
}

// endpoint is the load of one endpoint.
type endpoint struct {
	Name, Role string
	Peak       string
	Drawing    template.HTML
	Axis       template.HTML
}

const (
	maxEndpoints = 48
	maxSteps     = 160 // of a curve; a small drawing cannot show more
)

// series holds the samples of one endpoint in the order of time.
type series struct {
	name, role string
	samples    []LoadSample
}

func newLoad(d *Data) (l load) {
	all := bySeries(d.Load)
	if len(all) > maxEndpoints {
		l.More = len(all) - maxEndpoints
		all = all[:maxEndpoints]
	}
	from, to, most := math.Inf(1), math.Inf(-1), 1
	for _, s := range all {
		from, to = min(from, s.samples[0].At), max(to, s.samples[len(s.samples)-1].At)
		for _, x := range s.samples {
			most = max(most, x.Running+x.Waiting, x.InFlight)
		}
	}
	for _, s := range all {
		l.Endpoints = append(l.Endpoints, s.draw(from, linear(to-from), most))
	}
	return l
}

// bySeries groups samples by endpoint, in the order in which endpoints first appear. It leaves out impossible samples.
func bySeries(samples []LoadSample) (all []*series) {
	known := map[string]*series{}
	for _, x := range samples {
		if !plausible(x.At) || x.Running < 0 || x.Waiting < 0 || x.InFlight < 0 {
			continue
		}
		s := known[x.Endpoint]
		if s == nil {
			s = &series{name: x.Endpoint, role: x.Role}
			known[x.Endpoint] = s
			all = append(all, s)
		}
		s.samples = append(s.samples, x)
	}
	return all
}

// Rows of an endpoint's drawing, in pixels from its top: each text is above the line that it names.
const (
	countTop, countHeight = 15, 60
	kvTop, kvHeight       = 94, 20
	loadHeight            = kvTop + kvHeight + 2
)

// draw stacks the waiting requests on the running ones, draws the picker's own count as a line over them, and the use of the
// KV cache below.
func (s *series) draw(from float64, on scale, most int) endpoint {
	peak := s.peak()
	e := endpoint{Name: s.name, Role: s.role, Axis: axis(on)}
	e.Peak = fmt.Sprintf("Peak: %d running, %d waiting, %d in flight, KV %.0f%%", peak.Running, peak.Waiting, peak.InFlight, 100*peak.KVUsage)
	thinned := s.thinned()
	curve := func(height float64, of func(LoadSample) float64) string { return steps(thinned, from, on, height, of) }
	count := func(n int) float64 { return float64(n) / float64(most) }
	d := draw(loadHeight, "Load of "+s.name, e.Peak)
	d.letters(countTop-4, counted(most, "request"))
	d.grid(on, countTop, countHeight)
	d.plane(countTop, countHeight, func() {
		d.path("waiting", area(curve(countHeight, func(x LoadSample) float64 { return count(x.Running + x.Waiting) }),
			countHeight))
		d.path("running", area(curve(countHeight, func(x LoadSample) float64 { return count(x.Running) }), countHeight))
		d.path("inflight", curve(countHeight, func(x LoadSample) float64 { return count(x.InFlight) }))
	})
	d.letters(kvTop-4, "KV cache, 100%")
	d.grid(on, kvTop, kvHeight)
	d.plane(kvTop, kvHeight, func() {
		d.path("kv", area(curve(kvHeight, func(x LoadSample) float64 { return share(x.KVUsage) }), kvHeight))
	})
	e.Drawing = d.html()
	return e
}

// share limits v to 0…1, and returns 0 for an implausible value.
func share(v float64) float64 {
	if !plausible(v) {
		return 0
	}
	return min(v, 1)
}

// steps returns a path in which each sample holds until the next.
func steps(samples []LoadSample, from float64, on scale, height float64, of func(LoadSample) float64) string {
	var b strings.Builder
	for i, x := range samples {
		if i == 0 {
			b.WriteString("M")
		} else {
			b.WriteString("H")
		}
		b.WriteString(decimal(10 * on.at(x.At-from)))
		if i == 0 {
			b.WriteString(" ")
		} else {
			b.WriteString("V")
		}
		b.WriteString(decimal(height * (1 - of(x))))
	}
	return b.String() + "H1000"
}

// area closes a path of steps down to the baseline.
func area(steps string, height float64) string {
	start, _, _ := strings.Cut(strings.TrimPrefix(steps, "M"), " ")
	return steps + "V" + decimal(height) + "H" + start + "Z"
}

// thinned returns at most maxSteps samples, each the peak of several, so that no peak is lost.
func (s *series) thinned() []LoadSample {
	if len(s.samples) <= maxSteps {
		return s.samples
	}
	thin := make([]LoadSample, maxSteps)
	for i := range thin {
		part := series{samples: s.samples[i*len(s.samples)/maxSteps : (i+1)*len(s.samples)/maxSteps]}
		thin[i] = part.peak()
	}
	return thin
}

// peak returns the largest value of each number, at the time of the first sample.
func (s *series) peak() LoadSample {
	p := s.samples[0]
	p.KVUsage = share(p.KVUsage)
	for _, x := range s.samples {
		p.Waiting, p.Running, p.InFlight = max(p.Waiting, x.Waiting), max(p.Running, x.Running), max(p.InFlight, x.InFlight)
		p.KVUsage = max(p.KVUsage, share(x.KVUsage))
	}
	return p
}
