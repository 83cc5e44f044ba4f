package warmup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// within returns a context that ends a test that hangs. Nothing is measured by it.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// wait waits for a channel to be closed.
func wait(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-within(t).Done():
		t.Fatalf("waited in vain for %s", what)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// logBuffer collects what is logged at level Info and above.
type logBuffer struct {
	mu   sync.Mutex // guards the fields below
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// lines counts the lines that contain a text.
func (l *logBuffer) lines(text string) int { return strings.Count(l.String(), text) }

// engine is an engine that answers /health and /v1/models.
type engine struct {
	transport.Engine
	addr string

	mu           sync.Mutex // guards the fields below
	sick         bool
	modelsStatus int
	models       string
}

const oneModel = `{"data":[{"id":"m"}]}`

func startEngine(t *testing.T) *engine {
	t.Helper()
	e := &engine{modelsStatus: http.StatusOK, models: oneModel}
	server := httptest.NewServer(e)
	pool := transport.New(4, nil, nil)
	t.Cleanup(server.Close)
	t.Cleanup(pool.CloseIdleConnections)
	e.Engine = transport.Engine{Transport: pool, URL: server.URL}
	e.addr = server.Listener.Addr().String()
	return e
}

// ServeHTTP implements http.Handler.
func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch r.URL.Path {
	case "/health":
		if e.sick {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	case "/v1/models":
		w.WriteHeader(e.modelsStatus)
		_, _ = io.WriteString(w, e.models) // a client that has left needs no answer
	}
}

func (e *engine) setSick(sick bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sick = sick
}

// rig is a Warmup whose hand-offs are noted, and run by a function of the test. The test calls its steps.
type rig struct {
	*Warmup
	decode  *engine
	log     logBuffer
	results map[string]int

	// handOff decides what a hand-off ends with; nil: it succeeds.
	handOff  func(t pd.Target, body string) error
	handoffs map[string]int // by target
}

func newRig(t *testing.T, find Finder) *rig {
	t.Helper()
	r := &rig{decode: startEngine(t), results: map[string]int{}, handoffs: map[string]int{}}
	r.Warmup = New(Config{
		Find:    find,
		Allowed: func(t pd.Target) bool { return t.Host != "8.8.8.8" },
		HandOff: r.run,
		Decode:  r.decode.Engine,
		Prefill: func(t pd.Target) transport.Engine {
			if t.Host != "127.0.0.1" {
				return r.decode.Engine // an address that no engine of the test has: as healthy as decode
			}
			return transport.Engine{Transport: r.decode.Transport, URL: "http://" + t.String()}
		},
		Draining: func() bool { return false },
		Drained:  make(chan struct{}),
		Log:      slog.New(slog.NewTextHandler(&r.log, nil)),
		Count:    func(result string) { r.results[result]++ },
	})
	return r
}

// run implements HandOff.
func (r *rig) run(_ context.Context, t pd.Target, header http.Header, body []byte) error {
	r.handoffs[t.String()]++
	if !strings.HasPrefix(header.Get("X-Request-Id"), idPrefix) || !bytes.Contains(body, []byte(header.Get("X-Request-Id"))) {
		return errors.New("the request is not marked as one of the warm-up")
	}
	if r.handOff == nil {
		return nil
	}
	return r.handOff(t, string(body))
}

// step is one round, and a hand-off for every pair that is cold then.
func (r *rig) step(t *testing.T) {
	t.Helper()
	r.round(within(t))
	for range r.pairs {
		r.warmNext(within(t))
	}
}

// expire makes everything due again.
func (r *rig) expire() {
	r.probed = time.Time{}
	for _, p := range r.pairs {
		p.again, p.ask = time.Time{}, time.Time{}
	}
}

// warm reports whether the pair with the engine at addr is warm.
func (r *rig) warm(addr string) bool {
	for t, p := range r.pairs {
		if t.String() == addr {
			return p.warm
		}
	}
	return false
}

// listed returns a Finder for a fixed list.
func listed(t *testing.T, addrs ...string) Finder {
	t.Helper()
	targets, err := pd.ParseTargets(addrs)
	if err != nil {
		t.Fatal(err)
	}
	return func(context.Context) ([]pd.Target, error) { return targets, nil }
}
