package replay

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/capture"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/epp/setup"
	"github.com/tandem-serving/tandem/pd"
)

// Repicked is what became of the picks of a capture when they were made again.
type Repicked struct {
	Captured  int // picks, and requests that a pick refused
	Same      int // with the same verdict, and the same first endpoint of each stage
	Different []Difference
	// Left are requests that no pick decided about: flow control refused them, or the gateway allowed them only a part of the pool.
	Left int
	// SameConfig says that all of them were made under this configuration.
	SameConfig bool
}

// Difference is a kind of pick that came out otherwise, the most frequent kind first.
type Difference struct {
	What string `json:"what"`
	N    int    `json:"n"`
}

// Repick makes the picks of a capture again, under a configuration. The scheduler sees what it saw in the picker: the endpoints, the
// loads of their pages, the requests in flight and their ends, and the random choices. Nothing is modelled, so the result tells what the
// configuration would have decided there, as long as the load would have stayed the same. Of several pickers, each makes its own picks, and
// sees its own requests in flight. most bounds the requests, 0 = all.
func Repick(ctx context.Context, c *config.Config, stale time.Duration, from *capture.Capture, most int) (*Repicked, error) {
	if len(from.Each) < 2 {
		return repick(ctx, c, stale, from, most)
	}
	last, all := int64(math.MaxInt64), &Repicked{SameConfig: true}
	if most > 0 && most < len(from.Requests) {
		last = from.Requests[most-1].Arrived
	}
	different := map[string]int{}
	for _, one := range from.Each {
		n, _ := slices.BinarySearchFunc(one.Requests, min(last, math.MaxInt64-1)+1, func(r capture.Request, at int64) int { return cmp.Compare(r.Arrived, at) })
		if n == 0 {
			continue
		}
		r, err := repick(ctx, c, stale, one, n)
		if err != nil {
			return nil, err
		}
		all.Captured, all.Same, all.Left, all.SameConfig = all.Captured+r.Captured, all.Same+r.Same, all.Left+r.Left, all.SameConfig && r.SameConfig
		for _, d := range r.Different {
			different[d.What] += d.N
		}
	}
	all.Different = sorted(different)
	return all, nil
}

// repick makes the picks of one picker again.
func repick(ctx context.Context, c *config.Config, stale time.Duration, from *capture.Capture, most int) (*Repicked, error) {
	keep := &epp.Keep{Offline: true}
	built, err := c.Build(slog.New(slog.DiscardHandler), keep)
	if err != nil {
		return nil, err
	}
	defer built.Close()
	r := &repicking{built: built, keep: keep, stale: stale, from: from, endpoints: map[string]*epp.Endpoint{}, loads: map[string]epp.Load{},
		joining: append(config.Of[epp.EndpointObserver](built), keep), result: &Repicked{SameConfig: true}, different: map[string]int{}}
	r.sched = sched.New(r, &r.clock)
	r.schedule(c.Digest(), most)
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		e, more := r.clock.next()
		switch {
		case r.failed != nil:
			return nil, r.failed
		case !more:
			return r.finish(), nil
		}
		e.run()
	}
}

// repicking is a capture whose picks are made again. It is the pool of the scheduler, and sees its picks.
type repicking struct {
	built     *config.Built
	keep      *epp.Keep
	stale     time.Duration
	from      *capture.Capture
	clock     clock
	sched     *sched.Scheduler
	pipeline  *sched.Pipeline
	endpoints map[string]*epp.Endpoint
	loads     map[string]epp.Load // by endpoint
	order     []string            // of the pool's endpoints
	current   *epp.Snapshot
	joining   []epp.EndpointObserver
	slots     int
	headers   int // that were used
	pages     int
	seen      []epp.Candidate // by the latest pick
	result    *Repicked
	different map[string]int
	failed    error
}

// schedule has the picks be made at their times, in the order of their numbers.
func (r *repicking) schedule(digest string, most int) {
	all := r.from.Requests
	if most > 0 && len(all) > most {
		all = all[:most]
	}
	for _, h := range r.from.Headers {
		r.result.SameConfig = r.result.SameConfig && h.Digest == digest
	}
	sorted := make([]*capture.Request, len(all))
	for i := range all {
		sorted[i] = &all[i]
	}
	slices.SortStableFunc(sorted, func(a, b *capture.Request) int {
		return cmp.Or(cmp.Compare(a.PickedAt(), b.PickedAt()), cmp.Compare(a.Number, b.Number))
	})
	for _, q := range sorted {
		r.clock.after(micros(q.PickedAt()), func() { r.pick(q) })
	}
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// Snapshot is the pool as the pick at work saw it.
func (r *repicking) Snapshot() *epp.Snapshot { return r.current }

// Picked implements epp.PickObserver.
func (r *repicking) Picked(_ *epp.Round, all []epp.Candidate, _ *epp.Decision) {
	r.seen = append(r.seen[:0], all...)
}

// see brings the pool to a snapshot, and the configuration to a moment.
func (r *repicking) see(version uint64, at int64) {
	changed := false
	for ; r.headers < len(r.from.Headers); r.headers++ {
		h := &r.from.Headers[r.headers]
		if r.headers > 0 && (h.Snapshot > version || h.Seed != r.pipeline.Seed() && h.At > at) {
			break
		}
		if r.use(h); r.failed != nil {
			return
		}
		changed = true
	}
	for ; r.pages < len(r.from.Loads) && r.from.Loads[r.pages].Snapshot <= version; r.pages++ {
		l := &r.from.Loads[r.pages]
		r.loads[l.Endpoint] = l.Load(epoch)
		changed = true
	}
	if !changed {
		return
	}
	s := &epp.Snapshot{Version: version}
	for _, name := range r.order {
		s.Endpoints, s.Loads = append(s.Endpoints, r.endpoints[name]), append(s.Loads, r.loads[name])
	}
	r.current = s
}

// use sets the picker up as a header says.
func (r *repicking) use(h *capture.Header) {
	if r.pipeline == nil || r.pipeline.Seed() != h.Seed {
		c := setup.Scheduler(r.built, r.stale, h.Seed, nil)
		c.Preparers, c.Admission = nil, nil // what they did is in the capture: exact lengths, and times after the wait
		if r.built.Queues != nil {
			c.Detector = nil
		}
		c.Picked = append(c.Picked, r)
		if r.pipeline, r.failed = sched.NewPipeline(c); r.failed == nil {
			r.sched.Swap(r.pipeline)
		}
	}
	r.order = r.order[:0]
	there := map[string]bool{}
	for _, e := range h.Endpoints {
		r.order, there[e.Name] = append(r.order, e.Name), true
		r.join(e)
	}
	for name, e := range r.endpoints {
		if !there[name] {
			for _, o := range r.joining {
				o.EndpointLeft(e)
			}
			delete(r.endpoints, name)
			delete(r.loads, name)
		}
	}
}

// join adds an endpoint to the pool, or gives it other labels.
func (r *repicking) join(e capture.Endpoint) {
	labels := maps.Clone(e.Labels)
	known := r.endpoints[e.Name]
	switch {
	case known != nil && maps.Equal(known.Labels, labels):
		return
	case known != nil:
		r.endpoints[e.Name] = known.With("", labels)
	default:
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(r.slots >> 16), byte(r.slots >> 8), byte(r.slots)}), 8000)
		namespace, name, _ := strings.Cut(e.Name, "/")
		next := epp.NewEndpoint(namespace, name, addr, "", labels)
		next.Slot = r.slots
		r.slots++
		r.endpoints[e.Name] = next
	}
	for _, o := range r.joining {
		o.EndpointJoined(r.endpoints[e.Name])
	}
}

// pick makes the pick of a request again, and compares it.
func (r *repicking) pick(q *capture.Request) {
	r.see(q.Snapshot, q.PickedAt())
	if r.failed != nil {
		return
	}
	if q.Number > 0 {
		r.pipeline.Continue(q.Number - 1)
	}
	spec := r.sched.Needs()
	text := prompt{parts: q.Blocks, own: mix(seed, uint64(q.Arrived)^q.Number<<40), each: r.from.BlockTokens(), tokens: q.InputTokens, seed: seed}
	d, err := r.sched.Pick(context.Background(), q.Asked(text.blocks(spec.Tokens, spec.Max), spec.Tokens))
	switch {
	case q.Subset, len(q.Picks) == 0 && !ofPick(q.Reason):
		r.result.Left++
	default:
		r.result.Captured++
		if what := r.compare(q, d, err); what != "" {
			r.different[what]++
		} else {
			r.result.Same++
		}
	}
	if err == nil {
		r.follow(q, d)
	}
}

// ofPick reports whether a pick refuses requests for a reason.
func ofPick(reason string) bool {
	return slices.Contains([]pd.Reason{pd.Saturated, pd.NoEndpoint, pd.NoPrefill, pd.Budget, pd.DecodeOnly, pd.NotSplittable}, pd.Reason(reason))
}

// follow has a request be charged to the endpoint that it was sent to, whatever the pick has chosen now, and be answered and end as it
// was and did.
func (r *repicking) follow(q *capture.Request, d *epp.Decision) {
	sent := len(q.Picks) > 0 && d.Picks[0].Row.Port == 0
	if e := r.sentTo(q); sent && e != nil { // else it has left the pool
		d.Reservation.Served(e)
	}
	at, answered := q.AnsweredAt()
	if answered {
		r.clock.after(micros(at)-r.clock.now, func() {
			if e := r.endpoints[q.Served]; sent && e != nil {
				d.Reservation.Served(e)
			}
			d.Reservation.Answered()
		})
	}
	ended, known := q.EndedAt()
	if !known {
		return
	}
	r.clock.after(micros(ended)-r.clock.now, func() {
		d.Reservation.End()
		o := &epp.Outcome{API: q.Asked(nil, 0).API, Status: q.Status, Plan: d.Plan(), Decision: d, Answered: micros(max(0, q.Phases.Answered)), Duration: micros(q.Phases.Total),
			Result: &pd.AnswerSummary{End: pd.EndDone, Prompt: q.EngineTokens, Cached: q.EngineCached, Completion: q.OutputTokens}}
		for _, observer := range config.Of[epp.Observer](r.built) {
			observer.Observe(o)
		}
	})
}

// sentTo returns the endpoint that a request was sent to, nil if it has left the pool.
func (r *repicking) sentTo(q *capture.Request) *epp.Endpoint {
	if len(q.Picks) == 0 {
		return nil
	}
	return r.endpoints[q.Picks[0].Endpoints[0]]
}

// compare says how a pick differs from the captured one; "" if it does not.
func (r *repicking) compare(q *capture.Request, d *epp.Decision, err error) string {
	before := q.Verdict
	if len(q.Picks) > 0 && before == pd.Refused.String() { // evicted later
		before = pd.Local.String()
		if len(q.Picks) > 1 {
			before = pd.Remote.String()
		}
	}
	verdict, reason := pd.Refused.String(), ""
	if err == nil {
		verdict, reason = d.Verdict.String(), string(d.Reason)
	} else {
		reason = string(pd.AsRefusal(err).Reason)
	}
	if verdict != before {
		return fmt.Sprintf("%s (%s), was %s (%s)", verdict, reason, before, q.Reason)
	}
	if err != nil {
		return ""
	}
	for i := range q.Picks {
		p := &q.Picks[i]
		now := d.Endpoints(epp.Stage(p.Stage))
		if len(now) == 0 {
			return "no endpoint for " + p.Stage
		}
		if now[0] != r.endpoints[p.Endpoints[0]] {
			return fmt.Sprintf("another %s endpoint: %s", p.Stage, r.why(p))
		}
	}
	return ""
}

// why tells what made a pick choose another endpoint than the one that was picked: what it knew of that one, if it differs.
func (r *repicking) why(p *capture.Pick) string {
	for i := range r.seen {
		c := &r.seen[i]
		switch {
		case c.Endpoint != r.endpoints[p.Endpoints[0]]:
		case c.InFlight.Requests != p.Requests:
			return "other requests in flight there"
		case c.InFlight.Tokens != p.Tokens:
			return "other tokens in flight there"
		case c.Cached != p.Cached:
			return "other prefixes cached there"
		default:
			return "other scores, with the same load there"
		}
	}
	return "the one before is not in the pool"
}

func (r *repicking) finish() *Repicked {
	r.result.Different = sorted(r.different)
	return r.result
}

// sorted returns the differences, the most frequent one first.
func sorted(different map[string]int) (all []Difference) {
	for what, n := range different {
		all = append(all, Difference{what, n})
	}
	slices.SortFunc(all, func(a, b Difference) int { return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.What, b.What)) })
	return all
}
