package sched_test

import (
	"math"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/sched"
)

func TestNewPipelineNamesTheError(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*sched.Config)
		want   string
	}{
		"no decode profile": {func(c *sched.Config) { c.Stages[0].Profile = "decoder" },
			`the decode stage wants profile "decoder", which does not exist (there are: decode, prefill)`},
		"no prefill profile": {func(c *sched.Config) { c.Stages[1].Profile = "p" }, `the prefill stage wants profile "p"`},
		"two of a name": {func(c *sched.Config) { c.Profiles[1].Name = "decode" },
			`there are several profiles "decode"`},
		"no picker": {func(c *sched.Config) { c.Profiles[0].Picker = nil }, `profile "decode": it has no picker`},
		"a picker of nothing": {func(c *sched.Config) { c.Profiles[1].Picker = highest(0) },
			`profile "prefill": its picker chooses 0 endpoints`},
		"nil filter": {func(c *sched.Config) { c.Profiles[0].Filters[0].Filter = nil },
			`profile "decode": filter "decode-filter" is nil`},
		"nil scorer": {func(c *sched.Config) { c.Profiles[1].Scorers[0].Scorer = nil },
			`profile "prefill": scorer "idle" is nil`},
		"weight is no number": {func(c *sched.Config) { c.Profiles[0].Scorers[0].Weight = math.NaN() },
			`the weight of scorer "idle" is NaN`},
		"endless weight": {func(c *sched.Config) { c.Profiles[0].Scorers[0].Weight = math.Inf(1) },
			`the weight of scorer "idle" is +Inf`},
		"no prefill candidates": {func(c *sched.Config) { c.Stages[1].Endpoints = 0 },
			"0 prefill candidates are wanted, which must be 1 to 16"},
		"too many of them": {func(c *sched.Config) { c.Stages[1].Endpoints = 17 },
			"17 prefill candidates are wanted, which must be 1 to 16"},
		"a header that clients may send": {func(c *sched.Config) { c.Stages[1].Header = "x-encoders" },
			`the prefill stage names its endpoints in the header "x-encoders"`},
		"no header":             {func(c *sched.Config) { c.Stages[1].Header = "" }, "the prefill stage names its endpoints in the header"},
		"nothing is ever fresh": {func(c *sched.Config) { c.Stale = 0 }, "the age at which a load is stale is 0s"},
		"negative output":       {func(c *sched.Config) { c.Charge.OutputRatio = -1 }, "the output ratio is -1"},
		"output is no number":   {func(c *sched.Config) { c.Charge.OutputRatio = math.NaN() }, "the output ratio is NaN"},
		"negative bound":        {func(c *sched.Config) { c.Charge.MaxOutput = -5 }, "the most output tokens are -5"},
		"all at once":           {func(c *sched.Config) { c.Stale, c.Stages[0].Profile, c.Profiles[1].Picker = 0, "x", nil }, "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			c := disagg()
			tc.change(&c)
			p, err := sched.NewPipeline(c)
			if err == nil || p != nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestPipelineWithoutPrefillNeedsNoCandidates(t *testing.T) {
	c := disagg()
	c.Stages = epp.Stages{epp.DecodeRow("decode")}
	if _, err := sched.NewPipeline(c); err != nil {
		t.Error(err)
	}
}

func TestStagesAreThoseOfTheConfigurationInUse(t *testing.T) {
	if got := sched.New(fleet(), epp.SystemClock).Stages(); got != nil {
		t.Errorf("without a configuration there are the stages %v", got)
	}
	s := scheduler(t, fleet(), encoding(always{}, epp.NoneSkips))
	if got := s.Stages(); len(got) != 3 || got[2].Stage != "encode" {
		t.Errorf("got %v", got)
	}
}

func TestBlocksFollowTheMatcher(t *testing.T) {
	c := disagg()
	s := scheduler(t, fleet(), c)
	if got := s.Needs(); got != (epp.PromptSpec{}) {
		t.Errorf("without a matcher blocks are wanted: %v", got)
	}
	c.Matchers = []epp.Matcher{&caches{}}
	p, err := sched.NewPipeline(c)
	if err != nil {
		t.Fatal(err)
	}
	s.Swap(p)
	if got, want := s.Needs(), c.Matchers[0].Needs(); got != want {
		t.Errorf("blocks are %v, want %v", got, want)
	}
}

// TestMetricsOutlivePipelines: a reload must not register them again, nor lose the counts.
func TestMetricsOutlivePipelines(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	c := disagg()
	c.Metrics = sched.NewMetrics(registry)
	s := scheduler(t, fleet("decode", "prefill"), c)
	mustPick(t, s, splitRequest(10))
	again, err := sched.NewPipeline(c)
	if err != nil {
		t.Fatal(err)
	}
	s.Swap(again)
	mustPick(t, s, splitRequest(10))
	if n := counted(t, registry, "tandem_pick_seconds"); n != 2 {
		t.Errorf("%v picks were timed, want 2", n)
	}
}
