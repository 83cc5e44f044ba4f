package scale

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// classes of prompts by the tokens that are computed: up to 15, and from there two classes for each doubling, up to 2^20 and more.
const classes = 34

func classOf(tokens int) int {
	if tokens < 16 {
		return 0
	}
	n := bits.Len(uint(tokens))
	return min(classes-1, 1+2*(n-5)+int(uint(tokens)>>(n-2)&1))
}

// tally counts events and a sum over them in one word, so that a pick adds to both at once: the upper 24 bits count events, the lower 40
// are the sum. They are taken each interval, in which neither overflows.
type tally struct{ word atomic.Uint64 }

const (
	sumBits  = 40
	mostEach = 1 << 24 // of one event: 2^16 such events fit
)

func (t *tally) add(events, amount int) {
	t.word.Add(uint64(events)<<sumBits + uint64(max(0, min(amount, mostEach))))
}

// take returns what was added since the last take.
func (t *tally) take() (events, sum float64) {
	w := t.word.Swap(0)
	return float64(w >> sumBits), float64(w & (1<<sumBits - 1))
}

// picks counts what picks tell. Adding to it takes two atomic additions.
type picks struct {
	local, remote [classes]tally // prompts, and their tokens that are computed, by who computes them
	prompts       tally          // prompts whose decider compared costs, and the tokens of all prompts
}

func (p *picks) add(d *epp.Decision) {
	to, own := &p.local, computed(d)
	if d.Verdict == pd.Remote {
		to = &p.remote
	}
	to[classOf(own)].add(1, own)
	p.prompts.add(min(1, len(d.Costs)), d.Tokens)
}

// computed returns how many tokens of a prompt its engine computes: the last one even of a prompt that is all cached.
func computed(d *epp.Decision) int {
	cached := d.Cached
	if d.Verdict == pd.Remote {
		for i := range d.Picks {
			if s := &d.Picks[i]; s.Row.Split && s.Seen != nil {
				cached = s.Seen.Cached
			}
		}
	}
	return max(1, d.Tokens-cached)
}

// mix is what requests are like: sums that fade. The zero value knows nothing.
type mix struct {
	local, remote            [classes]float64
	localTokens              [classes]float64
	remoteTokens             [classes]float64
	requests, chosen         float64
	tokens                   float64 // of prompts
	answers, answerTokens    float64
	allInFlight, ownInFlight float64
	answering                float64 // requests whose answers are generated, as many as were counted at each interval
	intervals                float64
}

// mixHalfLife is the age at which a request has half its weight in a mix.
const mixHalfLife = 2 * time.Minute

// fade has all sums lose weight.
func (m *mix) fade(after time.Duration) {
	keep := math.Exp2(-after.Seconds() / mixHalfLife.Seconds())
	for i := range classes {
		m.local[i] *= keep
		m.remote[i] *= keep
		m.localTokens[i] *= keep
		m.remoteTokens[i] *= keep
	}
	for _, sum := range []*float64{&m.requests, &m.chosen, &m.tokens, &m.answers, &m.answerTokens, &m.allInFlight, &m.ownInFlight, &m.answering, &m.intervals} {
		*sum *= keep
	}
}

// take adds what was picked since the last time, and returns how many requests that were.
func (m *mix) take(p *picks) (requests float64) {
	for i := range classes {
		n, tokens := p.local[i].take()
		m.local[i], m.localTokens[i] = m.local[i]+n, m.localTokens[i]+tokens
		requests += n
		n, tokens = p.remote[i].take()
		m.remote[i], m.remoteTokens[i] = m.remote[i]+n, m.remoteTokens[i]+tokens
		requests += n
	}
	chosen, tokens := p.prompts.take()
	m.requests, m.chosen, m.tokens = m.requests+requests, m.chosen+chosen, m.tokens+tokens
	return requests
}

// answered adds the length of an answer, if it is known.
func (m *mix) answered(o *epp.Outcome) {
	if r := o.Result; r != nil && r.End == pd.EndDone && r.Completion > 0 {
		m.answers++
		m.answerTokens += float64(r.Completion)
	}
}

// load returns what requests are like, at no rate.
func (m *mix) load() (l Load) {
	if m.requests == 0 {
		return l
	}
	for i := range classes {
		n := m.local[i] + m.remote[i]
		p := Prompts{Share: n / m.requests}
		if n > 0 {
			p.Tokens, p.Remote = (m.localTokens[i]+m.remoteTokens[i])/n, m.remote[i]/n
		}
		l.Prompts = append(l.Prompts, p)
	}
	l.Prompt, l.Chosen = m.tokens/m.requests, m.chosen > m.requests/2
	if m.answers > 0 {
		l.Answer = m.answerTokens / m.answers
	}
	return l
}

// demand is what was learnt of some requests: how many come, and what they are like. The zero value knows of none.
type demand struct {
	picks   picks
	mix     mix
	counts  []float64 // requests of the latest intervals, also those that wait
	waiting int       // requests at the end of the latest interval

	pattern  *pattern // nil: none is learnt
	foreseen foreseen
}

// inFlight is the requests that endpoints have at the end of an interval.
type inFlight struct {
	all, own  int     // of all pickers, and of this one
	answering float64 // of all, those whose answers are generated
}

// end closes an interval that took so long, at whose end so many requests wait in the picker.
func (d *demand) end(took time.Duration, waiting int, f inFlight) {
	d.mix.fade(d.aging(took))
	// Those that wait have come, and those that were picked for may have come before.
	came := max(0, d.mix.take(&d.picks)+float64(waiting-d.waiting))
	d.waiting = waiting
	d.counts = append(d.counts, came*Interval.Seconds()/took.Seconds())
	d.counts = d.counts[max(0, len(d.counts)-longest):]
	d.mix.intervals++
	d.mix.allInFlight += float64(f.all)
	d.mix.ownInFlight += float64(f.own)
	d.mix.answering += f.answering
}

// wellKnown is how many requests, of half the weight or more, tell what requests are like.
const wellKnown = 300

// aging returns by how much a mix ages in a time: less than that where few requests come, which would else tell little.
func (d *demand) aging(took time.Duration) time.Duration {
	rate := trendOf(d.counts).level / Interval.Seconds()
	slower := max(1, min(wellKnown/(mixHalfLife.Seconds()*max(rate, 1e-9)), slowest))
	return time.Duration(float64(took) / slower)
}

// slowest bounds by how much a mix ages more slowly.
const slowest = 5

// drain is the time in which what waits is to be served, besides what comes.
const drain = time.Minute

// Fewer replicas must have been enough for more load before fewer are wanted: by leastMargin, and by so many standard errors of the rate.
const (
	leastMargin = 0.1
	sure        = 2
)

// present returns the load of now, as far as it has been picked for. What waits tells what prompts are like while none has been.
func (d *demand) present(waits epp.InFlight) Load {
	l := d.mix.load()
	if len(l.Prompts) == 0 && waits.Requests > 0 {
		l.Prompt = float64(waits.Tokens) / float64(waits.Requests)
		l.Prompts = []Prompts{{Share: 1, Tokens: l.Prompt}}
	}
	t := trendOf(d.counts)
	l.Rate, l.Burst = t.level/Interval.Seconds()*d.mix.pickers(), t.burst
	return l
}

// expect has a load be the one that is expected after a time, with what waits now, at the end of an interval that took so long. It returns by which share the
// load may be more, as far as is known.
func (d *demand) expect(l *Load, waits epp.InFlight, now time.Time, took, after time.Duration) (margin float64) {
	t := trendOf(d.counts)
	l.Rate = t.ahead(after.Seconds()/Interval.Seconds()) / Interval.Seconds() * d.mix.pickers()
	margin = max(leastMargin, sure*t.unsure())
	d.foresee(l, now, took, after)
	if usual := &d.foreseen.byPattern; usual.inUse {
		most := max(l.Rate*(1+margin), usual.held[ofRequests]*(1+leastMargin))
		if l.raise(usual.relied); l.Rate > 0 {
			margin = max(leastMargin, most/l.Rate-1)
		}
	}
	l.Rate += float64(waits.Requests) / drain.Seconds() * d.mix.pickers()
	return margin
}

// more returns a load that is more by a share.
func (l Load) more(share float64) Load {
	l.Rate *= 1 + share
	l.Tokens *= 1 + share
	return l
}

// mostPickers bounds how many times as many requests as this picker's come to the pool.
const mostPickers = 16

// pickers returns how many times as many requests the pool gets as this picker sends, by what is in flight: of this picker and its replicas,
// as far as they tell.
func (m *mix) pickers() float64 {
	if m.ownInFlight == 0 {
		return 1
	}
	return max(1, min(m.allInFlight/m.ownInFlight, mostPickers))
}

// Requests sums up what requests are like, the first as much as the last, for questions about a load that is over. It is an epp.Observer. The
// zero value knows of none. It is not safe for concurrent use.
type Requests struct{ mix mix }

// Observe implements epp.Observer.
func (r *Requests) Observe(o *epp.Outcome) {
	d, m := o.Decision, &r.mix
	if d == nil {
		return
	}
	own, count, tokens := computed(d), &m.local, &m.localTokens
	if d.Verdict == pd.Remote {
		count, tokens = &m.remote, &m.remoteTokens
	}
	class := classOf(own)
	count[class]++
	tokens[class] += float64(own)
	m.requests, m.tokens, m.chosen = m.requests+1, m.tokens+float64(d.Tokens), m.chosen+float64(min(1, len(d.Costs)))
	m.answered(o)
}

// Load returns the load of such requests if so many come in a second, independently of each other.
func (r *Requests) Load(rate float64) Load {
	l := r.mix.load()
	l.Rate, l.Burst = rate, 1
	return l
}
