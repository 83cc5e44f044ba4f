package policies

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"text/tabwriter"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/vllm"
	"github.com/tandem-serving/tandem/stack"
)

var (
	kind     = flag.String("policies", "", "the engines of TestPoliciesOnRealEngines: vllm (make test-policies)")
	rounds   = flag.Int("policies.rounds", 8, "rounds of each policy")
	requests = flag.Int("policies.requests", 60, "requests of a round")
	rate     = flag.Float64("policies.rate", 2, "requests in a second")
)

func TestMain(m *testing.M) {
	if flag.Parse(); *kind != "" {
		os.Exit(harness.Run(m))
	}
	goleak.VerifyTestMain(m)
}

// The mixed load: prompts from a few tokens to those that take an engine some steps, and answers of different lengths.
const (
	inputs  = "16-1800"
	outputs = "8-64"
)

// policy is what decides, and a stack with it.
type policy struct {
	name   string
	args   []string // of tandem up
	url    string
	rounds map[string][]float64 // by figure, in the order of the rounds
	remote int                  // of all requests
}

// figures are those that are compared, all in ms: smaller is better.
var figures = []string{"ttft_p50_ms", "ttft_p95_ms", "itl_p95_ms", "e2e_p50_ms", "e2e_p95_ms"}

// confidence is that of the intervals by which a policy is called worse than another one.
const confidence = 0.95

// TestPoliciesOnRealEngines: the cost decision is never the worst of the policies, and not worse than the best one with confidence, in any of the
// figures of a mixed load.
func TestPoliciesOnRealEngines(t *testing.T) {
	if *kind == "" {
		t.Skip("make test-policies runs it")
	}
	realengine.Require(t, *kind)
	prefill, decode := startVLLM(t)
	cost, err := filepath.Abs(filepath.Join("..", "..", "cmd", "tandem", "replay", "cost.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	all := []*policy{
		{name: "cost", args: []string{"--picker-config=" + cost}},
		{name: "always local", args: []string{"--threshold=0"}},
		{name: "always remote", args: []string{"--threshold=1"}},
		{name: "threshold 16", args: []string{"--threshold=16"}},
	}
	for _, p := range all {
		p.rounds = map[string][]float64{}
		up := harness.Start(t, stack.Program{Name: "tandem up, " + p.name, Path: filepath.Join(harness.BinDir, "tandem"), ReadyTimeout: harness.Patience,
			Args: append([]string{"up", "--listen=127.0.0.1:0", "--engine=" + *kind, "--prefill-engine=" + prefill, "--decode-engine=" + decode}, p.args...)})
		p.url = "http://" + up.Addr("http")
		p.load(t, 0) // what it learns first, and the first contact of the engines, are not compared
	}
	for i := range *rounds {
		for j := range all {
			p := all[(i+j)%len(all)]
			p.load(t, i+1).into(p)
		}
	}
	show(all)
	judge(t, all)
}

// startVLLM starts a pair of vLLM engines, and returns their addresses.
func startVLLM(t *testing.T) (prefill, decode string) {
	t.Helper()
	engines := map[vllm.Role]*realengine.Engine{}
	var mu sync.Mutex // guards engines
	var starting sync.WaitGroup
	for role, core := range map[vllm.Role]string{vllm.Prefill: "0", vllm.Decode: "1"} {
		starting.Go(func() {
			e, err := vllm.Start(t.Context(), vllm.Options{Name: string(role), Role: role, Cores: core, Args: []string{"--max-num-batched-tokens=512"}})
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() {
				if err := e.Stop(); err != nil {
					t.Error(err)
				}
			})
			mu.Lock()
			defer mu.Unlock()
			engines[role] = e
		})
	}
	if starting.Wait(); t.Failed() {
		t.FailNow()
	}
	return engines[vllm.Prefill].Address(), engines[vllm.Decode].Address()
}

// report is what tandem load writes of a round, as far as it is compared.
type report struct {
	Points []struct {
		Sides []struct {
			Requests, Answered int
			Decisions          []struct {
				Decision string
				Count    int
			}
			Rounds []struct{ Figures map[string]float64 }
		}
	}
}

// load sends one round. The seed gives the same lengths and arrivals to every policy.
func (p *policy) load(t *testing.T, seed int) *report {
	t.Helper()
	file := filepath.Join(t.TempDir(), "load.json")
	command := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir, "tandem"), "load", "--url="+p.url, "--api=completions",
		"--rate="+strconv.FormatFloat(*rate, 'g', -1, 64), "--requests="+strconv.Itoa(*requests), "--duration=10m", "--seed="+strconv.Itoa(seed+1), "--rounds=1",
		"--warmup=4", "--input-tokens="+inputs, "--output-tokens="+outputs, "--json="+file)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("tandem load of %s: %v\n%s", p.name, err, out)
	}
	text, err := os.ReadFile(file)
	var r report
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil || len(r.Points) != 1 || len(r.Points[0].Sides) != 1 || len(r.Points[0].Sides[0].Rounds) != 1 {
		t.Fatalf("%v: tandem load wrote %s", err, text)
	}
	if side := &r.Points[0].Sides[0]; side.Answered != side.Requests {
		t.Fatalf("%s: %d of %d requests were answered", p.name, side.Answered, side.Requests)
	}
	return &r
}

// into adds the figures of a round.
func (r *report) into(p *policy) {
	side := &r.Points[0].Sides[0]
	for _, name := range figures {
		p.rounds[name] = append(p.rounds[name], side.Rounds[0].Figures[name])
	}
	for _, d := range side.Decisions {
		if d.Decision == "remote" {
			p.remote += d.Count
		}
	}
}

// show prints the medians of the rounds.
func show(all []*policy) {
	fmt.Printf("%d rounds of %d requests, %g a second, %s and %s tokens; medians, ms\n", *rounds, *requests, *rate, inputs, outputs)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "policy\tremote\t")
	for _, name := range figures {
		fmt.Fprint(w, name[:len(name)-len("_ms")], "\t")
	}
	fmt.Fprintln(w)
	for _, p := range all {
		fmt.Fprintf(w, "%s\t%.0f %%\t", p.name, 100*float64(p.remote)/float64(*rounds**requests))
		for _, name := range figures {
			fmt.Fprintf(w, "%.1f\t", median(p.rounds[name]))
		}
		fmt.Fprintln(w)
	}
	w.Flush()
}

// judge fails where the first policy is the worst one, or worse than the best one with confidence.
func judge(t *testing.T, all []*policy) {
	t.Helper()
	ours := all[0]
	for _, name := range figures {
		by := func(a, b *policy) int { return cmp.Compare(median(a.rounds[name]), median(b.rounds[name])) }
		best, worst := slices.MinFunc(all, by), slices.MaxFunc(all[1:], by)
		if ours.worse(best, name) {
			t.Errorf("%s: %.1f, and %.1f with %s: that is more than the noise", name, median(ours.rounds[name]), median(best.rounds[name]), best.name)
		}
		if ours.worse(worst, name) {
			t.Errorf("%s: %.1f, and %.1f with %s: it is the worst", name, median(ours.rounds[name]), median(worst.rounds[name]), worst.name)
		}
	}
}

// worse reports whether a figure of the policy is larger than that of another one with confidence, by the signs of the differences of the rounds:
// of n rounds, so many are larger by chance with a probability of at most 1-confidence.
func (p *policy) worse(than *policy, name string) bool {
	larger, n := 0, 0
	for i, v := range p.rounds[name] {
		if other := than.rounds[name][i]; v != other {
			n++
			if v > other {
				larger++
			}
		}
	}
	chance := 0.0
	for k := larger; k <= n; k++ {
		chance += math.Exp(choose(n, k) - float64(n)*math.Ln2)
	}
	return chance <= 1-confidence
}

// choose returns the logarithm of the number of ways to choose k of n.
func choose(n, k int) float64 {
	log := func(n int) float64 { v, _ := math.Lgamma(float64(n + 1)); return v }
	return log(n) - log(k) - log(n-k)
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return math.NaN()
	}
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// TestWorse: seven larger ones of eight are no chance, six are.
func TestWorse(t *testing.T) {
	at := func(values ...float64) *policy { return &policy{rounds: map[string][]float64{"x": values}} }
	than := at(1, 1, 1, 1, 1, 1, 1, 1)
	for _, one := range []struct {
		of   *policy
		want bool
	}{
		{at(2, 2, 2, 2, 2, 2, 2, 2), true},
		{at(2, 2, 0, 2, 2, 2, 2, 2), true},
		{at(2, 2, 0, 0, 2, 2, 2, 2), false},
		{at(0, 0, 0, 0, 0, 0, 0, 0), false},
		{at(1, 1, 1, 1, 1, 1, 1, 1), false},
	} {
		if got := one.of.worse(than, "x"); got != one.want {
			t.Errorf("%v: %v", one.of.rounds["x"], got)
		}
	}
}
