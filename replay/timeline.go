package replay

import (
	"slices"
	"time"
)

// Sample is the load of all engines of one role at a moment.
type Sample struct {
	At      time.Duration
	Role    string  // prefill, decode or both
	Engines int     // of the role
	Waiting int     // requests
	Running int     // requests
	KVUsage float64 // mean share of the engines' KV caches in use
}

// A timeline begins with a sample every firstInterval. When it has mostMoments, it forgets every second one, and takes half as many
// from then on: however long a run is, its timeline covers it evenly.
const (
	firstInterval = 100 * time.Millisecond
	mostMoments   = 256
)

// timeline takes samples of the engines at even intervals.
type timeline struct {
	next, each time.Duration
	moments    [][]Sample // one sample of each role
}

// until takes the samples that are due before now. Nothing has happened between them and the last event before now.
func (t *timeline) until(now time.Duration, nodes []*node) {
	for ; t.next < now; t.next += t.each {
		if t.moments = append(t.moments, sample(t.next, nodes)); len(t.moments) < mostMoments {
			continue
		}
		for i := range mostMoments / 2 {
			t.moments[i] = t.moments[2*i]
		}
		t.moments = t.moments[:mostMoments/2]
		t.next, t.each = t.next-t.each, 2*t.each
	}
}

// sample reads all engines, those that leave too.
func sample(at time.Duration, nodes []*node) (all []Sample) {
	for _, n := range nodes {
		if n.gone {
			continue
		}
		i := slices.IndexFunc(all, func(s Sample) bool { return s.Role == n.role })
		if i < 0 {
			i, all = len(all), append(all, Sample{At: at, Role: n.role})
		}
		s := &all[i]
		waiting, _ := n.engine.Waiting()
		s.Engines, s.Waiting, s.Running, s.KVUsage = s.Engines+1, s.Waiting+waiting, s.Running+n.engine.Running(), s.KVUsage+n.engine.Usage(at)
	}
	for i := range all {
		all[i].KVUsage /= float64(all[i].Engines)
	}
	return all
}
