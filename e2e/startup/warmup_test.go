package startup

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack"
)

// handshake is what the first hand-off of a pair costs in TestWarmup: hundreds of times as much as any other.
const handshake = 3 * time.Second

// TestWarmup shows which request waits for the engines' handshake: the first one of a cold pair, and none of a pair that was
// warmed up.
func TestWarmup(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags []string
		warm  bool
	}{{"cold", nil, false}, {"warm", []string{"--warm-up"}, true}} {
		t.Run(c.name, func(t *testing.T) {
			prefill := harness.Start(t, stack.Sim(harness.BinDir, "prefill")).Addr("http")
			decode := harness.Start(t, stack.Sim(harness.BinDir, "decode", "--handshake-time="+handshake.String())).Addr("http")
			list := filepath.Join(t.TempDir(), "prefill")
			if err := os.WriteFile(list, []byte(prefill+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			s := harness.StartSidecar(t, decode, append(c.flags, "--prefill-discovery=file:"+list)...)
			metrics := s.Addr("metrics")
			if c.warm {
				mustWarm(t, metrics)
			}
			model, err := harness.DecodeModel(decode)
			if err != nil {
				t.Fatal(err)
			}
			p := &harness.Pair{TokenIDs: [2]int{300, 1000}}
			for i, paysFor := range []bool{!c.warm, false, false} {
				q := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(100), Tokens: 4}
				first := firstPhase(t, q.Remote(prefill), s.Addr("http"), model)
				t.Logf("request %d waits %v for decode", i, first)
				if pays := first >= handshake; pays != paysFor || !pays && first > handshake/2 {
					t.Errorf("request %d waits %v for decode; it pays for the handshake: want %v", i, first, paysFor)
				}
			}
			harness.AwaitSum(t, metrics, "tandem_requests_total", 3) // a request is counted after its client has its answer
			if got := harness.SumOf(t, metrics, "tandem_warmup_total"); got > 0 != c.warm {
				t.Errorf("%v hand-offs were sent to warm up", got)
			}
		})
	}
}

// mustWarm waits for a sidecar's warm-up, which no metric of users' requests may show.
func mustWarm(t *testing.T, metrics string) {
	t.Helper()
	harness.AwaitSum(t, metrics, "tandem_warmup_total", 1)
	for _, users := range []string{"tandem_requests_total", "tandem_leg_seconds_count", "tandem_phase_seconds_count",
		"tandem_handoff_age_seconds_count", "tandem_retries_total", "tandem_kv_release_total", "tandem_kv_stranded_total", "tandem_open_requests"} {
		if got := harness.SumOf(t, metrics, users); got != 0 {
			t.Errorf("%s is %v after the warm-up", users, got)
		}
	}
}

// firstPhase returns how long decode lets a call wait for its answer to begin.
func firstPhase(t *testing.T, c harness.Call, base, model string) time.Duration {
	t.Helper()
	r := harness.MustSend(t, c, base, model)
	if r.Status != http.StatusOK || r.Decision.Verdict != pd.Remote {
		t.Fatalf("status %d, decision %v: %s", r.Status, r.Decision, r.Body)
	}
	phases, err := pd.ParseTiming(r.Header.Get(pd.HeaderTiming))
	if err != nil {
		t.Fatal(err)
	}
	first, ok := phases.Get(pd.PhaseFirst)
	if !ok {
		t.Fatalf("no %s in %s: %s", pd.PhaseFirst, pd.HeaderTiming, r.Header.Get(pd.HeaderTiming))
	}
	return first
}
