package shadow

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
)

// Kind says in what two decisions differ. Of several differences the first of this list counts.
type Kind string

// The kinds.
const (
	Refused Kind = "refused" // one of the two refuses the request
	Verdict Kind = "verdict" // one computes the prompt locally, the other remotely
	Decode  Kind = "decode"  // another endpoint for the first stage
	Prefill Kind = "prefill" // another endpoint that computes the prompt
	Same    Kind = "same"    // the same endpoints do the same
)

const (
	latest    = 100        // differences that are kept
	confident = 0.9        // of intervals
	normal90  = 1.6448536  // standard errors from the middle of such an interval to its ends
	toP90     = 1.28155157 // standard deviations from the median to the 90th percentile
)

// Report is what is known since a shadow came into use. It is a sched.Watcher, and safe for concurrent use.
type Report struct {
	clock epp.Clock
	model *latency.Model

	mu       sync.Mutex
	imagined imagined
	answers  float64 // that have ended
	tokens   float64 // of these, without the first ones
	since    time.Time
	name     string
	picks    int
	kinds    map[Kind]*tally
	all      tally // of every pick that both decide, same ones included
	ring     []Difference
	next     int
}

// New makes a report about a configuration with a name.
func New(name string, clock epp.Clock) *Report {
	return &Report{clock: clock, model: latency.NewModel(clock), since: clock.Now(), name: name, kinds: map[Kind]*tally{}}
}

// Restart forgets what the report says of picks, because the shadow has another configuration now. What was learnt of the engines stays.
func (r *Report) Restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since, r.picks, r.all, r.ring, r.next, r.imagined = r.clock.Now(), 0, tally{}, nil, 0, imagined{}
	clear(r.kinds)
}

// EndpointJoined implements epp.EndpointObserver.
func (r *Report) EndpointJoined(e *epp.Endpoint) { r.model.EndpointJoined(e) }

// EndpointLeft implements epp.EndpointObserver.
func (r *Report) EndpointLeft(e *epp.Endpoint) { r.model.EndpointLeft(e) }

// Observe implements epp.Observer: the model learns, and is held to what it expected.
func (r *Report) Observe(o *epp.Outcome) {
	r.model.Observe(o)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.imagined.end(o.Decision)
	if o.Result != nil && o.Result.Completion > 1 {
		r.answers++
		r.tokens += float64(o.Result.Completion - 1)
	}
}

// Imagine implements sched.Watcher.
func (r *Report) Imagine(now time.Time, all []epp.Candidate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.imagined.apply(now, all)
}

// Compared implements sched.Watcher.
func (r *Report) Compared(c *sched.Comparison) {
	kind := kindOf(c.Live, c.Shadow)
	var live, shadow epp.Expected
	done, imagined := r.work(c.Now, c.Live), r.work(c.Now, c.Shadow)
	if kind != Refused {
		live, shadow = r.model.Expect(c.Now, c.Live), r.model.Expect(c.Now, c.Shadow)
	}
	if c.Live != nil {
		sent := c.Live
		if sent.Expected != (epp.Expected{}) {
			kept := *sent // what the configuration in use expects
			sent = &kept
		}
		r.model.Sent(sent)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.picks++
	t := r.kinds[kind]
	if t == nil {
		t = new(tally)
		r.kinds[kind] = t
	}
	t.picks++
	stalled := 0.0
	if r.tokens > 0 {
		stalled = (done.Stalled - imagined.Stalled).Seconds() * r.answers / r.tokens
	}
	r.imagined.add(c, &done, &imagined)
	if kind != Refused {
		t.add(live, shadow, stalled)
		r.all.picks++
		r.all.add(live, shadow, stalled)
	}
	if kind == Same {
		return
	}
	d := Difference{At: c.Now, Request: c.Request.ID, Kind: kind, Tokens: c.Request.Prompt.Tokens, Live: decisionOf(c.Live, live), Shadow: decisionOf(c.Shadow, shadow)}
	if len(r.ring) < latest {
		r.ring = append(r.ring, d)
		return
	}
	r.ring[r.next] = d
	r.next = (r.next + 1) % latest
}

// work returns what the prompt of a request takes by a decision; nothing if that refuses it.
func (r *Report) work(now time.Time, d *epp.Decision) (w latency.Work) {
	if d != nil {
		w = r.model.Work(now, d)
	}
	return w
}

// kindOf says in what two decisions differ. A refused one is nil.
func kindOf(live, shadow *epp.Decision) Kind {
	switch {
	case live == nil && shadow == nil:
		return Same
	case live == nil || shadow == nil:
		return Refused
	case live.Verdict != shadow.Verdict:
		return Verdict
	case !live.First()[0].Is(shadow.First()[0]):
		return Decode
	case !prefillOf(live).Is(prefillOf(shadow)):
		return Prefill
	}
	return Same
}

// prefillOf returns the endpoint that computes the prompt for another one; nil: none does.
func prefillOf(d *epp.Decision) *epp.Endpoint {
	for i := range d.Picks {
		if d.Picks[i].Row.Split {
			return d.Picks[i].Endpoints[0]
		}
	}
	return nil
}

func decisionOf(d *epp.Decision, expected epp.Expected) (v Decision) {
	if d == nil {
		v.Verdict = pd.Refused.String()
		return v
	}
	v.Verdict, v.Reason, v.Decode = d.Verdict.String(), string(d.Reason), d.First()[0].String()
	if e := prefillOf(d); e != nil {
		v.Prefill = e.String()
	}
	v.TTFT, v.ITL = expected.TTFT.P50.Seconds(), expected.TPOT.P50.Seconds()
	return v
}

// View returns what is known now.
func (r *Report) View() View {
	v := View{Config: r.name, TTFT: r.model.TTFT(), ITL: r.model.TPOT(), Confidence: confident}
	r.mu.Lock()
	defer r.mu.Unlock()
	v.Since, v.Picks = r.since, r.picks
	v.All = r.all.group("", &v)
	for kind, t := range r.kinds {
		v.Kinds = append(v.Kinds, t.group(kind, &v))
	}
	slices.SortFunc(v.Kinds, func(a, b Group) int { return cmp.Or(cmp.Compare(b.Picks, a.Picks), cmp.Compare(a.Kind, b.Kind)) })
	v.Latest = slices.Concat(r.ring[r.next:], r.ring[:r.next])
	slices.Reverse(v.Latest)
	return v
}
