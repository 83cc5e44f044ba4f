package shadow

import (
	"math"
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
	endpoints []*deviation                    // by slot
	elsewhere map[*epp.Decision][2]*deviation // endpoints that generate answers: by what was done, and by the shadow
}

// deviation is by how much the load in flight to one endpoint would differ.
type deviation struct {
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

// at returns the deviation of an endpoint at a time.
func (m *imagined) at(now time.Time, e *epp.Endpoint) *deviation {
	if n := e.Slot + 1 - len(m.endpoints); n > 0 {
		m.endpoints = append(m.endpoints, make([]*deviation, n)...)
	}
	d := m.endpoints[e.Slot]
	if d == nil || !d.of.Is(e) {
		d = &deviation{of: e}
		m.endpoints[e.Slot] = d
	}
	d.until(now)
	return d
}

// until has an endpoint compute prompts until a time.
func (d *deviation) until(now time.Time) {
	done := max(0, now.Sub(d.at))
	d.live, d.shadow, d.at = max(0, d.live-done), max(0, d.shadow-done), now
}

// add adds what was decided about a request, and what prompts take of their endpoints.
func (m *imagined) add(c *sched.Comparison, live, shadow *latency.Work) {
	if live.At != nil {
		d := m.at(c.Now, live.At)
		d.live += live.Own
		d.seen(live)
	}
	if shadow.At != nil {
		d := m.at(c.Now, shadow.At)
		d.shadow += shadow.Own
		d.seen(shadow)
	}
	if c.Live == nil || c.Shadow == nil || len(m.elsewhere) == mostElsewhere {
		return
	}
	if from, to := c.Live.First()[0], c.Shadow.First()[0]; !from.Is(to) {
		if m.elsewhere == nil {
			m.elsewhere = map[*epp.Decision][2]*deviation{}
		}
		two := [2]*deviation{m.at(c.Now, from), m.at(c.Now, to)}
		two[0].answers--
		two[1].answers++
		m.elsewhere[c.Live] = two
	}
}

func (d *deviation) seen(w *latency.Work) {
	d.prompts, d.tokens, d.work = recent*d.prompts+1, recent*d.tokens+float64(w.Tokens), recent*d.work+w.Own.Seconds()
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
		d := m.endpoints[c.Endpoint.Slot]
		if d == nil || !d.of.Is(c.Endpoint) {
			continue
		}
		d.until(now)
		more, requests := (d.shadow - d.live).Seconds(), d.answers
		if d.work > 0 && !c.Endpoint.Role.Has(pd.RoleDecode) {
			requests += int(math.Round(more / d.work * d.prompts))
		}
		c.InFlight.Requests = max(0, c.InFlight.Requests+requests)
		if d.work > 0 {
			c.InFlight.Tokens = max(0, c.InFlight.Tokens+int(more/d.work*d.tokens))
		}
	}
}
