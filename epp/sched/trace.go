package sched

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// itself returns a name in place of a filter's, for an endpoint that is excluded because another stage has chosen it.
func itself(stage epp.Stage) string { return string(stage) + "-endpoint-itself" }

// unreachable stands in place of a filter's name for the endpoints of a stage that are all unreachable.
const unreachable = "unreachable"

// engineMode stands in place of a filter's name for endpoints whose engines do not compute what the stage is for.
const engineMode = "engine-mode"

// kvMismatch stands there for prefill endpoints whose KV caches the chosen decode engine would refuse: see epp.KVTraits.
const kvMismatch = "kv-mismatch"

// tracer records a pick that is explained. It need not be fast.
type tracer struct {
	epp.Trace
	now    time.Time
	how    func(c *epp.Candidate) string // it is known what a candidate has cached; "" = in the only way
	valuer epp.Valuer                    // what that saves; nil = that is not known
	runs   *stage                        // the stage that runs
	stage  *epp.StageTrace               // its trace
	index  map[*epp.Endpoint]int         // of stage.Candidates
}

func newTracer(s *epp.Snapshot, subset *epp.Subset, now time.Time) *tracer {
	t := &tracer{now: now, how: func(*epp.Candidate) string { return "" }, Trace: epp.Trace{Snapshot: s.Version, Outside: []string{}, Stages: []epp.StageTrace{}}}
	for _, e := range s.Endpoints {
		if !subset.Has(e.Addr) {
			t.Outside = append(t.Outside, e.String())
		}
	}
	return t
}

// screened records which candidates a screener dropped.
func (t *tracer) screened(screener string, before, left []epp.Candidate) {
	s := epp.ScreenTrace{Screener: screener}
	for i := range before {
		if !slices.ContainsFunc(left, func(c epp.Candidate) bool { return c.Endpoint == before[i].Endpoint }) {
			s.Endpoints = append(s.Endpoints, before[i].String())
		}
	}
	if len(s.Endpoints) > 0 {
		t.Screened = append(t.Screened, s)
	}
}

// enter begins a stage with all its candidates.
func (t *tracer) enter(s *stage, all []epp.Candidate) {
	candidates := make([]epp.CandidateTrace, len(all))
	t.Stages = append(t.Stages, epp.StageTrace{Stage: s.Stage, Profile: s.profile.Name, Candidates: candidates})
	t.runs, t.stage = s, &t.Stages[len(t.Stages)-1]
	t.index = make(map[*epp.Endpoint]int, len(all))
	for i := range all {
		t.stage.Candidates[i] = describe(&all[i], t.now)
		t.stage.Candidates[i].CachedBy = t.how(&all[i])
		t.value(&t.stage.Candidates[i], &all[i])
		t.index[all[i].Endpoint] = i
	}
}

// describe returns what scorers see of a candidate.
func describe(c *epp.Candidate, now time.Time) epp.CandidateTrace {
	t := epp.CandidateTrace{Endpoint: c.String(), Address: c.Address, Role: c.Role.String(), Mode: c.Mode(), LoadAge: -1,
		Signals: c.Readings(), Requests: c.InFlight.Requests, Tokens: c.InFlight.Tokens, Cached: c.Cached}
	if !c.Load.At.IsZero() {
		t.LoadAge = now.Sub(c.Load.At).Seconds()
	}
	return t
}

// value notes what it saves that a candidate has tokens cached.
func (t *tracer) value(into *epp.CandidateTrace, c *epp.Candidate) {
	into.Loads = c.Loads.ByTier()
	if t.valuer == nil || c.Cached == 0 {
		return
	}
	s := t.valuer.Value(c, c.Cached, c.Loads)
	into.LoadTime, into.Saved = s.Load.Seconds(), s.Time.Seconds()
}

// of returns the trace of a candidate.
func (t *tracer) of(c *epp.Candidate) *epp.CandidateTrace {
	return &t.stage.Candidates[t.index[c.Endpoint]]
}

// excluded records that an endpoint is no candidate of this stage, because another stage has chosen it.
func (t *tracer) excluded(by epp.Stage, e *epp.Endpoint) {
	if i, candidate := t.index[e]; candidate {
		t.stage.Candidates[i].Dropped = itself(by)
	}
}

// mismatched records that the decode engine would refuse the KV caches of a candidate.
func (t *tracer) mismatched(decode, prefill *epp.Candidate) {
	if c := t.of(prefill); c.Dropped == "" {
		c.Dropped, c.Mismatch = kvMismatch, decode.Traits().Refuses(prefill.Traits())
	}
}

// filtered records which candidates a filter dropped: those that were there before and are not left.
func (t *tracer) filtered(filter string, left []epp.Candidate) {
	kept := make(map[int]bool, len(left))
	for i := range left {
		kept[t.index[left[i].Endpoint]] = true
	}
	for i := range t.stage.Candidates {
		if c := &t.stage.Candidates[i]; c.Dropped == "" && !kept[i] {
			c.Dropped = filter
		}
	}
}

// because records why a filter dropped candidates of those before it, if it can say that.
func (t *tracer) because(f *epp.NamedFilter, r *epp.Round, before, left []epp.Candidate) {
	explainer, ok := f.Filter.(epp.Explainer)
	if !ok || len(left) == 0 {
		return
	}
	kept := make(map[*epp.Endpoint]bool, len(left))
	for i := range left {
		kept[left[i].Endpoint] = true
	}
	for i := range before {
		if !kept[before[i].Endpoint] {
			t.of(&before[i]).Because = explainer.Explain(r, before, left, &before[i])
		}
	}
}

func (t *tracer) scored(s *epp.NamedScorer, left []epp.Candidate, scores []float64) {
	for i := range left {
		c := t.of(&left[i])
		c.Scores = append(c.Scores, epp.ScoreTrace{Scorer: s.Name, Weight: s.Weight, Score: clamp(scores[i])})
	}
}

// ruled records the answer of a stage's decider.
func (t *tracer) ruled(s *stage, r *epp.Ruling) {
	d := epp.DeciderTrace{Stage: s.Stage, Split: s.Split, Decider: s.Decider.Name, Verdict: r.Verdict.String(), Reason: r.Reason}
	for _, c := range r.Costs {
		d.Costs = append(d.Costs, epp.CostTrace{Verdict: c.Verdict.String(), Endpoint: c.Endpoint.String(), Seconds: c.Time.Seconds(), Harm: c.Harm.Seconds()})
	}
	t.Deciders = append(t.Deciders, d)
}

// chosen ends a stage.
func (t *tracer) chosen(picker epp.Picker, left []epp.Candidate, totals []float64, order []int) {
	for i := range left {
		t.of(&left[i]).Total = totals[i]
	}
	for rank, i := range order {
		t.of(&left[i]).Chosen = rank + 1
	}
	slices.SortStableFunc(t.stage.Candidates, byRank)
	r := rank(t.runs, t.stage, len(order))
	_, r.drawn = picker.(epp.Drawer)
	for i := range t.stage.Candidates {
		t.stage.Candidates[i].Why = r.why(&t.stage.Candidates[i])
	}
}

// paired records the endpoints of a stage that its decider, or that of the stage that splits requests, has chosen together.
func (t *tracer) paired(stage epp.Stage, decider string, chosen []epp.Candidate) {
	at := slices.IndexFunc(t.Stages, func(s epp.StageTrace) bool { return s.Stage == stage })
	if at < 0 {
		return
	}
	all := t.Stages[at].Candidates
	for i := range all {
		c := &all[i]
		was := c.Chosen
		c.Chosen = 1 + slices.IndexFunc(chosen, func(one epp.Candidate) bool { return one.String() == c.Endpoint })
		switch {
		case c.Dropped == kvMismatch:
			c.Why = refusesCache + c.Mismatch
		case c.Chosen == 1 && was != 1:
			c.Why = fmt.Sprintf("chosen by %s, of the endpoints that the scorers prefer; total %.2f", decider, c.Total)
		case c.Chosen != was:
			c.Why = fmt.Sprintf("the scorers prefer it to what %s has chosen; total %.2f", decider, c.Total)
		}
	}
	slices.SortStableFunc(all, byRank)
}

// byRank compares in the order of StageTrace: the chosen ones, then by total, then the dropped ones.
func byRank(a, b epp.CandidateTrace) int {
	class := func(c *epp.CandidateTrace) int {
		switch {
		case c.Chosen > 0:
			return 0
		case c.Dropped == "":
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(class(&a), class(&b)), cmp.Compare(a.Chosen, b.Chosen), cmp.Compare(b.Total, a.Total))
}
