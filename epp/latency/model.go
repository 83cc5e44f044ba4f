package latency

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Estimate is an expected time.
type Estimate struct {
	Time   time.Duration // until the end
	Own    time.Duration // the part that the request itself takes, and does not wait; of Prompt only
	Spread float64       // usual error of a single time, as a share of it
	Known  float64       // outcomes of the very engine, or pair of engines, that it goes by, as far as they are not forgotten
}

// Model is what was learnt of the engines of a pool. It is an epp.EndpointObserver, and safe for concurrent use.
type Model struct {
	clock epp.Clock

	mu    sync.Mutex // guards the fits, growth of lists, and what corrections learn
	pool  fits
	calls calibration // of predictions; it has locks of its own

	corrections corrections

	answers average                // seconds that answers take from their first token to their last
	whole   atomic.Pointer[curves] // of all engines
	engines atomic.Pointer[[]*engine]
}

// fits is what is learnt of an engine, or of all engines.
type fits struct{ prompt, handoff, token fit }

// engine is what is known of the endpoint in a slot.
type engine struct {
	of      *epp.Endpoint
	fits    fits // guarded by Model.mu
	curves  atomic.Pointer[curves]
	links   atomic.Pointer[[]*link] // of hand-offs to it, by the slot of the endpoint that computes the prompt
	prompts fading                  // tokens of prompts that it computes itself
	queue   fading                  // requests that wait there
	answers average                 // seconds that its answers take from their first token to their last
}

// link is what is learnt of the hand-offs from one endpoint to another.
type link struct {
	from  *epp.Endpoint
	fit   fit // guarded by Model.mu
	curve atomic.Pointer[curve]
}

// curves is what estimates go by. They do not change.
type curves struct{ prompt, handoff, token curve }

// curve is what a fit says at a time. The zero curve says nothing.
type curve struct {
	w             vector
	spread, known float64
	at            time.Time // of the latest outcome
}

func (f *fit) curve() curve { return curve{f.w, f.spread(), f.n, f.at} }

// NewModel makes a model that knows of no outcome.
func NewModel(clock epp.Clock) *Model {
	m := &Model{clock: clock}
	m.pool.prompt.w, m.pool.handoff.w, m.pool.token.w = promptPrior.w, handoffPrior.w, tokenPrior.w
	m.whole.Store(&curves{m.pool.prompt.curve(), m.pool.handoff.curve(), m.pool.token.curve()})
	m.engines.Store(new([]*engine))
	return m
}

// Of returns the model of the picker that a plugin is built for: all plugins have the same, and it outlives reloads of the configuration.
func Of(b *epp.Builder) *Model {
	if b.Keep == nil {
		return NewModel(b.Clock())
	}
	return epp.Kept(b.Keep, "latency", func() *Model { return NewModel(b.Clock()) })
}

// EndpointJoined implements epp.EndpointObserver.
func (m *Model) EndpointJoined(*epp.Endpoint) {}

// EndpointLeft implements epp.EndpointObserver.
func (m *Model) EndpointLeft(e *epp.Endpoint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known(e) == nil {
		return
	}
	all := slices.Clone(*m.engines.Load())
	all[e.Slot] = nil
	m.engines.Store(&all)
}

// known returns what is known of an endpoint, nil if nothing is.
func (m *Model) known(e *epp.Endpoint) *engine {
	if all := *m.engines.Load(); e.Slot < len(all) && all[e.Slot] != nil && all[e.Slot].of.Is(e) {
		return all[e.Slot]
	}
	return nil
}

// engine returns what is known of an endpoint, and makes an entry if there is none.
func (m *Model) engine(e *epp.Endpoint) *engine {
	if one := m.known(e); one != nil {
		return one
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if one := m.known(e); one != nil {
		return one
	}
	one := &engine{of: e, prompts: fading{window: promptWindow}, queue: fading{window: queueWindow}}
	one.links.Store(new([]*link))
	all := with(*m.engines.Load(), e.Slot, one) // in place of one that had the slot before
	m.engines.Store(&all)
	return one
}

// with returns a copy of a list that has a value at an index.
func with[T any](all []*T, at int, value *T) []*T {
	next := make([]*T, max(len(all), at+1))
	copy(next, all)
	next[at] = value
	return next
}

// link returns what is known of hand-offs from an endpoint, nil if nothing is. Of nil nothing is known.
func (e *engine) link(from *epp.Endpoint) *link {
	if e == nil {
		return nil
	}
	if all := *e.links.Load(); from.Slot < len(all) && all[from.Slot] != nil && all[from.Slot].from.Is(from) {
		return all[from.Slot]
	}
	return nil
}

// curvesOf returns what estimates for an endpoint go by: what is learnt of all engines takes the place of what is not learnt of it.
func (m *Model) curvesOf(e *epp.Endpoint) curves {
	c, _ := m.curvesAt(e, m.clock.Now())
	return c
}

// curvesAt does it at a time, and returns what is known of the endpoint, nil if nothing is.
func (m *Model) curvesAt(e *epp.Endpoint, now time.Time) (curves, *engine) {
	all := m.whole.Load()
	one := m.known(e)
	if one == nil {
		return all.unknown(), nil
	}
	own := one.curves.Load()
	if own == nil {
		return all.unknown(), one
	}
	return curves{own.prompt.amid(&all.prompt, now), own.handoff.amid(&all.handoff, now), own.token.amid(&all.token, now)}, one
}

// linkCurve returns what estimates of hand-offs from an endpoint to another go by, whose curves and page are given.
func (m *Model) linkCurve(to *curves, one *engine, page *epp.Load, from *epp.Endpoint, now time.Time) curve {
	usual := to.usualLink(page)
	if l := one.link(from); l != nil {
		return l.curve.Load().amid(&usual, now)
	}
	return usual
}

// usualLink returns what estimates of hand-offs to an endpoint go by if nothing is known of those from the other one.
func (c *curves) usualLink(page *epp.Load) curve {
	usual := c.handoff
	usual.w = told(&usual.w, usual.known, page)
	usual.known = 0
	return usual
}

// asGood is how many outcomes of hand-offs to an engine count as much as its own counters of transfers.
const asGood = 10

// fewestRead is how many tokens an engine must have read for its counters to say how fast its network is.
const fewestRead = 1000

// told returns the weights of hand-offs to an engine of which some outcomes are known, given its metrics page: how long it took to read KV
// caches, since it was started, says how fast the network is before this picker has seen a hand-off end. No engine says what carries them.
func told(w *vector, known float64, page *epp.Load) vector {
	told := *w
	tokens, ok := page.Signals.Value(epp.ReadTokens)
	took, also := page.Signals.Value(epp.ReadSeconds)
	if ok && also && tokens >= fewestRead && took > 0 {
		told[movedTerm] = (asGood*took*1000/tokens + known*w[movedTerm]) / (asGood + known)
	}
	return told
}

// unknown returns the curves of all engines for one that nothing is known of.
func (c *curves) unknown() curves {
	all := *c
	all.prompt.known, all.handoff.known, all.token.known = 0, 0, 0
	return all
}

// amid returns the curve of one engine among all: the longer it was not heard of, the more it is taken to be as the others are.
func (c *curve) amid(all *curve, now time.Time) curve {
	if c.known == 0 {
		return curve{w: all.w, spread: all.spread}
	}
	own := math.Exp2(-max(0, now.Sub(c.at).Seconds()) / fade.Seconds())
	mixed := curve{spread: own*c.spread + (1-own)*all.spread, known: own * c.known}
	for i := range mixed.w {
		mixed.w[i] = own*c.w[i] + (1-own)*all.w[i]
	}
	return mixed
}

// Prompt estimates how long an endpoint takes from now on until it has computed a prompt, of whose tokens it has some cached, and must load some
// of these.
func (m *Model) Prompt(c *epp.Candidate, tokens, cached int, loads epp.Loads) Estimate {
	x := promptTerms(part{tokens, cached, loads}, aheadOf(c.Load, c.InFlight), answersOf(c.Load, c.InFlight))
	curves := m.curvesOf(c.Endpoint)
	e := curves.prompt.estimate(&x)
	x = vector{0, x[1], x[2]}
	e.Own = seconds(curves.prompt.w.dot(&x))
	return e
}

// Value returns what an endpoint saves that has so many tokens of a prompt's beginning cached, and must load some of them.
func (m *Model) Value(c *epp.Candidate, cached int, loads epp.Loads) epp.Saving {
	w := m.curvesOf(c.Endpoint).prompt.w
	compute := func(tokens, before int) float64 {
		x := promptTerms(part{before + tokens, before, epp.Loads{}}, 0, 0)
		return w[1]*x[1] + w[2]*x[2]
	}
	load := 0.0
	for i, tokens := range loads {
		load += w[loadTerm+i] * kilo(int(tokens))
	}
	s := epp.Saving{Tokens: float64(cached), Load: seconds(load), Time: time.Duration((compute(cached, 0) - load) * float64(time.Second))}
	if slow := min(loads.Sum(), cached); slow > 0 {
		at := cached - slow // these are in the accelerator's memory
		s.Tokens = max(0, float64(at)+float64(slow)*(1-load/max(shortest, compute(slow, at))))
	}
	return s
}

// Handoff estimates how long it takes from a computed prompt to the first token that another endpoint generates, if the KV cache of so
// many tokens moves between them.
func (m *Model) Handoff(from, to *epp.Candidate, moved int) Estimate {
	x := handoffTerms(moved, answersOf(to.Load, to.InFlight))
	now := m.clock.Now()
	curves, one := m.curvesAt(to.Endpoint, now)
	c := m.linkCurve(&curves, one, to.Load, from.Endpoint, now)
	return c.estimate(&x)
}

// Token estimates the time of each further token of answers that an endpoint generates, if it gets one more request: one of so many
// tokens, some of which it computes itself. It computes them while those answers pause; they last as long as answers there usually do, so
// that the shorter they are, the more of their time it takes.
func (m *Model) Token(c *epp.Candidate, tokens, computed int) Estimate {
	now := m.clock.Now()
	curves, one := m.curvesAt(c.Endpoint, now)
	perSecond, prompts := one.computes(now, 0)
	left, pause := curves.left(perSecond), 0.0
	if computed > 0 {
		last := m.answersLast(one)
		prompts += 1 / last
		pause = curves.prompt.w[1] * kilo(computed) / last
	}
	x := tokenTerms(answersOf(c.Load, c.InFlight)+1, contextOf(c.Load)+float64(tokens), prompts)
	e := curves.token.estimate(&x)
	e.Time = time.Duration(float64(e.Time) / left * (1 + pause/left))
	return e
}

// answersLast returns how many seconds an endpoint's answers usually take from their first token to their last, at most promptWindow, which is
// taken where no answer has ended.
func (m *Model) answersLast(one *engine) float64 {
	last := m.answers.mean()
	if one != nil {
		last = cmp.Or(one.answers.mean(), last)
	}
	return min(cmp.Or(last, promptWindow.Seconds()), promptWindow.Seconds())
}

// Steps estimates the time of each further token of the answers that an endpoint generates, and the time with one more of them, to a prompt of
// so many tokens that another endpoint computes.
func (m *Model) Steps(c *epp.Candidate, tokens int) (now, more time.Duration) {
	at := m.clock.Now()
	curves, one := m.curvesAt(c.Endpoint, at)
	perSecond, prompts := one.computes(at, 0)
	answers, context := answersOf(c.Load, c.InFlight), contextOf(c.Load)
	x := tokenTerms(answers, context, prompts)
	y := tokenTerms(answers+1, context+float64(tokens), prompts)
	left := curves.left(perSecond)
	return seconds(curves.token.w.dot(&x) / left), seconds(curves.token.w.dot(&y) / left)
}

// computes returns how many tokens of prompts, and how many prompts, an endpoint computes in a second while it generates answers, if it gets one
// more of so many tokens, or none with 0. Of nil only this one is known.
func (e *engine) computes(now time.Time, more int) (tokens, prompts float64) {
	if more > 0 {
		tokens, prompts = float64(more)/promptWindow.Seconds(), 1/promptWindow.Seconds()
	}
	if e != nil {
		tokens, prompts = tokens+e.prompts.perSecond(now), prompts+e.prompts.often(now)
	}
	return tokens, prompts
}

// left returns the share of an engine's time that is left for answers if it computes so many tokens of prompts in a second.
func (c *curves) left(perSecond float64) float64 {
	const fewest = 0.02 // then answers are as good as stopped
	return max(fewest, 1-perSecond/1000*c.prompt.w[1])
}

// estimate returns the time of a request with these terms.
func (c *curve) estimate(x *vector) Estimate {
	return Estimate{Time: seconds(c.w.dot(x)), Spread: c.spread, Known: c.known}
}

// seconds returns a time that is not negative.
func seconds(s float64) time.Duration { return time.Duration(max(0, s) * float64(time.Second)) }

// Sent notes where a request is sent, and in the decision what is expected of it: its endpoint may compute prompts while it generates
// answers.
func (m *Model) Sent(d *epp.Decision) {
	for i := range d.Picks {
		m.engine(d.Picks[i].Endpoints[0])
	}
	now, first := m.clock.Now(), &d.Picks[0]
	d.Expected = m.Expect(now, d)
	one := m.engine(first.Endpoints[0])
	if first.Seen != nil {
		one.queue.add(now, queueOf(&first.Seen.Load))
	}
	if d.Verdict == pd.Local {
		one.prompts.add(now, float64(d.Tokens-d.Cached))
	}
}

// Queue returns how many requests wait at an endpoint for others to end: those on its page, or on average over the pages that the latest
// requests saw, if that is more. A queue that comes and goes is a queue.
func (m *Model) Queue(c *epp.Candidate) float64 {
	waiting := queueOf(c.Load)
	if one := m.known(c.Endpoint); one != nil {
		waiting = max(waiting, one.queue.mean(m.clock.Now()))
	}
	return waiting
}

// queueOf returns how many requests waited for others to end. Those that wait only for their KV cache delay nothing.
func queueOf(l *epp.Load) float64 {
	waiting, _ := l.Signals.Value(epp.Waiting)
	delayed, _ := l.Signals.Value(epp.Delayed)
	return max(0, waiting-delayed)
}
