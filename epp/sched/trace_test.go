package sched_test

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
)

// lines returns a stage for people: one line for each candidate.
func lines(s epp.StageTrace) (all []string) {
	for _, c := range s.Candidates {
		all = append(all, strings.TrimPrefix(c.Endpoint, "default/")+": "+c.Why)
	}
	return all
}

// inTurn draws nothing: of equals the earlier is first.
type inTurn struct{ highest }

func (p inTurn) Pick(_ *epp.Round, totals []float64, n int, dst []int) []int {
	order := make([]int, len(totals))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(math.Round(100 * (totals[b] - totals[a]))) })
	return append(dst, order[:min(n, len(order))]...)
}

// backwards is a picker that does not go by totals: the last is first.
type backwards struct{ highest }

func (backwards) Pick(_ *epp.Round, totals []float64, n int, dst []int) []int {
	for i := range min(n, len(totals)) {
		dst = append(dst, len(totals)-1-i)
	}
	return dst
}

// raffle is a picker that says it draws.
type raffle struct{ epp.Picker }

func (raffle) Draws() {}

func TestWhy(t *testing.T) {
	queue := ratings{"decode-0": 0.5, "decode-1": 1, "decode-2": 1, "decode-3": 0.2}
	cache := ratings{"decode-0": 0.9, "decode-1": 0.1, "decode-2": 0.1, "decode-3": 1}
	scorers := []epp.NamedScorer{
		{Name: "queue-scorer", Weight: 2, Scorer: queue},
		{Name: "prefix-cache-scorer", Weight: 1, Scorer: cache},
	}
	byRole := []epp.NamedFilter{{Name: "decode-filter", Filter: role(pd.RoleDecode)}}
	picky := only(func(_ *epp.Round, c *epp.Candidate) bool { return c.Name == "decode-3" })
	for name, tc := range map[string]struct {
		pool    []string
		profile epp.Profile
		want    []string
	}{
		"one choice": {[]string{"decode", "decode", "decode", "decode", "prefill", "nonsense"},
			epp.Profile{Filters: byRole, Scorers: scorers, Picker: inTurn{1}},
			[]string{
				"decode-1: chosen: highest total 2.10 of 4, tied with 1; the tie was broken at random",
				"decode-2: tied with the chosen one; the tie was broken at random",
				"decode-0: total 1.90 is 0.2 below the chosen one; mostly queue-scorer",
				"decode-3: total 1.40 is 0.7 below the chosen one; mostly queue-scorer",
				"prefill-4: dropped by decode-filter: its role is prefill",
				"nonsense-5: dropped by decode-filter: its role is none",
			}},
		"several choices": {[]string{"decode", "decode", "decode", "decode"},
			epp.Profile{Scorers: scorers, Picker: inTurn{3}},
			[]string{
				"decode-1: chosen: highest total 2.10 of 4, tied with 1; the tie was broken at random",
				"decode-2: choice 2 of 3: total 2.10, tied with choice 1; the tie was broken at random",
				"decode-0: choice 3 of 3: total 1.90 is 0.2 below the first; mostly queue-scorer",
				"decode-3: total 1.40 is 0.7 below the chosen one; mostly queue-scorer",
			}},
		"two of three equals": {[]string{"decode", "decode", "decode"}, epp.Profile{Picker: inTurn{2}},
			[]string{
				"decode-0: chosen: picked at random among 3 candidates, as the profile has no scorers",
				"decode-1: choice 2 of 2: picked at random among 3 candidates, as the profile has no scorers",
				"decode-2: tied with choice 2; the tie was broken at random",
			}},
		"the best is clear": {[]string{"decode", "decode"}, epp.Profile{Scorers: scorers[:1], Picker: inTurn{1}},
			[]string{
				"decode-1: chosen: highest total 2.00 of 2",
				"decode-0: total 1.00 is 1 below the chosen one; mostly queue-scorer",
			}},
		"only one": {[]string{"decode", "decode", "decode", "decode"},
			epp.Profile{Filters: []epp.NamedFilter{{Name: "picky", Filter: picky}}, Scorers: scorers, Picker: inTurn{1}},
			[]string{
				"decode-3: chosen: the only candidate left",
				"decode-0: dropped by picky",
				"decode-1: dropped by picky",
				"decode-2: dropped by picky",
			}},
		"a picker with a mind of its own": {[]string{"decode", "decode", "decode", "decode"},
			epp.Profile{Scorers: scorers, Picker: backwards{2}},
			[]string{
				"decode-3: chosen: total 1.40, where the highest of 4 is 2.10; the picker does not go by totals alone",
				"decode-2: choice 2 of 2: highest total 2.10 of 4, tied with 1; the tie was broken at random",
				"decode-1: tied with choice 2; the tie was broken at random",
				"decode-0: total 1.90 is 0.5 above the chosen one; the picker does not go by totals alone",
			}},
		"a picker that draws": {[]string{"decode", "decode", "decode", "decode"},
			epp.Profile{Scorers: scorers, Picker: raffle{inTurn{2}}},
			[]string{
				"decode-1: chosen: picked at random among 4 candidates; total 2.10",
				"decode-2: choice 2 of 2: picked at random among 4 candidates; total 2.10",
				"decode-0: not picked, which was at random; total 1.90",
				"decode-3: not picked, which was at random; total 1.40",
			}},
		"a draw of one": {[]string{"decode"}, epp.Profile{Scorers: scorers, Picker: raffle{inTurn{1}}},
			[]string{"decode-0: chosen: the only candidate left"}},
		"another filter drops a role too": {[]string{"prefill", "decode", "decode", "decode"},
			epp.Profile{Filters: []epp.NamedFilter{{Name: "picky", Filter: picky}}, Picker: inTurn{1}},
			[]string{
				"decode-3: chosen: the only candidate left",
				"prefill-0: dropped by picky",
				"decode-1: dropped by picky",
				"decode-2: dropped by picky",
			}},
		"a filter that says why": {[]string{"prefill", "decode", "decode", "decode"},
			epp.Profile{Filters: []epp.NamedFilter{byRole[0], {Name: "outspoken", Filter: outspoken{picky}}}, Picker: inTurn{1}},
			[]string{
				"decode-3: chosen: the only candidate left",
				"prefill-0: dropped by decode-filter: its role is prefill",
				"decode-1: dropped by outspoken: decode-1 is one of 3, of which 1 is left",
				"decode-2: dropped by outspoken: decode-2 is one of 3, of which 1 is left",
			}},
		"the role does not matter": {[]string{"prefill", "prefill", "decode"},
			epp.Profile{Filters: []epp.NamedFilter{{Name: "not the first", Filter: only(func(_ *epp.Round, c *epp.Candidate) bool {
				return c.Name != "prefill-0"
			})}}, Scorers: scorers[:1], Picker: inTurn{1}},
			[]string{
				"decode-2: chosen: highest total 2.00 of 2",
				"prefill-1: total 0.00 is 2 below the chosen one; mostly queue-scorer",
				"prefill-0: dropped by not the first",
			}},
		"none picked": {[]string{"decode"}, epp.Profile{Scorers: scorers, Picker: shy{}},
			[]string{"decode-0: the picker chose no endpoint"}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.profile.Name = "mine"
			c := sched.Config{Profiles: []epp.Profile{tc.profile}, Stages: epp.Stages{epp.DecodeRow("mine")}, Stale: time.Second}
			s := scheduler(t, fleet(tc.pool...), c)
			d, err := s.Explain(t.Context(), splitRequest(10))
			if d == nil || len(d.Trace.Stages) != 1 {
				t.Fatalf("explained %+v (%v)", d, err)
			}
			if got := lines(d.Trace.Stages[0]); !slices.Equal(got, tc.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

// TestWhyUnreachable: one candidate that refuses connections, and so has no scores, does not change what is said of the others.
func TestWhyUnreachable(t *testing.T) {
	rated := ratings{"decode-0": 0.5, "decode-1": 1, "decode-2": 1}
	profile := epp.Profile{Name: "mine", Picker: inTurn{1},
		Scorers: []epp.NamedScorer{{Name: "queue-scorer", Weight: 1, Scorer: rated}}}
	pool := fleet("decode", "decode", "decode")
	pool.Snapshot().Loads[2].Unreachable = true
	c := sched.Config{Profiles: []epp.Profile{profile}, Stages: epp.Stages{epp.DecodeRow("mine")}, Stale: time.Second}
	d, err := scheduler(t, pool, c).Explain(t.Context(), splitRequest(10))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"decode-1: chosen: highest total 1.00 of 3",
		"decode-0: total 0.50 is 0.5 below the chosen one; mostly queue-scorer",
		"decode-2: unreachable, so it comes last",
	}
	if got := lines(d.Trace.Stages[0]); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestWhyAllUnreachable: the explanation tells why a request that should go remote stays local.
func TestWhyAllUnreachable(t *testing.T) {
	pool := fleet("decode", "prefill", "prefill")
	pool.Snapshot().Loads[1].Unreachable, pool.Snapshot().Loads[2].Unreachable = true, true
	d, err := scheduler(t, pool, disagg()).Explain(t.Context(), splitRequest(1000))
	if err != nil {
		t.Fatal(err)
	}
	got := lines(d.Trace.Stages[1])
	for _, want := range []string{"prefill-1: unreachable, as all others are", "prefill-2: unreachable, as all others are"} {
		if !slices.Contains(got, want) {
			t.Errorf("got\n%s\nwant a line %q", strings.Join(got, "\n"), want)
		}
	}
	if d.Verdict != pd.Local || d.Reason != pd.NoPrefill {
		t.Errorf("%s, %s", d.Verdict, d.Reason)
	}
}

// TestTrace sees that an explanation has all the numbers, as JSON has them.
func TestTrace(t *testing.T) {
	p := fleet("prefill-decode", "decode", "prefill", "decode")
	s := p.Snapshot()
	s.Loads[0] = epp.Load{}
	s.Loads[1] = epp.Load{At: time.Now(), Signals: epp.Values{}.With(epp.Waiting, 3)}
	s.Loads[2] = epp.Load{At: time.Now().Add(-time.Hour), Signals: epp.Values{}.With(epp.Running, 5).With(epp.KVUsage, 0.25)}
	epp.ReserveAnyway(epp.Claim{Endpoint: s.Endpoints[1], Add: epp.InFlight{Requests: 2, Tokens: 70}})
	c := disagg()
	c.Matchers = []epp.Matcher{&caches{cached: map[string]int{"prefill-decode-0": 48}}}
	c.Profiles[1].Scorers[0].Weight = 3
	r := splitRequest(100)
	r.Subset = epp.NewSubset("10.0.0.0:8000", "10.0.0.1", "10.0.0.2:8000")

	d, err := scheduler(t, p, c).Explain(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	trace := *d.Trace
	if trace.Snapshot != 7 || len(trace.Deciders) != 1 || trace.Deciders[0].Decider != "always" || len(trace.Stages) != 2 ||
		!slices.Equal(trace.Outside, []string{"default/decode-3"}) {
		t.Fatalf("the trace is %+v", trace)
	}
	want := []string{
		`{"stage":"decode","profile":"decode","candidates":[` +
			`{"endpoint":"default/prefill-decode-0","address":"10.0.0.0:8000","role":"prefill-decode","chosen":1,"why":"chosen: highest total 1.00 of 2",` +
			`"total":1,"scores":[{"scorer":"idle","weight":1,"score":1}],"signals":{"waiting":null,"delayed":null,"running":null,"kv_usage":null,"kv_read_tokens":null,"kv_read_seconds":null},"load_age_seconds":-1,` +
			`"inflight_requests":0,"inflight_tokens":0,"cached_tokens":48},` +
			`{"endpoint":"default/decode-1","address":"10.0.0.1:8000","role":"decode","chosen":0,"why":"total 0.33 is 0.667 below the chosen one; mostly idle",` +
			`"total":0.3333333333333333,"scores":[{"scorer":"idle","weight":1,"score":0.3333333333333333}],"signals":{"waiting":3,"delayed":null,"running":null,"kv_usage":null,"kv_read_tokens":null,"kv_read_seconds":null},` +
			`"load_age_seconds":0,"inflight_requests":2,"inflight_tokens":70,"cached_tokens":0},` +
			`{"endpoint":"default/prefill-2","address":"10.0.0.2:8000","role":"prefill","chosen":0,"dropped_by":"decode-filter",` +
			`"why":"dropped by decode-filter: its role is prefill","total":0,"signals":{"waiting":null,"delayed":null,"running":5,"kv_usage":0.25,"kv_read_tokens":null,"kv_read_seconds":null},"load_age_seconds":3600,` +
			`"inflight_requests":0,"inflight_tokens":0,"cached_tokens":0}]}`,
		`{"stage":"prefill","profile":"prefill","candidates":[` +
			`{"endpoint":"default/prefill-2","address":"10.0.0.2:8000","role":"prefill","chosen":1,"why":"chosen: the only candidate left",` +
			`"total":3,"scores":[{"scorer":"idle","weight":3,"score":1}],"signals":{"waiting":null,"delayed":null,"running":5,"kv_usage":0.25,"kv_read_tokens":null,"kv_read_seconds":null},"load_age_seconds":3600,` +
			`"inflight_requests":0,"inflight_tokens":0,"cached_tokens":0},` +
			`{"endpoint":"default/prefill-decode-0","address":"10.0.0.0:8000","role":"prefill-decode","chosen":0,"dropped_by":"decode-endpoint-itself",` +
			`"why":"it is the decode endpoint itself","total":0,"signals":{"waiting":null,"delayed":null,"running":null,"kv_usage":null,"kv_read_tokens":null,"kv_read_seconds":null},"load_age_seconds":-1,` +
			`"inflight_requests":0,"inflight_tokens":0,"cached_tokens":48},` +
			`{"endpoint":"default/decode-1","address":"10.0.0.1:8000","role":"decode","chosen":0,"dropped_by":"prefill-filter",` +
			`"why":"dropped by prefill-filter: its role is decode","total":0,"signals":{"waiting":3,"delayed":null,"running":null,"kv_usage":null,"kv_read_tokens":null,"kv_read_seconds":null},"load_age_seconds":0,` +
			`"inflight_requests":2,"inflight_tokens":70,"cached_tokens":0}]}`,
	}
	for i, stage := range trace.Stages {
		for j := range stage.Candidates {
			stage.Candidates[j].LoadAge = math.Floor(stage.Candidates[j].LoadAge)
		}
		got, err := json.Marshal(stage)
		if err != nil || string(got) != want[i] {
			t.Errorf("stage %d (%v):\n%s\nwant\n%s", i, err, got, want[i])
		}
	}
}

// TestTraceOfRefusals: a refusal comes with the trace up to it.
func TestTraceOfRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		pool   []string
		stages int
		decode int
	}{
		"empty pool":  {nil, 1, 0},
		"no decode":   {[]string{"prefill"}, 1, 0},
		"no prefill":  {[]string{"decode", "decode"}, 2, 1},
		"only itself": {[]string{"prefill-decode"}, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := splitRequest(100)
			r.Mode = pd.ModeForce
			d, err := scheduler(t, fleet(tc.pool...), disagg()).Explain(t.Context(), r)
			if err == nil || d == nil || d.Verdict != pd.Refused || d.Reason != pd.AsRefusal(err).Reason {
				t.Fatalf("explained %+v with %v", d, err)
			}
			if len(d.Trace.Stages) != tc.stages || len(d.Endpoints(epp.StageDecode)) != tc.decode || d.Tokens != 100 {
				t.Errorf("explained %+v, want %d stages and %d decode endpoints", d, tc.stages, tc.decode)
			}
			for _, stage := range d.Trace.Stages {
				if len(stage.Candidates) != len(tc.pool) {
					t.Errorf("stage %s tells of %d candidates, want all %d", stage.Stage, len(stage.Candidates), len(tc.pool))
				}
			}
			text, err := json.Marshal(d.Trace)
			if err != nil || strings.Contains(string(text), `"candidates":null`) || strings.Contains(string(text), `"outside_subset":null`) {
				t.Errorf("the trace as JSON: %s (%v)", text, err)
			}
		})
	}
}
