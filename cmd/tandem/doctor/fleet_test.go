package doctor

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	testprograms "github.com/tandem-serving/tandem/e2e/programs"
	"github.com/tandem-serving/tandem/sidecar"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/stack"
)

// programs is the folder of the real programs.
var programs string

func TestMain(m *testing.M) {
	if err := build(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(programs)
		os.Exit(code)
	}))
}

func build() (err error) {
	programs, err = testprograms.Build("epp", "sidecar", "keeper")
	return err
}

// member is an endpoint of a test's pool.
type member struct {
	name, role string
	labels     string // further ones, in YAML
	at         string // host:port; "" = the address of front or engine
	cfg        sim.Config
	idle       time.Duration                   // of the sidecar; 0 = never in a test
	naked      bool                            // no sidecar in front of it
	metrics    *prometheus.Registry            // of the sidecar; nil = one that no test reads
	fronted    bool                            // a sidecar in front of it, whatever its role
	cert       *tls.Certificate                // of an engine that speaks TLS
	front      func(http.Handler) http.Handler // changes requests and answers
	listens    string                          // once it has started
}

// testPool is a healthy pool, for a case to break.
type testPool struct {
	members []member
	epp     []string // further flags of the picker
	picker  string   // endpoints file of the picker, if it is another than the doctor's
	config  string   // EndpointPickerConfig; "" = the default
	flags   []string // further flags of the doctor
	side    string   // address of the side channel
	keeper  string   // metrics page of a sidecar; "" = one with a healthy keeper
	told    string   // address of the page
	file    string   // the endpoints file of the picker
	running *stack.Process
	addrs   map[string]string
}

// proxyHandler forwards requests to a URL.
func proxyHandler(t *testing.T, to string) http.Handler {
	t.Helper()
	target, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	transport := &http.Transport{}
	proxy.Transport = transport
	t.Cleanup(transport.CloseIdleConnections)
	return proxy
}

// proxyTo serves an engine through a changed handler.
func proxyTo(t *testing.T, engine string, change func(http.Handler) http.Handler) string {
	t.Helper()
	return serve(t, change(proxyHandler(t, engine)).ServeHTTP)
}

// start starts a member and returns its address.
func (m *member) start(t *testing.T) string {
	t.Helper()
	if m.at != "" {
		return m.at
	}
	m.cfg.KeepAlive = max(m.cfg.KeepAlive, time.Duration(0))
	if m.cfg.KeepAlive == 0 {
		m.cfg.KeepAlive = time.Minute
	}
	engine, err := server.Start(m.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Close)
	at := engine.URL
	if m.front != nil {
		at = "http://" + proxyTo(t, at, m.front)
	}
	if m.cert != nil {
		engine := proxyHandler(t, at)
		return serveTLS(t, *m.cert, nil, engine)
	}
	if m.fronted || m.role == "decode" && !m.naked {
		at = "http://" + m.sidecar(t, at)
	}
	return strings.TrimPrefix(at, "http://")
}

// sidecar starts a sidecar in front of an engine.
func (m *member) sidecar(t *testing.T, engine string) string {
	t.Helper()
	cfg := sidecar.Defaults()
	to := netip.MustParseAddrPort(strings.TrimPrefix(engine, "http://"))
	cfg.Engine.Host, cfg.Engine.Port = to.Addr().String(), int(to.Port())
	cfg.Trust.Allow = []intake.AllowRule{{Prefix: netip.MustParsePrefix("127.0.0.0/8")}}
	registry := m.metrics
	if registry == nil {
		registry = boot.NewRegistry(boot.IO{})
	}
	s, err := sidecar.New(cfg, sidecar.Telemetry{Log: slog.New(slog.DiscardHandler), Metrics: registry,
		Tracer: noop.NewTracerProvider().Tracer(""), Propagator: propagation.NewCompositeTextMapPropagator()})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(s.Handlers(0)[0])
	front.Config.IdleTimeout = m.idle
	front.Start()
	t.Cleanup(func() { front.Close(); s.Close() })
	return front.Listener.Addr().String()
}

// healthy returns a pool without faults.
func healthy() *testPool {
	return &testPool{members: []member{{name: "prefill-0", role: "prefill"}, {name: "prefill-1", role: "prefill"},
		{name: "decode-0", role: "decode"}, {name: "decode-1", role: "decode"}}}
}

// greeter sends a greeting to every client: ZeroMQ's, or another.
func greeter(t *testing.T, greeting string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(greeting))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

// zmq is the signature of ZMTP 3.
const zmq = "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f"

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// start starts the pool and returns the flags of the doctor.
func (p *testPool) start(t *testing.T) []string {
	t.Helper()
	var file strings.Builder
	file.WriteString("endpoints:\n")
	for i := range p.members {
		m := &p.members[i]
		m.listens = m.start(t)
		host, port, _ := net.SplitHostPort(m.listens)
		fmt.Fprintf(&file, "- {name: %s, address: %q, port: %q, labels: {llm-d.ai/role: %q%s}}\n", m.name, host, port, m.role, m.labels)
	}
	endpoints := write(t, "endpoints.yaml", file.String())
	p.file = write(t, "picker.yaml", cmp.Or(p.picker, file.String()))
	flags := []string{"--endpoints-file=" + p.file}
	if p.config != "" {
		flags = append(flags, "--config-file="+write(t, "config.yaml", p.config))
	}
	running, err := stack.Start(t.Context(), stack.EPP(programs, append(flags, p.epp...)...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = running.Kill() })
	p.running, p.addrs = running, map[string]string{}
	for _, purpose := range []string{"extproc", "health", "metrics", "admin"} {
		if p.addrs[purpose], err = running.Address(purpose); err != nil {
			t.Fatal(err)
		}
	}
	if p.side == "" {
		p.side = greeter(t, zmq)
	}
	p.told = serve(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, cmp.Or(p.keeper, keeperPage(1, 1, time.Hour, "")))
	})
	all := []string{"--endpoints-file=" + endpoints, "--epp=" + p.addrs["extproc"], "--epp-health=" + p.addrs["health"],
		"--epp-metrics=" + p.addrs["metrics"], "--epp-admin=" + p.addrs["admin"], "--side-channel=" + p.side, "--sidecar-metrics=" + p.told,
		"--idle-wait=300ms", "--timeout=10s", "--probe"}
	return append(all, p.flags...)
}

// result is the output of the doctor.
type result struct {
	code           int
	stdout, stderr string
}

// doctor runs the command in this process.
func doctor(ctx context.Context, args ...string) result {
	var stdout, stderr bytes.Buffer
	code := boot.Run(ctx, boot.IO{Name: "doctor", Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr}, args, Run)
	return result{code, stdout.String(), stderr.String()}
}

// findings runs the command and returns its findings.
func findings(t *testing.T, args ...string) (result, map[string]line) {
	t.Helper()
	got := doctor(t.Context(), append(args, "--json")...)
	var r struct {
		Verdict verdict
		Checks  []line
	}
	if err := json.Unmarshal([]byte(got.stdout), &r); err != nil {
		t.Fatalf("%v: exit %d: %s\n%s", err, got.code, got.stderr, got.stdout)
	}
	found := map[string]line{}
	for _, l := range r.Checks {
		found[l.Check] = l
	}
	return got, found
}

// loads waits until the picker has read the loads of n endpoints.
func (p *testPool) loads(t *testing.T, n int) {
	t.Helper()
	p.until(t, "the loads are read", func(f *fleet) bool {
		known, err := f.debugEndpoints(t.Context())
		return err == nil && count(known, func(e knownEndpoint) bool { return e.LoadAge >= 0 }) >= n
	})
}

// until polls the picker, which does not announce changes.
func (p *testPool) until(t *testing.T, what string, is func(*fleet) bool) {
	t.Helper()
	by := newDirect()
	defer by.http.CloseIdleConnections()
	f := &fleet{direct: by, reach: by, parts: partFlags{Admin: p.addrs["admin"]}}
	tick, late := time.NewTicker(20*time.Millisecond), time.After(20*time.Second)
	defer tick.Stop()
	for !is(f) {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// certificate is self-signed, for 127.0.0.1.
func certificate(t *testing.T, until time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func pemOf(t *testing.T, c tls.Certificate) string {
	t.Helper()
	return write(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})))
}

// serveTLS serves over TLS.
func serveTLS(t *testing.T, c tls.Certificate, protocols []string, handler http.Handler) string {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{c}, NextProtos: protocols}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = slices.Contains(protocols, "h2")
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}
