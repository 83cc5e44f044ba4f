package latency

import (
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// fewestTokens is how many tokens an answer must have for the time of one to be learnt from it: what comes before and after them is in
// the time of the whole.
const fewestTokens = 8

// Observe implements epp.Observer: it learns from how long a request took, if it went as planned and the sidecar told of it.
func (m *Model) Observe(o *epp.Outcome) {
	d := o.Decision
	if d == nil || o.Phases == nil || o.Result == nil || o.Result.End != pd.EndDone || d.Picks[0].Seen == nil {
		return
	}
	if h := o.Happened; h != nil && (h.Verdict != d.Verdict || h.Attempts > 1 || h.Candidate > 0) {
		return
	}
	first := d.Picks[0].Endpoints[0]
	if o.Served != "" && o.Served != first.Address {
		return
	}
	now := m.clock.Now()
	begun, ok := o.Phases.Get(pd.PhaseFirst)
	m.mu.Lock()
	defer m.mu.Unlock()
	decode, seen := m.known(first), d.Picks[0].Seen
	if decode == nil {
		return // it has left, and its slot may be that of another
	}
	answers := answersOf(&seen.Load, seen.InFlight)
	switch {
	case !ok:
	case d.Verdict == pd.Local:
		x := promptTerms(d.Tokens-d.Cached, d.Cached, seen.InFlight.Tokens, answers)
		m.learn(now, decode, (*fits).ofPrompt, &promptPrior, &x, begun)
	default:
		m.remote(now, o, decode, begun, answers)
	}
	if took, ok := o.Phases.Get(pd.PhaseDecode); ok && o.Result.Completion >= fewestTokens {
		x := tokenTerms(answers+1, contextOf(&seen.Load)+float64(d.Tokens))
		perToken := took.Seconds() / float64(o.Result.Completion-1)
		curves := m.curvesOf(first)
		perToken *= curves.left(decode.prompts.perSecond(now))
		m.learn(now, decode, (*fits).ofToken, &tokenPrior, &x, time.Duration(perToken*float64(time.Second)))
	}
	decode.publish()
	m.whole.Store(&curves{m.pool.prompt.curve(), m.pool.handoff.curve(), m.pool.token.curve()})
}

// remote learns from a request whose prompt another engine computed.
func (m *Model) remote(now time.Time, o *epp.Outcome, decode *engine, begun time.Duration, answers float64) {
	d := o.Decision
	for i := range d.Picks {
		p := &d.Picks[i]
		took, ok := o.Phases.Get(pd.PhasePrefill)
		if !p.Row.Split || p.Seen == nil || !ok {
			continue
		}
		prefill := m.known(p.Endpoints[0])
		if prefill == nil {
			continue
		}
		x := promptTerms(d.Tokens-p.Seen.Cached, p.Seen.Cached, p.Seen.InFlight.Tokens, answersOf(&p.Seen.Load, p.Seen.InFlight))
		m.learn(now, prefill, (*fits).ofPrompt, &promptPrior, &x, took)
		prefill.publish()

		handoff, _ := o.Phases.Get(pd.PhaseHandoff)
		overlap, _ := o.Phases.Get(pd.PhaseOverlap)
		took = max(0, handoff+begun-overlap)
		x = handoffTerms(d.Tokens-d.Cached, answers)
		m.learn(now, decode, (*fits).ofHandoff, &handoffPrior, &x, took)
		m.learnLink(now, p.Endpoints[0], decode, &x, took)
	}
}

// learnLink adds an outcome to what is known of hand-offs from one endpoint to another.
func (m *Model) learnLink(now time.Time, from *epp.Endpoint, one *engine, x *vector, took time.Duration) {
	l := one.link(from)
	if l == nil {
		l = &link{from: from}
		l.curve.Store(&curve{})
		all := with(*one.links.Load(), from.Slot, l)
		one.links.Store(&all)
	}
	of := handoffPrior.of(&m.pool.handoff.w)
	l.fit.learn(now, &of, x, took.Seconds())
	c := l.fit.curve()
	l.curve.Store(&c)
}

func (f *fits) ofPrompt() *fit  { return &f.prompt }
func (f *fits) ofHandoff() *fit { return &f.handoff }
func (f *fits) ofToken() *fit   { return &f.token }

// learn adds an outcome to the fit of an engine and to that of the pool.
func (m *Model) learn(now time.Time, one *engine, which func(*fits) *fit, p *prior, x *vector, took time.Duration) {
	pool := which(&m.pool)
	pool.learn(now, p, x, took.Seconds())
	of := p.of(&pool.w)
	which(&one.fits).learn(now, &of, x, took.Seconds())
}

// publish has estimates go by what is learnt of an engine.
func (e *engine) publish() {
	e.curves.Store(&curves{e.fits.prompt.curve(), e.fits.handoff.curve(), e.fits.token.curve()})
}
