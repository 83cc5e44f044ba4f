package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/stack"
)

// StateOf reads a simulated engine's state from its admin port.
func StateOf(t *testing.T, p Program) (s sim.State) {
	t.Helper()
	status, text := FetchPage(t, "http://"+p.Addr("admin")+"/sim/state")
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatalf("state of %s: %d %v", p.Name(), status, err)
	}
	return s
}

// Engine is one engine of a pair, simulated or real.
type Engine struct {
	Addr                string
	Pause, Resume, Kill func(t *testing.T) // of all its processes
	Expired             float64            // hand-offs that had expired there before the test
}

// Metric reads the first series of a metric on the engine's metrics page.
func (e Engine) Metric(t *testing.T, name string) float64 {
	t.Helper()
	v, err := e.ReadMetric(name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// ReadMetric is Metric for goroutines that must not end the test.
func (e Engine) ReadMetric(name string) (float64, error) {
	resp, err := Client.Get("http://" + e.Addr + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(page), "\n") {
		if series, value, ok := strings.Cut(line, "} "); ok && strings.HasPrefix(series, name+"{") {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("%s has no metric %s", e.Addr, name)
}

const (
	UsageGauge = "vllm:kv_cache_usage_perc"
	Expiries   = "vllm:nixl_num_kv_expired_reqs_total"
	// PulledTokens counts the tokens of prompts whose KV came from another engine.
	PulledTokens = "vllm:external_prefix_cache_hits_total"
	// ReleaseWithin is the promised time after which blocks that no engine will read are free again.
	ReleaseWithin = 2 * time.Second
)

// WaitIdle returns when the engine runs no request.
func WaitIdle(t *testing.T, e Engine) {
	WaitMetric(t, e, "vllm:num_requests_running", func(v float64) bool { return v == 0 })
}

// WaitMetric polls the engine's metrics page, which is the only source of these values.
func WaitMetric(t *testing.T, e Engine, name string, ok func(float64) bool) {
	t.Helper()
	ctx := Within(t)
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for {
		v := e.Metric(t, name)
		if ok(v) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s of %s is %v, which is not what the test waits for", name, e.Addr, v)
		case <-poll.C:
		}
	}
}

// DecodeModel returns the name of the model that an engine serves.
func DecodeModel(addr string) (string, error) {
	resp, err := Client.Get("http://" + addr + "/v1/models")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return "", err
	}
	if i := slices.IndexFunc(list.Data, func(m struct {
		ID string `json:"id"`
	}) bool {
		return m.ID != ""
	}); i >= 0 {
		return list.Data[i].ID, nil
	}
	return "", fmt.Errorf("%s lists no model", addr)
}

// Lend returns a running engine in place of the simulated engine with a name; nil: simulated engines are started.
var Lend func(t *testing.T, name string) Engine

// allAPIs makes engines serve the generate API too.
const allAPIs = "--enable-scale-out"

// StartSim runs a simulated engine that serves every API, or returns a real one if the suite runs on real ones.
func StartSim(t *testing.T, name string, flags ...string) Engine {
	t.Helper()
	if Lend != nil {
		return Lend(t, name)
	}
	p := Start(t, stack.Sim(BinDir, name, append([]string{allAPIs}, flags...)...))
	return Engine{Addr: p.Addr("http"), Pause: p.Freeze, Resume: p.MustResume, Kill: func(t *testing.T) {
		t.Helper()
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
	}}
}
