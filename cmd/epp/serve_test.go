package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
)

const endpointsFile = `endpoints:
- {name: p, address: 127.0.0.1, port: "9", labels: {llm-d.ai/role: prefill}}
- {name: d, address: 127.0.0.2, port: "9", labels: {llm-d.ai/role: decode}}
`

// served is a picker that runs in this process, so that tests find leaks and races.
type served struct {
	addresses map[string]string
	stop      context.CancelFunc // as SIGTERM does
	stdout    *bufio.Reader
	ended     chan struct{}
	code      int // once it has ended
	stderr    logged
}

// logged keeps what a program writes to stderr.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// localPorts are flags that choose free ports on loopback.
var localPorts = []string{"--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--admin-address=127.0.0.1:0", "--tandem-headers=always"}

// serve runs a picker with the endpoints of endpointsFile until the test ends. It must then end cleanly.
func serve(t *testing.T, flags ...string) *served {
	t.Helper()
	file := filepath.Join(t.TempDir(), "endpoints.yaml")
	write(t, file, endpointsFile)
	return serveWith(t, nil, append(flags, "--endpoints-file="+file)...)
}

// serveWith runs a picker with an environment and with flags that name its source of endpoints. It returns when the picker is ready.
func serveWith(t *testing.T, env map[string]string, flags ...string) *served {
	t.Helper()
	s := begin(t, env, flags...)
	s.awaitReady(t)
	return s
}

// begin runs a picker until the test ends.
func begin(t *testing.T, env map[string]string, flags ...string) *served {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	line, stdout := io.Pipe()
	s := &served{stop: stop, stdout: bufio.NewReader(line), ended: make(chan struct{})}
	std := boot.IO{Name: "epp", Stdout: stdout, Stderr: &s.stderr, Env: func(key string) (string, bool) { v, ok := env[key]; return v, ok }}
	go func() {
		defer close(s.ended)
		s.code = boot.Run(ctx, std, slices.Concat(localPorts, flags), run)
		stdout.Close()
	}()
	t.Cleanup(func() {
		stop()
		if <-s.ended; s.code != boot.CodeOK {
			t.Errorf("exit code %d: %s", s.code, &s.stderr)
		}
	})
	return s
}

// awaitReady reads the ready line.
func (s *served) awaitReady(t *testing.T) {
	t.Helper()
	text, err := s.stdout.ReadString('\n')
	var ready struct{ Addresses map[string]string }
	if err != nil || json.Unmarshal([]byte(text), &ready) != nil {
		t.Fatalf("the ready line is %q: %v; %s", text, err, &s.stderr)
	}
	s.addresses = ready.Addresses
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// ask sends one HTTP request and gives status and body.
func (s *served) ask(t *testing.T, method, port, path string, body io.Reader) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.addresses[port]+path, body)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// unverified accepts any certificate.
func unverified(protocols ...string) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: protocols}
}

func (s *served) health(t *testing.T, port string, creds credentials.TransportCredentials) healthpb.HealthClient {
	t.Helper()
	conn, err := grpc.NewClient(s.addresses[port], grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return healthpb.NewHealthClient(conn)
}

const (
	serving    = healthpb.HealthCheckResponse_SERVING
	notServing = healthpb.HealthCheckResponse_NOT_SERVING
)

// services are the health services of the picker protocol and of llm-d's charts.
var services = []string{"", "envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension", "liveness", "readiness"}

func mustBe(t *testing.T, probes healthpb.HealthClient, service string, want healthpb.HealthCheckResponse_ServingStatus) {
	t.Helper()
	if got, err := probes.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service}); err != nil || got.Status != want {
		t.Errorf("service %q: %v, %v; want %v", service, got.GetStatus(), err, want)
	}
}

// pick sends a long prompt and returns the decode and the prefill endpoint.
func (s *served) pick(t *testing.T, plaintext bool) (decode, prefill string) {
	t.Helper()
	head := s.pickHead(t, plaintext)
	return head.Get("x-gateway-destination-endpoint"), head.Get("x-prefiller-host-port")
}

// pickHead sends a long prompt and returns the headers that the picker sets.
func (s *served) pickHead(t *testing.T, plaintext bool) http.Header {
	t.Helper()
	conn, err := client.Dial(client.Options{Addresses: []string{s.addresses["extproc"]}, Plaintext: plaintext})
	must(t, err)
	defer conn.Close()
	stream, err := conn.Open(t.Context(), client.Duplex())
	must(t, err)
	defer stream.Close()
	must(t, stream.RequestHeaders(client.RequestHead{Method: "POST", Path: "/v1/completions", Header: http.Header{}}, false))
	must(t, stream.RequestBody([]byte(`{"model":"m","prompt":"`+strings.Repeat("word ", 4000)+`"}`), true))
	answer, err := stream.Recv()
	must(t, err)
	if answer.Kind != client.RequestHeaders {
		t.Fatalf("answer %+v; %s", answer, &s.stderr)
	}
	head, path := http.Header{}, ""
	answer.Mutation.Apply(head, &path)
	return head
}

func TestHealth(t *testing.T) {
	s := serve(t)
	for port, creds := range map[string]credentials.TransportCredentials{"health": insecure.NewCredentials(),
		"extproc": credentials.NewTLS(unverified())} {
		t.Run(port, func(t *testing.T) {
			probes := s.health(t, port, creds)
			for _, service := range services {
				mustBe(t, probes, service, serving)
			}
			if got, err := probes.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "unknown"}); err == nil {
				t.Errorf("an unknown service is %v", got.Status)
			}
			list, err := probes.List(t.Context(), &healthpb.HealthListRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.Sorted(maps.Keys(list.Statuses)); !slices.Equal(got, services) {
				t.Errorf("the list has %q, want %q", got, services)
			}
		})
	}
}

// TestLivenessNeedsNoPool: a picker that knows no endpoints yet is live, and not ready.
func TestLivenessNeedsNoPool(t *testing.T) {
	h := newHealth()
	for _, service := range services {
		want := notServing
		if service == "liveness" {
			want = serving
		}
		if got, err := h.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service}); err != nil || got.Status != want {
			t.Errorf("service %q: %v, %v; want %v", service, got.GetStatus(), err, want)
		}
	}
}

// TestDrain ends a picker while a request waits for its pick and probes watch its health. The picker is live and not ready from then
// on, the request gets its answer, and neither a watcher nor a silent connection delays the end.
func TestDrain(t *testing.T) {
	s := serve(t, "--drain-timeout=1h")
	probes := s.health(t, "health", insecure.NewCredentials())
	watch := watchService(t, probes, "readiness")
	beside := watchService(t, s.health(t, "extproc", credentials.NewTLS(unverified())), "liveness")
	for name, w := range map[string]healthpb.Health_WatchClient{"health": watch, "extproc": beside} {
		if got, err := w.Recv(); err != nil || got.Status != serving {
			t.Fatalf("watching the %s port: %v, %v", name, got.GetStatus(), err)
		}
	}
	silent, err := net.Dial("tcp", s.addresses["extproc"])
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	conn, err := client.Dial(client.Options{Addresses: []string{s.addresses["extproc"]}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := conn.Open(t.Context(), client.Picker())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	head := client.RequestHead{Method: "POST", Scheme: "http", Authority: "a", Path: "/v1/completions", Header: http.Header{"Content-Type": {"application/json"}}}
	body := []byte(`{"model":"m","prompt":"hello"}`)
	if err := stream.RequestHeaders(head, false); err != nil {
		t.Fatal(err)
	}
	if err := stream.RequestBody(body[:10], false); err != nil {
		t.Fatal(err)
	}
	s.inFlightStream(t)

	s.stop()
	if got, err := watch.Recv(); err != nil || got.Status != notServing {
		t.Errorf("readiness while draining: %v, %v", got.GetStatus(), err)
	}
	for _, service := range services {
		want := notServing
		if service == "liveness" {
			want = serving
		}
		mustBe(t, probes, service, want)
	}
	if status, text := s.ask(t, "GET", "metrics", "/readyz", nil); status != http.StatusServiceUnavailable || text != "draining\n" {
		t.Errorf("/readyz while draining: %d %s", status, text)
	}
	if status, _ := s.ask(t, "GET", "metrics", "/livez", nil); status != http.StatusOK {
		t.Errorf("/livez while draining: %d", status)
	}
	if decode, _ := s.pick(t, false); decode != "127.0.0.2:9" {
		t.Errorf("a request during the drain is sent to %q", decode)
	}
	if err := stream.RequestBody(body[10:], true); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil || answer.Kind != client.RequestHeaders || answer.Endpoints != "127.0.0.2:9" {
		t.Errorf("the pick while draining: %+v, %v", answer, err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	<-s.ended
}

func watchService(t *testing.T, probes healthpb.HealthClient, service string) healthpb.Health_WatchClient {
	t.Helper()
	w, err := probes.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: service})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// inFlightStream waits until the picker has a stream. The client has no event for that.
func (s *served) inFlightStream(t *testing.T) {
	t.Helper()
	eventually(t, func() bool {
		_, text := s.ask(t, "GET", "metrics", "/metrics", nil)
		return strings.Contains(text, `tandem_extproc_streams{filter="picker"} 1`)
	})
}

// TestDrainTimeout: a request that never ends is cut after drain-timeout.
func TestDrainTimeout(t *testing.T) {
	s := serve(t, "--drain-timeout=1ms", "--secure-serving=false")
	conn, err := client.Dial(client.Options{Addresses: []string{s.addresses["extproc"]}, Plaintext: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := conn.Open(t.Context(), client.Picker())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if err := stream.RequestHeaders(client.RequestHead{Method: "POST", Path: "/v1/completions", Header: http.Header{}}, false); err != nil {
		t.Fatal(err)
	}
	s.inFlightStream(t)
	s.stop()
	if answer, err := stream.Recv(); err == nil {
		t.Errorf("got %+v", answer)
	}
	if <-s.ended; !strings.Contains(s.stderr.String(), "drain-timeout is over") {
		t.Errorf("log: %s", &s.stderr)
	}
}

// TestStoppedBeforeServing: a signal may arrive before a server serves.
func TestStoppedBeforeServing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	server.Stop()
	if err := serveGRPC(server, l, "any"); err != nil {
		t.Error(err)
	}
}

// TestTLS: by default the ext-proc port serves HTTP/2 over TLS with a self-signed certificate.
func TestTLS(t *testing.T) {
	s := serve(t)
	state := s.handshake(t)
	cert := state.PeerCertificates[0]
	if state.NegotiatedProtocol != "h2" || state.Version < tls.VersionTLS12 || cert.Issuer.String() != cert.Subject.String() {
		t.Errorf("protocol %q, version %x, issuer %v", state.NegotiatedProtocol, state.Version, cert.Issuer)
	}
	old := &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}
	if conn, err := tls.Dial("tcp", s.addresses["extproc"], old); err == nil {
		conn.Close()
		t.Error("TLS 1.1 is served")
	}
}

// TestPlaintextToTLS: a gateway in plaintext only sees its connections end, so the picker logs why.
func TestPlaintextToTLS(t *testing.T) {
	s := serve(t)
	s.handshake(t) // who leaves in good order is not told of
	const text = "a client of the ext-proc port does not speak TLS"
	if strings.Contains(s.stderr.String(), text) {
		t.Errorf("after a handshake: %s", &s.stderr)
	}
	for range 2 {
		conn, err := net.Dial("tcp", s.addresses["extproc"])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Logf("how the picker left: %v", err)
		}
		// The picker closes the connection before it logs.
		eventually(t, func() bool { return strings.Contains(s.stderr.String(), text) })
	}
	if n := strings.Count(s.stderr.String(), text); n != 1 {
		t.Errorf("told %d times, want once: %s", n, &s.stderr)
	}
}

func (s *served) handshake(t *testing.T) tls.ConnectionState {
	t.Helper()
	conn, err := tls.Dial("tcp", s.addresses["extproc"], unverified("h2", "http/1.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState()
}

// TestCertPath: the picker shows the certificate of the directory, and the new one after a change.
func TestCertPath(t *testing.T) {
	dir := t.TempDir()
	boottest.KeyPair(t, dir, 1)
	s := serve(t, "--cert-path="+dir)
	if n := s.handshake(t).PeerCertificates[0].SerialNumber.Int64(); n != 1 {
		t.Errorf("certificate %d", n)
	}
	boottest.KeyPair(t, dir, 2)
	eventually(t, func() bool { return s.handshake(t).PeerCertificates[0].SerialNumber.Int64() == 2 }) // it looks once a second
}

// eventually waits until check holds.
func eventually(t *testing.T, check func() bool) {
	t.Helper()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	late := time.After(soon)
	for !check() {
		select {
		case <-poll.C:
		case <-late:
			t.Fatalf("not within %v", soon)
		}
	}
}

// soon bounds what a test waits for.
const soon = 2 * time.Minute

func TestDebug(t *testing.T) {
	s := serve(t)
	status, text := s.ask(t, "GET", "admin", "/debug/endpoints", nil)
	var state struct{ Endpoints []endpointState }
	if err := json.Unmarshal([]byte(text), &state); err != nil || status != http.StatusOK || len(state.Endpoints) != 2 {
		t.Fatalf("%d %s: %v", status, text, err)
	}
	if e := state.Endpoints[1]; e.Name != "default/p" || e.Address != "127.0.0.1:9" || e.Role != "prefill" || e.LoadAge != -1 || e.Signals.Of("waiting").Value != nil {
		t.Errorf("%+v", e)
	}
	if status, text := s.ask(t, "GET", "admin", "/debug/config", nil); status != http.StatusOK || !strings.Contains(text, "kind: EndpointPickerConfig\n") {
		t.Errorf("/debug/config: %d %s", status, text)
	}
	for _, path := range []string{"/debug/endpoints", "/debug/config"} {
		if status, _ := s.ask(t, "POST", "admin", path, nil); status != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %d", path, status)
		}
	}
}

func TestExplain(t *testing.T) {
	s := serve(t, "--body-limit=1MiB")
	const chat = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
	for _, c := range []struct {
		name, path string
		body       io.Reader
		decision   string
	}{
		{"chat by default", "/explain", strings.NewReader(chat), "local;short-prompt"},
		{"a path", "/explain/v1/completions", strings.NewReader(`{"model":"m","prompt":"hello"}`), "local;short-prompt"},
		{"not JSON", "/explain/v1/chat/completions", strings.NewReader("hello"), "refused;bad-request"},
		{"no body", "/explain", nil, "refused;bad-request"},
		{"half a body", "/explain", strings.NewReader(chat[:20]), "refused;bad-request"},
		{"a key twice", "/explain", strings.NewReader(`{"model":"m","model":"n"}`), "refused;duplicate-key"},
		{"a huge body", "/explain", io.MultiReader(strings.NewReader(`{"model":"`), io.LimitReader(letters{}, 2<<20)), "refused;too-large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, text := s.ask(t, "POST", "admin", c.path, c.body)
			var x epp.Explanation
			if err := json.Unmarshal([]byte(text), &x); err != nil || status != http.StatusOK {
				t.Fatalf("%d %s: %v", status, text, err)
			}
			if got := fmt.Sprintf("%s;%s", x.Decision, x.Reason); got != c.decision {
				t.Errorf("got %s, want %s", got, c.decision)
			}
		})
	}
	if status, _ := s.ask(t, "GET", "admin", "/explain", nil); status != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", status)
	}
	if _, text := s.ask(t, "GET", "admin", "/debug/endpoints", nil); strings.Contains(text, `"inflight_requests": 1`) {
		t.Errorf("something was reserved: %s", text)
	}
}

// letters never end.
type letters struct{}

func (letters) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'a'
	}
	return len(b), nil
}

// TestPoolBesideFileDiscovery: llm-d's picker wants a pool's name even if the configuration names a file; then no cluster is asked.
func TestPoolBesideFileDiscovery(t *testing.T) {
	dir := t.TempDir()
	file, endpoints := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "endpoints.yaml")
	write(t, endpoints, endpointsFile)
	write(t, file, configOf(endpoints, 1))
	env := map[string]string{"KUBECONFIG": filepath.Join(dir, "missing")}
	for _, flags := range [][]string{
		{"--pool-name=llama", "--pool-namespace=serving"},
		{"--endpoint-selector=app=engine", "--endpoint-target-ports=8000"},
	} {
		t.Run(flags[0], func(t *testing.T) {
			s := serveWith(t, env, append(flags, "--secure-serving=false", "--config-file="+file)...)
			if decode, _ := s.pick(t, true); decode != "127.0.0.2:9" {
				t.Errorf("picked %q, want the file's decode endpoint", decode)
			}
			if !strings.Contains(s.stderr.String(), "flags about a cluster have no effect") {
				t.Errorf("the log does not say that the flags have no effect: %s", &s.stderr)
			}
		})
	}
	t.Run("the name in metrics", func(t *testing.T) {
		write(t, file, configOf(endpoints, 1)+"featureGates: [flowControl]\n")
		s := serveWith(t, env, "--pool-name=llama", "--secure-serving=false", "--config-file="+file)
		if _, text := s.ask(t, "GET", "metrics", "/metrics", nil); !strings.Contains(text, `llm_d_epp_flow_control_pool_saturation{inference_pool="llama"`) {
			t.Errorf("no metric has the pool's name: %s", text)
		}
	})
}
