package connectors_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/vllm"
)

var (
	onVLLM = flag.Bool("connectors", false, "run TestRealEngines, which needs 8 GB of memory and minutes (make test-connectors)")
	only   = flag.String("connectors.only", "", "the pairs that run, as a pattern of their names; all by default")
)

func TestMain(m *testing.M) {
	if flag.Parse(); *onVLLM {
		os.Exit(harness.Run(m))
	}
	goleak.VerifyTestMain(m)
}

// abort is how long Mooncake's legs wait for each other, and how long prefill keeps what decode does not ask for.
const abort = 20 * time.Second

// suite is what is run on one pair.
type suite struct {
	name    string
	engines vllm.Options
	flags   []string // of sidecars
	cases   []pairCase
}

type pairCase struct {
	name string
	run  func(t *testing.T, p *pair)
}

// forFiles are flags without which ExampleConnector ends its engine: at a prompt that is longer than one step, and at one that ends just
// after a block and is in the engine's own cache.
var forFiles = []string{"--max-num-batched-tokens=4096", "--no-enable-prefix-caching"}

// suites come in this order, and so do their cases: those that kill an engine are the last.
var suites = []suite{
	{"files", vllm.Options{Connector: vllm.Files, Args: forFiles}, []string{"--kv-connector=shared-storage"}, []pairCase{
		{"answers", testAnswers},
		{"several answers", testSeveral},
		{"streams that go on", testGoesOn},
		{"hostile bodies", testHostile},
		{"refused", testRefused},
		{"fuzz", testFuzz},
		{"prefill killed", testFilesPrefillKilled},
	}},
	{"mooncake", vllm.Options{Connector: vllm.Mooncake, Abort: abort}, []string{"--kv-connector=mooncake"}, []pairCase{
		{"answers", testAnswers},
		{"several answers", testSeveral},
		{"first token ends it", testFirstToken},
		{"streams that go on", testGoesOn},
		{"hostile bodies", testHostile},
		{"refused", testRefused},
		{"client gone", testClientGone},
		{"fuzz", testFuzz},
		{"prefill stopped", testPrefillStopped},
		{"prefill killed", testPrefillKilled},
		{"decode killed", testDecodeKilled},
	}},
	{"push", vllm.Options{Connector: vllm.Push, Lease: pushLease}, []string{"--kv-connector=nixl-push", "--lease=" + pushLease.String()}, []pairCase{
		{"answers", testAnswers},
		{"several answers", testSeveral},
		{"first token ends it", testFirstToken},
		{"streams that go on", testGoesOn},
		{"hostile bodies", testHostile},
		{"refused", testRefused},
		{"client gone", testClientGone},
		{"fuzz", testFuzz},
		{"one request id", testPushOneID},
		{"prefill stopped", testPrefillStopped},
		{"decode killed", testDecodeKilled},
		{"prefill killed", testPushPrefillKilled},
	}},
	{"offloading", vllm.Options{Connector: vllm.Offloading}, []string{"--kv-connector=offloading", "--first-event-timeout=10s"}, []pairCase{
		{"answers", testAnswers},
		{"several answers", testSeveral},
		{"first token ends it", testFirstToken},
		{"streams that go on", testGoesOn},
		{"hostile bodies", testHostile},
		{"refused", testRefused},
		{"client gone", testClientGone},
		{"fuzz", testFuzz},
		{"prefill pulls", testPrefillPulls},
		{"decode pulls", testDecodePulls},
		{"memory of the dead", testPullFromTheDead},
		{"prefill stopped", testPrefillStopped},
		{"decode killed", testDecodeKilled},
		{"prefill killed", testOffloadingPrefillKilled},
	}},
	{"multi", vllm.Options{Connector: vllm.Multi, Lease: 10 * time.Second, Args: []string{"--max-num-batched-tokens=4096"}}, []string{"--kv-connector=nixlv2", "--lease=10s"}, []pairCase{
		{"answers", testAnswers},
		{"several answers", testSeveral},
		{"hostile bodies", testHostile},
		{"client gone", testClientGone},
		{"fuzz", testFuzz},
	}},
	{"pulls", vllm.Options{Connector: vllm.Multi, Second: vllm.Offloading, Lease: 10 * time.Second}, []string{"--kv-connector=nixlv2", "--enable-p2p-pull", "--lease=10s"}, []pairCase{
		{"answers", testAnswers},
		{"hostile bodies", testHostile},
		{"fuzz", testFuzz},
		{"prefill pulls", testPrefillPulls},
		{"decode pulls", testDecodePulls},
		{"memory of the dead", testPullFromTheDead},
	}},
	{"bidirectional", vllm.Options{Connector: vllm.NIXL, Bidirectional: true, Lease: readBackLease}, []string{"--kv-connector=nixlv2", "--lease=" + readBackLease.String()}, []pairCase{
		{"ten turns", testTurns},
		{"refused", testUnread},
		{"hostile bodies", testHostile},
		{"fuzz", testFuzz},
		{"prefill stopped", testPrefillStopped},
	}},
	{"ranks", vllm.Options{Connector: vllm.NIXL, Lease: 10 * time.Second, Args: []string{"--data-parallel-size=2"}}, []string{"--kv-connector=nixlv2", "--lease=10s"}, []pairCase{
		{"ranks of the plan", testPlannedRanks},
	}},
}

// tierHosts are where the peer-to-peer tiers of the engines listen: all have the same port, as in pods.
var tierHosts = map[vllm.Role]netip.Addr{vllm.Prefill: netip.MustParseAddr("127.0.0.1"), vllm.Decode: netip.MustParseAddr("127.0.0.2")}

// pair is the engines that the cases of a suite share.
type pair struct {
	suite
	plain, prefill, decode *realengine.Engine // plain is in no pair: its answers are the expected ones
}

// TestRealEngines runs the suites.
func TestRealEngines(t *testing.T) {
	if !*onVLLM {
		t.Skip("make test-connectors runs it")
	}
	realengine.Require(t, "vllm")
	selected := regexp.MustCompile(*only)
	if selected.MatchString(encoders) {
		t.Run(encoders, testEncoders)
	}
	plain := make(chan *realengine.Engine, 1)
	startPlain := sync.OnceFunc(func() { go func() { plain <- startEngine(t, vllm.Options{Name: "plain"}) }() })
	p := &pair{}
	for _, s := range suites {
		if !selected.MatchString(s.name) {
			continue
		}
		startPlain()
		t.Run(s.name, func(t *testing.T) {
			began := time.Now()
			p.suite = s
			p.start(t)
			if p.plain == nil {
				p.plain = <-plain
			}
			fmt.Printf("ready  %6.1f s  %s\n", time.Since(began).Seconds(), s.name)
			for _, c := range s.cases {
				began = time.Now()
				passed := t.Run(c.name, func(t *testing.T) { c.run(t, p) })
				fmt.Printf("%-6s %6.1f s  %s: %s\n", map[bool]string{true: "passed", false: "FAILED"}[passed], time.Since(began).Seconds(), s.name, c.name)
				p.mustLive(t)
			}
		})
	}
}

// start starts the pair. Its engines end with the test.
func (p *pair) start(t *testing.T) {
	t.Helper()
	const ranks = 2                         // a rank has the port of its number above its engine's
	side := harness.FreePorts(t, 2*ranks+1) // of prefill, of decode, of the tiers
	tier := side + 2*ranks
	o := p.engines
	o.Store, o.SidePort = t.TempDir(), side
	p.flags = append(p.flags, "--mooncake-bootstrap-port="+strconv.Itoa(side), "--p2p-connector-port="+strconv.Itoa(tier), "--fallback-ratio=1", "--fallback-burst=1000")
	var starting sync.WaitGroup
	for to, role := range map[**realengine.Engine]vllm.Role{&p.prefill: vllm.Prefill, &p.decode: vllm.Decode} {
		o := o
		o.Tier = netip.AddrPortFrom(tierHosts[role], uint16(tier))
		if o.Role, o.Name = role, p.name+" "+string(role); role == vllm.Decode {
			o.SidePort = side + ranks
		}
		starting.Go(func() { *to = startEngine(t, o) })
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// startEngine starts an engine, from any goroutine.
func startEngine(t *testing.T, o vllm.Options) *realengine.Engine {
	o.Args = append(o.Args, "--enable-scale-out")
	e, err := vllm.Start(t.Context(), o)
	if err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() {
		if err := e.Kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", o.Name, strings.Join(e.Output(), "\n"))
		}
	})
	return e
}

// mustLive ends the suite if an engine has died and has not been started again.
func (p *pair) mustLive(t *testing.T) {
	t.Helper()
	for name, e := range map[string]*realengine.Engine{"plain": p.plain, "prefill": p.prefill, "decode": p.decode} {
		if e.Exited() {
			t.Fatalf("the engine %s is dead:\n%s", name, strings.Join(e.Output(), "\n"))
		}
	}
}

// mustRest fails unless the engines of the pair hold nothing within a limit, and returns how long it took.
func (p *pair) mustRest(t *testing.T, limit time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	for name, e := range map[string]*realengine.Engine{"prefill": p.prefill, "decode": p.decode} {
		if !e.Exited() {
			await(t, name+" holds nothing", limit, func() bool { return usage(t, e) == 0 })
		}
	}
	return time.Since(began)
}

// usage returns the share of the KV cache that an engine's requests hold; of ranks, the sum.
func usage(t *testing.T, e *realengine.Engine) float64 {
	t.Helper()
	share, series, err := harness.ReadSeries(e.Address(), "vllm:kv_cache_usage_perc")
	if err != nil || series == 0 {
		t.Fatalf("%s has %d series of its usage, %v", e.Address(), series, err)
	}
	return share
}

// requests returns how many requests an engine has, running or waiting.
func requests(t *testing.T, e *realengine.Engine) float64 {
	t.Helper()
	return harness.SumOf(t, e.Address(), "vllm:num_requests_running") + harness.SumOf(t, e.Address(), "vllm:num_requests_waiting")
}

// await polls until ok, since the engines' metrics have no events.
func await(t *testing.T, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	late := time.NewTimer(limit)
	defer late.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for !ok() {
		select {
		case <-late.C:
			t.Fatalf("waiting until %s: %v are over", what, limit)
		case <-poll.C:
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
