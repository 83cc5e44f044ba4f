package policies

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/sglang"
	"github.com/tandem-serving/tandem/e2e/vllm"
	"github.com/tandem-serving/tandem/stack"
)

var (
	kind     = flag.String("policies", "", "the engines of TestPoliciesOnRealEngines: vllm or sglang (make test-policies, make test-policies-sglang)")
	rounds   = flag.Int("policies.rounds", 6, "rounds of each side of a comparison")
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

// figures are those of which tandem load must have a verdict. Each round has enough requests for all of them.
var figures = []string{"ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "itl_p99_ms", "e2e_p50_ms", "e2e_p95_ms"}

// TestPoliciesOnRealEngines: under a mixed load the cost decision is worse than no other policy in any of the figures, as tandem load judges twice:
// of so many figures, chance alone makes one worse in every fourth run.
func TestPoliciesOnRealEngines(t *testing.T) {
	if *kind == "" {
		t.Skip("make test-policies runs it")
	}
	realengine.Require(t, *kind)
	engines := startEngines(t)
	up := func(name, decider string) string {
		p := harness.Start(t, stack.Program{Name: "tandem up, " + name, Path: filepath.Join(harness.BinDir, "tandem"), ReadyTimeout: harness.Patience,
			Args: append([]string{"up", "--listen=127.0.0.1:0", "--engine=" + *kind, decider}, engines...)})
		return "http://" + p.Addr("http")
	}
	config, err := filepath.Abs(filepath.Join("..", "..", "cmd", "tandem", "replay", "cost.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	cost := up("cost", "--picker-config="+config)
	load(t, "--url="+cost, "--rounds=1") // what it learns first, and the first contact of the engines, are not compared
	for _, other := range []struct{ name, threshold string }{{"always local", "0"}, {"always remote", "1"}, {"threshold 16", "16"}} {
		t.Run(other.name, func(t *testing.T) {
			url := up(other.name, "--threshold="+other.threshold)
			compare := func(seed string) []difference {
				fmt.Printf("\ncost against %s\n", other.name)
				return load(t, "--url="+cost, "--against="+url, "--seed="+seed, "--rounds="+strconv.Itoa(*rounds))
			}
			first := compare("1")
			if !slices.ContainsFunc(first, difference.worse) {
				return
			}
			for i, again := range compare("2") {
				if d := first[i]; d.worse() && again.worse() {
					t.Errorf("%s: %s: %.1f, and %.1f; again: %.1f, and %.1f", d.Metric, d.Verdict, d.First, d.Second, again.First, again.Second)
				}
			}
		})
	}
}

// difference is one of a comparison.
type difference struct {
	Metric, Verdict string
	First, Second   float64
}

// worse reports whether the first side is not shown to be as good.
func (d difference) worse() bool { return d.Verdict != "better" && d.Verdict != "no difference" }

// load runs tandem load, which prints what it measures, and returns the differences of the figures if it compares.
func load(t *testing.T, more ...string) (all []difference) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "load.json")
	command := exec.CommandContext(t.Context(), filepath.Join(harness.BinDir, "tandem"), append([]string{"load", "--api=completions",
		"--rate=" + strconv.FormatFloat(*rate, 'g', -1, 64), "--requests=" + strconv.Itoa(*requests), "--duration=10m", "--input-tokens=" + inputs, "--output-tokens=" + outputs,
		"--json=" + file}, more...)...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	if err := command.Run(); err != nil {
		t.Fatalf("tandem load: %v", err)
	}
	text, err := os.ReadFile(file)
	var r struct {
		Points []struct {
			Sides      []struct{ Requests, Answered int }
			Comparison *struct{ Differences []difference }
		}
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil || len(r.Points) != 1 {
		t.Fatalf("%v: tandem load wrote %s", err, text)
	}
	for _, side := range r.Points[0].Sides {
		if side.Answered != side.Requests {
			t.Errorf("%d of %d requests were answered", side.Answered, side.Requests)
		}
	}
	if r.Points[0].Comparison == nil {
		return nil
	}
	for _, name := range figures {
		i := slices.IndexFunc(r.Points[0].Comparison.Differences, func(d difference) bool { return d.Metric == name })
		if i < 0 {
			t.Fatalf("tandem load does not compare %s: %s", name, text)
		}
		all = append(all, r.Points[0].Comparison.Differences[i])
	}
	return all
}

// startEngines starts a pair of engines, and of SGLang, whose decode engines compute no prompts, a plain one. It returns the flags that name
// them to tandem up.
func startEngines(t *testing.T) (flags []string) {
	t.Helper()
	roles := []string{"prefill", "decode"}
	if *kind == "sglang" {
		roles = append(roles, "plain")
	}
	var mu sync.Mutex // guards flags
	var starting sync.WaitGroup
	for _, role := range roles {
		starting.Go(func() {
			e, err := start(t.Context(), role)
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
			flags = append(flags, "--"+role+"-engine="+e.Address())
		})
	}
	if starting.Wait(); t.Failed() {
		t.FailNow()
	}
	return flags
}

// start starts one engine. Prefill has a processor of its own.
func start(ctx context.Context, role string) (*realengine.Engine, error) {
	core := map[string]string{"prefill": "0", "decode": "1", "plain": "1"}[role]
	if *kind == "vllm" {
		roles := map[string]vllm.Role{"prefill": vllm.Prefill, "decode": vllm.Decode}
		return vllm.Start(ctx, vllm.Options{Name: role, Role: roles[role], Cores: core, Args: []string{"--max-num-batched-tokens=512"}})
	}
	roles := map[string]sglang.Role{"prefill": sglang.Prefill, "decode": sglang.Decode, "plain": sglang.Plain}
	e, err := sglang.Start(ctx, sglang.Options{Name: role, Role: roles[role], Cores: core, Args: []string{"--chunked-prefill-size=512"}})
	if err != nil {
		return nil, err
	}
	return e.Engine, nil
}
