package kvcache

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/vllm"
	"github.com/tandem-serving/tandem/stack"
)

var onVLLM = flag.Bool("kvcache", false, "run TestRealEngines, which needs 8 GB of memory and minutes (make test-kvcache)")

// engine is one that publishes KV events.
type engine struct {
	harness.Engine
	restart func(t *testing.T) // with an empty cache, at the same addresses
}

// start starts engines that publish, one for each role.
type start func(t *testing.T, roles ...vllm.Role) []*engine

// simulated starts simulated engines.
func simulated(t *testing.T, roles ...vllm.Role) (engines []*engine) {
	t.Helper()
	for i, role := range roles {
		port := harness.FreePorts(t, 3)
		flags := []string{"--port=" + strconv.Itoa(port), fmt.Sprintf("--kv-events-address=127.0.0.1:%d", port+1), fmt.Sprintf("--kv-events-replay-address=127.0.0.1:%d", port+2)}
		if role == vllm.Prefill {
			flags = append(flags, "--role=prefill")
		}
		run := func(t *testing.T) harness.Program {
			return harness.Start(t, stack.Sim(harness.BinDir, fmt.Sprintf("engine-%d", i), flags...))
		}
		p := run(t)
		e := &engine{Engine: harness.Engine{Addr: p.Addr("http")}}
		e.restart = func(t *testing.T) {
			t.Helper()
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
			p = run(t)
		}
		engines = append(engines, e)
	}
	return engines
}

// real starts vLLM engines.
func real(t *testing.T, roles ...vllm.Role) (engines []*engine) {
	t.Helper()
	engines = make([]*engine, len(roles))
	var starting sync.WaitGroup
	for i, role := range roles {
		starting.Go(func() {
			port := harness.FreePorts(t, 2)
			e, err := vllm.Start(t.Context(), vllm.Options{Name: fmt.Sprintf("engine-%d", i), Role: role, Args: []string{fmt.Sprintf(
				`--kv-events-config={"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d"}`, port, port+1)}})
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() {
				if err := e.Kill(); err != nil {
					t.Error(err)
				}
				if t.Failed() {
					t.Logf("engine %d said:\n%s", i, strings.Join(e.Output(), "\n"))
				}
			})
			engines[i] = &engine{harness.Engine{Addr: e.Address()}, func(t *testing.T) {
				t.Helper()
				if err := e.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
			}}
		})
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return engines
}

// TestRealEngines has real engines in place of simulated ones.
func TestRealEngines(t *testing.T) {
	if !*onVLLM {
		t.Skip("make test-kvcache runs it")
	}
	realengine.Require(t, "vllm")
	t.Run("conversations", func(t *testing.T) { testConversations(t, real) })
	t.Run("pd", func(t *testing.T) { testPD(t, real) })
}

func TestConversations(t *testing.T) { testConversations(t, simulated) }

func TestPD(t *testing.T) { testPD(t, simulated) }
