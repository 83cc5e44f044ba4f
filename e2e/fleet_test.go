package e2e

import (
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
	"github.com/tandem-serving/tandem/stack"
	"github.com/tandem-serving/tandem/stack/envoy"
)

// fleet is a whole stack: simulated engines, a sidecar before each decode engine, pickers, and a proxy before all of it.
type fleet struct {
	model     string
	prefill   []engine
	decode    []decodePod
	plain     engine // tells what is right; not in the pool
	config    string // file of the EndpointPickerConfig
	endpoints string // file of the pool
	pickers   []program
	front     front
	hasty     bool // Envoy starts although no picker has told it of endpoints
}

// decodePod is a decode engine and the sidecar before it.
type decodePod struct {
	engine  engine
	sidecar program
}

// addr is where requests go.
func (p decodePod) addr() string { return p.sidecar.addr("http") }

// front is the proxy.
type front struct {
	addr string
	pid  int // Envoy's
	// stat reads one of Envoy's counters; nil for the gateway, which has none.
	stat func(t *testing.T, name string) int
}

// layout is a proxy with one way of asking the picker.
type layout struct{ proxy, mode string }

// layouts are all the fronts that the suite runs on.
var layouts = []layout{{"gateway", "pair"}, {"gateway", "single"}, {"envoy", "pair"}, {"envoy", "single"}}

func (l layout) String() string { return l.proxy + " " + l.mode }

// threshold is how many uncached tokens make the fleet's decider choose remote prefill.
const threshold = 64

// pdConfig is a P/D configuration as llm-d's guides write it.
const pdConfig = `
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

// newFleet starts engines and sidecars; what follows is started by the case.
func newFleet(t *testing.T, prefills, decodes int) *fleet {
	t.Helper()
	dir := t.TempDir()
	f := &fleet{config: filepath.Join(dir, "config.yaml"), endpoints: filepath.Join(dir, "endpoints.yaml")}
	f.plain = startSim(t, "plain")
	for i := range prefills {
		f.prefill = append(f.prefill, startSim(t, fmt.Sprintf("prefill-%d", i), "--role=prefill"))
	}
	for i := range decodes {
		f.decode = append(f.decode, f.newDecode(t, i))
	}
	var err error
	if f.model, err = decodeModel(f.plain.addr); err != nil {
		t.Fatal(err)
	}
	f.writeConfig(t, fmt.Sprintf(pdConfig, threshold, ""))
	f.writeEndpoints(t)
	return f
}

func (f *fleet) newDecode(t *testing.T, i int) decodePod {
	t.Helper()
	e := startSim(t, fmt.Sprintf("decode-%d", i), "--role=decode")
	return decodePod{e, startSidecar(t, e.addr)}
}

func (f *fleet) writeConfig(t *testing.T, text string) { replace(t, f.config, text) }

// writeEndpoints writes the pool as it is now, with further decode pods at the given addresses.
func (f *fleet) writeEndpoints(t *testing.T, more ...string) {
	t.Helper()
	var b strings.Builder
	b.WriteString("endpoints:\n")
	for i, e := range f.prefill {
		writeEndpoint(&b, fmt.Sprintf("prefill-%d", i), "prefill", e.addr)
	}
	for i, p := range f.decode {
		writeEndpoint(&b, fmt.Sprintf("decode-%d", i), "decode", p.addr())
	}
	for i, addr := range more {
		writeEndpoint(&b, fmt.Sprintf("other-%d", i), "decode", addr)
	}
	replace(t, f.endpoints, b.String())
}

func writeEndpoint(b *strings.Builder, name, role, addr string) {
	host, port, _ := strings.Cut(addr, ":")
	fmt.Fprintf(b, "- name: %s\n  address: %s\n  port: %q\n  labels:\n    llm-d.ai/role: %s\n", name, host, port, role)
}

// replace writes a file as Kubernetes does, in one step.
func replace(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// startPicker runs one more picker, in plaintext unless the flags say otherwise.
func (f *fleet) startPicker(t *testing.T, flags ...string) program {
	t.Helper()
	p := start(t, stack.EPP(binDir, append([]string{"--secure-serving=false", "--config-file=" + f.config,
		"--endpoints-file=" + f.endpoints, "--log-level=debug"}, flags...)...))
	f.pickers = append(f.pickers, p)
	return p
}

// startFront runs the proxy before all pickers.
func (f *fleet) startFront(t *testing.T, l layout, flags ...string) {
	t.Helper()
	var extproc []string
	for _, p := range f.pickers {
		extproc = append(extproc, p.addr("extproc"))
	}
	args := append([]string{"--epp=" + strings.Join(extproc, ","), "--mode=" + l.mode, "--epp-plaintext"}, flags...)
	if l.proxy == "gateway" {
		p := start(t, stack.Program{Name: "gateway", Path: filepath.Join(binDir, "tandem"),
			Args: append([]string{"gateway", "--listen=127.0.0.1:0"}, args...)})
		f.front = front{addr: p.addr("http")}
		return
	}
	bootstrap, err := output("tandem", append([]string{"envoy-config", "--listen=127.0.0.1:0", "--admin-address=127.0.0.1:0"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	if f.hasty {
		const patient, hasty = "initial_fetch_timeout: 30s", "initial_fetch_timeout: 1s"
		if !strings.Contains(bootstrap, patient) {
			t.Fatalf("there is no %q in\n%s", patient, bootstrap)
		}
		bootstrap = strings.Replace(bootstrap, patient, hasty, 1)
	}
	f.front = startEnvoy(t, bootstrap)
}

// launchEnvoy runs a real Envoy. It ends with the test, which shows what it said if it fails.
func launchEnvoy(t *testing.T, bootstrap string, args ...string) *envoy.Envoy {
	t.Helper()
	envoy.Require(t)
	e, err := envoy.Start(within(t), []byte(bootstrap), args...)
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

// listener is where a proxy takes requests.
func listener(t *testing.T, e *envoy.Envoy) string {
	t.Helper()
	addr, err := e.Listener(within(t), envoyconf.ListenerName)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

// startEnvoy runs an Envoy as the front of a fleet.
func startEnvoy(t *testing.T, bootstrap string) front {
	t.Helper()
	e := launchEnvoy(t, bootstrap)
	return front{listener(t, e), e.PID(), func(t *testing.T, name string) int {
		t.Helper()
		stats, err := e.Stats(within(t), name)
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

// newStack is a fleet with one picker and a front.
func newStack(t *testing.T, l layout, prefills, decodes int, flags ...string) *fleet {
	t.Helper()
	f := newFleet(t, prefills, decodes)
	f.startPicker(t, flags...)
	f.startFront(t, l)
	return f
}

// send makes a call through the front.
func (f *fleet) send(t *testing.T, c call) reply {
	t.Helper()
	return mustSend(t, c, f.front.addr, f.model)
}

// want asks the plain engine.
func (f *fleet) want(t *testing.T, c call) []int {
	t.Helper()
	return (&pair{plain: f.plain, model: f.model}).want(t, c)
}

// wants asks the plain engine for several answers at once.
func (f *fleet) wants(t *testing.T, calls []call) [][]int {
	t.Helper()
	var asked []<-chan reply
	for _, c := range calls {
		c.stream, c.header = false, nil
		asked = append(asked, begin(t, c, f.plain.addr, f.model))
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

// mustServe sends calls at once, of which each has to get what it would from the plain engine.
func (f *fleet) mustServe(t *testing.T, calls []call) {
	t.Helper()
	want := f.wants(t, calls)
	var asked []<-chan reply
	for _, c := range calls {
		asked = append(asked, begin(t, c, f.front.addr, f.model))
	}
	for i, got := range asked {
		mustMatch(t, <-got, calls[i].stream, want[i])
	}
}

// fresh is a prompt nobody has seen.
func (f *fleet) fresh(n int) []int { return (&pair{tokenIDs: [2]int{300, 1000}}).fresh(n) }

// mustRest fails unless nothing is left of all requests within patience: no load in flight at any picker, no stranded block
// at any engine, no open stream and no protocol error at Envoy.
func (f *fleet) mustRest(t *testing.T) {
	t.Helper()
	for _, p := range f.pickers {
		f.eventually(t, "load in flight at "+p.Name(), func() (string, bool) {
			state, err := endpointsOf(p)
			if err != nil {
				return "", true // it was killed by the case
			}
			for _, e := range state.Endpoints {
				if e.Requests != 0 || e.Tokens != 0 {
					return fmt.Sprintf("%s: %d requests, %d tokens", e.Name, e.Requests, e.Tokens), false
				}
			}
			return "", true
		})
	}
	for _, e := range f.prefill {
		f.eventually(t, "blocks held by prefill", func() (string, bool) {
			used, err := e.readMetric(usageGauge)
			return fmt.Sprint(used), err != nil || used == 0
		})
		if expired, err := e.readMetric(expiries); err == nil && expired != e.expired {
			t.Errorf("%v hand-offs expired", expired-e.expired)
		}
	}
	if f.front.stat == nil {
		return
	}
	f.eventually(t, "streams open at Envoy", func() (string, bool) {
		open := f.front.stat(t, "cluster.epp.upstream_rq_active")
		return fmt.Sprint(open), open <= 1 // the one of EDS
	})
	for _, name := range []string{"spurious_msgs_received", "rejected_header_mutations"} {
		if n := f.front.stat(t, name); n != 0 {
			t.Errorf("Envoy counts %d %s", n, name)
		}
	}
}

// eventually polls what nobody announces, for at most patience.
func (f *fleet) eventually(t *testing.T, what string, check func() (seen string, ok bool)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
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

// poolState is what /debug/endpoints says.
type poolState struct {
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

func endpointsOf(p program) (poolState, error) {
	var state poolState
	resp, err := client.Get("http://" + p.addr("admin") + "/debug/endpoints")
	if err != nil {
		return state, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return state, fmt.Errorf("status %s", resp.Status)
	}
	return state, json.NewDecoder(resp.Body).Decode(&state)
}

// page reads a whole page.
func page(t *testing.T, url string) (status int, text string) {
	t.Helper()
	resp, err := client.Get(url)
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
