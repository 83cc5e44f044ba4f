package sched_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
)

// pool is a pool whose snapshot tests set.
type pool struct{ at atomic.Pointer[epp.Snapshot] }

func (p *pool) Snapshot() *epp.Snapshot { return p.at.Load() }

// fleet makes a pool of endpoints of the given roles, by llm-d's label values, named by role and index.
func fleet(roles ...string) *pool {
	s := &epp.Snapshot{Version: 7, Loads: make([]epp.Load, len(roles))}
	for i, role := range roles {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8000)
		e := epp.NewEndpoint("default", fmt.Sprintf("%s-%d", role, i), addr, "", map[string]string{pd.RoleLabel: role})
		e.Slot = i
		s.Endpoints = append(s.Endpoints, e)
		s.Loads[i] = epp.Load{At: time.Now(), Signals: epp.Values{}.With(epp.Waiting, float64(i%7)).
			With(epp.Running, float64(i%11)).With(epp.KVUsage, float64(i%13)/13)}
	}
	p := &pool{}
	p.at.Store(s)
	return p
}

func times(n int, role string) []string { return slices.Repeat([]string{role}, n) }

// role is a filter by role.
type role pd.Role

func (f role) Filter(_ *epp.Round, c []epp.Candidate) []epp.Candidate {
	return slices.DeleteFunc(c, func(c epp.Candidate) bool { return !c.Role.Has(pd.Role(f)) })
}

// only is a filter by a condition.
type only func(r *epp.Round, c *epp.Candidate) bool

func (f only) Filter(r *epp.Round, c []epp.Candidate) []epp.Candidate {
	return slices.DeleteFunc(c, func(c epp.Candidate) bool { return !f(r, &c) })
}

// outspoken is a filter that says why it drops candidates.
type outspoken struct{ only }

func (outspoken) Explain(_ *epp.Round, all, left []epp.Candidate, dropped *epp.Candidate) string {
	return fmt.Sprintf("%s is one of %d, of which %d is left", dropped.Name, len(all), len(left))
}

// by is a scorer that rates candidates one by one.
type by func(r *epp.Round, c *epp.Candidate) float64

func (f by) Score(r *epp.Round, c []epp.Candidate, scores []float64) {
	for i := range c {
		scores[i] = f(r, &c[i])
	}
}

// idle rates endpoints by their requests in flight.
var idle = by(func(_ *epp.Round, c *epp.Candidate) float64 { return 1 / float64(1+c.InFlight.Requests) })

// highest is a picker by total, as plain as can be: shuffle, then sort.
type highest int

func (p highest) Endpoints() int { return int(p) }

func (highest) Pick(r *epp.Round, totals []float64, n int, dst []int) []int {
	order := r.Rand.Perm(len(totals))
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(totals[b], totals[a]) })
	return append(dst, order[:min(n, len(order))]...)
}

// says is a decider with a constant ruling that records its calls.
type says struct {
	verdict pd.Verdict
	reason  pd.Reason
	asked   []prompt
}

func (d *says) Decide(a *epp.Alternatives) epp.Ruling {
	d.asked = append(d.asked, prompt{a.Tokens, a.Cached})
	return epp.Ruling{Verdict: d.verdict, Reason: d.reason}
}

// prompt is how long a prompt is, and how much of it is cached, in tokens.
type prompt struct{ Tokens, Cached int }

// always has every prompt computed on a prefill endpoint, never none.
type (
	always struct{}
	never  struct{}
)

func (always) Decide(*epp.Alternatives) epp.Ruling {
	return epp.Ruling{Verdict: pd.Remote, Reason: pd.Always}
}

func (never) Decide(*epp.Alternatives) epp.Ruling {
	return epp.Ruling{Verdict: pd.Local, Reason: pd.BelowThreshold}
}

// caches is a matcher that knows how many tokens each endpoint has, and records its calls.
type caches struct {
	mu      sync.Mutex
	cached  map[string]int // tokens by endpoint name
	learnt  []string       // endpoint names
	matched int            // calls of Match
}

const blockTokens = 16

func (m *caches) Needs() epp.PromptSpec        { return epp.PromptSpec{Tokens: blockTokens, Max: 100} }
func (m *caches) EndpointJoined(*epp.Endpoint) {}
func (m *caches) EndpointLeft(*epp.Endpoint)   {}

func (m *caches) Match(_ *epp.Request, p *epp.Prompt, c []epp.Candidate) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.matched++
	for i := range c {
		c[i].Cached = m.cached[c[i].Name]
	}
	return p.Matchable()
}

func (m *caches) Learn(_ *epp.Request, _ *epp.Prompt, e *epp.Endpoint, load *epp.Load) {
	if load == nil {
		panic("learning without a load")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.learnt = append(m.learnt, e.Name)
}

// splitRequest returns a prompt of so many tokens, with its blocks.
func splitRequest(tokens int) *epp.Request {
	blocks := make([]uint64, tokens/blockTokens)
	return &epp.Request{API: pd.APIChat, Prompt: epp.Prompt{Tokens: tokens, BlockTokens: blockTokens, Blocks: blocks}}
}

// disagg returns a usual configuration: by role, the idlest first, everything remote.
func disagg() sched.Config {
	prefill := epp.PrefillRow("prefill", 3)
	prefill.Decider = epp.NamedDecider{Name: "always", Decider: always{}}
	return sched.Config{
		Profiles: []epp.Profile{
			{Name: "decode", Filters: []epp.NamedFilter{{Name: "decode-filter", Filter: role(pd.RoleDecode)}},
				Scorers: []epp.NamedScorer{{Name: "idle", Weight: 1, Scorer: idle}}, Picker: highest(1)},
			{Name: "prefill", Filters: []epp.NamedFilter{{Name: "prefill-filter", Filter: role(pd.RolePrefill)}},
				Scorers: []epp.NamedScorer{{Name: "idle", Weight: 1, Scorer: idle}}, Picker: highest(1)},
		},
		Stages: epp.Stages{epp.DecodeRow("decode"), prefill},
		Stale:  time.Second,
		Seed:   1,
	}
}

// scheduler makes a scheduler with a pipeline of the configuration.
func scheduler(t testing.TB, p *pool, c sched.Config) *sched.Scheduler {
	t.Helper()
	pipeline, err := sched.NewPipeline(c)
	if err != nil {
		t.Fatal(err)
	}
	s := sched.New(p, epp.SystemClock)
	s.Swap(pipeline)
	return s
}

func mustPick(t testing.TB, s *sched.Scheduler, r *epp.Request) *epp.Decision {
	t.Helper()
	d, err := s.Pick(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func names(endpoints []*epp.Endpoint) []string {
	all := make([]string, len(endpoints))
	for i, e := range endpoints {
		all[i] = e.Name
	}
	return all
}

// inFlight returns the load in flight of all endpoints, by name, without those that have none.
func inFlight(p *pool) map[string]epp.InFlight {
	all := map[string]epp.InFlight{}
	for _, e := range p.Snapshot().Endpoints {
		if f := e.InFlight(); f != (epp.InFlight{}) {
			all[e.Name] = f
		}
	}
	return all
}

// counted returns the value of a counter, or how often a histogram observed, with the given values of its labels.
func counted(t testing.TB, registry *prometheus.Registry, name string, labels ...string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			if f.GetName() == name && slices.Equal(values, labels) {
				return m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	t.Fatalf("there is no metric %s%v", name, labels)
	return 0
}
