package charts_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack"
)

// TestQueriesOnAStack asks a real Prometheus, which reads a whole running stack, every query of the dashboards and alerts:
// each metric and label that they name has to be there, each panel has to show something, and each rule has to work.
func TestQueriesOnAStack(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	others := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, others) })
	server := fromDebian(t, "prometheus")
	o := observed{pd: startStack(t), batches: startBatches(t), client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	o.breakThings(t)
	o.sendEverything(t)
	o.prometheus = startPrometheus(t, server, o.targets())
	o.eventually(t, "the start of Prometheus", func() (string, bool) { return o.ready(t) })
	o.eventually(t, "two looks at every page", func() (string, bool) { return o.scraped(t) })
	o.sendEverything(t) // what counts up is seen from its second value on

	o.eventually(t, "the recorded metrics", func() (string, bool) { return "none", len(o.query(t, "tandem:error_ratio:rate3d")) > 0 })
	for _, q := range slices.Concat(panelQueries(t), annotationQueries(t), alertQueries(t)) {
		o.mustExist(t, q)
	}
	if t.Failed() {
		return // what is not there has no value
	}
	for _, q := range panelQueries(t) {
		o.eventually(t, q.where, func() (string, bool) { return "no value", o.hasValue(t, filledIn(q.expr)) })
	}
	o.rulesMustWork(t)
}

// observed is a stack that Prometheus looks at.
type observed struct {
	pd         *stack.PD
	batches    *batches
	client     *http.Client
	prometheus string // URL
	rounds     int    // of sendEverything
}

// threshold is from how many tokens on prompts are prefilled remotely.
const threshold = 64

func startStack(t *testing.T) *stack.PD {
	t.Helper()
	g, alive := stack.NewGroup(context.Background())
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	pd, err := stack.StartPD(alive, g, stack.PDOptions{Dir: filepath.Dir(program(t, "epp")), Prefill: 1, Decode: 1, Keeper: true,
		Threshold: threshold, Proxy: stack.ProxyGateway, SimFlags: []string{"--time-scale=0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	return pd
}

// breakThings lets requests fail whose id says so.
func (o *observed) breakThings(t *testing.T) {
	t.Helper()
	o.post(t, o.pd.Prefill[0].EngineAdmin, `{"leg":"prefill","fault":"status","arg":"500","match":"broken"}`)
	o.post(t, o.pd.Decode[0].EngineAdmin, `{"leg":"decode","fault":"slow","arg":"stop","match":"stuck"}`)
}

func (o *observed) post(t *testing.T, admin, fault string) {
	t.Helper()
	resp, err := o.client.Post("http://"+admin+"/sim/faults", "application/json", strings.NewReader(fault))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		t.Fatalf("%s: %s", fault, resp.Status)
	}
}

// sendEverything sends requests that cause each decision, one whose hand-off the sidecar releases, a batch, and a message of a queue.
func (o *observed) sendEverything(t *testing.T) {
	t.Helper()
	o.rounds++
	for _, c := range []struct {
		words          int
		mode, id, want string
	}{
		{4, "auto", "fine", "local;reason=short-prompt"},
		{4 * threshold, "auto", "fine", "remote;reason=uncached"},
		{4 * threshold, "auto", "broken", "local;reason=prefill-failed"},
		{4 * threshold, "force", "broken", "refused;reason=prefill-failed"},
	} {
		resp, err := o.client.Do(o.request(t, t.Context(), c.words, c.mode, c.id))
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if got := resp.Header.Get(pd.HeaderDecision); !strings.HasPrefix(got, c.want) {
			t.Fatalf("%s %s: %s %q, want %s", c.mode, c.id, resp.Status, got, c.want)
		}
	}
	o.leaveAtDecode(t)
	o.batches.send(t, o)
}

// leaveAtDecode has a client disconnect while the decode engine has its hand-off, and waits until the hand-off is released.
func (o *observed) leaveAtDecode(t *testing.T) {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	left, released := make(chan error, 1), o.ofSidecar(t, "tandem_kv_release_total")
	q := o.request(t, ctx, 4*threshold, "force", "stuck")
	go func() {
		resp, err := o.client.Do(q)
		if err == nil {
			resp.Body.Close()
		}
		left <- err
	}()
	o.eventually(t, "a decode leg", func() (string, bool) {
		return "none", o.ofSidecar(t, `tandem_inflight{component="sidecar",role="decode"}`) > 0
	})
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Fatalf("a request without an answer ended with %v", err)
	}
	o.eventually(t, "the release", func() (string, bool) {
		return "not counted", o.ofSidecar(t, "tandem_kv_release_total") > released
	})
}

func (o *observed) request(t *testing.T, ctx context.Context, words int, mode, id string) *http.Request {
	t.Helper()
	prompt := fmt.Sprintf("%d %s %s", o.rounds, id, strings.Repeat(" hello", words)) // none that is in a cache
	body := fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":4}`, o.pd.Model, prompt)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+o.pd.Proxy+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(pd.HeaderMode, mode)
	r.Header.Set(pd.HeaderRequestID, id)
	return r
}

// ofSidecar adds up the samples of the sidecar's page that begin so.
func (o *observed) ofSidecar(t *testing.T, sample string) (sum float64) {
	t.Helper()
	resp, err := o.client.Get("http://" + o.pd.Decode[0].SidecarMetrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), sample) {
			v, err := strconv.ParseFloat(lines.Text()[strings.LastIndexByte(lines.Text(), ' ')+1:], 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += v
		}
	}
	return sum
}

// eventually waits for something that happens soon after what has been done.
func (o *observed) eventually(t *testing.T, what string, happened func() (state string, ok bool)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		state, ok := happened()
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %s", what, state)
		case <-poll.C:
		}
	}
}

// target is a page, with the labels that its samples get.
type target struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// targets returns the pages that the PodMonitors of the chart name: of a decode pod the sidecar's own, and the engine's through
// the sidecar. The labels are those that the Prometheus operator gives.
func (o *observed) targets() []target {
	page := func(address, pod, component string) target {
		labels := map[string]string{"namespace": namespace, "pod": pod,
			"app_kubernetes_io_instance": release, "app_kubernetes_io_component": component}
		if component == "prefill" || component == "decode" {
			labels["llm_d_ai_role"] = component
		}
		return target{[]string{address}, labels}
	}
	return []target{
		page(o.pd.EPP.Metrics, "epp-0", "epp"),
		page(o.pd.Prefill[0].Engine, "prefill-0", "prefill"),
		page(o.pd.Decode[0].Address, "decode-0", "decode"),
		page(o.pd.Decode[0].SidecarMetrics, "decode-0", "decode"),
		page(o.batches.metrics, "batch-0", "batch"),
	}
}

// listening is what Prometheus says of its port.
var listening = regexp.MustCompile(`msg="Listening on".* address=([\d.:]+)`)

// startPrometheus runs a Prometheus on loopback with the chart's alerts. It ends with the test.
func startPrometheus(t *testing.T, server string, targets []target) (address string) {
	t.Helper()
	var rules []string
	for file := range ruleFiles(t) {
		file, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, file)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "prometheus.json"), map[string]any{
		"global":         map[string]string{"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
		"rule_files":     rules,
		"scrape_configs": []any{map[string]any{"job_name": "tandem", "static_configs": targets}},
	})
	cmd := exec.Command(server, "--config.file="+filepath.Join(dir, "prometheus.json"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	found, ended, log := make(chan string, 1), make(chan struct{}), []string(nil)
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(said)
		for lines.Scan() {
			log = append(log, lines.Text())
			if m := listening.FindStringSubmatch(lines.Text()); m != nil && len(found) == 0 {
				found <- m[1]
			}
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Logf("Prometheus ended: %v; it said:\n%s", err, strings.Join(log, "\n"))
		}
	})
	select {
	case address = <-found:
	case <-ended:
		t.Fatal("Prometheus ended before it listened")
	case <-time.After(30 * time.Second):
		t.Fatal("Prometheus does not listen")
	}
	return "http://" + address
}

// ready reports whether Prometheus answers questions.
func (o *observed) ready(t *testing.T) (state string, ok bool) {
	t.Helper()
	resp, err := o.client.Get(o.prometheus + "/-/ready")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.Status, resp.StatusCode == http.StatusOK
}

// ask puts a question to Prometheus' API.
func (o *observed) ask(t *testing.T, path string, q url.Values, into any) {
	t.Helper()
	resp, err := o.client.Get(o.prometheus + path + "?" + q.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer := struct {
		Error string
		Data  any
	}{Data: into}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Error != "" {
		t.Fatalf("%s %s: %v %s", path, q, err, answer.Error)
	}
}

// sample is one of a query's results.
type sample struct {
	Metric map[string]string
	Value  [2]any // time, and the value as text
}

func (o *observed) query(t *testing.T, expr string) []sample {
	t.Helper()
	var data struct{ Result []sample }
	o.ask(t, "/api/v1/query", url.Values{"query": {expr}}, &data)
	return data.Result
}

// scraped reports whether all pages have been read twice.
func (o *observed) scraped(t *testing.T) (state string, ok bool) {
	t.Helper()
	pages := o.query(t, "sum_over_time(up[1m]) >= 2")
	return fmt.Sprintf("%d pages", len(pages)), len(pages) == len(o.targets())
}

// mustExist fails unless there are series for each selector of a query, and the labels of its results.
func (o *observed) mustExist(t *testing.T, q query) {
	t.Helper()
	labels := map[string]bool{}
	for _, s := range selectorsOf(q.expr) {
		match := filledIn(s.String())
		var series []map[string]string
		o.ask(t, "/api/v1/series", url.Values{"match[]": {match}}, &series)
		if len(series) == 0 && !strings.Contains(match, `phase="overlap"`) { // this stack's legs are sent one after the other
			t.Errorf("%s: nothing of the stack is %s", q.where, match)
		}
		for _, one := range series {
			for label := range one {
				labels[label] = true
			}
		}
	}
	for _, label := range groupingOf(q.expr) {
		if !labels[label] {
			t.Errorf("%s: no series has the label %s", q.where, label)
		}
	}
}

// hasValue reports whether a query gives a number.
func (o *observed) hasValue(t *testing.T, expr string) bool {
	t.Helper()
	return slices.ContainsFunc(o.query(t, expr), func(s sample) bool {
		text, _ := s.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		return err == nil && !math.IsNaN(v) && !math.IsInf(v, 0)
	})
}

// rulesMustWork fails unless Prometheus could evaluate all alerts, none of which was due yet.
func (o *observed) rulesMustWork(t *testing.T) {
	t.Helper()
	var rules struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError, State string }
		}
	}
	o.eventually(t, "evaluation of the alerts", func() (string, bool) {
		o.ask(t, "/api/v1/rules", nil, &rules)
		for _, g := range rules.Groups {
			for _, r := range g.Rules {
				if r.Health == "unknown" {
					return r.Name + " was not evaluated", false
				}
			}
		}
		return "no rules", len(rules.Groups) > 0
	})
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			if r.Health != "ok" || r.State == "firing" {
				t.Errorf("%s is %s and %s: %s", r.Name, r.Health, r.State, r.LastError)
			}
		}
	}
}
