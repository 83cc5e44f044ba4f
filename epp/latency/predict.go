package latency

import (
	"math"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Signals of a prediction, in seconds: what half of the requests, and nine of ten, need at most if the endpoint computes the prompt; and the
// distances of one of these from what the client wants, negative if it is more. Where the client wants nothing in particular, that is the
// distance from 0.
var (
	TTFT50 = epp.Declare(epp.Declaration{Name: "predicted_ttft", Kind: epp.ComputedSignal, Unit: epp.Seconds})
	TTFT90 = epp.Declare(epp.Declaration{Name: "predicted_ttft_p90", Kind: epp.ComputedSignal, Unit: epp.Seconds})
	TPOT50 = epp.Declare(epp.Declaration{Name: "predicted_tpot", Kind: epp.ComputedSignal, Unit: epp.Seconds})
	TPOT90 = epp.Declare(epp.Declaration{Name: "predicted_tpot_p90", Kind: epp.ComputedSignal, Unit: epp.Seconds})

	TTFTHeadroom = epp.Declare(epp.Declaration{Name: "ttft_headroom", Kind: epp.ComputedSignal, Unit: epp.Seconds})
	TPOTHeadroom = epp.Declare(epp.Declaration{Name: "tpot_headroom", Kind: epp.ComputedSignal, Unit: epp.Seconds})
)

// Fits reports whether a candidate is predicted to serve a request as its client wants, and whether there is a prediction. A time that the
// client does not name may be any.
func Fits(r *epp.Request, c *epp.Candidate) (fits, known bool) {
	ttft, known := c.Value(TTFTHeadroom)
	tpot, also := c.Value(TPOTHeadroom)
	if !known || !also {
		return false, false
	}
	return (ttft >= 0 || r.WantedTTFT() == 0) && (tpot >= 0 || r.WantedTPOT() == 0), true
}

// corrections of the fits, by what they are fits of.
type corrections struct{ local, prefill, handoff, token correction }

// prompt returns the correction of the times that an endpoint takes to compute prompts: one that decodes has answers to generate meanwhile.
func (c *corrections) prompt(e *epp.Endpoint) *correction {
	if e.Role.Has(pd.RoleDecode) {
		return &c.local
	}
	return &c.prefill
}

// load is what a prediction for one endpoint goes by.
type load struct {
	part
	answers float64
	context float64 // tokens of the answers
	ahead   int     // tokens of other prompts
	place   place
}

func loadOf(l *epp.Load, sent epp.InFlight, p part) load {
	waiting, _ := l.Signals.Value(epp.Waiting)
	x := load{part: p, answers: answersOf(l, sent), context: contextOf(l), ahead: aheadOf(l, sent)}
	x.place = placeOf(waiting, usageOf(l), p.own(), x.ahead, x.answers)
	return x
}

// Predict returns how long an endpoint is expected to take until the first token of a request, and for each further one, if it gets it, and
// computes the prompt, of whose tokens it has some cached, and must load some of these. Of an endpoint that only computes prompts the first token is the one that it makes
// for the hand-off.
func (m *Model) Predict(now time.Time, c *epp.Candidate, tokens, cached int, loads epp.Loads) epp.Expected {
	all, one := m.whole.Load(), m.known(c.Endpoint)
	curves := curves{prompt: all.prompt, token: all.token} // hand-offs are not asked for
	if one != nil {
		if own := one.curves.Load(); own != nil {
			curves.prompt, curves.token = own.prompt.amid(&all.prompt, now), own.token.amid(&all.token, now)
		}
	}
	x := loadOf(c.Load, c.InFlight, part{tokens, cached, loads})
	e := epp.Expected{TTFT: m.ttft(&curves, c.Endpoint, &x)}
	m.tpot(&e, &curves, one, now, &x, tokens-cached)
	return e
}

func (m *Model) ttft(curves *curves, e *epp.Endpoint, x *load) epp.Quantiles {
	terms := promptTerms(x.part, x.ahead, x.answers)
	return m.corrections.prompt(e).quantiles(curves.prompt.w.dot(&terms), &x.place)
}

// tpot sets the time of each further token, of an answer to a prompt of which the endpoint computes so many tokens.
func (m *Model) tpot(to *epp.Expected, curves *curves, one *engine, now time.Time, x *load, computed int) {
	perSecond, prompts := one.computes(now, computed)
	terms := tokenTerms(x.answers+1, x.context+float64(x.tokens), prompts)
	to.Left = curves.left(perSecond)
	to.TPOT = m.corrections.token.quantiles(curves.token.w.dot(&terms)/to.Left, &x.place)
}

// Bounds of predicted times, in seconds: 0 is no prediction, and a page may report anything.
const (
	shortest = 1e-6
	longest  = 1e6
)

func (c *correction) quantiles(seconds float64, at *place) epp.Quantiles {
	seconds = max(shortest, min(seconds, longest))
	half := seconds * c.factor(0, at)
	return epp.Quantiles{P50: time.Duration(half * float64(time.Second)), P90: time.Duration(max(half, seconds*c.factor(1, at)) * float64(time.Second))}
}

// Expect returns what a decision is expected to bring, by what its pick saw. It is zero if the pick noted nothing.
func (m *Model) Expect(now time.Time, d *epp.Decision) (expected epp.Expected) {
	first := &d.Picks[0]
	if first.Seen == nil {
		return expected
	}
	decode := first.Endpoints[0]
	curves, one := m.curvesAt(decode, now)
	x := loadOf(&first.Seen.Load, first.Seen.InFlight, ofFirst(d))
	if d.Verdict == pd.Local {
		expected.TTFT = m.ttft(&curves, decode, &x)
		m.tpot(&expected, &curves, one, now, &x, d.Tokens-d.Cached)
		return expected
	}
	for i := range d.Picks {
		p := &d.Picks[i]
		if !p.Row.Split || p.Seen == nil {
			continue
		}
		from := p.Endpoints[0]
		theirs, _ := m.curvesAt(from, now)
		of := loadOf(&p.Seen.Load, p.Seen.InFlight, part{d.Tokens, p.Seen.Cached, p.Seen.Loads})
		handoff := handoffTerms(d.Moved(), x.answers)
		link := m.linkCurve(&curves, one, &first.Seen.Load, from, now)
		expected.TTFT = after(m.ttft(&theirs, from, &of), m.corrections.handoff.quantiles(link.w.dot(&handoff), &x.place))
		m.tpot(&expected, &curves, one, now, &x, 0)
	}
	return expected
}

// Work is what the prompt of a request takes of the endpoint that computes it.
type Work struct {
	At      *epp.Endpoint // nil: its pick noted nothing
	Tokens  int           // that it computes
	Own     time.Duration // that this takes
	Stalled time.Duration // by which the answers that the endpoint generates come later meanwhile, all together
}

// Work estimates that of a decision, by what its pick saw.
func (m *Model) Work(now time.Time, d *epp.Decision) (w Work) {
	p := &d.Picks[0]
	for i := range d.Picks {
		if d.Verdict == pd.Remote && d.Picks[i].Row.Split {
			p = &d.Picks[i]
		}
	}
	if p.Seen == nil {
		return w
	}
	of := part{d.Tokens, p.Seen.Cached, p.Seen.Loads}
	if p == &d.Picks[0] {
		of = ofFirst(d)
	}
	w.At, w.Tokens = p.Endpoints[0], of.own()
	curves, _ := m.curvesAt(w.At, now)
	terms := promptTerms(of, 0, 0)
	terms[0] = 0 // it takes nothing of the endpoint
	w.Own = seconds(curves.prompt.w.dot(&terms))
	w.Stalled = time.Duration(answersOf(&p.Seen.Load, p.Seen.InFlight) * float64(w.Own))
	return w
}

// Receiver predicts hand-offs to an endpoint from others: how long it takes from a computed prompt to the first token that it generates.
type Receiver struct {
	m     *Model
	now   time.Time
	one   *engine // nil if nothing is known of the endpoint
	usual curve
	terms vector
	place place
	any   epp.Quantiles // from an endpoint of whose hand-offs nothing is known
}

// Receiver returns that of an endpoint that has some of a prompt's tokens cached, and must load some of these.
func (m *Model) Receiver(now time.Time, to *epp.Candidate, tokens, cached int, loads epp.Loads) Receiver {
	curves, one := m.curvesAt(to.Endpoint, now)
	x := loadOf(to.Load, to.InFlight, part{tokens, cached, loads})
	r := Receiver{m: m, now: now, one: one, usual: curves.usualLink(to.Load), terms: handoffTerms(tokens-cached+loads.Sum(), x.answers), place: x.place}
	r.any = r.quantiles(&r.usual)
	return r
}

// From predicts the hand-off from an endpoint.
func (r *Receiver) From(e *epp.Endpoint) epp.Quantiles {
	if l := r.one.link(e); l != nil {
		c := l.curve.Load().amid(&r.usual, r.now)
		return r.quantiles(&c)
	}
	return r.any
}

func (r *Receiver) quantiles(c *curve) epp.Quantiles {
	return r.m.corrections.handoff.quantiles(c.w.dot(&r.terms), &r.place)
}

// ofFirst returns what is known of the prompt of a request at the endpoint that it is sent to.
func ofFirst(d *epp.Decision) part { return part{d.Tokens, d.Cached, d.Loads} }

// after returns the quantiles of the sum of two times that are independent: what is above their medians adds up as errors do.
func after(a, b epp.Quantiles) epp.Quantiles {
	half := a.P50 + b.P50
	return epp.Quantiles{P50: half, P90: half + time.Duration(math.Hypot(float64(a.P90-a.P50), float64(b.P90-b.P50)))}
}
