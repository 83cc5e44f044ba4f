package sched

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// pick is the work on one request. Its memory is reused.
type pick struct {
	pipeline *Pipeline
	trace    *tracer // nil unless the pick is to be explained
	watcher  Watcher // of the shadow that decides; nil: the pipeline in use does
	noting   bool    // decisions are to have what was seen of their endpoints, for observers
	round    epp.Round
	pcg      rand.PCG // the source of round.Rand

	all         []epp.Candidate // the endpoints that the request's subset allows
	prompts     []cutPrompt     // the request's, as each matcher wants it
	loads       []epp.Load      // of all, with the signals that producers computed; unused without producers
	outside     int             // how many it does not allow
	screener    string          // the one that has left none of all; "" = none has
	barred      []*epp.Endpoint // excluded from the stage at work, because other stages have chosen them
	left        []epp.Candidate // those that the filters of the profile at work have left
	scores      []float64       // of left, by one scorer
	totals      []float64       // of left
	order       []int           // indices of the chosen ones of left
	dropper     string          // the last filter
	full        bool            // it was a detector, and left none
	unreachable []epp.Candidate // passed the filters but refuse connections: they come last
	spent       bool            // the request has taken a token of the fallback budget, in this try or an earlier one

	part    part            // that the first stage's endpoint computes
	partial bool            // some engines compute only a part of a request; the others do what their roles say
	unable  bool            // the stage at work has lost candidates, because their engines do not compute its part
	before  []epp.Candidate // chosen for the first stage, while another choice is tried

	chosen  [][]epp.Candidate // for each stage of the pipeline, best first
	reasons []pd.Reason       // for each stage, why it runs
	asked   epp.Alternatives  // what a decider was asked
	ruled   int               // index of the stage whose decider was asked last in this try, -1 = none was
	links   []epp.Link        // of asked
	claims  []epp.Claim
	made    *made // nil before there are claims
	verdict pd.Verdict
	reason  pd.Reason
	costs   []epp.Cost
}

// Unused picks keep endpoints of an older snapshot alive, but only for two garbage collections.
var picks = sync.Pool{New: func() any {
	k := new(pick)
	k.round.Rand, k.asked.Round = rand.New(&k.pcg), &k.round
	return k
}}

// begin starts the pick with a number. The pipeline's seed and the number determine its random choices.
func begin(p *Pipeline, r *epp.Request, now time.Time, number uint64) *pick {
	k := picks.Get().(*pick)
	k.pipeline = p
	k.round = epp.Round{Request: r, Before: k.round.Before[:0], Rand: k.round.Rand, Now: now, Matches: k.round.Matches[:0],
		Charged: p.config.Charge.Matcher, Number: number}
	k.chosen = slices.Grow(k.chosen[:0], len(p.stages))[:len(p.stages)]
	k.reasons = slices.Grow(k.reasons[:0], len(p.stages))[:len(p.stages)]
	k.pcg.Seed(p.config.Seed, number)
	return k
}

// end returns the pick's memory.
func (k *pick) end() {
	k.pipeline, k.trace, k.watcher, k.noting, k.spent, k.costs, k.made = nil, nil, nil, false, false, nil, nil
	k.round = epp.Round{Before: k.round.Before[:0], Rand: k.round.Rand, Matches: k.round.Matches[:0]}
	picks.Put(k)
}

// gather makes the candidates. It reads everything about endpoints and prefix caches, once for all stages.
func (k *pick) gather(s *epp.Snapshot) {
	r, c := k.round.Request, &k.pipeline.config
	k.round.Snapshot = s.Version
	k.all, k.outside, k.partial = slices.Grow(k.all[:0], len(s.Endpoints)), 0, false
	for i, e := range s.Endpoints {
		if r.Subset != nil && !r.Subset.Has(e.Addr) { // a nil subset has all, but a thousand calls take time
			k.outside++
			continue
		}
		load := &s.Loads[i]
		trust := load.Trust(k.round.Now, c.Stale)
		k.all = append(k.all, epp.Candidate{Endpoint: e, Load: load, Trust: trust, InFlight: e.InFlight()})
		k.partial = k.partial || k.all[len(k.all)-1].Mode() != epp.EngineAny
	}
	if k.watcher != nil {
		k.watcher.Imagine(k.round.Now, k.all)
	}
	k.screen(c.Screeners)
	k.match()
	if len(c.Producers) > 0 {
		k.compute(c.Producers)
	}
}

// screen has the screeners narrow down the candidates.
func (k *pick) screen(screeners []epp.NamedScreener) {
	k.screener = ""
	for i := range screeners {
		s := &screeners[i]
		if len(k.all) == 0 {
			return
		}
		var before []epp.Candidate
		if k.trace != nil {
			before = slices.Clone(k.all)
		}
		if k.all = s.Screen(&k.round, k.all); len(k.all) == 0 {
			k.screener = s.Name
		}
		if k.trace != nil {
			k.trace.screened(s.Name, before, k.all)
		}
	}
}

// compute has the producers compute the signals of all candidates.
func (k *pick) compute(producers []epp.Producer) {
	k.loads = slices.Grow(k.loads[:0], len(k.all))[:len(k.all)]
	for i := range k.all {
		k.loads[i] = *k.all[i].Load
		k.all[i].Load = &k.loads[i]
	}
	for _, p := range producers {
		p.Produce(&k.round, k.all)
	}
}

// refresh reads the load in flight again.
func (k *pick) refresh() {
	for i := range k.all {
		k.all[i].InFlight = k.all[i].Endpoint.InFlight()
	}
}

// run makes the decision, without side effects, and may be called again. The error is a *pd.Refusal.
func (k *pick) run() error {
	k.round.Before = k.round.Before[:0]
	k.verdict, k.reason, k.costs, k.ruled = pd.Local, "", nil, -1
	for i := range k.chosen {
		k.chosen[i], k.reasons[i] = k.chosen[i][:0], ""
	}
	for i := range k.pipeline.stages {
		if err := k.runStage(i); err != nil {
			return err
		}
	}
	if !k.pipeline.splits() {
		return k.divide()
	}
	k.chosen[0] = k.chosen[0][:min(len(k.chosen[0]), k.pipeline.stages[0].wanted)]
	return nil
}

// runStage chooses the endpoints of a stage, if it is to run.
func (k *pick) runStage(i int) (err error) {
	s := &k.pipeline.stages[i]
	switch {
	case i == 0:
		k.chooseFirst()
		switch {
		case len(k.chosen[i]) > 0:
			err = k.requireCached()
		case k.full:
			return saturated()
		default:
			return k.noEndpoint()
		}
	case s.Split:
		err = k.divide()
	default:
		err = k.assist(i)
	}
	if err == nil && len(k.chosen[i]) > 0 {
		k.round.Before = append(k.round.Before, epp.Chosen{Stage: s.Stage, Endpoint: k.chosen[i][0].Endpoint})
	}
	return err
}

// divide decides whether the request is split, and chooses the endpoints of that stage.
func (k *pick) divide() error {
	i := k.pipeline.split
	err := k.steer()
	if err == nil && k.verdict == pd.Local && !k.settle(wholePart) {
		err = k.instead()
	}
	if err != nil || k.verdict != pd.Remote {
		return err
	}
	if i < 0 || !k.settle(answerPart) || !k.find(i) {
		return k.noPrefill()
	}
	k.reasons[i] = k.reason
	return nil
}

// assist runs a stage that neither comes first nor splits the request, if its decider wants it.
func (k *pick) assist(i int) error {
	s, reason := &k.pipeline.stages[i], pd.Always
	if s.Decider.Decider != nil {
		ruling := k.rule(i)
		if ruling.Verdict != pd.Remote {
			return nil
		}
		reason = ruling.Reason
	}
	if !k.find(i) {
		return k.without(s)
	}
	k.reasons[i] = reason
	return nil
}

// find chooses the endpoints of a stage, unless they were chosen for its decider, and reports whether there are any.
func (k *pick) find(i int) bool {
	if s := &k.pipeline.stages[i]; len(k.chosen[i]) == 0 && !(s.compares && k.ruled == i) {
		k.choose(i)
	}
	return len(k.chosen[i]) > 0
}

// choose runs the profile of a stage and keeps the candidates it chose, best first; none if the filters left none.
func (k *pick) choose(i int) {
	s := &k.pipeline.stages[i]
	profile, n, dst := s.profile, s.wanted, k.chosen[i][:0]
	if k.pairing(i) {
		n = max(n, pd.MaxTargets)
	}
	must := i == 0 || k.round.Request.Mode == pd.ModeForce // the request cannot be served without this stage
	k.enter(s)
	for j := range profile.Filters {
		f, detects := &profile.Filters[j], s.detects[j]
		if detects {
			k.setAside(must) // an unreachable endpoint is neither full nor a replacement for full ones
		}
		if len(k.left) == 0 {
			break
		}
		var before []epp.Candidate
		if k.trace != nil {
			before = slices.Clone(k.left)
		}
		k.left = f.Filter.Filter(&k.round, k.left)
		k.dropper, k.full = f.Name, detects && len(k.left) == 0
		if detects && !k.full {
			k.left = append(k.left, k.unreachable...)
		}
		if k.trace != nil {
			k.trace.filtered(f.Name, k.left)
			k.trace.because(f, &k.round, before, k.left)
		}
	}
	if k.order = k.order[:0]; len(k.left) > 0 {
		k.setAside(must)
	}
	if len(k.left) > 0 {
		k.score(profile.Scorers)
		k.order = profile.Picker.Pick(&k.round, k.totals, n, k.order)
	}
	if k.trace != nil {
		k.trace.chosen(profile.Picker, k.left, k.totals, k.order[:min(len(k.order), s.wanted)])
	}
	for _, i := range k.order {
		dst = append(dst, k.left[i])
	}
	if more := n - len(k.order); len(k.order) > 0 && more > 0 {
		dst = append(dst, k.unreachable[:min(more, len(k.unreachable))]...)
	}
	k.chosen[i] = dst
}

// enter copies the candidates for a stage, because filters change them and further stages or tries need them. It leaves out
// only the first choice of an excluded stage: the others do that stage's work only if the first cannot be reached.
func (k *pick) enter(s *stage) {
	k.round.Stage = s.Stage
	k.dropper, k.full, k.unable, k.unreachable = "", false, false, k.unreachable[:0]
	k.left, k.barred = k.left[:0], k.barred[:0]
	if k.trace != nil {
		k.trace.enter(s, k.all)
	}
	for _, stage := range s.Excludes {
		if e := k.round.Chosen(stage); e != nil {
			k.barred = append(k.barred, e)
			if k.trace != nil {
				k.trace.excluded(stage, e)
			}
		}
	}
	from := 0
	if len(k.barred) > 0 {
		for i := range k.all {
			if e := k.all[i].Endpoint; e == k.barred[0] || slices.Contains(k.barred[1:], e) {
				k.left = append(k.left, k.all[from:i]...)
				from = i + 1
			}
		}
	}
	k.left = append(k.left, k.all[from:]...)
	k.dropUnable(s)
	if s.Split && len(k.chosen[0]) > 0 && !(s.pairs && !k.partial) { // else the decider sees to it
		k.dropMismatched(&k.chosen[0][0])
	}
}

// dropMismatched drops the prefill candidates whose KV caches the engine of the decode endpoint is known to refuse.
func (k *pick) dropMismatched(decode *epp.Candidate) {
	n := 0
	for i := range k.left {
		if !decode.Reads(&k.left[i]) {
			if k.trace != nil {
				k.trace.mismatched(decode, &k.left[i])
			}
			continue
		}
		if n != i {
			k.left[n] = k.left[i]
		}
		n++
	}
	k.left = k.left[:n]
}

// dropUnable drops the candidates whose engines do not compute the part that the stage is for.
func (k *pick) dropUnable(s *stage) {
	if !k.partial {
		return
	}
	p := otherPart
	switch {
	case s == &k.pipeline.stages[0]:
		p = k.part
	case s.Split:
		p = promptPart
	}
	able := slices.DeleteFunc(k.left, func(c epp.Candidate) bool { return !p.can(c.Mode()) })
	k.unable = len(able) < len(k.left)
	if len(able) == 0 {
		k.dropper = engineMode
	}
	if k.left = able; k.trace != nil {
		k.trace.filtered(engineMode, k.left)
	}
}

// setAside moves unreachable endpoints to the end: an endpoint that refuses connections looks idle, and would be the first
// choice of every request until it leaves the pool. They stay behind others, in case one is reachable again. If there are no
// others, a stage that the request must have keeps them, because the request has to go somewhere; any other stage has no endpoint.
func (k *pick) setAside(must bool) {
	k.unreachable = k.unreachable[:0]
	for i := range k.left {
		if k.left[i].Load.Unreachable {
			k.unreachable = append(k.unreachable, k.left[i])
		}
	}
	if must && len(k.unreachable) == len(k.left) {
		k.unreachable = k.unreachable[:0]
	}
	if len(k.unreachable) > 0 {
		k.left = slices.DeleteFunc(k.left, func(c epp.Candidate) bool { return c.Load.Unreachable })
	}
	if k.trace != nil && len(k.left) == 0 {
		k.trace.filtered(unreachable, k.left)
	}
}

// score sums up the totals of the remaining candidates.
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

// clamp limits a score to 0..1. NaN becomes 0.
func clamp(score float64) float64 {
	switch {
	case score >= 0 && score <= 1: // nearly always
		return score
	case score > 1:
		return 1
	}
	return 0
}
