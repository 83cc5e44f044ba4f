package harness

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack"
	"github.com/tandem-serving/tandem/stack/envoy"
)

// Fleet is a whole stack: simulated engines, a sidecar in front of each decode engine, pickers, and a proxy in front of all.
type Fleet struct {
	Model     string
	Prefill   []Engine
	Decode    []DecodePod
	Plain     Engine // its answers are the expected ones; it is not in the pool
	Config    string // file of the EndpointPickerConfig
	Endpoints string // file of the pool
	Pickers   []Program
	Front     Front
	Hasty     bool // Envoy starts although no picker has reported endpoints

	// Moved has addresses by which the pool names pods in place of their own, by name: prefill-0, decode-1.
	Moved map[string]string
}

// DecodePod is a decode engine and the sidecar in front of it, or one rank of both.
type DecodePod struct {
	Engine  Engine
	Sidecar Program
	Rank    int
}

// Addr returns the address for requests.
func (p DecodePod) Addr() string {
	if p.Rank > 0 {
		return p.Sidecar.Addr(fmt.Sprintf("http-%d", p.Rank))
	}
	return p.Sidecar.Addr("http")
}

// Front is the proxy.
type Front struct {
	Addr string
	Pid  int // Envoy's
	// stat reads one of Envoy's counters; nil for the gateway, which has none.
	Stat func(t *testing.T, name string) int
}

// Layout is a proxy with one layout of the ext-proc filters.
type Layout struct{ Proxy, Mode string }

// Layouts returns the layouts that the suite runs on: all, or in the short form each proxy and each mode once.
func Layouts() []Layout {
	if testing.Short() {
		return []Layout{{"gateway", "single"}, {"envoy", "pair"}}
	}
	return []Layout{{"gateway", "pair"}, {"gateway", "single"}, {"envoy", "pair"}, {"envoy", "single"}}
}

func (l Layout) String() string { return l.Proxy + " " + l.Mode }

// Threshold is the number of uncached tokens from which the fleet's decider chooses remote prefill.
const Threshold = 64

// PdConfig is a P/D configuration like those of llm-d's guides.
const PdConfig = `
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: prefill-filter
- type: decode-filter
- type: approx-prefix-cache-producer
- type: inflight-load-producer
- type: prefix-cache-scorer
- type: token-load-scorer
- type: active-request-scorer
- type: max-score-picker
  parameters:
    maxNumOfEndpoints: 2
- type: prefix-based-pd-decider
  parameters:
    nonCachedTokens: %d
- type: disagg-profile-handler
  parameters:
    deciders:
      prefill: prefix-based-pd-decider
    %s
schedulingProfiles:
- name: prefill
  plugins:
  - pluginRef: prefill-filter
  - pluginRef: token-load-scorer
  - pluginRef: max-score-picker
- name: decode
  plugins:
  - pluginRef: decode-filter
  - pluginRef: active-request-scorer
    weight: 2
  - pluginRef: prefix-cache-scorer
    weight: 1
  - pluginRef: max-score-picker
`

// NewFleet starts engines and sidecars. The case starts everything else.
func NewFleet(t *testing.T, prefills, decodes int) *Fleet {
	t.Helper()
	dir := t.TempDir()
	f := &Fleet{Config: filepath.Join(dir, "config.yaml"), Endpoints: filepath.Join(dir, "endpoints.yaml"), Moved: map[string]string{}}
	f.Plain = StartSim(t, "plain")
	for i := range prefills {
		f.Prefill = append(f.Prefill, StartSim(t, fmt.Sprintf("prefill-%d", i), "--role=prefill"))
	}
	for i := range decodes {
		f.Decode = append(f.Decode, f.newDecode(t, i))
	}
	var err error
	if f.Model, err = DecodeModel(f.Plain.Addr); err != nil {
		t.Fatal(err)
	}
	f.WriteConfig(t, fmt.Sprintf(PdConfig, Threshold, ""))
	f.WriteEndpoints(t)
	return f
}

func (f *Fleet) newDecode(t *testing.T, i int) DecodePod {
	t.Helper()
	e := StartSim(t, fmt.Sprintf("decode-%d", i), "--role=decode")
	return DecodePod{Engine: e, Sidecar: StartSidecar(t, e.Addr)}
}

// WriteConfig replaces the pickers' configuration, which they reload.
func (f *Fleet) WriteConfig(t *testing.T, text string) { Replace(t, f.Config, text) }

// WriteEndpoints writes the current pool, with further decode pods at the given addresses.
func (f *Fleet) WriteEndpoints(t *testing.T, more ...string) {
	t.Helper()
	var b strings.Builder
	b.WriteString("endpoints:\n")
	for i, e := range f.Prefill {
		f.writePod(&b, fmt.Sprintf("prefill-%d", i), "prefill", e.Addr)
	}
	for i, p := range f.Decode {
		f.writePod(&b, fmt.Sprintf("decode-%d", i), "decode", p.Addr())
	}
	for i, addr := range more {
		writeEndpoint(&b, fmt.Sprintf("other-%d", i), "decode", addr)
	}
	Replace(t, f.Endpoints, b.String())
}

// EmptyPool takes every endpoint out of the pool, and waits until the first picker knows.
func (f *Fleet) EmptyPool(t *testing.T) {
	t.Helper()
	Replace(t, f.Endpoints, "endpoints: []\n")
	f.Eventually(t, "endpoints", func() (string, bool) {
		state, err := EndpointsOf(f.Pickers[0])
		return fmt.Sprint(len(state.Endpoints), err), err == nil && len(state.Endpoints) == 0
	})
}

func (f *Fleet) writePod(b *strings.Builder, name, role, addr string) {
	writeEndpoint(b, name, role, cmp.Or(f.Moved[name], addr))
}

func writeEndpoint(b *strings.Builder, name, role, addr string) {
	host, port, _ := strings.Cut(addr, ":")
	fmt.Fprintf(b, "- name: %s\n  address: %s\n  port: %q\n  labels:\n    llm-d.ai/role: %s\n", name, host, port, role)
}

// Replace writes a file as Kubernetes does, in one step.
func Replace(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// StartPicker runs one more picker, in plaintext unless the flags say otherwise.
func (f *Fleet) StartPicker(t *testing.T, flags ...string) Program {
	t.Helper()
	p := Start(t, stack.EPP(BinDir, append([]string{"--secure-serving=false", "--config-file=" + f.Config,
		"--endpoints-file=" + f.Endpoints, "--log-level=debug"}, flags...)...))
	f.Pickers = append(f.Pickers, p)
	return p
}

// StartFront runs the proxy in front of all pickers.
func (f *Fleet) StartFront(t *testing.T, l Layout, flags ...string) {
	t.Helper()
	var extproc []string
	for _, p := range f.Pickers {
		extproc = append(extproc, p.Addr("extproc"))
	}
	args := append([]string{"--epp=" + strings.Join(extproc, ","), "--mode=" + l.Mode, "--epp-plaintext"}, flags...)
	if l.Proxy == "gateway" {
		p := Start(t, stack.Program{Name: "gateway", Path: filepath.Join(BinDir, "tandem"),
			Args: append([]string{"gateway", "--listen=127.0.0.1:0"}, args...)})
		f.Front = Front{Addr: p.Addr("http")}
		return
	}
	bootstrap, err := Output("tandem", append([]string{"envoy-config", "--listen=127.0.0.1:0", "--admin-address=127.0.0.1:0"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	if f.Hasty {
		const patient, hasty = "initial_fetch_timeout: 30s", "initial_fetch_timeout: 1s"
		if !strings.Contains(bootstrap, patient) {
			t.Fatalf("there is no %q in\n%s", patient, bootstrap)
		}
		bootstrap = strings.Replace(bootstrap, patient, hasty, 1)
	}
	f.Front = StartEnvoy(t, bootstrap)
}

// LaunchEnvoy runs a real Envoy. It ends with the test, which logs its output if it fails.
func LaunchEnvoy(t *testing.T, bootstrap string, args ...string) *envoy.Envoy {
	t.Helper()
	envoy.Require(t)
	e, err := envoy.Start(Within(t), []byte(bootstrap), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("envoy said:\n%s", e.Log())
		}
	})
	return e
}

// Listener returns the address at which a proxy accepts requests.
func Listener(t *testing.T, e *envoy.Envoy) string {
	t.Helper()
	addr, err := e.Listener(Within(t), envoyconf.ListenerName)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// StartEnvoy runs an Envoy as the front of a fleet.
func StartEnvoy(t *testing.T, bootstrap string) Front {
	t.Helper()
	e := LaunchEnvoy(t, bootstrap)
	return Front{Listener(t, e), e.PID(), func(t *testing.T, name string) int {
		t.Helper()
		stats, err := e.Stats(Within(t), name)
		if err != nil {
			t.Fatal(err)
		}
		sum := int64(0)
		for _, n := range stats {
			sum += n
		}
		return int(sum)
	}}
}

// NewStack returns a fleet with one picker and a front.
func NewStack(t *testing.T, l Layout, prefills, decodes int, flags ...string) *Fleet {
	t.Helper()
	f := NewFleet(t, prefills, decodes)
	f.StartPicker(t, flags...)
	f.StartFront(t, l)
	return f
}

// Send makes a call through the front.
func (f *Fleet) Send(t *testing.T, c Call) Reply {
	t.Helper()
	return MustSend(t, c, f.Front.Addr, f.Model)
}

// Want returns the plain engine's tokens for a call.
func (f *Fleet) Want(t *testing.T, c Call) []int {
	t.Helper()
	return (&Pair{Plain: f.Plain, Model: f.Model}).Want(t, c)
}

// Wants returns the plain engine's tokens for several calls, made at once.
func (f *Fleet) Wants(t *testing.T, calls []Call) [][]int {
	t.Helper()
	var asked []<-chan Reply
	for _, c := range calls {
		c.Stream, c.Header = false, nil
		asked = append(asked, Begin(t, c, f.Plain.Addr, f.Model))
	}
	var want [][]int
	for _, got := range asked {
		r := <-got
		if r.Status != http.StatusOK || len(r.Tokens) == 0 {
			t.Fatalf("the plain engine answers %d %s", r.Status, r.Body)
		}
		want = append(want, r.Tokens)
	}
	return want
}

// MustServe sends calls at once. Each must get the plain engine's tokens.
func (f *Fleet) MustServe(t *testing.T, calls []Call) {
	t.Helper()
	want := f.Wants(t, calls)
	var asked []<-chan Reply
	for _, c := range calls {
		asked = append(asked, Begin(t, c, f.Front.Addr, f.Model))
	}
	for i, got := range asked {
		MustMatch(t, <-got, calls[i].Stream, want[i])
	}
}

// ordinary are ids of ordinary tokens, which all engines of the tests have.
var ordinary = [2]int{300, 1000}

// Fresh returns a prompt that no engine has seen.
func (f *Fleet) Fresh(n int) []int { return (&Pair{TokenIDs: ordinary}).Fresh(n) }

// Ask returns a call of an API, with a prompt of about n tokens that no engine has seen.
func (f *Fleet) Ask(api pd.API, n int, stream bool) Call {
	return (&Pair{TokenIDs: ordinary}).Ask(api, n, stream)
}

// MustRest fails unless all traces of requests are gone within Patience: load in flight at pickers, stranded blocks at
// engines, open streams and protocol errors at Envoy.
func (f *Fleet) MustRest(t *testing.T) {
	t.Helper()
	for _, p := range f.Pickers {
		f.Eventually(t, "load in flight at "+p.Name(), func() (string, bool) {
			state, err := EndpointsOf(p)
			if err != nil {
				return "", true // the case killed it
			}
			for _, e := range state.Endpoints {
				if e.Requests != 0 || e.Tokens != 0 {
					return fmt.Sprintf("%s: %d requests, %d tokens", e.Name, e.Requests, e.Tokens), false
				}
			}
			return "", true
		})
	}
	for _, e := range f.Prefill {
		f.Eventually(t, "blocks held by prefill", func() (string, bool) {
			used, err := e.ReadMetric(UsageGauge)
			return fmt.Sprint(used), err != nil || used == 0
		})
		if expired, err := e.ReadMetric(Expiries); err == nil && expired != e.Expired {
			t.Errorf("%v hand-offs expired", expired-e.Expired)
		}
	}
	if f.Front.Stat == nil {
		return
	}
	f.Eventually(t, "streams open at Envoy", func() (string, bool) {
		open := f.Front.Stat(t, "cluster.epp.upstream_rq_active")
		return fmt.Sprint(open), open <= 1 // the one of EDS
	})
	for _, name := range []string{"spurious_msgs_received", "rejected_header_mutations"} {
		if n := f.Front.Stat(t, name); n != 0 {
			t.Errorf("Envoy counts %d %s", n, name)
		}
	}
}

// Eventually polls a state that no program announces, for at most Patience.
func (f *Fleet) Eventually(t *testing.T, what string, check func() (seen string, ok bool)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		seen, ok := check()
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: still %s", what, seen)
		case <-poll.C:
		}
	}
}

// PoolState is the content of /debug/endpoints.
type PoolState struct {
	Snapshot  uint64
	Endpoints []struct {
		Name     string
		Address  string
		Role     string
		Requests int     `json:"inflight_requests"`
		Tokens   int     `json:"inflight_tokens"`
		LoadAge  float64 `json:"load_age_seconds"`
	}
}

// EndpointsOf returns the endpoints that a picker knows.
func EndpointsOf(p Program) (PoolState, error) {
	var state PoolState
	resp, err := Client.Get("http://" + p.Addr("admin") + "/debug/endpoints")
	if err != nil {
		return state, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return state, fmt.Errorf("status %s", resp.Status)
	}
	return state, json.NewDecoder(resp.Body).Decode(&state)
}

// FetchPage reads a whole page.
func FetchPage(t *testing.T, url string) (status int, text string) {
	t.Helper()
	resp, err := Client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TokensCall returns a completions call with a prompt of n token ids that no engine has seen.
func (f *Fleet) TokensCall(n int, stream bool) Call { return f.Ask(pd.APICompletions, n, stream) }

// Open begins a call. The caller reads the answer.
func (f *Fleet) Open(ctx context.Context, q Call) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+f.Front.Addr+q.API.Path(), bytes.NewReader(q.Body(f.Model)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range q.Header {
		req.Header.Set(k, v)
	}
	return Client.Do(req)
}
