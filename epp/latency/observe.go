package latency

import (
	"cmp"
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
	at := loadOf(&seen.Load, seen.InFlight, ofFirst(d))
	curves, _ := m.curvesAt(first, now)
	switch {
	case !ok:
	case d.Verdict == pd.Local:
		x := promptTerms(at.part, at.ahead, at.answers)
		m.calls.ttft.add(d.Expected.TTFT, begun)
		m.corrections.prompt(first).learn(&at.place, ratio(begun.Seconds(), &curves.prompt, &x))
		m.learn(now, decode, (*fits).ofPrompt, &promptPrior, &x, begun)
	default:
		m.remote(now, o, decode, &at, begun)
	}
	took, ok := o.Phases.Get(pd.PhaseDecode)
	if ok {
		decode.answers.add(took.Seconds())
		m.answers.add(took.Seconds())
	}
	if ok && o.Result.Completion >= fewestTokens {
		perSecond, prompts := decode.computes(now, 0)
		x := tokenTerms(at.answers+1, at.context+float64(d.Tokens), prompts)
		perToken := took.Seconds() / float64(o.Result.Completion-1)
		m.calls.tpot.add(d.Expected.TPOT, time.Duration(perToken*float64(time.Second)))
		// Prompts that came while the answer was generated are part of what its prediction could not know.
		left := curves.left(perSecond)
		m.corrections.token.learn(&at.place, ratio(perToken*cmp.Or(d.Expected.Left, left), &curves.token, &x))
		perToken *= left
		m.learn(now, decode, (*fits).ofToken, &tokenPrior, &x, time.Duration(perToken*float64(time.Second)))
	}
	decode.publish()
	m.publish()
}

// publish has estimates go by what is learnt of all engines.
func (m *Model) publish() {
	m.whole.Store(&curves{m.pool.prompt.curve(), m.pool.handoff.curve(), m.pool.token.curve()})
}

// ratio returns how many times as long something took as a curve expects.
func ratio(took float64, c *curve, x *vector) float64 { return took / max(shortest, c.w.dot(x)) }

// remote learns from a request whose prompt another engine computed.
func (m *Model) remote(now time.Time, o *epp.Outcome, decode *engine, at *load, begun time.Duration) {
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
		of := loadOf(&p.Seen.Load, p.Seen.InFlight, part{d.Tokens, p.Seen.Cached, p.Seen.Loads})
		x := promptTerms(of.part, of.ahead, of.answers)
		theirs, _ := m.curvesAt(p.Endpoints[0], now)
		m.corrections.prompt(p.Endpoints[0]).learn(&of.place, ratio(took.Seconds(), &theirs.prompt, &x))
		m.learn(now, prefill, (*fits).ofPrompt, &promptPrior, &x, took)
		prefill.publish()

		handoff, _ := o.Phases.Get(pd.PhaseHandoff)
		overlap, _ := o.Phases.Get(pd.PhaseOverlap)
		m.calls.ttft.add(d.Expected.TTFT, max(0, took+handoff+begun-overlap))
		took = max(0, handoff+begun-overlap)
		x = handoffTerms(d.Moved(), at.answers)
		curves, _ := m.curvesAt(decode.of, now)
		page := &d.Picks[0].Seen.Load
		link := m.linkCurve(&curves, decode, page, p.Endpoints[0], now)
		m.corrections.handoff.learn(&at.place, ratio(took.Seconds(), &link, &x))
		m.learn(now, decode, (*fits).ofHandoff, &handoffPrior, &x, took)
		m.learnLink(now, p.Endpoints[0], decode, page, &x, took)
	}
}

// learnLink adds an outcome to what is known of hand-offs from one endpoint to another.
func (m *Model) learnLink(now time.Time, from *epp.Endpoint, one *engine, page *epp.Load, x *vector, took time.Duration) {
	l := one.link(from)
	if l == nil {
		l = &link{from: from}
		l.curve.Store(&curve{})
		all := with(*one.links.Load(), from.Slot, l)
		one.links.Store(&all)
	}
	usual := told(&m.pool.handoff.w, one.fits.handoff.n, page)
	of := handoffPrior.of(&usual)
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
