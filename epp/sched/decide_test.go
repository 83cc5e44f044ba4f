package sched_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// verdict is the result for a request, by everything it depends on. An empty field stands for every value.
type verdict struct {
	mode    string // of modes
	fit     string // of fits
	decider string // remote, local, none
	prefill string // there; gone: no endpoint is left; self: only the decode endpoint; none: no stage
	refuse  string // onNoPrefill is refuse: yes, no
	want    string // verdict/reason, and "strict"
	missing string // the value of tandem_no_prefill_total's label that is counted; "" = none
}

// verdicts has exactly one row that fits each combination.
var verdicts = []verdict{
	{mode: "bypass", want: "local/bypassed"},

	{mode: "auto force;fallback force", fit: "doubted", want: "local/not-splittable"},
	{mode: "auto force;fallback", fit: "local", want: "local/not-splittable"},
	{mode: "force", fit: "local", want: "refused/not-splittable"},

	{mode: "force", fit: "split", prefill: "there", want: "remote/forced strict"},
	{mode: "force", fit: "split", prefill: "gone self", want: "refused/no-prefill", missing: "refused"},
	{mode: "force", fit: "split", prefill: "none", want: "refused/no-prefill"},

	{mode: "force;fallback", fit: "split", prefill: "there", want: "remote/forced"},
	{mode: "force;fallback", fit: "split", prefill: "gone self", want: "local/no-prefill", missing: "local"},
	{mode: "force;fallback", fit: "split", prefill: "none", want: "local/no-prefill"},

	{mode: "auto", fit: "split", prefill: "none", want: "local/no-prefill"},
	{mode: "auto", fit: "split", prefill: "there gone self", decider: "none", want: "local/below-threshold"},
	{mode: "auto", fit: "split", prefill: "there gone self", decider: "local", want: "local/short-prompt"},
	{mode: "auto", fit: "split", prefill: "there", decider: "remote", want: "remote/uncached"},
	{mode: "auto", fit: "split", decider: "remote", prefill: "gone self", refuse: "no",
		want: "local/no-prefill", missing: "local"},
	{mode: "auto", fit: "split", decider: "remote", prefill: "gone self", refuse: "yes",
		want: "refused/no-prefill", missing: "refused"},
}

var (
	modes = []pd.Mode{pd.ModeAuto, pd.ModeForce, pd.ModeForceFallback, pd.ModeBypass}
	fits  = map[string]request.Fit{"split": request.FitSplit, "local": request.FitLocal, "doubted": request.FitDoubted}
	pools = map[string][]string{
		"there": {"decode", "prefill"}, "gone": {"decode", "decode"}, "self": {"prefill-decode"}, "none": {"decode", "prefill"},
	}
)

func TestVerdicts(t *testing.T) {
	for _, mode := range modes {
		for fit := range fits {
			for _, decider := range []string{"remote", "local", "none"} {
				for prefill := range pools {
					for _, refuse := range []string{"yes", "no"} {
						t.Run(fmt.Sprintf("%s/%s/%s/%s/%s", mode, fit, decider, prefill, refuse), func(t *testing.T) {
							testVerdict(t, mode, fit, decider, prefill, refuse)
						})
					}
				}
			}
		}
	}
}

func testVerdict(t *testing.T, mode pd.Mode, fit, decider, prefill, refuse string) {
	row := verdictOf(t, mode.String(), fit, decider, prefill, refuse)
	p, asked := fleet(pools[prefill]...), &says{}
	registry := prometheus.NewPedanticRegistry()
	c := disagg()
	c.Metrics = sched.NewMetrics(registry)
	if refuse == "yes" {
		c.Stages[1].OnNone = epp.NoneRefuses
	}
	c.Stages[1].Decider.Decider = asked
	switch decider {
	case "remote":
		*asked = says{verdict: pd.Remote, reason: pd.Uncached}
	case "local":
		*asked = says{verdict: pd.Local, reason: pd.ShortPrompt}
	default:
		c.Stages[1].Decider.Decider = nil
	}
	if prefill == "none" {
		c.Stages = c.Stages[:1]
	}
	s := scheduler(t, p, c)
	r := splitRequest(100)
	r.Mode, r.Fit = mode, fits[fit]

	d, err := s.Pick(t.Context(), r)
	if got := outcome(d, err); got != row.want {
		t.Errorf("picked %s, want %s", got, row.want)
	}
	mayAsk := mode == pd.ModeAuto && fit == "split" && prefill != "none" && decider != "none"
	if (len(asked.asked) > 0) != mayAsk {
		t.Errorf("the decider was asked %d times; should it have been: %t", len(asked.asked), mayAsk)
	}
	checkMissing(t, registry, row.missing)
	checkCharges(t, p, d)

	explained, err := s.Explain(t.Context(), r)
	if got := outcome(explained, err); got != row.want {
		t.Errorf("explained %s, want %s", got, row.want)
	}
	if err != nil && (explained.Verdict != pd.Refused || explained.Reason != pd.AsRefusal(err).Reason) {
		t.Errorf("beside the refusal came %+v", explained)
	}
	told := explained.Trace.Deciders
	if named := len(told) == 1 && told[0].Decider == "always" && told[0].Stage == epp.StagePrefill; named != mayAsk || !named && len(told) > 0 {
		t.Errorf("the trace names deciders %v; was it asked: %t", told, mayAsk)
	}
}

// verdictOf returns the one row of verdicts that fits.
func verdictOf(t *testing.T, mode, fit, decider, prefill, refuse string) (row verdict) {
	t.Helper()
	fitting := 0
	for _, v := range verdicts {
		if among(v.mode, mode) && among(v.fit, fit) && among(v.decider, decider) && among(v.prefill, prefill) &&
			among(v.refuse, refuse) {
			fitting++
			row = v
		}
	}
	if fitting != 1 {
		t.Fatalf("%d rows of the table fit, want 1", fitting)
	}
	return row
}

func among(list, value string) bool {
	return list == "" || slices.Contains(strings.Fields(list), value)
}

func outcome(d *epp.Decision, err error) string {
	if err != nil {
		return "refused/" + string(pd.AsRefusal(err).Reason)
	}
	text := fmt.Sprintf("%s/%s", d.Verdict, d.Reason)
	if d.Strict {
		text += " strict"
	}
	return text
}

func checkMissing(t *testing.T, registry *prometheus.Registry, missing string) {
	t.Helper()
	for _, decision := range []string{"local", "refused"} {
		want := 0.0
		if decision == missing {
			want = 1
		}
		if got := counted(t, registry, "tandem_no_prefill_total", decision); got != want {
			t.Errorf("tandem_no_prefill_total{decision=%q} is %v, want %v", decision, got, want)
		}
	}
}

// checkCharges ends the reservation and sees that it was there, and that nothing is left.
func checkCharges(t *testing.T, p *pool, d *epp.Decision) {
	t.Helper()
	if d == nil {
		if left := inFlight(p); len(left) > 0 {
			t.Errorf("a refused request is charged: %v", left)
		}
		return
	}
	charged := inFlight(p)
	if got, want := len(charged), 1+min(1, len(d.Endpoints(epp.StagePrefill))); got != want {
		t.Errorf("%d endpoints are charged, want %d: %v", got, want, charged)
	}
	d.Reservation.End()
	if left := inFlight(p); len(left) > 0 {
		t.Errorf("after its end a request is charged: %v", left)
	}
}

func TestDeciderSeesThePromptOnTheDecodeEndpoint(t *testing.T) {
	for name, tc := range map[string]struct {
		cached int
		want   prompt
	}{
		"a part is cached":           {64, prompt{Tokens: 100, Cached: 64}},
		"nothing is cached":          {0, prompt{Tokens: 100}},
		"more is said to be cached":  {112, prompt{Tokens: 100, Cached: 100}},
		"all of the prompt is there": {100, prompt{Tokens: 100, Cached: 100}},
	} {
		t.Run(name, func(t *testing.T) {
			decider := &says{verdict: pd.Local, reason: pd.BelowThreshold}
			c := disagg()
			c.Matchers = []epp.Matcher{&caches{cached: map[string]int{"decode-1": tc.cached, "prefill-0": 5}}}
			c.Stages[1].Decider.Decider = decider
			d := mustPick(t, scheduler(t, fleet("prefill", "decode"), c), splitRequest(100))
			if len(decider.asked) != 1 || decider.asked[0] != tc.want || (prompt{d.Tokens, d.Cached}) != tc.want {
				t.Errorf("the decider was asked %v, the decision says %v, want %v", decider.asked, prompt{d.Tokens, d.Cached}, tc.want)
			}
		})
	}
}

func TestRefusalsSayWhatIsMissing(t *testing.T) {
	dropAll := only(func(*epp.Round, *epp.Candidate) bool { return false })
	for name, tc := range map[string]struct {
		pool    []string
		subset  *epp.Subset
		filters []epp.NamedFilter
		want    string
	}{
		"empty pool": {want: "no endpoints"},
		"subset of others": {pool: []string{"decode"}, subset: epp.NewSubset("192.0.2.1:1"),
			want: "names no endpoint of the pool"},
		"empty pool, subset": {subset: epp.NewSubset("192.0.2.1:1"), want: "The pool has no endpoints"},
		"empty subset":       {pool: []string{"decode"}, subset: epp.NewSubset(), want: "names no endpoint of the pool"},
		"no decode role": {pool: []string{"prefill", "encode"},
			want: "None of the 2 endpoints that this request may go to serves"},
		"filter drops all": {pool: []string{"prefill", "decode"}, filters: []epp.NamedFilter{{Name: "drop-all", Filter: dropAll}},
			want: `1 serve decode, and filter "drop-all" left none`},
		"the picker is shy": {pool: []string{"decode"},
			want: "None of the 1 endpoints that this request may go to was picked"},
		"no decode, by port": {pool: []string{"decode"}, subset: epp.NewSubset("10.0.0.0:8001"), want: "subset"},
	} {
		t.Run(name, func(t *testing.T) {
			c := disagg()
			c.Profiles[0].Filters = append(c.Profiles[0].Filters, tc.filters...)
			if name == "the picker is shy" {
				c.Profiles[0].Picker = shy{}
			}
			r := splitRequest(10)
			r.Subset = tc.subset
			d, err := scheduler(t, fleet(tc.pool...), c).Pick(t.Context(), r)
			refusal := pd.AsRefusal(err)
			if err == nil || d != nil || refusal.Reason != pd.NoEndpoint || !strings.Contains(refusal.Message, tc.want) {
				t.Errorf("got %v and %v, want no-endpoint with %q", d, err, tc.want)
			}
		})
	}
}

// shy is a picker that picks no endpoint.
type shy struct{}

func (shy) Endpoints() int { return 1 }

func (shy) Pick(_ *epp.Round, _ []float64, _ int, dst []int) []int { return dst }

func TestUnconfiguredRefuses(t *testing.T) {
	s := sched.New(fleet("decode"), epp.SystemClock)
	_, picked := s.Pick(t.Context(), splitRequest(1))
	_, explained := s.Explain(t.Context(), splitRequest(1))
	for _, err := range []error{picked, explained} {
		if refusal := pd.AsRefusal(err); err == nil || refusal.Reason != pd.NoEndpoint {
			t.Errorf("got %v, want no-endpoint", err)
		}
	}
	if spec := s.Needs(); spec != (epp.PromptSpec{}) {
		t.Errorf("without a pipeline blocks are wanted: %v", spec)
	}
}

// TestIfAvailable: a client may ask to be refused rather than served without a cache. Such a refusal reserves nothing and teaches
// the prefix index nothing, or the next such request would find a cache that does not exist.
func TestIfAvailable(t *testing.T) {
	for _, c := range []struct {
		name    string
		cached  int // tokens on the only decode endpoint
		blind   bool
		asks    bool
		refused bool
	}{
		{"a block is cached", blockTokens, false, true, false},
		{"nothing is cached", 0, false, true, true},
		{"nothing is known of caches", 0, true, true, true},
		{"nothing is cached, and any endpoint will do", 0, false, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, m, cfg := fleet("decode", "prefill"), &caches{cached: map[string]int{"decode-0": c.cached, "prefill-1": 64}}, disagg()
			if !c.blind {
				cfg.Matchers = []epp.Matcher{m}
			}
			s, r := scheduler(t, p, cfg), splitRequest(100)
			r.IfAvailable = c.asks
			d, err := s.Pick(t.Context(), r)
			if refused := err != nil; refused != c.refused || refused && pd.AsRefusal(err).Reason != pd.NotCached {
				t.Fatalf("got %v, want a refusal: %v", err, c.refused)
			}
			if !c.refused {
				d.Reservation.End()
				return
			}
			if left := inFlight(p); len(left) > 0 || len(m.learnt) > 0 {
				t.Errorf("a refused request has reserved %v and taught %v", left, m.learnt)
			}
		})
	}
}
