package sched_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
)

// encoding is disagg with a third stage that no type of ours knows: it runs after prefill, and not on the endpoint that
// decodes.
func encoding(decider epp.Decider, on epp.OnNone) sched.Config {
	c := disagg()
	c.Profiles = append(c.Profiles, epp.Profile{Name: "encode-images",
		Filters: []epp.NamedFilter{{Name: "encode-filter", Filter: role(pd.RoleEncode)}},
		Scorers: []epp.NamedScorer{{Name: "idle", Weight: 1, Scorer: idle}}, Picker: highest(1)})
	c.Stages = append(c.Stages, epp.StageRow{Stage: "encode", Profile: "encode-images", Role: pd.RoleEncode, Endpoints: 2,
		Excludes: []epp.Stage{epp.StageDecode}, Decider: epp.NamedDecider{Name: "has-images", Decider: decider}, OnNone: on,
		Header: "x-encoder-hosts-ports"})
	return c
}

func TestThirdStage(t *testing.T) {
	images := &says{verdict: pd.Remote, reason: pd.Always}
	p := fleet("encode-prefill-decode", "prefill", "encode", "encode")
	c := encoding(images, epp.NoneSkips)
	// Decode goes to the endpoint of all roles, which then is no candidate of the two other stages.
	s := scheduler(t, p, c)
	r := splitRequest(100)
	d := mustPick(t, s, r)
	for stage, want := range map[epp.Stage][]string{"decode": {"encode-prefill-decode-0"}, "prefill": {"prefill-1"}, "encode": {"encode-2", "encode-3"}} {
		got := names(d.Endpoints(stage))
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("the %s stage has %v, want %v", stage, got, want)
		}
	}
	encoder := d.Endpoints("encode")[0]
	want := map[string]epp.InFlight{"encode-prefill-decode-0": {Requests: 1}, "prefill-1": {Requests: 1, Tokens: 100}, encoder.Name: {Requests: 1}}
	checkLoad(t, p, "picked", want)
	plan := d.Plan()
	plan.ID = "0123456789abcdef"
	if got, want := plan.String(), "remote;id=0123456789abcdef;reason=always;strict=0;epp=0;stage-encode=always"; got != want {
		t.Errorf("plan %s, want %s", got, want)
	}
	d.Reservation.Answered()
	checkLoad(t, p, "answered", map[string]epp.InFlight{"encode-prefill-decode-0": {Requests: 1}})
	d.Reservation.End()
	checkLoad(t, p, "ended", map[string]epp.InFlight{})

	explained, err := s.Explain(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	trace := explained.Trace
	if len(trace.Stages) != 3 || trace.Stages[2].Stage != "encode" || trace.Stages[2].Profile != "encode-images" {
		t.Fatalf("the trace tells of %+v", trace.Stages)
	}
	told := lines(trace.Stages[2])
	slices.Sort(told)
	if want := "encode-prefill-decode-0: it is the decode endpoint itself"; told[2] != want && !slices.Contains(told, want) {
		t.Errorf("the trace says %q, want %q in it", told, want)
	}
	if want := "prefill-1: dropped by encode-filter: its role is prefill"; !slices.Contains(told, want) {
		t.Errorf("the trace says %q, want %q in it", told, want)
	}
	if len(trace.Stages[2].Candidates[0].Scores) != 1 || trace.Stages[2].Candidates[0].Chosen != 1 {
		t.Errorf("the first candidate is %+v", trace.Stages[2].Candidates[0])
	}
	if len(trace.Deciders) != 2 || trace.Deciders[1].Stage != "encode" || trace.Deciders[1].Decider != "has-images" {
		t.Errorf("deciders %+v", trace.Deciders)
	}
	text, err := json.Marshal(epp.Explain(r, explained, nil))
	for _, want := range []string{`{"stage":"encode","endpoints":["10.0.0.`, `"x-encoder-hosts-ports":"10.0.0.`, `stage-encode=always`} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("the explanation %s, %v does not have %s", text, err, want)
		}
	}
	checkLoad(t, p, "explained", map[string]epp.InFlight{})
}

// TestAsManyAsThePickerChooses: a stage that does not split requests gets as many endpoints as its profile's picker chooses.
func TestAsManyAsThePickerChooses(t *testing.T) {
	for endpoints, want := range map[int]int{1: 1, 3: 3, 40: pd.MaxTargets} {
		roles := []string{"decode"}
		for range 2 * pd.MaxTargets {
			roles = append(roles, "encode")
		}
		c := encoding(always{}, epp.NoneSkips)
		c.Profiles[2].Picker = highest(endpoints)
		c.Stages[2].Endpoints = 0
		d := mustPick(t, scheduler(t, fleet(roles...), c), splitRequest(100))
		if got := len(d.Endpoints("encode")); got != want {
			t.Errorf("the picker chooses %d: %d endpoints, want %d", endpoints, got, want)
		}
	}
}

func checkLoad(t *testing.T, p *pool, when string, want map[string]epp.InFlight) {
	t.Helper()
	got := inFlight(p)
	if len(got) != len(want) {
		t.Errorf("%s: %v in flight, want %v", when, got, want)
	}
	for name, load := range want {
		if got[name] != load {
			t.Errorf("%s: %s has %v in flight, want %v", when, name, got[name], load)
		}
	}
}

func TestThirdStageRunsAsItsDeciderSays(t *testing.T) {
	full := only(func(*epp.Round, *epp.Candidate) bool { return false })
	for name, tc := range map[string]struct {
		pool    []string
		decider epp.Decider
		on      epp.OnNone
		filter  epp.Filter
		want    string
	}{
		"wanted":                    {[]string{"decode", "encode"}, always{}, epp.NoneSkips, nil, "encode-1"},
		"not wanted":                {[]string{"decode", "encode"}, never{}, epp.NoneSkips, nil, ""},
		"no decider":                {[]string{"decode", "encode"}, nil, epp.NoneSkips, nil, "encode-1"},
		"none, skipped":             {[]string{"decode"}, always{}, epp.NoneSkips, nil, ""},
		"none, within the budget":   {[]string{"decode"}, always{}, epp.NoneSkipsWithinBudget, nil, ""},
		"none, refused":             {[]string{"decode"}, always{}, epp.NoneRefuses, nil, "refused/no-endpoint"},
		"filtered, refused":         {[]string{"decode", "encode"}, always{}, epp.NoneRefuses, full, "refused/no-endpoint"},
		"full, refused":             {[]string{"decode", "encode"}, always{}, epp.NoneRefuses, gauge{"encode-1": true}, "refused/saturated"},
		"full, skipped":             {[]string{"decode", "encode"}, always{}, epp.NoneSkips, gauge{"encode-1": true}, ""},
		"not wanted, though absent": {[]string{"decode"}, never{}, epp.NoneRefuses, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := encoding(tc.decider, tc.on)
			c.Stages = slices.Delete(c.Stages, 1, 2)
			c.Profiles = slices.Delete(c.Profiles, 1, 2)
			if tc.filter != nil {
				c.Profiles[1].Filters = append(c.Profiles[1].Filters, epp.NamedFilter{Name: "more", Filter: tc.filter})
			}
			d, err := scheduler(t, fleet(tc.pool...), c).Pick(t.Context(), splitRequest(100))
			got := ""
			switch {
			case err != nil:
				got = pd.AsRefusal(err).Result().String()
				got = strings.Replace(got, ";reason=", "/", 1)
			case len(d.Endpoints("encode")) > 0:
				got = d.Endpoints("encode")[0].Name
			}
			if got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// weighs is a Comparer that goes remote if a candidate's link is quick.
type weighs struct{ asked []epp.Alternatives }

func (w *weighs) Compares() {}

func (w *weighs) Decide(a *epp.Alternatives) epp.Ruling {
	seen, round := *a, *a.Round
	seen.Round = &round
	seen.Local, seen.Remote, seen.Links = slices.Clone(a.Local), slices.Clone(a.Remote), slices.Clone(a.Links)
	w.asked = append(w.asked, seen)
	ruling := epp.Ruling{Verdict: pd.Local, Reason: pd.BelowThreshold, Costs: []epp.Cost{{Verdict: pd.Local, Endpoint: a.Local[0].Endpoint, Time: time.Second}}}
	for i, c := range a.Remote {
		cost := time.Duration(float64(a.Tokens) / a.Links[i].BytesPerSecond * float64(time.Second))
		ruling.Costs = append(ruling.Costs, epp.Cost{Verdict: pd.Remote, Endpoint: c.Endpoint, Time: cost})
		if a.Links[i].Known && cost < time.Second {
			ruling.Verdict, ruling.Reason = pd.Remote, pd.Uncached
		}
	}
	return ruling
}

// wire is a link of the same speed everywhere.
type wire float64

func (w wire) Link(_, _ *epp.Endpoint) epp.Link {
	return epp.Link{Known: true, BytesPerSecond: float64(w)}
}

func TestComparerSeesTheAlternatives(t *testing.T) {
	for name, tc := range map[string]struct {
		links   epp.LinkEstimator
		pool    []string
		verdict pd.Verdict
		stages  int // of the trace
	}{
		"quick":        {wire(1000), []string{"decode", "prefill", "prefill"}, pd.Remote, 2},
		"slow":         {wire(10), []string{"decode", "prefill", "prefill"}, pd.Local, 2},
		"not known":    {nil, []string{"decode", "prefill", "prefill"}, pd.Local, 2},
		"none to rank": {wire(1000), []string{"decode"}, pd.Local, 2},
	} {
		t.Run(name, func(t *testing.T) {
			decider := &weighs{}
			c := disagg()
			c.Links = tc.links
			c.Stages[1].Decider = epp.NamedDecider{Name: "weighs", Decider: decider}
			p := fleet(tc.pool...)
			s := scheduler(t, p, c)
			d := mustPick(t, s, splitRequest(100))
			if d.Verdict != tc.verdict || (len(d.Endpoints(epp.StagePrefill)) > 0) != (tc.verdict == pd.Remote) {
				t.Errorf("%s with prefill endpoints %v", d.Verdict, names(d.Endpoints(epp.StagePrefill)))
			}
			asked := decider.asked[0]
			if asked.Stage != epp.StagePrefill || asked.Tokens != 100 || asked.Local[0].Name != "decode-0" ||
				len(asked.Remote) != len(tc.pool)-1 || len(asked.Links) != len(tc.pool)-1 || len(decider.asked) != 1 {
				t.Errorf("asked %+v", asked)
			}
			for i := range asked.Remote {
				if asked.Remote[i].Load == nil || asked.Links[i].Known != (tc.links != nil) {
					t.Errorf("candidate %d is %+v by %+v", i, asked.Remote[i], asked.Links[i])
				}
			}
			if len(d.Costs) != len(tc.pool) {
				t.Errorf("costs %+v", d.Costs)
			}
			d.Reservation.End()
			explained, err := s.Explain(t.Context(), splitRequest(100))
			if err != nil || len(explained.Trace.Stages) != tc.stages || len(explained.Trace.Deciders[0].Costs) != len(tc.pool) {
				t.Errorf("explained %+v, %v", explained.Trace, err)
			}
		})
	}
}

// Costs are counted by choice, of requests that had one.
func TestCostsAreCounted(t *testing.T) {
	for name, tc := range map[string]struct {
		links                         wire
		pool                          []string
		local, remote, taken          float64
		computedLocally, computedElse float64
	}{
		"quick":     {1000, []string{"decode", "prefill", "prefill"}, 1, 0.1, 0.1, 0, 1},
		"slow":      {10, []string{"decode", "prefill"}, 1, 10, 1, 1, 0},
		"no choice": {1000, []string{"decode"}, 0, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c, registry := disagg(), prometheus.NewRegistry()
			c.Links, c.Metrics = tc.links, sched.NewMetrics(registry)
			c.Stages[1].Decider = epp.NamedDecider{Name: "weighs", Decider: &weighs{}}
			s := scheduler(t, fleet(tc.pool...), c)
			mustPick(t, s, splitRequest(100)).Reservation.End()
			if _, err := s.Explain(t.Context(), splitRequest(100)); err != nil { // which is not counted: nothing is sent
				t.Fatal(err)
			}
			for choice, want := range map[string]float64{"local": tc.local, "remote": tc.remote, "taken": tc.taken} {
				if got := counted(t, registry, "tandem_compared_cost_seconds_total", choice); got != want {
					t.Errorf("%s: %v s, want %v", choice, got, want)
				}
			}
			for decision, want := range map[string]float64{"local": tc.computedLocally, "remote": tc.computedElse} {
				if got := counted(t, registry, "tandem_compared_tokens", decision); got != want {
					t.Errorf("%s: %v requests, want %v", decision, got, want)
				}
			}
		})
	}
}

func TestForcedRequestsAskNoComparer(t *testing.T) {
	decider := &weighs{}
	c := disagg()
	c.Stages[1].Decider.Decider = decider
	r := splitRequest(100)
	r.Mode = pd.ModeForce
	if d := mustPick(t, scheduler(t, fleet("decode", "prefill"), c), r); len(decider.asked) > 0 || len(d.Endpoints(epp.StagePrefill)) != 1 {
		t.Errorf("asked %d times, prefill %v", len(decider.asked), names(d.Endpoints(epp.StagePrefill)))
	}
}

func TestStagesAreChecked(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(s epp.Stages) epp.Stages
		want   string
	}{
		"none":           {func(epp.Stages) epp.Stages { return nil }, "there are no stages"},
		"twice":          {func(s epp.Stages) epp.Stages { s[2].Stage = "prefill"; return s }, "several rows for the prefill stage"},
		"two that split": {func(s epp.Stages) epp.Stages { s[2].Split = true; return s }, "the encode stage splits requests, and so does one before it"},
		"excludes a later one": {func(s epp.Stages) epp.Stages { s[1].Excludes = []epp.Stage{"encode"}; return s },
			"excludes the endpoint of encode, which does not come before it"},
		"a first one that decides": {func(s epp.Stages) epp.Stages { s[0].Decider.Decider = always{}; return s }, "comes first"},
		"no role":                  {func(s epp.Stages) epp.Stages { s[2].Role = 0; return s }, "the encode stage has no role"},
		"no endpoints":             {func(s epp.Stages) epp.Stages { s[2].Endpoints = -1; return s }, "-1 encode candidates are wanted"},
	} {
		t.Run(name, func(t *testing.T) {
			c := encoding(nil, epp.NoneSkips)
			c.Stages = tc.change(c.Stages)
			if _, err := sched.NewPipeline(c); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}
