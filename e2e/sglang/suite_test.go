package sglang_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/sglang"
	"github.com/tandem-serving/tandem/stack/envoy"
)

var (
	onSGLang = flag.Bool("sglang", false, "run TestRealEngines, which needs 10 GB of memory and minutes (make test-sglang)")
	short    = flag.Bool("sglang.ci", false, "leave out the cases that wait for the engines' own time-outs, or that need a machine on which nothing else runs")
)

func TestMain(m *testing.M) {
	if flag.Parse(); *onSGLang || *soak > 0 {
		os.Exit(harness.Run(m))
	}
	goleak.VerifyTestMain(m)
}

// patience is how long legs wait for each other at the engines of the suite.
const patience = 20 * time.Second

// engines are those that all cases share.
type engines struct {
	plain   *sglang.Engine // in no pool: its answers are the expected ones
	prefill *sglang.Engine
	ranked  *sglang.Engine // prefills too, and has two ranks
	decode  *sglang.Engine
}

// TestRealEngines runs the suite.
func TestRealEngines(t *testing.T) {
	if !*onSGLang {
		t.Skip("make test-sglang runs it")
	}
	realengine.Require(t, "sglang")
	envoy.Require(t)
	began := time.Now()
	e := startEngines(t)
	fmt.Printf("ready  %6.1f s  four engines\n", time.Since(began).Seconds())
	for _, c := range cases {
		if c.slow && *short {
			continue
		}
		began = time.Now()
		passed := t.Run(c.name, func(t *testing.T) { c.run(t, e) })
		fmt.Printf("%-6s %6.1f s  %s\n", map[bool]string{true: "passed", false: "FAILED"}[passed], time.Since(began).Seconds(), c.name)
		e.mustLive(t)
	}
}

// cases come in this order: those that kill an engine are the last.
var cases = []struct {
	name string
	run  func(t *testing.T, e *engines)
	slow bool
}{
	{"legs by hand", testByHand, false},
	{"answers", testAnswers, false},
	{"ranks", testRanks, false},
	{"several answers", testSeveral, false},
	{"log probabilities of the prompt", testInputLogProbs, false},
	{"hostile members", testHostileMembers, false},
	{"hostile bodies", testHostileBodies, false},
	{"without prefill", testWithoutPrefill, false},
	{"operators' paths", testOperatorsPaths, false},
	{"refused", testRefused, false},
	{"client gone", testClientGone, false},
	{"aborted", testAborted, false},
	{"streams generated again", testAgain, false},
	{"prefill stopped", testPrefillStopped, true},
	{"prefill killed", testPrefillKilled, true},
	{"decode killed", testDecodeKilled, true},
	{"no prefill", testNoPrefill, false},
}

// startEngines starts all engines at once. They end with the test, which shows their last lines if it fails.
func startEngines(t *testing.T) *engines {
	t.Helper()
	var e engines
	var starting sync.WaitGroup
	for to, o := range map[**sglang.Engine]sglang.Options{
		&e.plain:   {Name: "plain"},
		&e.prefill: {Name: "prefill", Role: sglang.Prefill, Patience: patience},
		&e.ranked:  {Name: "prefill with ranks", Role: sglang.Prefill, Patience: patience, Ranks: 2},
		&e.decode:  {Name: "decode", Role: sglang.Decode, Patience: patience},
	} {
		starting.Go(func() {
			var err error
			if *to, err = sglang.Start(t.Context(), o); err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() {
				if err := (*to).Kill(); err != nil { // its own way to stop takes 20 s
					t.Error(err)
				}
				if t.Failed() {
					t.Logf("%s said:\n%s", o.Name, strings.Join((*to).Output(), "\n"))
				}
			})
		})
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return &e
}

// all returns the engines by name.
func (e *engines) all() map[string]*sglang.Engine {
	return map[string]*sglang.Engine{"plain": e.plain, "prefill": e.prefill, "prefill with ranks": e.ranked, "decode": e.decode}
}

// mustLive ends the suite if an engine has died and has not been started again.
func (e *engines) mustLive(t *testing.T) {
	t.Helper()
	for name, engine := range e.all() {
		if engine.Exited() {
			t.Fatalf("the engine %s is dead:\n%s", name, strings.Join(engine.Output(), "\n"))
		}
	}
}

// mustRest fails unless the engines of the pair hold nothing within a limit, and returns how long it took.
func (e *engines) mustRest(t *testing.T, limit time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	for name, engine := range map[string]*sglang.Engine{"prefill": e.prefill, "prefill with ranks": e.ranked, "decode": e.decode} {
		if engine.Exited() {
			continue
		}
		await(t, engine, name+" holds nothing", limit-time.Since(began), func(l sglang.Load) bool { return l == sglang.Load{} })
	}
	return time.Since(began)
}

// await polls an engine's load, of which nothing else tells, until it is as the test needs it.
func await(t *testing.T, e *sglang.Engine, what string, limit time.Duration, ok func(sglang.Load) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	var last sglang.Load
	for {
		l, err := e.Load(ctx)
		if err == nil {
			if last = l; ok(l) {
				return
			}
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting until %s: it has %+v after %v (%v)", what, last, limit.Round(time.Millisecond), err)
		case <-poll.C:
		}
	}
}
