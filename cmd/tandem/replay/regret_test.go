package replay

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/replay"
)

// slice returns the smallest part of the study that has all policies: one workload on one engine and pool.
func slice(t *testing.T) *study {
	t.Helper()
	s := defaults()
	x, err := s.newStudy(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	x.workloads, x.models, x.pools, x.loads = x.workloads[:1], x.models[:1], x.pools[:1], []int{90}
	if err := x.perform(t.Context(), io.Discard); err != nil {
		t.Fatal(err)
	}
	return x
}

func written(t *testing.T, write func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestReportIsReproducible performs a slice of the report twice, and compares it with the report of the repository. If the picker or the
// model has changed, make replay-report writes that anew.
func TestReportIsReproducible(t *testing.T) {
	x := slice(t)
	if again := slice(t); written(t, x.json) != written(t, again.json) || written(t, x.text) != written(t, again.text) {
		t.Error("the same study gives other bytes")
	}
	kept, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "replay-report.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []any{x.cells[0], x.most[0]} {
		line, err := json.Marshal(part)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(kept, line) {
			t.Errorf("docs/replay-report.json does not have\n%s\nmake replay-report writes it anew", line)
		}
	}
}

// keptStudy is the report of the repository.
type keptStudy struct {
	Workloads []struct{ Name string }
	Policies  []struct{ Name string }
	Most      []most `json:"capacities"`
	Cells     []cell
}

func keptReport(t *testing.T) (k keptStudy) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "replay-report.json"))
	if err == nil {
		err = json.Unmarshal(text, &k)
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestReportIsComplete: the report of the repository has every cell, each with every policy, and the best one has no regret.
func TestReportIsComplete(t *testing.T) {
	kept := keptReport(t)
	if want := len(testedWorkloads) * len(testedEngines) * len(testedPools) * len(testedLoads); len(kept.Cells) != want || len(kept.Workloads) != 9 || len(kept.Policies) != 8 {
		t.Fatalf("%d cells of %d workloads and %d policies, want %d of 9 and 8", len(kept.Cells), len(kept.Workloads), len(kept.Policies), want)
	}
	for i := range kept.Cells {
		c := &kept.Cells[i]
		if c.Best == "" {
			continue
		}
		best := slices.IndexFunc(kept.Policies, func(p struct{ Name string }) bool { return p.Name == c.Best })
		for k, s := range c.Scores {
			if want := 1 - s.Met/c.Scores[best].Met; s.Regret < 0 || math.Abs(s.Regret-want) > 1e-3 || k == best && s.Regret != 0 {
				t.Errorf("%s %s %s %d%%: %s has a regret of %v, want %v", c.Workload, c.Engine, c.Pool, c.Load, kept.Policies[k].Name, s.Regret, want)
			}
		}
	}
}

// TestReportHasRates: every policy has a highest rate in every workload, engine and pool of the report, and of those that the capacity is the best of
// one has it, or more: the searches begin at other rates, and where all sessions begin in a moment, a higher rate is not always more load.
func TestReportHasRates(t *testing.T) {
	kept := keptReport(t)
	if want := len(testedWorkloads) * len(testedEngines) * len(testedPools); len(kept.Most) != want {
		t.Fatalf("rates of %d workloads, engines and pools, want %d", len(kept.Most), want)
	}
	for _, m := range kept.Most {
		i := slices.IndexFunc(kept.Cells, func(c cell) bool { return c.Workload == m.Workload && c.Engine == m.Engine && c.Pool == m.Pool })
		if i < 0 || len(m.Rates) != len(kept.Policies) {
			t.Errorf("%+v", m)
			continue
		}
		capacity, extremes := kept.Cells[i].Rate*100/float64(kept.Cells[i].Load), 0.0
		for k, p := range kept.Policies {
			if slices.Contains([]string{"always local", "always remote", "threshold 2048"}, p.Name) {
				extremes = max(extremes, m.Rates[k])
			}
		}
		if extremes < 0.95*capacity {
			t.Errorf("%s %s %s: always local, always remote or the threshold bears %v, and the capacity is %v", m.Workload, m.Engine, m.Pool, extremes, capacity)
		}
	}
}

func TestMargins(t *testing.T) {
	x := &study{policies: []policy{{Name: "a"}, {Name: ours}, {Name: "never"}},
		most: []*most{{Rates: []float64{1, 2, 0}}, {Rates: []float64{4, 2, 0}}, {Rates: []float64{1, 1.2, 0}}, {Rates: []float64{1, 0, 0}}, {Rates: []float64{0, 0, 0}}}}
	if a := x.marginOf(0); math.Abs(a.mean-math.Cbrt(1.2)) > 1e-9 || a.much != 2 || a.of != 4 {
		t.Errorf("%+v", a)
	}
	if none := x.marginOf(2); none.mean != 1 || none.much != 3 || none.of != 3 {
		t.Errorf("a policy that bears nothing: %+v", none)
	}
}

func TestBesideOracle(t *testing.T) {
	x := &study{policies: []policy{{Name: ours}}, cells: []*cell{
		{Workload: "a", Engine: "e", Pool: "1P+1D", Load: 90, Scores: []score{{Met: 0.9}}, Oracle: &score{Met: 1}},
		{Workload: "b", Engine: "e", Pool: "1P+1D", Load: 110, Scores: []score{{Met: 0.4}}, Oracle: &score{Met: 0.5}},
		{Workload: "none serves any", Scores: []score{{}}, Oracle: &score{}},
	}}
	want := "An oracle knows how long answers will be, and the state of every engine. Of the requests that it serves as wanted, ours serves 15.0% less on average; at most 10.0% less in 1 of 2 cells, and 20.0% on b, e, 1P+1D, 110%."
	if got := x.besideOracle(); got != want {
		t.Errorf("got %s", got)
	}
	x.cells[0].Oracle, x.cells[1].Oracle = nil, nil
	if got := x.besideOracle(); got != "" {
		t.Errorf("without an oracle: %s", got)
	}
}

// TestOracleTakesPart: it serves at least as many as the best policy of a small cell.
func TestOracleTakesPart(t *testing.T) {
	s := defaults()
	s.Why.Regret, s.Why.Oracle, s.Load.Requests = true, true, 60
	x, err := s.newStudy(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	x.workloads, x.models, x.pools, x.loads = x.workloads[:1], x.models[:1], []replay.Pool{{Prefill: 1, Decode: 1}}, []int{90}
	if err := x.perform(t.Context(), io.Discard); err != nil {
		t.Fatal(err)
	}
	c := x.cells[0]
	for i, one := range c.Scores {
		if c.Oracle == nil || c.Oracle.Met < one.Met {
			t.Errorf("the oracle serves %+v as wanted, %s %+v", c.Oracle, x.policies[i].Name, one)
		}
	}
}

func TestStandings(t *testing.T) {
	fast, slow := 100.0, 400.0
	cells := []*cell{
		{Workload: "w", Best: "a", Scores: []score{{Met: 1, TTFT: &fast}, {Met: 0.5, TTFT: &slow, Regret: 0.5}}},
		{Workload: "x", Best: "b", Scores: []score{{Met: 0.96, TTFT: &slow, Regret: 0.04}, {Met: 1}}},
		{Workload: "none"}, // no policy meets the objective
	}
	a, b := standingOf(cells, 0), standingOf(cells, 1)
	if a.mean != 0.02 || a.worst != 0.04 || a.at != cells[1] || a.near != 1 || a.ttft != 1 || a.unbounded != 0 {
		t.Errorf("%+v", a)
	}
	if b.mean != 0.25 || b.worst != 0.5 || b.at != cells[0] || b.near != 0.5 || b.ttft != 4 || b.unbounded != 1 {
		t.Errorf("%+v", b)
	}
}

func TestBetter(t *testing.T) {
	fast, slow := 100.0, 400.0
	best := score{Met: 0.9, TTFT: &fast}
	for name, s := range map[string]score{"fewer requests": {Met: 0.8, TTFT: &fast}, "slower": {Met: 0.9, TTFT: &slow}, "as slow": best, "refuses many": {Met: 0.9}} {
		if s.better(&best) {
			t.Errorf("%s is better", name)
		}
	}
	worse := score{Met: 0.9, TTFT: &slow}
	for name, s := range map[string]score{"more requests": {Met: 0.95}, "faster": best} {
		if !s.better(&worse) {
			t.Errorf("%s is not better", name)
		}
	}
}

// TestCapacity: just below it an extreme policy serves enough requests, and not much above it none does.
func TestCapacity(t *testing.T) {
	s := defaults()
	x, err := s.newStudy(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	g := &group{study: x, workload: x.workloads[0], model: x.models[0], pool: replay.Pool{Prefill: 1, Decode: 1}, turns: 1}
	capacity, err := g.capacity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		rate float64
		want bool
	}{{capacity, true}, {1.05 * capacity, false}} {
		trace, err := g.load(rounded(test.rate))
		if err != nil {
			t.Fatal(err)
		}
		met := false
		for _, p := range x.policies {
			score, err := g.replay(t.Context(), p.config, g.pool, trace)
			if err != nil {
				t.Fatal(err)
			}
			met = met || p.extreme && score.Met >= enough
		}
		if met != test.want {
			t.Errorf("at %v, where the capacity is %v: served as wanted %v, want %v", test.rate, capacity, met, test.want)
		}
	}
}

func TestStudyIsInterrupted(t *testing.T) {
	s := defaults()
	x, err := s.newStudy(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := x.perform(ctx, io.Discard); err == nil || !strings.Contains(err.Error(), "context canceled") {
		t.Errorf("error %v", err)
	}
}

// TestOursIsBuiltIn: the configuration of ours differs from the built-in one in the decider alone.
func TestOursIsBuiltIn(t *testing.T) {
	parts := func(text []byte) string {
		var all map[string]any
		if err := yaml.Unmarshal(text, &all); err != nil {
			t.Fatal(err)
		}
		var plugins []any
		for _, p := range all["plugins"].([]any) {
			p := p.(map[string]any)
			switch p["type"] {
			case "prefix-based-pd-decider", "cost-pd-decider":
				continue
			case "disagg-profile-handler":
				p["parameters"] = nil
			}
			plugins = append(plugins, p)
		}
		all["plugins"] = plugins
		b, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got, want := parts(costYAML), parts(config.Default()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
