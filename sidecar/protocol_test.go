package sidecar

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/simtest"
	"github.com/tandem-serving/tandem/sim/trtllm"
)

// simulated are the simulated engines: a pair of each, the protocols that they speak, and whether they hold anything.
var simulated = []struct {
	name   string
	speaks []string
	start  func(t *testing.T) (prefill, decode string, idle func(t *testing.T))
}{
	{"vLLM with NIXL", []string{"nixlv2", "nixl-push", "shared-storage"}, func(t *testing.T) (string, string, func(*testing.T)) {
		prefill, decode := startSim(t, sim.Config{}), startSim(t, sim.Config{})
		return addrOf(prefill), addrOf(decode), func(t *testing.T) { mustFree(t, prefill, decode) }
	}},
	{"SGLang", []string{"sglang"}, func(t *testing.T) (string, string, func(*testing.T)) {
		prefill, decode := simtest.SGLang(t, sglang.Prefill), simtest.SGLang(t, sglang.Plain)
		return hostPort(prefill.URL), hostPort(decode.URL), simtest.Pair{Prefill: prefill, Decode: decode}.Rests
	}},
	{"TensorRT-LLM", []string{"trtllm", "trtllm-generation-first"}, func(t *testing.T) (string, string, func(*testing.T)) {
		prefill, decode := simtest.TRTLLM(t), simtest.TRTLLM(t)
		return hostPort(prefill.URL), hostPort(decode.URL), func(t *testing.T) {
			simtest.WaitForTRTLLM(t, prefill, "prefill to hold nothing", trtllm.State.Idle)
			simtest.WaitForTRTLLM(t, decode, "decode to hold nothing", trtllm.State.Idle)
		}
	}},
}

// setTo has a sidecar speak a protocol. No budget is left for local prefills: a wrong setting takes none.
func setTo(connector string) option {
	return set(func(c *Config) {
		c.Engine.Connector, c.Fallback.Burst, c.Fallback.Ratio = connector, 0, 0
		c.Prefill.PodIP = "127.0.0.1"
	})
}

// TestWrongProtocol: with each protocol before each simulated engine that does not speak it, requests are served by the local engine
// alone, prefill gets none of them, and log, metric and answer say why.
func TestWrongProtocol(t *testing.T) {
	for _, engine := range simulated {
		for _, row := range dialect.Table {
			if _, ok := row.New(dialect.Options{}).(dialect.Recognizer); !ok || slices.Contains(engine.speaks, row.Name) {
				continue
			}
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/stream=%v", row.Name, engine.name, stream), func(t *testing.T) {
					t.Parallel()
					prefill, decode, idle := engine.start(t)
					s := startRig(t, decode, setTo(row.Name))
					s.awaitMismatch(t, pd.RoleDecode)
					ask := fmt.Sprintf(`{"model":"tiny","prompt":"the quick brown fox","max_tokens":8,"stream":%v}`, stream)
					r := post(t, s.url+completionsPath, ask, pd.HeaderPrefill, prefill)
					r.mustBe(t, http.StatusOK, "local;reason=wrong-protocol")
					if completionText(r.body) == "" {
						t.Errorf("no text: %s", r.body)
					}
					post(t, s.url+completionsPath, ask).mustBe(t, http.StatusOK, "local;reason=unplanned") // what is planned local is served too
					post(t, s.url+completionsPath, ask, pd.HeaderPrefill, prefill, pd.HeaderMode, "force").mustRefuse(t, http.StatusBadGateway, pd.PrefillFailed)
					s.mustCount(t, 1, "tandem_protocol_mismatch", "role", "decode")
					s.mustCount(t, 0, "tandem_leg_seconds", "leg", "prefill")
					if err := s.Ready(); err != nil && engine.name != "SGLang" { // whose /health takes as long as a probe waits
						t.Errorf("the sidecar is not ready: %v", err)
					}
					s.end()
					idle(t)
				})
			}
		}
	}
}

// A prefill pod of another protocol gets no leg: another candidate serves, or the local engine.
func TestPrefillOfAnotherProtocol(t *testing.T) {
	both(t, func(t *testing.T, q question) {
		wrong, right := startEngine(t, says(http.StatusInternalServerError, "application/json", "{}")), startEngine(t, offering(handoffParams))
		wrong.becomes("# TYPE sglang:num_running_reqs gauge\n")
		decode := startEngine(t, q.answer())
		s := startRig(t, decode.addr, noBudget)
		post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, wrong.addr) // has it asked; on a busy machine it gets the leg before it answers
		s.awaitMismatch(t, pd.RolePrefill)
		early, retries := len(wrong.requests()), s.count(t, "tandem_retries_total", "cause", "protocol")
		post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, wrong.addr+","+right.addr).mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=1")
		post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, wrong.addr).mustBe(t, http.StatusOK, "local;reason=wrong-protocol")
		s.mustCount(t, 1, "tandem_protocol_mismatch", "role", "prefill")
		s.mustCount(t, 0, "tandem_protocol_mismatch", "role", "decode")
		s.mustCount(t, retries+2, "tandem_retries_total", "cause", "protocol")
		if n := len(wrong.requests()); n > early {
			t.Errorf("the wrong engine got %d requests", n-early)
		}
	})
}

// awaitMismatch waits until the sidecar knows an engine of another protocol.
func (r *rig) awaitMismatch(t *testing.T, role pd.Role) {
	t.Helper()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for ctx := within(t); r.mismatches(role) == 0; {
		select {
		case <-poll.C:
		case <-ctx.Done():
			t.Fatalf("no %s engine is found to speak another protocol", role)
		}
	}
}

// The sidecar finds out at its start, without a request, and says what to set.
func TestWrongProtocolAtTheStart(t *testing.T) {
	decode := startEngine(t)
	decode.becomes("# TYPE sglang:num_running_reqs gauge\n")
	said := make(chan string, 8)
	startRig(t, decode.addr, func(_ *Config, to *Telemetry) { to.Log = slog.New(slog.NewTextHandler(lines(said), nil)) })
	for line := wait(t, said, "the log"); ; line = wait(t, said, "the log") {
		if strings.Contains(line, "level=ERROR") && strings.Contains(line, "--kv-connector=sglang") && strings.Contains(line, decode.addr) {
			return
		}
	}
}

// lines sends what is written to a channel, as long as it takes something.
type lines chan string

// Write implements io.Writer.
func (l lines) Write(b []byte) (int, error) {
	select {
	case l <- string(b):
	default:
	}
	return len(b), nil
}
