package matrix

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/tandem-serving/tandem/sidecar"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/transport"
)

const (
	// shortly is a deadline of the sidecar in rows where it passes, and slowly (ms) the delay that outlasts it. What comes in
	// time does so on a machine that stands still for seconds, too.
	shortly = 6 * time.Second
	slowly  = "7500"
	// patience is how long a client waits that the sidecar would let wait for ever, its deadlines notwithstanding.
	patience = 3 * shortly / 2
	// lease outlasts every row, on a machine that stands still for a while, too.
	lease = 5 * time.Minute
	// briefly is how long a decode engine tries to reach a prefill engine in rows where it is gone.
	briefly = 300 * time.Millisecond
)

// engine is a simulated engine whose connections are counted.
type engine struct {
	*sim.Server
	door *door
}

func (e engine) addr() string { return strings.TrimPrefix(e.URL, "http://") }

// startEngine serves an engine until the test ends, or the test closes it.
func startEngine(t *testing.T, fetch func(context.Context, string) ([]byte, error), reach time.Duration) engine {
	t.Helper()
	data, err := net.Listen("tcp", ownLoopback()+":0")
	if err != nil {
		t.Fatal(err)
	}
	admin, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &door{Listener: data}
	cfg := sim.Config{MaxModelLen: 512, KV: sim.KVConfig{Blocks: 40, HandshakeTimeout: reach, Lease: lease}, Transfer: sim.TransferConfig{Fetch: fetch}}
	s, err := sim.Serve(cfg, d, admin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return engine{s, d}
}

// given counts the loopback addresses that engines have got.
var given atomic.Uint32

// ownLoopback returns an address at which no other test listens: rows run side by side, and a port that one row's engine has closed
// for a while would sooner or later be another's. Only Linux has more than one.
func ownLoopback() string {
	if runtime.GOOS != "linux" {
		return "127.0.0.1"
	}
	n := given.Add(1)
	return netip.AddrFrom4([4]byte{127, byte(1 + n>>16), byte(n >> 8), byte(n)}).String()
}

// door counts the connections that an engine has open.
type door struct {
	net.Listener
	mu   sync.Mutex // guards open
	open int
}

// Accept implements net.Listener.
func (d *door) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	d.add(1)
	return &guest{TCPConn: c.(*net.TCPConn), leaves: sync.OnceFunc(func() { d.add(-1) })}, nil
}

func (d *door) add(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open += n
}

func (d *door) empty() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open == 0
}

// guest is a connection that tells its door when it is closed.
type guest struct {
	*net.TCPConn
	leaves func()
}

// Close implements net.Conn.
func (g *guest) Close() error {
	defer g.leaves()
	return g.TCPConn.Close()
}

// link is what a decode engine meets its prefill engines over. While it is down it swallows what is sent.
type link struct {
	once sync.Once
	up   chan struct{}
}

func (l *link) fetch(ctx context.Context, addr string) ([]byte, error) {
	select {
	case <-l.up:
		return sim.AskSideChannel(ctx, addr)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *link) repair() { l.once.Do(func() { close(l.up) }) }

// stage is one row's engines and sidecar.
type stage struct {
	*sidecar.Server
	prefill []engine // in the order of the candidates
	decode  engine
	link    *link
	url     string
	reg     *prometheus.Registry
	spans   *tracetest.SpanRecorder
	front   *httptest.Server
	client  *http.Transport
	keeper  *transport.TCP // nil: there is none
	busy    sync.WaitGroup // requests that are not quite over
	noticed chan struct{}  // gets one when the sidecar has noticed that its client left, or has cut the request
}

// ServeHTTP implements http.Handler.
func (s *stage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.busy.Add(1)
	defer s.busy.Done()
	// The sidecar's own context has ended when that is told.
	ctx, end := context.WithCancel(context.WithoutCancel(r.Context()))
	defer end()
	defer context.AfterFunc(r.Context(), func() { end(); s.notice() })()
	s.Handler().ServeHTTP(&watched{w, s}, r.WithContext(ctx))
}

// watched is an answer that tells when the sidecar cuts it.
type watched struct {
	http.ResponseWriter
	s *stage
}

// Unwrap lets http.ResponseController reach the connection.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// SetWriteDeadline is what the sidecar calls when it cuts an answer.
func (w *watched) SetWriteDeadline(at time.Time) error {
	w.s.notice()
	return http.NewResponseController(w.ResponseWriter).SetWriteDeadline(at)
}

func (s *stage) notice() {
	select {
	case s.noticed <- struct{}{}:
	default:
	}
}

// startStage starts what a row needs, with its faults standing.
func startStage(t *testing.T, r row) *stage {
	t.Helper()
	s := startEngines(t, r)
	s.startSidecar(t, r)
	return s
}

func startEngines(t *testing.T, r row) *stage {
	t.Helper()
	s := &stage{link: &link{up: make(chan struct{})}, reg: prometheus.NewRegistry(), spans: tracetest.NewSpanRecorder(),
		client: &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: testTimeout}, noticed: make(chan struct{}, 1)}
	var reach time.Duration // the default
	switch {
	case r.deed == freeze:
		reach = testTimeout
	case r.deed == kill, r.prefill.Arg == "wrong-port":
		reach = briefly
	}
	if r.deed != freeze {
		s.link.repair()
	}
	s.prefill = []engine{startEngine(t, nil, 0)}
	if r.situation == another {
		s.prefill = append(s.prefill, startEngine(t, nil, 0))
	}
	s.decode = startEngine(t, s.link.fetch, reach)
	t.Cleanup(s.link.repair)
	for e, f := range map[engine]sim.Fault{s.prefill[0]: r.prefill, s.decode: r.decode} {
		if f.Fault == "" {
			continue
		}
		if err := e.Engine.AddFault(f); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *stage) startSidecar(t *testing.T, r row) {
	t.Helper()
	host, port, err := net.SplitHostPort(s.decode.addr())
	if err != nil {
		t.Fatal(err)
	}
	cfg := sidecar.Defaults()
	cfg.Fallback.Lease = lease
	cfg.Engine.Host = host
	if cfg.Engine.Port, err = strconv.Atoi(port); err != nil {
		t.Fatal(err)
	}
	cfg.Trust.Allow = []intake.AllowRule{{Prefix: netip.MustParsePrefix("127.0.0.0/8")}}
	cfg.Prefill.BlockSize = blockSize
	switch {
	case r.quick && r.state == prefilling:
		cfg.Prefill.Timeout = shortly
	case r.quick:
		cfg.Engine.FirstEvent = shortly
	}
	if r.situation == broke {
		cfg.Fallback.Ratio, cfg.Fallback.Burst = 0, 0
	}
	if r.deed == tooOld {
		cfg.Fallback.Lease = time.Nanosecond
	}
	cfg.Keep.Notifier = s.startKeeper(t, r.keeper)
	cfg.Problems(func(flag, format string, args ...any) { t.Errorf("--%s: "+format, append([]any{flag}, args...)...) })
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.spans)).Tracer("")
	s.Server, err = sidecar.New(cfg, sidecar.Telemetry{Log: slog.New(slog.DiscardHandler), Metrics: s.reg, Tracer: tracer,
		Propagator: propagation.TraceContext{}})
	if err != nil {
		t.Fatal(err)
	}
	s.front = httptest.NewServer(s)
	s.url = s.front.URL
	t.Cleanup(s.end)
}

// blockSize is that of the engines, in tokens.
const blockSize = 32

// end waits until requests and releases are over, and closes the sidecar. It may be called again.
func (s *stage) end() {
	s.busy.Wait()
	s.Close()
	if s.keeper != nil {
		s.keeper.Close()
	}
	s.client.CloseIdleConnections()
	s.front.Close()
}
