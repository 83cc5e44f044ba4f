package sched

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// pick is one request's way through a pipeline. What it needs of memory is used again by later ones.
type pick struct {
	pipeline *Pipeline
	trace    *tracer // nil unless the pick is to be explained
	round    epp.Round
	pcg      rand.PCG // what round.Rand draws from

	all      []epp.Candidate // the endpoints that the request's subset allows
	computed []epp.Values    // of all, by the producers
	outside  int             // how many it does not allow
	left     []epp.Candidate // those that the filters of the profile at work have left
	scores   []float64       // of left, by one scorer
	totals   []float64       // of left
	order    []int           // chosen ones of left
	dropper  string          // the filter that ran last
	full     bool            // it was a detector, and left none
	aside    []epp.Candidate // passed the filters, and nobody listens there: they come last
	spent    bool            // the request has taken of the fallback budget, in this try or one before

	asked   epp.Alternatives // what the decider was asked
	decode  []epp.Candidate  // chosen, best first
	prefill []epp.Candidate  // chosen, best first
	verdict pd.Verdict
	reason  pd.Reason
}

// Idle picks keep endpoints of an older snapshot alive, but only until two garbage collections have passed.
var picks = sync.Pool{New: func() any {
	k := new(pick)
	k.round.Rand = rand.New(&k.pcg)
	return k
}}

// begin starts the pick with the given number: same pipeline seed and number, same chance.
func begin(p *Pipeline, r *epp.Request, now time.Time, number uint64) *pick {
	k := picks.Get().(*pick)
	k.pipeline = p
	k.round = epp.Round{Request: r, Rand: k.round.Rand, Now: now}
	k.pcg.Seed(p.config.Seed, number)
	return k
}

// end gives the pick's memory back.
func (k *pick) end() {
	k.pipeline, k.trace, k.spent = nil, nil, false
	k.round, k.asked = epp.Round{Rand: k.round.Rand}, epp.Alternatives{}
	picks.Put(k)
}

// gather makes the candidates: all that is read of endpoints and prefix caches is read here, once for both stages.
func (k *pick) gather(s *epp.Snapshot) {
	r, c := k.round.Request, &k.pipeline.config
	k.all, k.outside = slices.Grow(k.all[:0], len(s.Endpoints)), 0
	for i, e := range s.Endpoints {
		if r.Subset != nil && !r.Subset.Has(e.Addr) { // a nil subset has all, but asking it a thousand times takes time
			k.outside++
			continue
		}
		load := &s.Loads[i]
		trust := load.Trust(k.round.Now, c.Stale)
		k.all = append(k.all, epp.Candidate{Endpoint: e, Load: load, Trust: trust, InFlight: e.InFlight()})
	}
	if k.matches() && len(k.all) > 0 {
		c.Matcher.Match(&r.Prompt, k.all)
	}
	if len(c.Producers) > 0 {
		k.compute(c.Producers)
	}
}

// compute lets the producers compute the signals of all candidates.
func (k *pick) compute(producers []epp.Producer) {
	k.computed = slices.Grow(k.computed[:0], len(k.all))[:len(k.all)]
	clear(k.computed)
	for i := range k.all {
		k.all[i].Computed = &k.computed[i]
	}
	for _, p := range producers {
		p.Produce(&k.round, k.all)
	}
}

// matches tells whether the matcher can read the prompt: one that was cut before the configuration changed may have blocks
// of another size.
func (k *pick) matches() bool {
	m, prompt := k.pipeline.config.Matcher, &k.round.Request.Prompt
	return m != nil && len(prompt.Blocks) > 0 && prompt.BlockTokens == m.Blocks().Tokens
}

// refresh reads the load in flight again.
func (k *pick) refresh() {
	for i := range k.all {
		k.all[i].InFlight = k.all[i].Endpoint.InFlight()
	}
}

// run makes the decision, without consequences. It may be run again. The error is a *pd.Refusal.
func (k *pick) run() error {
	k.round.Stage, k.round.Decode = epp.StageDecode, nil
	k.decode, k.prefill = k.decode[:0], k.prefill[:0]
	k.verdict, k.reason = pd.Local, ""
	profile := k.pipeline.decode
	if k.decode = k.choose(profile, profile.Picker.Endpoints(), k.decode); len(k.decode) == 0 {
		if k.full {
			return saturated()
		}
		return k.noEndpoint()
	}
	if err := k.decide(); err != nil || k.verdict != pd.Remote {
		return err
	}
	if k.pipeline.prefill == nil {
		return k.noPrefill()
	}
	k.round.Stage, k.round.Decode = epp.StagePrefill, k.decode[0].Endpoint
	if k.prefill = k.choose(k.pipeline.prefill, k.pipeline.config.Stages.Candidates, k.prefill); len(k.prefill) == 0 {
		return k.noPrefill()
	}
	return nil
}

// choose runs a profile and appends the candidates it chose to dst, best first; none if the filters left none.
func (k *pick) choose(profile *epp.Profile, n int, dst []epp.Candidate) []epp.Candidate {
	k.enter(profile)
	for i := range profile.Filters {
		if len(k.left) == 0 {
			break
		}
		f := &profile.Filters[i]
		_, detects := f.Filter.(epp.Detector)
		if detects {
			k.setAside() // a dead endpoint has room, but not for those that the others have none for
		}
		k.left = f.Filter.Filter(&k.round, k.left)
		k.dropper, k.full = f.Name, detects && len(k.left) == 0
		if detects && !k.full {
			k.left = append(k.left, k.aside...)
		}
		if k.trace != nil {
			k.trace.filtered(f.Name, k.left)
		}
	}
	if k.order = k.order[:0]; len(k.left) > 0 {
		k.setAside()
		k.score(profile.Scorers)
		k.order = profile.Picker.Pick(&k.round, k.totals, n, k.order)
	}
	if k.trace != nil {
		k.trace.chosen(profile.Picker, k.left, k.totals, k.order)
	}
	for _, i := range k.order {
		dst = append(dst, k.left[i])
	}
	if more := n - len(k.order); len(k.order) > 0 && more > 0 {
		dst = append(dst, k.aside[:min(more, len(k.aside))]...)
	}
	return dst
}

// enter puts the candidates of a stage in place: filters work on a copy, since there is another stage or try to come. A
// decode endpoint that could prefill too is none for itself: it would hand over to itself what it has. Further decode
// choices remain, as they decode only if the first cannot be reached.
func (k *pick) enter(profile *epp.Profile) {
	k.dropper, k.full, k.aside = "", false, k.aside[:0]
	if self := k.index(k.round.Decode); self < 0 {
		k.left = append(k.left[:0], k.all...)
	} else {
		k.left = append(append(k.left[:0], k.all[:self]...), k.all[self+1:]...)
	}
	if k.trace != nil {
		k.trace.enter(k.round.Stage, profile.Name, k.all)
		k.trace.filtered(decodeItself, k.left)
	}
}

// setAside takes the endpoints where nobody listens out of those left, if there are others: a dead one looks idle, and would
// be everybody's first choice until it leaves the pool. They come last, in case one is back.
func (k *pick) setAside() {
	k.aside = k.aside[:0]
	for i := range k.left {
		if k.left[i].Load.Unreachable {
			k.aside = append(k.aside, k.left[i])
		}
	}
	if len(k.aside) == len(k.left) {
		k.aside = k.aside[:0]
	}
	if len(k.aside) > 0 {
		k.left = slices.DeleteFunc(k.left, func(c epp.Candidate) bool { return c.Load.Unreachable })
	}
}

// index finds an endpoint among all candidates, -1 if it is nil.
func (k *pick) index(e *epp.Endpoint) int {
	if e == nil {
		return -1
	}
	return slices.IndexFunc(k.all, func(c epp.Candidate) bool { return c.Endpoint == e })
}

// score adds up the totals of the candidates left.
func (k *pick) score(scorers []epp.NamedScorer) {
	k.totals = zeroed(k.totals, len(k.left))
	for i := range scorers {
		s := &scorers[i]
		k.scores = zeroed(k.scores, len(k.left))
		s.Scorer.Score(&k.round, k.left, k.scores)
		totals, weight := k.totals[:len(k.scores)], s.Weight
		for j, score := range k.scores {
			totals[j] += weight * clamp(score)
		}
		if k.trace != nil {
			k.trace.scored(s, k.left, k.scores)
		}
	}
}

func zeroed(s []float64, n int) []float64 {
	s = slices.Grow(s[:0], n)[:n]
	clear(s)
	return s
}

// clamp bounds a score to 0..1. What is no number is 0.
func clamp(score float64) float64 {
	if math.IsNaN(score) {
		return 0
	}
	return min(max(score, 0), 1)
}
