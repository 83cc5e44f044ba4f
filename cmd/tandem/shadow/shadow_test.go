package shadow

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/shadow"
)

// report is what a picker tells.
func report() shadow.View {
	gain := shadow.Gain{Mean: 0.12, Low: 0.08, High: 0.16, Live: 0.5}
	return shadow.View{Config: "b.yaml", Since: time.Date(2026, 11, 27, 4, 0, 0, 0, time.UTC), Picks: 200, Confidence: 0.9,
		All: shadow.Group{Picks: 200, TTFT: gain}, Kinds: []shadow.Group{{Kind: shadow.Same, Picks: 150}, {Kind: shadow.Verdict, Picks: 50, TTFT: gain, ITL: shadow.Gain{Mean: -0.002, Low: -0.003, High: -0.001}}},
		TTFT: latency.Calibration{Requests: 190, Error: 0.14, Within90: 0.91},
		Latest: []shadow.Difference{{At: time.Date(2026, 11, 27, 4, 1, 0, 0, time.UTC), Request: "r1", Kind: shadow.Verdict, Tokens: 4000,
			Live:   shadow.Decision{Verdict: "local", Reason: "short-prompt", Decode: "default/decode-0", TTFT: 0.5, ITL: 0.02},
			Shadow: shadow.Decision{Verdict: "remote", Reason: "lower-cost", Decode: "default/decode-0", Prefill: "default/prefill-0", TTFT: 0.38, ITL: 0.02}}}}
}

func TestText(t *testing.T) {
	v := report()
	got := text(&v, 1)
	for _, want := range []string{
		"first tokens would come earlier by 120ms on average (80ms to 160ms with 90 % confidence) of 500ms\n",
		"time to first token of 190 requests: off by 14 % on average, 91 % within the predicted p90; none of the time between tokens was checked yet\n",
		"25.0%  local instead of remote prefill, or the reverse  120ms      80ms  160ms  -2ms      -3ms  -1ms\n",
		"  shadow  remote (lower-cost) on default/decode-0, prompt on default/prefill-0: first token after 380ms, then one each 20ms\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwhich has not\n%s", got, want)
		}
	}
	if strings.Contains(text(&v, 0), "latest differences") {
		t.Error("differences are shown that were not asked for")
	}
	v.All.TTFT.Low = -0.1
	if !strings.Contains(text(&v, 0), "is not known") {
		t.Error("a gain that may be none is claimed")
	}
	if v := (shadow.View{Config: "b.yaml"}); !strings.Contains(text(&v, 5), "nothing was picked for since then") {
		t.Error("without picks, it is not said")
	}
}

// TestRun asks a picker with a shadow, one without, and one that is not there.
func TestRun(t *testing.T) {
	with := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/debug/shadow" {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(report())
	}))
	defer with.Close()
	without := httptest.NewServer(http.NotFoundHandler())
	defer without.Close()
	run := func(server *httptest.Server) (string, error) {
		var out strings.Builder
		err := Run(t.Context(), boot.IO{Name: "tandem shadow", Stdin: os.Stdin, Stdout: &out, Stderr: os.Stderr, Env: func(string) (string, bool) { return "", false }},
			[]string{"--admin", strings.TrimPrefix(server.URL, "http://")})
		return out.String(), err
	}
	if out, err := run(with); err != nil || !strings.HasPrefix(out, "shadow      b.yaml, since 2026-11-27T04:00:00Z: 200 picks\n") {
		t.Errorf("got %q, %v", out, err)
	}
	if _, err := run(without); err == nil || !strings.Contains(err.Error(), "asking ") {
		t.Errorf("without a shadow: %v", err)
	}
	without.Close()
	if _, err := run(without); err == nil || !strings.Contains(err.Error(), "check that it runs") {
		t.Errorf("without a picker: %v", err)
	}
}
