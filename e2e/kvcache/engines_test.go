package kvcache

import (
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/sglang"
	"github.com/tandem-serving/tandem/e2e/vllm"
	"github.com/tandem-serving/tandem/stack"
)

var onEngines = flag.String("kvcache", "", "run TestRealEngines on these engines, vllm or sglang: it needs 8 GB of memory and minutes (make test-kvcache)")

// engine is one that publishes KV events.
type engine struct {
	harness.Engine
	connector string             // of its sidecar
	warm      int                // blocks that it has after its start: of a prompt of its own
	restart   func(t *testing.T) // with an empty cache, at the same addresses
}

// start starts engines that publish, one for each role.
type start func(t *testing.T, roles ...vllm.Role) []*engine

// simulated starts simulated engines.
func simulated(t *testing.T, roles ...vllm.Role) (engines []*engine) {
	return simulatedAs(t, nil, roles...)
}

// simulatedOffloading starts simulated engines that copy blocks to the host's memory.
func simulatedOffloading(t *testing.T, roles ...vllm.Role) []*engine {
	return simulatedAs(t, []string{"--max-model-len=4096", fmt.Sprintf("--blocks=%d", fewBlocks), "--host-blocks=1000"}, roles...)
}

// fewBlocks is the size of the pools of engines that offload: a few prompts of testTiers fill it.
const fewBlocks = 140

func simulatedAs(t *testing.T, more []string, roles ...vllm.Role) (engines []*engine) {
	t.Helper()
	for i, role := range roles {
		port := harness.FreePorts(t, 3)
		flags := append(slices.Clone(more), "--port="+strconv.Itoa(port), fmt.Sprintf("--kv-events-address=127.0.0.1:%d", port+1), fmt.Sprintf("--kv-events-replay-address=127.0.0.1:%d", port+2))
		if role == vllm.Prefill {
			flags = append(flags, "--role=prefill")
		}
		run := func(t *testing.T) harness.Program {
			return harness.Start(t, stack.Sim(harness.BinDir, fmt.Sprintf("engine-%d", i), flags...))
		}
		p := run(t)
		e := &engine{Engine: harness.Engine{Addr: p.Addr("http")}, connector: "nixlv2"}
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

// onVLLM starts vLLM engines.
func onVLLM(t *testing.T, roles ...vllm.Role) []*engine {
	return realEngines(t, engine{connector: "nixlv2"}, len(roles), func(i int, events string) (*realengine.Engine, error) {
		return vllm.Start(t.Context(), vllm.Options{Name: fmt.Sprintf("engine-%d", i), Role: roles[i], Args: []string{"--kv-events-config=" + events}})
	})
}

// onVLLMRendering starts vLLM engines that turn requests into token ids for others.
func onVLLMRendering(t *testing.T, roles ...vllm.Role) []*engine {
	return realEngines(t, engine{connector: "nixlv2"}, len(roles), func(i int, events string) (*realengine.Engine, error) {
		return vllm.Start(t.Context(), vllm.Options{Name: fmt.Sprintf("engine-%d", i), Role: roles[i], Args: []string{"--kv-events-config=" + events, "--enable-scale-out"}})
	})
}

// onVLLMOffloading starts vLLM engines that copy blocks to the host's memory, decode engines of pairs among them.
func onVLLMOffloading(t *testing.T, roles ...vllm.Role) []*engine {
	return realEngines(t, engine{connector: "nixlv2"}, len(roles), func(i int, events string) (*realengine.Engine, error) {
		o := vllm.Options{Name: fmt.Sprintf("engine-%d", i), Role: vllm.Decode, Connector: vllm.Offloading,
			Args: []string{"--kv-events-config=" + events, fmt.Sprintf("--num-gpu-blocks-override=%d", fewBlocks)}}
		if len(roles) > 1 {
			o.Role, o.Connector, o.Second = roles[i], vllm.Multi, vllm.Offloading
			o.Tier = netip.AddrPortFrom(netip.MustParseAddr(realengine.Loopback), uint16(harness.FreePorts(t, 1))) // NIXL has SidePort
		}
		return vllm.Start(t.Context(), o)
	})
}

// onSGLang starts plain SGLang engines.
func onSGLang(t *testing.T, roles ...vllm.Role) []*engine {
	return realEngines(t, engine{connector: "sglang", warm: 1}, len(roles), func(i int, events string) (*realengine.Engine, error) {
		e, err := sglang.Start(t.Context(), sglang.Options{Name: fmt.Sprintf("engine-%d", i), Args: []string{"--kv-events-config=" + events}})
		if err != nil {
			return nil, err
		}
		return e.Engine, nil
	})
}

// realEngines starts n engines of a kind at the same time, each of which publishes as it is told.
func realEngines(t *testing.T, kind engine, n int, start func(i int, events string) (*realengine.Engine, error)) (engines []*engine) {
	t.Helper()
	engines = make([]*engine, n)
	var starting sync.WaitGroup
	for i := range engines {
		starting.Go(func() {
			port := harness.FreePorts(t, 2)
			e, err := start(i, fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d"}`, port, port+1))
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
			one := kind
			one.Addr = e.Address()
			one.restart = func(t *testing.T) {
				t.Helper()
				if err := e.Restart(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			engines[i] = &one
		})
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return engines
}

// TestRealEngines has real engines in place of simulated ones. SGLang's decode engines have no prefix cache, so a pair of them shows nothing
// that plain engines do not.
func TestRealEngines(t *testing.T) {
	switch *onEngines {
	case "":
		t.Skip("make test-kvcache runs it")
	case "vllm":
		realengine.Require(t, "vllm")
		t.Run("conversations", func(t *testing.T) { testConversations(t, onVLLM) })
		t.Run("chats", func(t *testing.T) { testChats(t, onVLLM) })
		t.Run("tokenize", func(t *testing.T) { testTokenService(t, onVLLM, "/tokenize") })
		t.Run("render", func(t *testing.T) { testTokenService(t, onVLLMRendering, "/v1/chat/completions/render") })
		t.Run("pd", func(t *testing.T) { testPD(t, onVLLM) })
		t.Run("tiers", func(t *testing.T) { testTiers(t, onVLLMOffloading) })
		t.Run("pd tiers", func(t *testing.T) { testTieredPD(t, onVLLMOffloading) })
	case "sglang":
		realengine.Require(t, "sglang")
		t.Run("conversations", func(t *testing.T) { testConversations(t, onSGLang) })
		t.Run("chats", func(t *testing.T) { testChats(t, onSGLang) })
	default:
		t.Fatalf("-kvcache=%s: want vllm or sglang", *onEngines)
	}
}

func TestConversations(t *testing.T) { testConversations(t, simulated) }

func TestPD(t *testing.T) { testPD(t, simulated) }

func TestTokenService(t *testing.T) { testTokenService(t, simulated, "/tokenize") }

func TestTiers(t *testing.T) { testTiers(t, simulatedOffloading) }

func TestTieredPD(t *testing.T) { testTieredPD(t, simulatedOffloading) }
