package conformance

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/stack"
)

// Headers of the suite.
const (
	headerSelection = "test-epp-endpoint-selection"
	headerServed    = "x-conformance-test-served-endpoint"
)

// pods are the addresses of echo servers, all ports of the first pod first.
type pods []string

// startPods runs echo servers at the addresses of n pods, beginning with 127.0.0.first. Each pod has so many ports.
func startPods(t *testing.T, first, n, ports int, protocol func(*http.Protocols)) (p pods) {
	t.Helper()
	for pod := range n {
		for range ports {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", first+pod))
			if err != nil {
				t.Fatal(err)
			}
			s := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(echo)}}
			if protocol != nil {
				s.Config.Protocols = new(http.Protocols)
				protocol(s.Config.Protocols)
			}
			s.Start()
			t.Cleanup(s.Close)
			p = append(p, l.Addr().String())
		}
	}
	return p
}

// echo answers with the address that served and the protocol that the gateway spoke.
func echo(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	fmt.Fprint(w, r.Context().Value(http.LocalAddrContextKey), " ", r.Proto)
}

// startPicker runs a picker for conformance tests, whose endpoints are the pods.
func startPicker(t *testing.T, p pods, flags ...string) harness.Program {
	t.Helper()
	var b strings.Builder
	b.WriteString("endpoints:\n")
	for i, addr := range p {
		a := netip.MustParseAddrPort(addr)
		fmt.Fprintf(&b, "- {name: pod-%d, address: %s, port: %d}\n", i, a.Addr(), a.Port())
	}
	file := filepath.Join(t.TempDir(), "endpoints.yaml")
	harness.Replace(t, file, b.String())
	return harness.Start(t, stack.EPP(harness.BinDir, append([]string{"--conformance", "--secure-serving=false", "--endpoints-file=" + file}, flags...)...))
}

// startGateway runs Envoy with the configuration that we write for it, and returns its address.
func startGateway(t *testing.T, picker string, flags ...string) string {
	t.Helper()
	bootstrap, err := harness.Output("tandem", append([]string{"envoy-config", "--listen=127.0.0.1:0", "--admin-address=127.0.0.1:0",
		"--epp=" + picker, "--epp-plaintext"}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	return harness.StartEnvoy(t, bootstrap).Addr
}

// answer is what a client gets.
type answer struct {
	status         int
	body           string
	from, protocol string // as the pod says; "" if none answered
	served         string // as the picker says
}

// ask sends a request. selection "" stands for no header.
func ask(t *testing.T, gateway, path, selection string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(harness.Within(t), http.MethodPost, "http://"+gateway+path,
		strings.NewReader(`{"model":"conformance-fake-model","prompt":"Write as if you were a critic: San Francisco"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if selection != "" {
		r.Header.Set(headerSelection, selection)
	}
	resp, err := harness.Client.Do(r)
	if err != nil {
		t.Error(err)
		return answer{}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	a := answer{status: resp.StatusCode, body: string(body), served: resp.Header.Get(headerServed)}
	if a.status == http.StatusOK {
		a.from, a.protocol, _ = strings.Cut(a.body, " ")
	}
	return a
}

// askMany sends requests, ten at once, and returns how many each pod answered. Every request must be answered by a pod.
func askMany(t *testing.T, n int, send func() answer) map[string]int {
	t.Helper()
	var mu sync.Mutex
	by := map[string]int{}
	var asking sync.WaitGroup
	for i := range 10 {
		asking.Go(func() {
			for range (n + i) / 10 {
				a := send()
				mu.Lock()
				by[a.from]++
				mu.Unlock()
				if a.status != http.StatusOK {
					t.Errorf("%+v", a)
					return
				}
			}
		})
	}
	asking.Wait()
	return by
}
