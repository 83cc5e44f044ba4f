package serving

import (
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/vllm"
	"github.com/tandem-serving/tandem/stack/envoy"
)

var (
	onVLLM = flag.Bool("vllm", false, "run TestRealEngines, which needs 10 GB of memory and minutes (make test-vllm)")
	short  = flag.Bool("vllm.ci", false, "break streams off after fewer of their events")
)

// TestRealEngines runs on real vLLM engines whatever injects nothing into simulated ones, unchanged, and then what only real
// engines can show.
func TestRealEngines(t *testing.T) {
	if !*onVLLM {
		t.Skip("make test-vllm runs it")
	}
	realengine.Require(t, "vllm")
	envoy.Require(t)
	began := time.Now()
	engines = startRealEngines(t)
	harness.Lend = engines.lend
	fmt.Printf("ready  %6.1f s  four engines\n", time.Since(began).Seconds())
	t.Cleanup(func() { engines, harness.Lend = nil, nil })
	for _, c := range realCases {
		began = time.Now()
		passed := t.Run(c.name, c.run)
		fmt.Printf("%-6s %6.1f s  %s\n", map[bool]string{true: "passed", false: "FAILED"}[passed], time.Since(began).Seconds(), c.name)
		engines.mustLive(t)
	}
}

// realCase is a part of the suite on real engines.
type realCase struct {
	name string
	run  func(t *testing.T)
}

// realCases come in this order: those that kill an engine are the last.
var realCases = []realCase{
	{"surface", testSurface},
	{"TestPicker", TestPicker},
	{"TestModesWithoutPrefill", TestModesWithoutPrefill},
	{"TestPickerDrains", TestPickerDrains},
	{"TestPickerKilled", TestPickerKilled},
	{"TestTwoPickers", TestTwoPickers},
	{"TestPoolChanges", TestPoolChanges},
	{"TestDeadEndpoint", TestDeadEndpoint},
	{"TestEmptyPool", TestEmptyPool},
	{"TestReload", TestReload},
	{"TestExplain", TestExplain},
	{"TestBurst", TestBurst},
	{"TestAccountedElsewhere", TestAccountedElsewhere},
	{"TestServed", TestServed},
	{"TestSubset", TestSubset},
	{"TestRetry", TestRetry},
	{"TestTrailersOnlyForClientsThatAsk", TestTrailersOnlyForClientsThatAsk},
	{"TestTLS", TestTLS},
	{"TestRewrite", TestRewrite},
	{"TestRewriteWithTheLength", TestRewriteWithTheLength},
	{"TestRewriteWithoutSidecar", TestRewriteWithoutSidecar},
	{"TestTraceOfARemoteRequest", TestTraceOfARemoteRequest},
	{"stock clients", func(t *testing.T) {
		f := harness.NewTappedFleet(t, 1)
		f.StartPicker(t)
		f.StartFront(t, harness.Layout{Proxy: "envoy", Mode: "pair"})
		for _, c := range stockClients {
			t.Run(c.name, func(t *testing.T) { testClientAnswers(t, c, f) })
		}
	}},
	{"TestEveryAPI", TestEveryAPI},
	{"TestUsage", TestUsage},
	{"TestForeignHandoff", TestForeignHandoff},
	{"forced tool choice", testToolChoice},
	{"lease in decode's queue", testLeaseInTheQueue},
	{"keeper", testKeeper},
	{"streams that go on", testContinuation},
	{"streams generated again", testRegeneration},
	{"streams that are parsed", testParsedStreams},
	{"engines that hang", testHangs},
	{"pair", func(t *testing.T) { runPair(t, engines.pair(t, engines.failing)) }},
	{"prefill stopped, recompute", func(t *testing.T) { testPrefillStopped(t, engines.pair(t, engines.recomputing)) }},
	{"prefill killed and restarted between the legs", testPolicies},
}

// simulatedOnly are the tests that stay with simulated engines, by a pattern of their names, and why.
var simulatedOnly = map[string]string{
	`SimPair`:                              "the suite that the case pair runs",
	`Cluster`:                              "it is about Kubernetes; the engines are pods that answer anything",
	`Metrics|Telemetry|ErrorShapes`:        "it makes engines fail",
	`\w+Client`:                            "it makes engines fail, but for the answers that the case stock clients has",
	`Chaos\w*|PrefillLost|Overload|Queues`: "it makes engines fail, or needs to know how much they can do",
	`ProxyAwaitsPicker`:                    "it is about Envoy's start; any engine will do",
	`NameServerFails`:                      "it is about how Envoy finds pickers; any engine will do",
	`Exhaust|LongLink|Pace|CarryOut`:       "it is about how the chaos suite disturbs programs",
	`StalledLogs|ClockSteps`:               "it is about pipes and clocks of the programs; any engine will do",
	`Warmup`:                               "it says how long engines take to meet, and needs such as have not",
	`Rolling\w*|Matrix\w*|Soak`:            "it makes engines fail, or restarts them more often than real ones can be waited for",
	`StoppedEngine`:                        "it ends an engine, which takes a real one a minute to come back from",
	`HungEngine`:                           "it stops one of two engines of a role; the pair stops its own",
	`Hedging`:                              "it needs two prefill engines, and to have some of their legs only be slow",
	`Killed|SharedKilled|ManyLines`:        "it is about the batch server, whose requests any engine answers",
	`OpenAIClientQuota|Command|Queue\w+|Webhook`: "likewise",
	`Faults|FaultTable|LargeFile|PartsKilled`:    "likewise",
	`Batch(Yields|GivesWay)|Interference`:        "it needs to know how much engines can do",
	`WideExpertParallelism`:                      "it needs 128 engines",
	`Bad\w+|HeldBodies|HeadersWithoutEnd`:        "it is about clients that never get as far as an engine",
	`Security\w+|ThreatsPage`:                    "the hostile peers that it is about are its own; TestForeignHandoff and the pair have what engines die of",
	`KeeperAtLength`:                             "it starts engines of its own, with a short lease (make lease-vllm)",
	`Main|RealEngines|EveryTestIsListed\w+`:      "what runs the others",
}

// suitesOfTheirOwn are the packages below e2e that choose their engines themselves, and those that hold no tests of the
// whole system.
var suitesOfTheirOwn = []string{"answer", "calibrate", "conformance", "connectors", "controlplane", "dropin", "image", "kube", "kvcache", "matrix", "otlp", "policies", "realengine", "release", "sglang", "vllm"}

// TestEveryTestIsListedForRealEngines holds the two lists to the tests that there are.
func TestEveryTestIsListedForRealEngines(t *testing.T) {
	stay := regexp.MustCompile(`^Test(` + strings.Join(slices.Collect(maps.Keys(simulatedOnly)), "|") + `)$`)
	files, err := filepath.Glob("../*/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if slices.Contains(suitesOfTheirOwn, filepath.Base(filepath.Dir(file))) {
			continue
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range syntax.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Test") {
				continue
			}
			runs := slices.ContainsFunc(realCases, func(c realCase) bool { return c.name == f.Name.Name })
			if runs == stay.MatchString(f.Name.Name) {
				t.Errorf("%s must be either in realCases or, with a reason, in simulatedOnly", f.Name.Name)
			}
		}
	}
}

// engines are the real ones while TestRealEngines runs; otherwise nil.
var engines *realEngines

type realEngines struct {
	prefill, plain       *realengine.Engine
	failing, recomputing *realengine.Engine // decode engines, by their load policy
}

const (
	// realLease is long enough for everything that is no test of leases, and short enough to wait for.
	realLease = 10 * time.Second
	// recomputingRuns is how many requests run at once on the decode engine that recomputes; the others wait.
	recomputingRuns = 8
)

// startRealEngines starts all engines at once. They end with the test, which shows their last lines if it fails.
func startRealEngines(t *testing.T) *realEngines {
	t.Helper()
	var r realEngines
	var starting sync.WaitGroup
	for to, o := range map[**realengine.Engine]vllm.Options{
		&r.plain:   {Name: "plain", Args: servingFlags},
		&r.prefill: {Name: "prefill", Role: vllm.Prefill, Lease: realLease, Args: servingFlags},
		&r.failing: {Name: "decode, fails", Role: vllm.Decode, Lease: realLease, Args: servingFlags},
		&r.recomputing: {Name: "decode, recomputes", Role: vllm.Decode, Lease: realLease, Policy: vllm.Recompute,
			MaxRunning: recomputingRuns, Args: servingFlags},
	} {
		starting.Go(func() { *to = startEngine(t, o) })
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return &r
}

// startEngine starts an engine, and fails without one, from any goroutine.
func startEngine(t *testing.T, o vllm.Options) *realengine.Engine {
	e, err := vllm.Start(t.Context(), o)
	if err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", o.Name, strings.Join(e.Output(), "\n"))
		}
	})
	return e
}

// servingFlags let requests force a tool, and serve the generate API.
var servingFlags = []string{"--enable-auto-tool-choice", "--tool-call-parser=hermes", "--enable-scale-out"}

// mustLive ends the suite if an engine has died and has not been started again.
func (r *realEngines) mustLive(t *testing.T) {
	t.Helper()
	for name, e := range map[string]*realengine.Engine{"prefill": r.prefill, "plain": r.plain, "failing": r.failing, "recomputing": r.recomputing} {
		if e.Exited() {
			t.Fatalf("the engine %s is dead:\n%s", name, strings.Join(e.Output(), "\n"))
		}
	}
}

// lend returns a real engine in place of a simulated one of this name. There is only one that prefills: further ones are the
// same at other addresses.
func (r *realEngines) lend(t *testing.T, name string) harness.Engine {
	t.Helper()
	switch {
	case name == "prefill" || name == "prefill-0":
		return r.engine(t, r.prefill)
	case strings.HasPrefix(name, "prefill"):
		e := r.engine(t, r.prefill)
		e.Addr = harness.NewGate(t, e.Addr, harness.Answers).Addr
		return e
	case name == "decode-1":
		return r.engine(t, r.recomputing)
	case strings.HasPrefix(name, "decode"):
		return r.engine(t, r.failing)
	default:
		return r.engine(t, r.plain)
	}
}

func (r *realEngines) engine(t *testing.T, e *realengine.Engine) harness.Engine {
	must := func(do func() error) func(*testing.T) {
		return func(t *testing.T) {
			t.Helper()
			if err := do(); err != nil {
				t.Fatal(err)
			}
		}
	}
	lent := harness.Engine{Addr: e.Address(), Pause: must(e.Pause), Resume: must(e.Resume), Kill: must(e.Kill)}
	if e == r.prefill {
		lent.Expired = lent.Metric(t, harness.Expiries)
	}
	return lent
}

// pair returns the prefill engine with one of the decode engines.
func (r *realEngines) pair(t *testing.T, decode *realengine.Engine) *harness.Pair {
	return &harness.Pair{
		Model: realengine.Model, Lease: realLease, TokenIDs: [2]int{300, 1000},
		Prefill: r.engine(t, r.prefill), Decode: r.engine(t, decode), Plain: r.engine(t, r.plain),
		Revive: func(t *testing.T) {
			t.Helper()
			if err := r.prefill.Restart(context.Background()); err != nil {
				t.Fatal(err)
			}
		},
	}
}
