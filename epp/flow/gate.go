package flow

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// PoolGate is the Gate of a pool: it asks a detector about the endpoints of each stage.
type PoolGate struct {
	pool     interface{ Snapshot() *epp.Snapshot }
	detector epp.Detector
	clock    epp.Clock
	stale    time.Duration
	roles    [lanes]pd.Role
	splits   bool
	from     int        // length in tokens from which prompts may need the stage that splits requests
	others   func() int // replicas of the picker; nil: there are none
	readings [lanes]atomic.Pointer[reading]
	epoch    atomic.Pointer[epoch] // nil: none has begun
}

// GateOptions are what a PoolGate measures.
type GateOptions struct {
	Pool     interface{ Snapshot() *epp.Snapshot }
	Detector epp.Detector
	Stages   epp.Stages
	Clock    epp.Clock
	Stale    time.Duration // age up to which loads are fully trusted
	// Others returns how many other replicas pick for the pool and tell their loads; nil: none do. The gate takes each of them to have sent, since
	// it last told, as much as this picker has: so they share what is free instead of each taking all of it.
	Others func() int
}

// NewPoolGate makes the gate of a pool.
func NewPoolGate(o GateOptions) *PoolGate {
	g := &PoolGate{pool: o.Pool, detector: o.Detector, clock: o.Clock, stale: o.Stale, others: o.Others}
	g.roles[laneFirst] = o.Stages[0].Role
	if row := o.Stages.Splitting(); row != nil {
		g.splits, g.roles[laneSplit], g.from = true, row.Role, remoteFrom(row.Decider.Decider)
	}
	return g
}

// remoteFrom returns the length in tokens from which a decider may rule that a prompt is computed remotely.
func remoteFrom(d epp.Decider) int {
	switch d := d.(type) {
	case nil:
		return math.MaxInt // only requests that force it
	case epp.LengthDecider:
		return d.RemoteFrom()
	}
	return 0
}

// Splits implements Gate. A request that can be split needs the stage if its client forces it, and may need it if its prompt is long
// enough for the decider: only the pick finds out what is cached.
func (g *PoolGate) Splits(r *epp.Request) bool {
	if !g.splits || r.Fit != request.FitSplit {
		return false
	}
	switch r.Mode {
	case pd.ModeBypass:
		return false
	case pd.ModeForce, pd.ModeForceFallback:
		return true
	}
	return r.Prompt.Tokens >= g.from
}

// Empty implements Gate.
func (g *PoolGate) Empty() bool { return len(g.pool.Snapshot().Endpoints) == 0 }

// reading is one measurement of a stage. It is used again while the pool certainly has capacity left, because measuring costs a
// look at every endpoint. All requests that have asked since it began count as if they had passed: also those that measure, too, at that
// time, which it may not show.
type reading struct {
	snapshot   *epp.Snapshot
	saturation float64
	step       float64 // by which one more request raises the saturation at most
	asked      int64   // the number of the request that made it, which is not in it
	epoch      *epoch  // in which it was made
}

// epoch is a span of reuseAge at most. Its beginning is the time of all that is measured in it, and with its end all of that is
// forgotten. Reading a clock for each request would cost more than all the rest.
type epoch struct{ began time.Time }

// reuseAge is how long a reading is used at most: loads go stale without a new snapshot.
const reuseAge = 10 * time.Millisecond

// again returns what the saturation is at most by now, for a request with a number. ok is false if that is not below a value. A request that
// asked before the reading began is in it.
func (r *reading) again(s *epp.Snapshot, epoch *epoch, asked int64, below float64) (saturation float64, ok bool) {
	if r == nil || r.snapshot != s || r.epoch != epoch {
		return 0, false
	}
	saturation = r.saturation + float64(max(0, asked-r.asked))*r.step
	return saturation, isBelow(saturation, below)
}

// rounding is more than what a mean of a thousand loads is off by: 0.9 and two steps of 0.05 are 0.9999999999999999. It is less than the
// thousandth part of a token of a pool of a thousand endpoints.
const rounding = 1e-12

// isBelow reports whether a saturation is below a limit.
func isBelow(saturation, limit float64) bool { return saturation+rounding < limit }

// candidates are reused by all gates.
var candidates = sync.Pool{New: func() any { return new([]epp.Candidate) }}

// Saturation implements Gate. A stage without endpoints is full, unless it is the one that splits requests: then requests stay
// local, or are refused, as configured, and waiting does not help.
func (g *PoolGate) Saturation(split bool, asked int64, pending epp.InFlight, below float64) float64 {
	if split && !g.splits {
		return 0
	}
	stage := laneFirst
	if split {
		stage = laneSplit
	}
	s, epoch := g.pool.Snapshot(), g.now()
	before := g.readings[stage].Load()
	if saturation, ok := before.again(s, epoch, asked, below); ok {
		return saturation
	}
	now, others := epoch.began, 0
	if g.others != nil {
		others = g.others()
	}
	reused := candidates.Get().(*[]epp.Candidate)
	all := (*reused)[:0]
	for i, e := range s.Endpoints {
		if e.Role.Has(g.roles[stage]) {
			load := e.InFlight()
			if others > 0 {
				untold := e.Untold()
				load.Requests += others * untold.Requests
				load.Tokens += others * untold.Tokens
			}
			all = append(all, epp.Candidate{Endpoint: e, Load: &s.Loads[i], Trust: s.Loads[i].Trust(now, g.stale), InFlight: load})
		}
	}
	all = reachable(all)
	saturation := 1.0
	switch {
	case len(all) > 0:
		share(all, epp.InFlight{Requests: pending.Requests * (1 + others), Tokens: pending.Tokens * (1 + others)})
		saturation = g.detector.Saturation(now, all)
		made := &reading{snapshot: s, epoch: epoch, saturation: saturation, step: g.step(all) * float64(1+others), asked: asked}
		g.readings[stage].CompareAndSwap(before, made) // if another request has replaced it, its reading will do
	case split:
		saturation = 0
	}
	clear(all)
	*reused = all
	candidates.Put(reused)
	return saturation
}

// step returns by how much one more request raises the saturation of candidates at most.
func (g *PoolGate) step(c []epp.Candidate) float64 {
	if d, ok := g.detector.(epp.StepDetector); ok {
		return d.Step(c)
	}
	return 1 / float64(len(c))
}

// now returns the epoch that runs, or begins one.
func (g *PoolGate) now() *epoch {
	for {
		if e := g.epoch.Load(); e != nil {
			return e
		}
		e := &epoch{g.clock.Now()}
		if g.epoch.CompareAndSwap(nil, e) {
			g.clock.AfterFunc(reuseAge, func() { g.epoch.Store(nil) })
			return e
		}
	}
}

// reachable drops unreachable endpoints, whose capacity is none, if there are others. As in picks, they stay if there are not.
func reachable(c []epp.Candidate) []epp.Candidate {
	unreachable := func(c epp.Candidate) bool { return c.Load.Unreachable }
	if !slices.ContainsFunc(c, func(c epp.Candidate) bool { return !c.Load.Unreachable }) {
		return c
	}
	return slices.DeleteFunc(c, unreachable)
}

// share adds a pending load to candidates in equal parts, since it is not known which of them will get it.
func share(c []epp.Candidate, pending epp.InFlight) {
	requests, tokens := max(0, pending.Requests), max(0, pending.Tokens)
	for i := range c {
		rest := len(c) - i
		// The first ones get what cannot be divided.
		r, t := (requests+rest-1)/rest, (tokens+rest-1)/rest
		c[i].InFlight.Requests += r
		c[i].InFlight.Tokens += t
		requests, tokens = requests-r, tokens-t
	}
}

// OpenGate is the gate of a pool that no request waits for.
type OpenGate struct{}

// Saturation implements Gate.
func (OpenGate) Saturation(bool, int64, epp.InFlight, float64) float64 { return 0 }

// Splits implements Gate.
func (OpenGate) Splits(*epp.Request) bool { return false }

// Empty implements Gate.
func (OpenGate) Empty() bool { return false }
