package sched_test

import (
	"maps"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
)

func TestCharges(t *testing.T) {
	for name, tc := range map[string]struct {
		mode     pd.Mode
		tokens   int
		charge   epp.Charge
		decode   epp.InFlight // charged at the pick
		prefill  epp.InFlight
		answered epp.InFlight // left on decode when the answer has begun
	}{
		"remote: prefill computes what it has not cached": {tokens: 1000, decode: epp.InFlight{Requests: 1},
			prefill: epp.InFlight{Requests: 1, Tokens: 1000 - 32}, answered: epp.InFlight{Requests: 1}},
		"local: decode computes what it has not cached": {mode: pd.ModeBypass, tokens: 1000,
			decode: epp.InFlight{Requests: 1, Tokens: 1000 - 64}, answered: epp.InFlight{Requests: 1}},
		"local: all is cached": {mode: pd.ModeBypass, tokens: 50,
			decode: epp.InFlight{Requests: 1}, answered: epp.InFlight{Requests: 1}},
		"local: all is cached, with output": {mode: pd.ModeBypass, tokens: 50, charge: epp.Charge{Output: true, OutputRatio: 1},
			decode: epp.InFlight{Requests: 1, Tokens: 50}, answered: epp.InFlight{Requests: 1, Tokens: 50}},
		"remote, with output": {tokens: 1000, charge: epp.Charge{Output: true, OutputRatio: 1.5},
			decode: epp.InFlight{Requests: 1, Tokens: 1500}, prefill: epp.InFlight{Requests: 1, Tokens: 968},
			answered: epp.InFlight{Requests: 1, Tokens: 1500}},
		"local, with output": {mode: pd.ModeBypass, tokens: 1000, charge: epp.Charge{Output: true, OutputRatio: 1.5},
			decode: epp.InFlight{Requests: 1, Tokens: 1500 + 936}, answered: epp.InFlight{Requests: 1, Tokens: 1500 + 936}},
		"output is bounded": {mode: pd.ModeBypass, tokens: 1000,
			charge: epp.Charge{Output: true, OutputRatio: 1.5, MaxOutput: 200},
			decode: epp.InFlight{Requests: 1, Tokens: 200 + 936}, answered: epp.InFlight{Requests: 1, Tokens: 200 + 936}},
		"a senseless ratio does not overflow": {mode: pd.ModeBypass, tokens: 64,
			charge: epp.Charge{Output: true, OutputRatio: 1e300},
			decode: epp.InFlight{Requests: 1, Tokens: 1 << 24}, answered: epp.InFlight{Requests: 1, Tokens: 1 << 24}},
		"a ratio without output counts nothing": {mode: pd.ModeBypass, tokens: 100, charge: epp.Charge{OutputRatio: 1.5},
			decode: epp.InFlight{Requests: 1, Tokens: 36}, answered: epp.InFlight{Requests: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			p, c := fleet("decode", "prefill"), disagg()
			c.Charge = tc.charge
			c.Matchers = []epp.Matcher{&caches{cached: map[string]int{"decode-0": 64, "prefill-1": 32}}}
			r := splitRequest(tc.tokens)
			r.Mode = tc.mode
			d := mustPick(t, scheduler(t, p, c), r)
			want := map[string]epp.InFlight{"decode-0": tc.decode}
			if tc.prefill != (epp.InFlight{}) {
				want["prefill-1"] = tc.prefill
			}
			if got := inFlight(p); !maps.Equal(got, want) {
				t.Errorf("charged %v, want %v", got, want)
			}
			d.Reservation.Answered()
			if got := inFlight(p); !maps.Equal(got, map[string]epp.InFlight{"decode-0": tc.answered}) {
				t.Errorf("when the answer has begun %v is charged, want %v", got, tc.answered)
			}
			d.Reservation.End()
			if got := inFlight(p); len(got) > 0 {
				t.Errorf("at the end %v is charged", got)
			}
		})
	}
}

// rival is a scorer that, in the first runs of a stage, charges every endpoint after the pick has read its load.
type rival struct {
	stage epp.Stage
	runs  int
	held  []*epp.Reservation
}

func (r *rival) Score(round *epp.Round, c []epp.Candidate, _ []float64) {
	if round.Stage != r.stage || r.runs == 0 {
		return
	}
	r.runs--
	for i := range c {
		r.held = append(r.held, epp.ReserveAnyway(epp.Claim{Endpoint: c[i].Endpoint, Add: epp.InFlight{Requests: 1}}))
	}
}

func TestLostRaces(t *testing.T) {
	for name, tc := range map[string]struct {
		stage             epp.Stage
		losses            int
		retries, outdated float64
	}{
		"none":                  {losses: 0},
		"decode once":           {stage: epp.StageDecode, losses: 1, retries: 1},
		"decode twice":          {stage: epp.StageDecode, losses: 2, retries: 2},
		"decode every time":     {stage: epp.StageDecode, losses: 3, retries: 2, outdated: 1},
		"prefill once":          {stage: epp.StagePrefill, losses: 1, retries: 1},
		"prefill every time":    {stage: epp.StagePrefill, losses: 3, retries: 2, outdated: 1},
		"more often than tries": {stage: epp.StageDecode, losses: 9, retries: 2, outdated: 1},
	} {
		t.Run(name, func(t *testing.T) {
			p, c, registry := fleet("decode", "decode", "prefill", "prefill"), disagg(), prometheus.NewPedanticRegistry()
			c.Metrics = sched.NewMetrics(registry)
			other := &rival{stage: tc.stage, runs: tc.losses}
			for i := range c.Profiles {
				c.Profiles[i].Scorers = append(c.Profiles[i].Scorers, epp.NamedScorer{Name: "rival", Weight: 1, Scorer: other})
			}
			d := mustPick(t, scheduler(t, p, c), splitRequest(100))
			retries, outdated := counted(t, registry, "tandem_pick_retries_total"), counted(t, registry, "tandem_pick_outdated_total")
			if retries != tc.retries || outdated != tc.outdated {
				t.Errorf("%v retries and %v outdated picks, want %v and %v", retries, outdated, tc.retries, tc.outdated)
			}
			if n := counted(t, registry, "tandem_pick_seconds"); n != 1 {
				t.Errorf("%v picks were timed, want 1", n)
			}
			for _, r := range other.held {
				r.End()
			}
			want := map[string]epp.InFlight{d.Endpoints(epp.StageDecode)[0].Name: {Requests: 1}, d.Endpoints(epp.StagePrefill)[0].Name: {Requests: 1, Tokens: 100}}
			if got := inFlight(p); !maps.Equal(got, want) {
				t.Errorf("charged %v, want %v", got, want)
			}
		})
	}
}

// TestRetryLooksAgain: a retried pick reads the loads anew, so it avoids the endpoint that another request took meanwhile.
func TestRetryLooksAgain(t *testing.T) {
	p, c := fleet("decode", "decode"), disagg()
	var taken *epp.Endpoint
	c.Profiles[0].Picker = picker(func(r *epp.Round, totals []float64, n int, dst []int) []int {
		dst = highest(1).Pick(r, totals, n, dst)
		if taken == nil {
			taken = p.Snapshot().Endpoints[dst[0]]
			epp.ReserveAnyway(epp.Claim{Endpoint: taken, Add: epp.InFlight{Requests: 5}})
		}
		return dst
	})
	r := splitRequest(10)
	r.Mode = pd.ModeBypass
	if d := mustPick(t, scheduler(t, p, c), r); d.Endpoints(epp.StageDecode)[0] == taken {
		t.Error("the pick stayed with the endpoint that was taken")
	}
}

// picker is a picker as a function.
type picker func(r *epp.Round, totals []float64, n int, dst []int) []int

func (picker) Endpoints() int { return 1 }

func (p picker) Pick(r *epp.Round, totals []float64, n int, dst []int) []int {
	return p(r, totals, n, dst)
}

// TestBurstSpreads: requests that come at once do not herd. A charge that was reserved went to one of the least loaded
// endpoints, because its load still was what the pick saw and loads only grow here, so the loads differ by one at most; each
// outdated pick may add one.
func TestBurstSpreads(t *testing.T) {
	for name, meanwhile := range map[string]func(){
		"as it comes":                          func() {},
		"all look before any of them reserves": runtime.Gosched,
	} {
		t.Run(name, func(t *testing.T) { testBurst(t, meanwhile) })
	}
}

func testBurst(t *testing.T, meanwhile func()) {
	const endpoints, perEndpoint = 8, 8
	p, c, registry := fleet(times(endpoints, "decode")...), disagg(), prometheus.NewPedanticRegistry()
	c.Metrics = sched.NewMetrics(registry)
	wait := by(func(*epp.Round, *epp.Candidate) float64 { meanwhile(); return 0 })
	c.Profiles[0].Scorers = append(c.Profiles[0].Scorers, epp.NamedScorer{Name: "wait", Scorer: wait})
	s := scheduler(t, p, c)
	start := make(chan struct{})
	var burst sync.WaitGroup
	for range endpoints * perEndpoint {
		burst.Go(func() {
			r := splitRequest(1000)
			r.Mode = pd.ModeBypass
			<-start
			if _, err := s.Pick(t.Context(), r); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	burst.Wait()

	var requests []int
	total := 0
	for _, f := range inFlight(p) {
		requests = append(requests, f.Requests)
		total += f.Requests
	}
	if total != endpoints*perEndpoint {
		t.Errorf("%d requests are charged, want %d", total, endpoints*perEndpoint)
	}
	outdated := int(counted(t, registry, "tandem_pick_outdated_total"))
	if outdated > total/4 {
		t.Errorf("%d of %d picks were outdated", outdated, total)
	}
	if len(requests) != endpoints || slices.Max(requests)-slices.Min(requests) > 1+outdated {
		t.Errorf("the burst went %v (%d outdated), want %d each", requests, outdated, perEndpoint)
	}
	if outdated == 0 && slices.Max(requests) != perEndpoint {
		t.Errorf("the burst went %v, want %d each", requests, perEndpoint)
	}
}

func TestLearning(t *testing.T) {
	gone := only(func(*epp.Round, *epp.Candidate) bool { return false })
	for name, tc := range map[string]struct {
		change func(*sched.Config, *epp.Request)
		want   []string
	}{
		"remote: both have it":           {func(*sched.Config, *epp.Request) {}, []string{"decode-0", "prefill-1"}},
		"local: decode has it":           {func(_ *sched.Config, r *epp.Request) { r.Mode = pd.ModeBypass }, []string{"decode-0"}},
		"no whole block: nothing to say": {func(_ *sched.Config, r *epp.Request) { r.Prompt.Blocks = nil }, nil},
		"cut for another configuration":  {func(_ *sched.Config, r *epp.Request) { r.Prompt.BlockTokens = 64 }, nil},
		"refused": {func(c *sched.Config, r *epp.Request) {
			c.Profiles[1].Filters, r.Mode = []epp.NamedFilter{{Name: "gone", Filter: gone}}, pd.ModeForce
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c, m, r := disagg(), &caches{cached: map[string]int{"decode-0": 16}}, splitRequest(100)
			c.Matchers = []epp.Matcher{m}
			tc.change(&c, r)
			s := scheduler(t, fleet("decode", "prefill"), c)
			if _, err := s.Explain(t.Context(), r); (err != nil) != (r.Mode == pd.ModeForce) || len(m.learnt) > 0 {
				t.Errorf("an explanation taught %v (%v)", m.learnt, err)
			}
			m.matched = 0
			d, _ := s.Pick(t.Context(), r)
			if !slices.Equal(m.learnt, tc.want) {
				t.Errorf("learnt %v, want %v", m.learnt, tc.want)
			}
			readable := len(r.Prompt.Blocks) > 0 && r.Prompt.BlockTokens == blockTokens
			if m.matched > 1 || (m.matched == 1) != readable {
				t.Errorf("matched %d times; the prompt can be matched: %t", m.matched, readable)
			} else if d != nil && (d.Cached > 0) != readable {
				t.Errorf("%d tokens are cached; the prompt can be matched: %t", d.Cached, readable)
			}
		})
	}
}
