package shadow

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
)

// imagined is by how much the load in flight would differ if the shadow's decisions had been carried out.
//
// Prompts are two queues for each endpoint, of the work that each configuration has given it. Both are modelled alike, one prompt after the other, so
// that their difference is that of the decisions alone. Answers begin and end elsewhere at the same times.
type imagined struct {
	endpoints []*others                    // by slot
	elsewhere map[*epp.Decision][2]*others // endpoints that generate answers: by what was done, and by the shadow
}

// others is the difference of an endpoint.
type others struct {
	of           *epp.Endpoint
	at           time.Time     // of the queues
	live, shadow time.Duration // work of the prompts in the queues
	prompts      float64       // that work was added for, the latest counting most
	tokens       float64       // of these
	work         float64       // of these, in seconds
	answers      int           // that it would generate more
}

// mostElsewhere bounds the answers that are followed.
const mostElsewhere = 1 << 16

// recent is the share of its weight that a prompt keeps at the next one.
const recent = 0.98

// at returns the difference of an endpoint at a time.
func (m *imagined) at(now time.Time, e *epp.Endpoint) *others {
	if n := e.Slot + 1 - len(m.endpoints); n > 0 {
		m.endpoints = append(m.endpoints, make([]*others, n)...)
	}
	o := m.endpoints[e.Slot]
	if o == nil || !o.of.Is(e) {
		o = &others{of: e}
		m.endpoints[e.Slot] = o
	}
	o.until(now)
	return o
}

// until has an endpoint compute prompts until a time.
func (o *others) until(now time.Time) {
	done := max(0, now.Sub(o.at))
	o.live, o.shadow, o.at = max(0, o.live-done), max(0, o.shadow-done), now
}

// add adds what was decided about a request, and what prompts take of their endpoints.
func (m *imagined) add(c *sched.Comparison, live, shadow *latency.Work) {
	if live.At != nil {
		o := m.at(c.Now, live.At)
		o.live += live.Own
		o.seen(c.Live.Tokens-cached(c.Live, live.At), live.Own)
	}
	if shadow.At != nil {
		o := m.at(c.Now, shadow.At)
		o.shadow += shadow.Own
		o.seen(c.Shadow.Tokens-cached(c.Shadow, shadow.At), shadow.Own)
	}
	if c.Live == nil || c.Shadow == nil || len(m.elsewhere) == mostElsewhere {
		return
	}
	if from, to := c.Live.First()[0], c.Shadow.First()[0]; !from.Is(to) {
		if m.elsewhere == nil {
			m.elsewhere = map[*epp.Decision][2]*others{}
		}
		two := [2]*others{m.at(c.Now, from), m.at(c.Now, to)}
		two[0].answers--
		two[1].answers++
		m.elsewhere[c.Live] = two
	}
}

// cached returns how many tokens of a prompt the endpoint has that computes it.
func cached(d *epp.Decision, at *epp.Endpoint) int {
	i := slices.IndexFunc(d.Picks, func(p epp.StagePick) bool { return p.Endpoints[0].Is(at) && p.Row.Split })
	if i < 0 {
		return d.Cached
	}
	return d.Picks[i].Seen.Cached
}

func (o *others) seen(tokens int, work time.Duration) {
	o.prompts, o.tokens, o.work = recent*o.prompts+1, recent*o.tokens+float64(max(0, tokens)), recent*o.work+work.Seconds()
}

// end notes that the answer to a request has ended.
func (m *imagined) end(d *epp.Decision) {
	two, ok := m.elsewhere[d]
	if !ok {
		return
	}
	delete(m.elsewhere, d)
	two[0].answers++
	two[1].answers--
}

// apply changes the load in flight of candidates.
func (m *imagined) apply(now time.Time, all []epp.Candidate) {
	for i := range all {
		c := &all[i]
		if c.Endpoint.Slot >= len(m.endpoints) {
			continue
		}
		o := m.endpoints[c.Endpoint.Slot]
		if o == nil || !o.of.Is(c.Endpoint) {
			continue
		}
		o.until(now)
		more, requests := (o.shadow - o.live).Seconds(), o.answers
		if o.work > 0 && !c.Endpoint.Role.Has(pd.RoleDecode) {
			requests += int(math.Round(more / o.work * o.prompts))
		}
		c.InFlight.Requests = max(0, c.InFlight.Requests+requests)
		if o.work > 0 {
			c.InFlight.Tokens = max(0, c.InFlight.Tokens+int(more/o.work*o.tokens))
		}
	}
}
