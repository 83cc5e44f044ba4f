package sched_test

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// gauge is a detector that finds endpoints full by their names, and a stage full if all of its endpoints are.
type gauge map[string]bool

func (g gauge) Filter(_ *epp.Round, c []epp.Candidate) []epp.Candidate {
	return only(func(_ *epp.Round, c *epp.Candidate) bool { return !g[c.Name] }).Filter(nil, c)
}

func (g gauge) Saturation(_ time.Time, c []epp.Candidate) float64 {
	full := 0.0
	for i := range c {
		if g[c[i].Name] {
			full++
		}
	}
	return full / float64(len(c))
}

// shedding is disagg with a detector at the end of both profiles, and over both.
func shedding(g gauge, on epp.OnNone) sched.Config {
	c := disagg()
	c.Detector, c.Stages[1].OnNone = g, on
	for i := range c.Profiles {
		c.Profiles[i].Filters = append(c.Profiles[i].Filters, epp.NamedFilter{Name: "gauge", Filter: g})
	}
	return c
}

// TestShed holds what becomes of requests where endpoints are full.
func TestShed(t *testing.T) {
	const remote, saturated, local = "remote/always", "refused/saturated", "local/no-prefill"
	decodes, prefills := gauge{"decode-0": true, "decode-1": true}, gauge{"prefill-2": true}
	for _, c := range []struct {
		name     string
		full     gauge
		on       epp.OnNone
		mode     pd.Mode
		priority int
		want     string
		stage    string // that is counted as saturated
	}{
		{"no endpoint is full", gauge{}, epp.NoneSkips, pd.ModeAuto, 0, remote, ""},
		{"one decode endpoint is full", gauge{"decode-0": true}, epp.NoneSkips, pd.ModeAuto, 0, remote, ""},
		{"decode is full", decodes, epp.NoneSkips, pd.ModeAuto, 0, saturated, "decode"},
		{"decode is full, whatever the mode", decodes, epp.NoneSkips, pd.ModeBypass, 0, saturated, "decode"},
		{"decode is full, however urgent", decodes, epp.NoneSkips, pd.ModeAuto, 9, saturated, "decode"},
		{"prefill is full", prefills, epp.NoneSkips, pd.ModeAuto, 0, local, ""},
		{"prefill is full, and is not needed", prefills, epp.NoneRefuses, pd.ModeBypass, 0, "local/bypassed", ""},
		{"prefill is full, and must not be done without", prefills, epp.NoneSkips, pd.ModeForce, 0, saturated, "prefill"},
		{"prefill is full, and may be done without", prefills, epp.NoneRefuses, pd.ModeForceFallback, 0, local, ""},
		{"prefill is full, and nothing is to fall back", prefills, epp.NoneRefuses, pd.ModeAuto, 0, saturated, "prefill"},

		{"negative, in a pool with room", gauge{"decode-0": true}, epp.NoneSkips, pd.ModeAuto, -1, remote, ""},
		{"negative, decode is full", decodes, epp.NoneSkips, pd.ModeAuto, -1, saturated, "decode"},
		{"negative, prefill is full", prefills, epp.NoneSkips, pd.ModeBypass, -1, saturated, "prefill"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, registry := fleet("decode", "decode", "prefill"), prometheus.NewPedanticRegistry()
			config := shedding(c.full, c.on)
			config.Metrics = sched.NewMetrics(registry)
			s, r := scheduler(t, p, config), splitRequest(512)
			r.Mode, r.Priority = c.mode, c.priority
			explained, _ := s.Explain(t.Context(), r)
			got := outcomeOf(s.Pick(t.Context(), r))
			if got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if told := explained.Verdict.String() + "/" + string(explained.Reason); told != c.want {
				t.Errorf("explained as %s, want %s", told, c.want)
			}
			for _, stage := range []string{"decode", "prefill"} {
				if n := counted(t, registry, "tandem_saturated_total", stage); (n == 1) != (stage == c.stage) {
					t.Errorf("%v counted for %s", n, stage)
				}
			}
			if c.stage != "" && len(inFlight(p)) > 0 {
				t.Errorf("a refused request is charged: %v", inFlight(p))
			}
		})
	}
}

// refuser is an admitter that refuses if there are so many candidates.
type refuser int

func (n refuser) Admits(_ *epp.Round, c []epp.Candidate) bool { return len(c) != int(n) }

// TestAdmitters: each is asked about the candidates of all stages, once for a request.
func TestAdmitters(t *testing.T) {
	named := func(n int) epp.NamedAdmitter { return epp.NamedAdmitter{Name: "mine", Admitter: refuser(n)} }
	for _, tc := range []struct {
		name      string
		admitters []epp.NamedAdmitter
		change    func(*epp.Request)
		want      string
	}{
		{"none", nil, func(*epp.Request) {}, "remote/always"},
		{"all admit", []epp.NamedAdmitter{named(0), named(1)}, func(*epp.Request) {}, "remote/always"},
		{"one refuses", []epp.NamedAdmitter{named(0), named(3)}, func(*epp.Request) {}, "refused/saturated"},
		{"not asked about what generates nothing", []epp.NamedAdmitter{named(3)}, func(r *epp.Request) { r.API, r.Fit = pd.APIOther, request.FitLocal }, "local/not-splittable"},
		{"sees the subset", []epp.NamedAdmitter{named(2)}, func(r *epp.Request) { r.Subset = epp.NewSubset("10.0.0.0", "10.0.0.2") }, "refused/saturated"},
		{"without candidates", []epp.NamedAdmitter{named(0)}, func(r *epp.Request) { r.Subset = epp.NewSubset() }, "refused/no-endpoint"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, r := disagg(), splitRequest(512)
			c.Admitters = tc.admitters
			tc.change(r)
			s := scheduler(t, fleet("decode", "decode", "prefill"), c)
			explained, _ := s.Explain(t.Context(), r)
			got := outcomeOf(s.Pick(t.Context(), r))
			if told := explained.Verdict.String() + "/" + string(explained.Reason); got != tc.want || told != tc.want {
				t.Errorf("%s, explained as %s; want %s", got, told, tc.want)
			}
		})
	}
}

// TestUnreachableIsNoCapacity: the capacity of an unreachable endpoint does not count. If it did, requests would be sent
// there, fail, and reach the full endpoints with Envoy's next try.
func TestUnreachableIsNoCapacity(t *testing.T) {
	full := gauge{"decode-0": true, "prefill-2": true}
	for _, c := range []struct {
		name   string
		absent []string
		want   string
	}{
		{"room", nil, "remote/always"},
		{"room only in an unreachable decode endpoint", []string{"decode-1"}, "refused/saturated"},
		{"room only in an unreachable prefill endpoint", []string{"prefill-3"}, "refused/saturated"},
		{"all decode endpoints are unreachable", []string{"decode-0", "decode-1"}, "remote/always"},
		{"all prefill endpoints are unreachable", []string{"prefill-2", "prefill-3"}, "refused/no-prefill"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := fleet("decode", "decode", "prefill", "prefill")
			snapshot := p.Snapshot()
			for i, e := range snapshot.Endpoints {
				snapshot.Loads[i].Unreachable = slices.Contains(c.absent, e.Name)
			}
			s := scheduler(t, p, shedding(full, epp.NoneRefuses))
			explained, _ := s.Explain(t.Context(), splitRequest(512))
			if got := outcomeOf(s.Pick(t.Context(), splitRequest(512))); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if told := explained.Verdict.String() + "/" + string(explained.Reason); told != c.want {
				t.Errorf("explained as %s, want %s", told, c.want)
			}
		})
	}
}

// outcomeOf is verdict/reason of a pick.
func outcomeOf(d *epp.Decision, err error) string {
	if err != nil {
		return pd.Refused.String() + "/" + string(pd.AsRefusal(err).Reason)
	}
	return d.Verdict.String() + "/" + string(d.Reason)
}

// TestModelsOfAFullPool: full endpoints serve the list of models, because it costs them no work.
func TestModelsOfAFullPool(t *testing.T) {
	c := shedding(gauge{"decode-0": true}, epp.NoneSkips)
	c.Profiles[0].Filters = c.Profiles[0].Filters[:1] // the plugins look at the API themselves
	s := scheduler(t, fleet("decode"), c)
	if got := outcomeOf(s.Pick(t.Context(), &epp.Request{Priority: -1, Fit: request.FitLocal})); got != "local/not-splittable" {
		t.Error(got)
	}
}

// TestFallbackBudget counts what decode prefills itself of 300 requests that should go remote: the burst, and a tenth.
func TestFallbackBudget(t *testing.T) {
	const requests = 300
	const most = pd.FallbackBurst + requests/10
	full := gauge{"prefill-1": true}
	for _, c := range []struct {
		name    string
		roles   []string
		on      epp.OnNone
		local   int
		refused string
	}{
		{"none, budget", []string{"decode"}, epp.NoneSkipsWithinBudget, most, "refused/budget"},
		{"none, local", []string{"decode"}, epp.NoneSkips, requests, ""},
		{"none, refuse", []string{"decode"}, epp.NoneRefuses, 0, "refused/no-prefill"},
		{"full, budget", []string{"decode", "prefill"}, epp.NoneSkipsWithinBudget, pd.FallbackBurst, "refused/saturated"},
		{"full, local", []string{"decode", "prefill"}, epp.NoneSkips, pd.FallbackBurst, "refused/saturated"},
		{"full, refuse", []string{"decode", "prefill"}, epp.NoneRefuses, 0, "refused/saturated"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, got := scheduler(t, fleet(c.roles...), shedding(full, c.on)), map[string]int{}
			for range requests {
				if _, err := s.Explain(t.Context(), splitRequest(512)); err != nil && c.refused == "" {
					t.Fatal(err) // and it takes nothing
				}
				got[outcomeOf(s.Pick(t.Context(), splitRequest(512)))]++
			}
			// A tenth of what is shed as saturated is not earned, but of what falls back it is.
			if local := got["local/no-prefill"]; local < c.local-1 || local > c.local+3 || got[c.refused] != requests-local {
				t.Errorf("%v, want %d local", got, c.local)
			}
		})
	}
}

// TestFallbackBudgetOfOnesOwn counts them with other limits than the defaults.
func TestFallbackBudgetOfOnesOwn(t *testing.T) {
	const requests = 100
	for _, c := range []struct {
		ratio float64
		burst int
		local int
	}{{0.5, 2, 51}, {0, 7, 7}, {1, 0, 0}, {0, 0, 0}} {
		config := shedding(gauge{}, epp.NoneSkipsWithinBudget)
		split := config.Stages.Row(epp.StagePrefill)
		split.FallbackRatio, split.FallbackBurst = c.ratio, c.burst
		s, local := scheduler(t, fleet("decode"), config), 0
		for range requests {
			if _, err := s.Pick(t.Context(), splitRequest(512)); err == nil {
				local++
			}
		}
		if local < c.local-1 || local > c.local+1 {
			t.Errorf("ratio %v, burst %d: %d local, want %d", c.ratio, c.burst, local, c.local)
		}
	}
}

// TestFallbackBudgetIsEarned: requests that need no prefill add to the budget too, and those that are shed do not.
func TestFallbackBudgetIsEarned(t *testing.T) {
	full := gauge{}
	s := scheduler(t, fleet("decode"), shedding(full, epp.NoneSkipsWithinBudget))
	fallbacks := func() (n int) {
		for range 100 {
			if _, err := s.Pick(t.Context(), splitRequest(512)); err != nil {
				return n
			}
			n++
		}
		return n
	}
	fallbacks()
	bypass := splitRequest(512)
	bypass.Mode = pd.ModeBypass
	for range 50 {
		mustPick(t, s, bypass)
	}
	if n := fallbacks(); n != 5 {
		t.Errorf("50 requests earned %d fallbacks", n)
	}
	full["decode-0"] = true
	for range 50 {
		if _, err := s.Pick(t.Context(), bypass); pd.AsRefusal(err).Reason != pd.Saturated {
			t.Fatal(err)
		}
	}
	full["decode-0"] = false
	if n := fallbacks(); n > 0 {
		t.Errorf("50 requests that were shed earned %d fallbacks", n)
	}
}

// shedder is a filter that finds endpoints full, without being a detector.
type shedder struct{ only }

func (shedder) Sheds() {}

// TestShedder: a profile that a shedder leaves without endpoints is full; other filters leave it without endpoints that fit.
func TestShedder(t *testing.T) {
	none := only(func(*epp.Round, *epp.Candidate) bool { return false })
	for _, c := range []struct {
		name   string
		filter epp.Filter
		want   string
	}{
		{"a shedder", shedder{none}, "refused/saturated"},
		{"another filter", none, "refused/no-endpoint"},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := disagg()
			config.Profiles[0].Filters = append(config.Profiles[0].Filters, epp.NamedFilter{Name: "last", Filter: c.filter})
			s := scheduler(t, fleet("decode", "prefill"), config)
			if got := outcomeOf(s.Pick(t.Context(), splitRequest(512))); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
