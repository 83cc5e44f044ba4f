package scorer

import (
	"cmp"
	"slices"
	"sync"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// NoHitLRU spreads requests of whose prompt no endpoint has anything cached, so that no endpoint's cache is filled by all of them.
// The endpoint that got such a request longest ago, or never, scores 1, and the one that got the last of them 0; the others are
// spread evenly in their order. Other requests get 0.5 everywhere. Endpoints that never got one are all rated 1; llm-d ranks them
// in the order of its list.
type NoHitLRU struct {
	// LRUSize is the most endpoints whose last such request is remembered. Default 1024.
	LRUSize int `yaml:"lruSize"`
	// PrefixMatchInfoProducerName names the producer of cached tokens. Default "": the one named approx-prefix-cache-producer, or
	// else the first of the file.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	// PrefixPluginType is accepted for older configurations, and ignored, as in llm-d.
	PrefixPluginType string `yaml:"prefixPluginType"`
	// PrefixPluginName is accepted for older configurations, and ignored, as in llm-d.
	PrefixPluginName string `yaml:"prefixPluginName"`
}

const coldEndpoints = 1024

// NewNoHitLRU returns the parameters with their defaults.
func NewNoHitLRU() epp.Plugin { return &NoHitLRU{LRUSize: coldEndpoints} }

// Correct implements epp.Corrector.
func (p *NoHitLRU) Correct(warn epp.Report) {
	param.Correct(warn, "lruSize", &p.LRUSize, p.LRUSize > 0, coldEndpoints)
}

// Problems implements epp.Plugin.
func (*NoHitLRU) Problems(epp.Report) {}

// References implements epp.Referrer.
func (p *NoHitLRU) References() map[string]string {
	return param.References("prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName)
}

// Build implements epp.Plugin.
func (p *NoHitLRU) Build(b *epp.Builder) (any, error) {
	matcher, err := param.Matcher(b, p.PrefixMatchInfoProducerName)
	if err != nil {
		return nil, err
	}
	turns := epp.Kept(b.Keep, "turns of cold requests, by plugin "+b.Name, func() *coldTurns { return new(coldTurns) })
	return noHitLRU{matcher: matcher, turns: turns, size: p.LRUSize}, nil
}

type noHitLRU struct {
	matcher epp.Matcher
	turns   *coldTurns
	size    int
}

// Score implements epp.Scorer.
func (s noHitLRU) Score(r *epp.Round, c []epp.Candidate, scores []float64) {
	if s.warm(r, c) {
		for i := range scores {
			scores[i] = middle
		}
		return
	}
	ranks := rankings.Get().(*[]turn)
	defer rankings.Put(ranks)
	*ranks = s.turns.of(c, (*ranks)[:0])
	slices.SortFunc(*ranks, func(a, b turn) int { return cmp.Compare(a.last, b.last) })
	for place, t := range *ranks {
		scores[t.candidate] = 1
		if t.last > 0 && len(c) > 1 {
			scores[t.candidate] = 1 - float64(place)/float64(len(c)-1)
		}
	}
}

// warm reports whether any candidate has a part of the prompt cached.
func (s noHitLRU) warm(r *epp.Round, c []epp.Candidate) bool {
	found := r.Found(s.matcher)
	for i := range c {
		if found.Of(&c[i]) > 0 {
			return true
		}
	}
	return false
}

// Picked implements epp.PickObserver.
func (s noHitLRU) Picked(r *epp.Round, all []epp.Candidate, d *epp.Decision) {
	if s.warm(r, all) {
		return
	}
	for i := range d.Picks {
		s.turns.take(d.Picks[i].Endpoints[0], s.size)
	}
}

// turn is when a candidate got its last cold request: a number that grows with every one, 0 = never.
type turn struct {
	last      uint64
	candidate int
}

// rankings are lists for ranking candidates.
var rankings = sync.Pool{New: func() any { return new([]turn) }}

// coldTurns remembers, by slot, when endpoints got their last cold request. The zero value remembers none. It is safe for concurrent
// use.
type coldTurns struct {
	mu     sync.RWMutex
	latest uint64
	bySlot map[int]uint64
}

// of appends the turns of candidates.
func (t *coldTurns) of(c []epp.Candidate, turns []turn) []turn {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i := range c {
		turns = append(turns, turn{t.bySlot[c[i].Slot], i})
	}
	return turns
}

// take notes that an endpoint has got a cold request. If there are more than size endpoints then, it forgets the one whose turn was
// longest ago.
func (t *coldTurns) take(e *epp.Endpoint, size int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.bySlot == nil {
		t.bySlot = make(map[int]uint64)
	}
	t.latest++
	t.bySlot[e.Slot] = t.latest
	if len(t.bySlot) <= size {
		return
	}
	oldest := e.Slot
	for slot, last := range t.bySlot {
		if last < t.bySlot[oldest] {
			oldest = slot
		}
	}
	delete(t.bySlot, oldest)
}

// EndpointJoined implements epp.EndpointObserver.
func (*coldTurns) EndpointJoined(*epp.Endpoint) {}

// EndpointLeft implements epp.EndpointObserver.
func (t *coldTurns) EndpointLeft(e *epp.Endpoint) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.bySlot, e.Slot)
}
