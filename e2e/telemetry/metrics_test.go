package telemetry

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// TestMetrics reads the pages of a stack that has seen everything: the metrics are the contract's, and promtool takes them.
func TestMetrics(t *testing.T) {
	f := harness.NewTappedFleet(t, 2)
	f.StartPicker(t)
	f.StartFront(t, harness.Layout{Proxy: "gateway", Mode: "pair"})
	seeEverything(t, f)
	picker, sidecar := metricsOf(t, f.Pickers[0].Addr("metrics")), metricsOf(t, f.Fleet.Decode[0].Sidecar.Addr("metrics"))
	t.Run("epp", func(t *testing.T) {
		picker.mustHave(t, map[string]string{
			"tandem_requests_total":     "counter code component decision reason",
			"tandem_phase_seconds":      "histogram decision phase",
			"tandem_pick_seconds":       "histogram",
			"tandem_scrape_age_seconds": "histogram",
			"tandem_inflight":           "gauge component role",
		})
		picker.mustPass(t, "llm_d_epp_") // llm-d's names, in which promtool takes "d" for days
	})
	t.Run("sidecar", func(t *testing.T) {
		sidecar.mustHave(t, map[string]string{
			"tandem_requests_total":      "counter code component decision reason",
			"tandem_phase_seconds":       "histogram decision phase",
			"tandem_leg_seconds":         "histogram code leg",
			"tandem_handoff_age_seconds": "histogram",
			"tandem_retries_total":       "counter cause leg",
			"tandem_kv_release_total":    "counter result way",
			"tandem_kv_stranded_total":   "counter",
			"tandem_fallback_tokens":     "gauge",
			"tandem_inflight":            "gauge component role",
			"tandem_open_requests":       "gauge",
		})
		sidecar.mustPass(t)
	})
	t.Run("sim", func(t *testing.T) {
		// Names are the real engine's, which promtool has something to say about.
		metricsOf(t, f.Decode[0].Tap.Addr).mustPass(t, "metric names should not contain ':'",
			`vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix`)
	})
}

// seeEverything makes every metric of the contract come up.
func seeEverything(t *testing.T, f *harness.TappedFleet) {
	t.Helper()
	for _, e := range f.Prefill {
		e.Fault(t, `{"leg":"prefill","fault":"status","arg":"500","match":"fault-prefill"}`)
	}
	f.Decode[0].Fault(t, `{"leg":"decode","fault":"slow","arg":"stop","match":"fault-decode"}`)
	for _, c := range []struct {
		tokens     int
		mode, id   string
		want       string
		wantStatus int
	}{
		{harness.Threshold / 2, "", "", "local;reason=short-prompt", 200},
		{2 * harness.Threshold, "", "", "remote;reason=uncached", 200},
		{2 * harness.Threshold, "", "fault-prefill", "local;reason=prefill-failed", 200},
		{2 * harness.Threshold, "perhaps", "", "refused;reason=bad-pd-header", 400},
	} {
		q := f.TokensCall(c.tokens, false)
		q.Header = map[string]string{}
		if c.mode != "" {
			q.Header[pd.HeaderMode] = c.mode
		}
		if c.id != "" {
			q.Header[pd.HeaderRequestID] = c.id
		}
		if got := f.Send(t, q); got.Status != c.wantStatus || harness.Planned(got) != c.want {
			t.Errorf("status %d, decision %q, want %d %q", got.Status, harness.Planned(got), c.wantStatus, c.want)
		}
	}
	leaveAtDecode(t, f)
}

// leaveAtDecode has a client leave while its hand-off is on the way, and waits until the sidecar has given that back.
func leaveAtDecode(t *testing.T, f *harness.TappedFleet) {
	t.Helper()
	const id = "fault-decode"
	ctx, leave := context.WithCancel(harness.Within(t))
	defer leave()
	q := f.TokensCall(2*harness.Threshold, false)
	q.Header = map[string]string{pd.HeaderRequestID: id}
	left := make(chan struct{})
	go func() {
		defer close(left)
		if resp, err := f.Open(ctx, q); err == nil {
			t.Errorf("a request without an engine to answer it got %d", resp.StatusCode)
			resp.Body.Close()
		}
	}()
	f.Eventually(t, "decode legs", func() (string, bool) {
		n := len(f.Decode[0].Tap.Seen(id))
		return fmt.Sprint(n), n > 0
	})
	leave()
	<-left
	f.Eventually(t, "the release", func() (string, bool) {
		m := metricsOf(t, f.Fleet.Decode[0].Sidecar.Addr("metrics"))
		return "not counted", len(m.labels["tandem_kv_release_total"]) > 0
	})
}

// metrics is a page of them.
type metrics struct {
	text   string
	help   map[string]string
	kind   map[string]string
	labels map[string]map[string][]string // family → label → values
}

var (
	sampleLine = regexp.MustCompile(`^([\w:]+)(?:\{(.*)\})? `)
	anAddress  = regexp.MustCompile(`\d\.\d|\[.*:.*\]|:\d`)
)

func metricsOf(t *testing.T, addr string) metrics {
	t.Helper()
	status, text := harness.FetchPage(t, "http://"+addr+"/metrics")
	if status != http.StatusOK {
		t.Fatalf("metrics of %s: status %d", addr, status)
	}
	m := metrics{text, map[string]string{}, map[string]string{}, map[string]map[string][]string{}}
	family := "" // samples stand below the type of their family
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(rest, " ")
			m.help[name] = help
			continue
		}
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			family, m.kind[name], m.labels[name] = name, kind, map[string][]string{}
			continue
		}
		sample := sampleLine.FindStringSubmatch(line)
		if sample == nil || !strings.HasPrefix(sample[1], family) {
			t.Fatalf("%q below the type of %q", line, family)
		}
		for _, pair := range harness.LabelPair.FindAllStringSubmatch(sample[2], -1) {
			m.labels[family][pair[1]] = append(m.labels[family][pair[1]], pair[2])
		}
	}
	return m
}

// mustHave fails unless the page has these metrics, each with a type and labels, and all of ours are as they should be.
func (m metrics) mustHave(t *testing.T, want map[string]string) {
	t.Helper()
	for name, want := range want {
		labels := maps.Clone(m.labels[name])
		delete(labels, "le")
		if got := strings.Join(append([]string{m.kind[name]}, slices.Sorted(maps.Keys(labels))...), " "); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for name, kind := range m.kind {
		if !strings.HasPrefix(name, "tandem_") {
			continue
		}
		if m.help[name] == "" {
			t.Errorf("%s has no help", name)
		}
		unit := strings.HasSuffix(name, "_seconds") || strings.HasSuffix(name, "_tokens")
		if strings.HasSuffix(name, "_total") != (kind == "counter") || kind == "histogram" && !unit {
			t.Errorf("%s is a %s without the unit in its name", name, kind)
		}
		for label, values := range m.labels[name] {
			if label == "le" || name == "tandem_build_info" || label == "prefill" && strings.HasPrefix(name, "tandem_kv_link_") {
				continue // the metrics of links are by pod, and their number is bounded
			}
			if i := slices.IndexFunc(values, anAddress.MatchString); i >= 0 {
				t.Errorf("%s has %s=%q, an address", name, label, values[i])
			}
		}
	}
}

// mustPass fails unless promtool has nothing to say of the page, but for what is said to be so.
func (m metrics) mustPass(t *testing.T, but ...string) {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("%v (Debian: apt-get install prometheus)", err)
	default:
		t.Skipf("%v (Debian: apt-get install prometheus)", err)
	}
	check := exec.CommandContext(harness.Within(t), promtool, "check", "metrics")
	check.Stdin = strings.NewReader(m.text)
	out, err := check.CombinedOutput()
	const lint = 3 // exit status when the page can be read, and something could be better
	if err != nil && check.ProcessState.ExitCode() != lint {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if !slices.ContainsFunc(but, func(s string) bool { return strings.Contains(line, s) }) {
			t.Error(strings.TrimSpace(line))
		}
	}
}
