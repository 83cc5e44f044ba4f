package sidecar

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/intake"
)

// atOnce is how many tests run in parallel: many wait far more than they compute.
const atOnce = "8"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// testTimeout ends a test that hangs. Nothing is measured by it.
const testTimeout = 30 * time.Second

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// wait waits for a channel to be closed or to deliver.
func wait[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-within(t).Done():
		t.Fatalf("waited in vain for %s", what)
		panic("unreachable")
	}
}

// rig is a sidecar served on a real listener.
type rig struct {
	*Server
	url  string
	reg  *prometheus.Registry
	busy sync.WaitGroup // requests that are not quite over, though their clients have the answer
}

// Handler returns the handler of the first data port.
func (r *rig) Handler() http.Handler { return r.Handlers(0)[0] }

// ServeHTTP implements http.Handler.
func (r *rig) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.busy.Add(1)
	defer r.busy.Done()
	r.Handler().ServeHTTP(w, req)
}

// end waits until requests and releases are over.
func (r *rig) end() {
	r.busy.Wait()
	r.Close()
}

type option func(*Config, *Telemetry)

// set changes the configuration of a rig.
func set(change func(*Config)) option { return func(c *Config, _ *Telemetry) { change(c) } }

// noBudget leaves nothing for local prefills.
var noBudget = set(func(c *Config) { c.Fallback.Burst, c.Fallback.Ratio = 0, 0 })

// traced has the sidecar record and pass on spans.
func traced(t trace.Tracer) option {
	return func(_ *Config, to *Telemetry) { to.Tracer, to.Propagator = t, propagation.TraceContext{} }
}

// loopback allows prefill legs to the engines of a test.
var loopback = []intake.AllowRule{{Prefix: netip.MustParsePrefix("127.0.0.1/32")}, {Prefix: netip.MustParsePrefix("::1/128")}}

// startRig serves a sidecar before the engine at a host:port until the test ends.
func startRig(t testing.TB, decode string, options ...option) *rig {
	t.Helper()
	cfg := Defaults()
	host, port, err := net.SplitHostPort(decode)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Engine.Host = host
	if cfg.Engine.Port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	cfg.Trust.Allow, cfg.Prefill.RetryBackoff = loopback, time.Millisecond
	r := &rig{reg: prometheus.NewRegistry()}
	telemetry := Telemetry{Log: slog.New(slog.DiscardHandler), Metrics: r.reg, Tracer: noop.NewTracerProvider().Tracer(""),
		Propagator: propagation.NewCompositeTextMapPropagator()}
	for _, o := range options {
		o(&cfg, &telemetry)
	}
	cfg.Problems(func(flag, format string, args ...any) { t.Errorf("--%s: "+format, append([]any{flag}, args...)...) })
	if r.Server, err = New(cfg, telemetry); err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(r)
	r.url = front.URL
	t.Cleanup(func() {
		front.Close()
		r.Close()
	})
	return r
}

// count reads a counter, or how often a histogram was fed; labels are name, value, name, value …
func (r *rig) count(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	r.busy.Wait()
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			fits := true
			for i := 0; i < len(labels); i += 2 {
				fits = fits && have[labels[i]] == labels[i+1]
			}
			if fits {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func (r *rig) mustCount(t *testing.T, want float64, name string, labels ...string) {
	t.Helper()
	if got := r.count(t, name, labels...); got != want {
		t.Errorf("%s%v is %v, want %v", name, labels, got, want)
	}
}

// reply is a whole answer.
type reply struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
	err     error // the body broke off
}

// newClient makes a client that adds no headers and follows no redirects.
func newClient(t testing.TB) *http.Client {
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// open sends a request and returns its answer as soon as its headers are there; header is name, value, name, value …
func open(t *testing.T, ctx context.Context, method, url string, body io.Reader, header ...string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	return newClient(t).Do(req)
}

func mustOpen(t *testing.T, url, body string, header ...string) *http.Response {
	t.Helper()
	resp, err := open(t, within(t), http.MethodPost, url, strings.NewReader(body), header...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// post sends a request and reads all of its answer.
func post(t *testing.T, url, body string, header ...string) reply {
	t.Helper()
	resp := mustOpen(t, url, body, header...)
	b, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, resp.Trailer, string(b), err}
}

// decision is what the answer says was decided.
func (r reply) decision(t *testing.T) pd.Result {
	t.Helper()
	d, err := pd.ParseResult(r.header.Get(pd.HeaderDecision))
	if err != nil {
		t.Errorf("status %d: %v", r.status, err)
	}
	return d
}

// phases lists the phases the answer reports.
func (r reply) phases(t *testing.T) string {
	t.Helper()
	return phasesOf(t, r.header.Get(pd.HeaderTiming))
}

func phasesOf(t *testing.T, timing string) string {
	t.Helper()
	p, err := pd.ParseTiming(timing)
	if err != nil {
		t.Errorf("%s: %v", timing, err)
	}
	var names []string
	for _, ph := range []pd.Phase{pd.PhaseEPP, pd.PhaseRecv, pd.PhaseEncode, pd.PhasePrefill, pd.PhaseHandoff, pd.PhaseFirst, pd.PhaseDecode} {
		if _, ok := p.Get(ph); ok {
			names = append(names, ph.String())
		}
	}
	return strings.Join(names, " ")
}

// mustBe checks status and decision of an answer.
func (r reply) mustBe(t *testing.T, status int, decision string) {
	t.Helper()
	if got := r.header.Get(pd.HeaderDecision); r.status != status || got != decision {
		t.Errorf("%d %s, want %d %s\n%s", r.status, got, status, decision, r.body)
	}
}

// openAIError is the error object of an answer in OpenAI's shape.
type openAIError struct {
	Error struct {
		Message, Type, Code string
		Param               any
	}
}

// mustRefuse checks what every refusal has: JSON in the API's shape, the decision, and whether to try again.
func (r reply) mustRefuse(t *testing.T, status int, reason pd.Reason) {
	t.Helper()
	if d := r.decision(t); r.status != status || d.Verdict != pd.Refused || d.Reason != reason {
		t.Errorf("%d %v, want %d and reason %s", r.status, d, status, reason)
	}
	var e openAIError
	if err := json.Unmarshal([]byte(r.body), &e); err != nil || e.Error.Code != string(reason) || e.Error.Message == "" || e.Error.Type == "" {
		t.Errorf("body %s (%v)", r.body, err)
	}
	if got := r.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q", got)
	}
	retriable := status == http.StatusBadGateway || status == http.StatusServiceUnavailable
	if got := r.header.Get(pd.HeaderRetry); (got == "1") != retriable {
		t.Errorf("%s is %q with status %d", pd.HeaderRetry, got, status)
	}
	if got := r.header.Get("Retry-After"); retriable && got != "1" {
		t.Errorf("Retry-After is %q", got)
	}
	if !strings.Contains(r.phases(t), "recv") {
		t.Errorf("Server-Timing %q does not tell the time to the refusal", r.header.Values(pd.HeaderTiming))
	}
}

// refusingAddr returns a host:port where connecting is refused: bound, so that no other process gets it, but not listening.
func refusingAddr(t *testing.T) string {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(bound.(*syscall.SockaddrInet4).Port))
}
