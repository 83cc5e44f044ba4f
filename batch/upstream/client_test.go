package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// telemetry is one that goes nowhere.
func telemetry() Telemetry {
	return Telemetry{Metrics: prometheus.NewRegistry(), Tracer: noop.Tracer{}, Propagator: propagation.NewCompositeTextMapPropagator()}
}

// An upstream with a certificate of the operator's own is trusted by its authority only.
func TestUpstreamTLS(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))
	defer server.Close()
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(server.Certificate())
	for _, c := range []struct {
		name string
		tls  func() *tls.Config
		want verdict
	}{
		{"its authority", func() *tls.Config { return &tls.Config{RootCAs: pool} }, final},
		{"another authority", func() *tls.Config { return &tls.Config{RootCAs: x509.NewCertPool()} }, unreachable},
		{"the system's authorities", nil, unreachable},
	} {
		client := New(Config{URL: at, Timeout: time.Minute, InFlight: 1, TLS: c.tls}, telemetry())
		if a := client.send(t.Context(), Request{ID: "1", Endpoint: "/v1/completions", Body: []byte("{}")}); a.verdict != c.want {
			t.Errorf("%s: %s, want %s", c.name, a.verdict, c.want)
		}
		client.Close()
	}
}

// TestHeadroomOfAnswers: the pace learns from each answer what the picker says of online requests.
func TestHeadroomOfAnswers(t *testing.T) {
	for value, want := range map[string]float64{"": math.NaN(), "0.35": 0.35, "-0.2": -0.2, "-70": -1, "1.00": 1, "2": math.NaN(), "much": math.NaN(), "NaN": math.NaN(), "-Inf": -1} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if value != "" {
				w.Header().Set("X-Tandem-Headroom", value)
			}
			fmt.Fprint(w, "{}")
		}))
		at, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		client := New(Config{URL: at, Timeout: time.Minute, InFlight: 1}, telemetry())
		if err := client.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, ok := client.Do(t.Context(), t.Context(), Request{ID: "1", Endpoint: "/v1/completions", Body: []byte("{}")}); !ok {
			t.Fatal("no answer")
		}
		if got := client.pace.Headroom(); got != want && !(math.IsNaN(got) && math.IsNaN(want)) {
			t.Errorf("%q is read as %v, want %v", value, got, want)
		}
		client.Close()
		server.Close()
	}
}

// TestRefusals: a request that the picker has ended for a more important one is sent again when Retry-After has passed, at the same pace. Other
// refusals lower the pace.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		dropped string
		want    verdict
		limit   int
	}{
		{"evicted", evicted, startLimit},
		{"evicted-queue-pressure", full, startLimit / 2},
		{"rejected-saturated", full, startLimit / 2},
		{"", full, startLimit / 2},
	} {
		t.Run(c.dropped, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if asked.Add(1) == 1 {
					w.Header().Set("Retry-After", "1")
					if c.dropped != "" {
						w.Header().Set("X-Llm-D-Request-Dropped-Reason", c.dropped)
					}
					w.WriteHeader(http.StatusTooManyRequests)
				}
				fmt.Fprint(w, "{}")
			}))
			defer server.Close()
			at, err := url.Parse(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			to, registry := telemetry(), prometheus.NewRegistry()
			to.Metrics = registry
			client := New(Config{URL: at, Timeout: time.Minute, InFlight: 100}, to)
			defer client.Close()
			if err := client.Acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
			a, ok := client.Do(t.Context(), t.Context(), Request{ID: "1", Endpoint: "/v1/completions", Body: []byte("{}")})
			if limit, _ := client.pace.State(); !ok || a.Status != http.StatusOK || asked.Load() != 2 || limit != c.limit {
				t.Errorf("status %d after %d requests, and a limit of %d; want 200, 2, %d", a.Status, asked.Load(), limit, c.limit)
			}
			if n := attempts(t, registry, c.want); n != 1 {
				t.Errorf("%v attempts count as %s, want 1", n, c.want)
			}
		})
	}
}

// attempts returns how many attempts a Client has counted as a verdict.
func attempts(t *testing.T, registry *prometheus.Registry, v verdict) (n float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "tandem_batch_attempts_total" && m.GetLabel()[0].GetValue() == v.String() {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}
