package matrix

import (
	"bytes"
	"context"
	"fmt"
	"io"
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

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/madeup"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/transport"
)

const (
	// shortly is a deadline of the sidecar in rows where the deadline passes, and slowly (ms) the delay that outlasts it. They
	// are long enough that other answers arrive in time even if the machine pauses for seconds.
	shortly = 6 * time.Second
	slowly  = "7500"
	// patience is how long the client waits in rows where none of the sidecar's deadlines ends the request.
	patience = 3 * shortly / 2
	// lease outlasts every row, even if the machine pauses for a while.
	lease = 5 * time.Minute
	// briefly is how long a decode engine tries to reach a prefill engine that is gone.
	briefly = 300 * time.Millisecond
)

// engine is a simulated engine whose connections are counted.
type engine struct {
	url      string
	faults   *fault.List
	handler  http.Handler
	close    func()
	done     <-chan struct{} // closed when it has ended
	load     func() load
	await    func(context.Context, func(load) bool) (load, error)
	listener *countingListener
}

// load is what an engine has and has had.
type load struct {
	requests, held int64
	used, pinned   int   // KV blocks, or pages
	live           int   // SGLang's requests that have not ended
	read, foreign  int64 // bytes of KV that it has read, and hand-offs with those of another prompt
	expired, stale int64
}

func (e *engine) addr() string { return strings.TrimPrefix(e.url, "http://") }

// listen opens the ports of an engine.
func listen(t *testing.T) (data *countingListener, admin net.Listener) {
	t.Helper()
	d, err := net.Listen("tcp", ownLoopback()+":0")
	if err != nil {
		t.Fatal(err)
	}
	if admin, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	return &countingListener{Listener: d}, admin
}

// startEngine serves an engine until the test ends, or the test closes it.
func startEngine(t *testing.T, cfg sim.Config, fronts ...server.Front) *engine {
	t.Helper()
	data, admin := listen(t)
	cfg.MaxModelLen, cfg.KV.Blocks, cfg.KV.Lease = 512, 40, lease
	s, err := server.Serve(cfg, data, admin, fronts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	of := func(st sim.State) load {
		return load{requests: int64(st.Requests), held: int64(st.Held), used: st.Blocks.Used, pinned: st.Blocks.Pinned,
			read: st.KVBytesRead, foreign: int64(st.ForeignReads), expired: int64(st.Expired), stale: int64(st.StaleReads)}
	}
	return &engine{s.URL, s.Faults, s.Handler, s.Close, s.Engine.Done(), func() load { return of(s.Engine.State()) },
		func(ctx context.Context, ok func(load) bool) (load, error) {
			st, err := s.Engine.WaitState(ctx, func(st sim.State) bool { return ok(of(st)) })
			return of(st), err
		}, data}
}

// loopbacks counts the loopback addresses of all engines.
var loopbacks atomic.Uint32

// ownLoopback returns an address at which no other row listens. Rows run in parallel: on a shared address, the port that one
// row's engine closes for a while could be given to another row's. Only Linux has more than one loopback address.
func ownLoopback() string {
	if runtime.GOOS != "linux" {
		return "127.0.0.1"
	}
	n := loopbacks.Add(1)
	return netip.AddrFrom4([4]byte{127, byte(1 + n>>16), byte(n >> 8), byte(n)}).String()
}

// countingListener counts the connections that an engine has open.
type countingListener struct {
	net.Listener
	mu   sync.Mutex // guards open
	open int
}

// Accept implements net.Listener.
func (d *countingListener) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	d.add(1)
	return &countedConn{TCPConn: c.(*net.TCPConn), closed: sync.OnceFunc(func() { d.add(-1) })}, nil
}

func (d *countingListener) add(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open += n
}

func (d *countingListener) empty() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open == 0
}

// countedConn is a connection that its countingListener counts until it is closed.
type countedConn struct {
	*net.TCPConn
	closed func()
}

// Close implements net.Conn.
func (g *countedConn) Close() error {
	defer g.closed()
	return g.TCPConn.Close()
}

// link is the connection from a decode engine to the side channels of prefill engines. While it is down, requests get no
// answer.
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

// fixture holds one row's engines and sidecar.
type fixture struct {
	*sidecar.Server
	prefill    []*engine // in the order of the candidates
	decode     *engine
	link       *link
	url        string
	reg        *prometheus.Registry
	spans      *tracetest.SpanRecorder
	httpServer *httptest.Server
	client     *http.Transport
	keeper     *transport.TCP // nil: there is none
	busy       sync.WaitGroup // handlers that have not returned
	answers    chan struct{}  // closed when a decode engine is to answer, in rows with the action answer
	noticed    chan struct{}  // gets a value when the sidecar has noticed that its client left, or has cut the request
}

// ServeHTTP implements http.Handler.
func (s *fixture) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.busy.Add(1)
	defer s.busy.Done()
	// The sidecar's context ends before noticed gets its value.
	ctx, end := context.WithCancel(context.WithoutCancel(r.Context()))
	defer end()
	defer context.AfterFunc(r.Context(), func() { end(); s.notice() })()
	s.Handlers(0)[0].ServeHTTP(&watched{w, s}, r.WithContext(ctx))
}

// watched is a response writer that notices when the sidecar cuts the answer.
type watched struct {
	http.ResponseWriter
	s *fixture
}

// Unwrap lets http.ResponseController reach the connection.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// SetWriteDeadline is called by the sidecar when it cuts an answer.
func (w *watched) SetWriteDeadline(at time.Time) error {
	w.s.notice()
	return http.NewResponseController(w.ResponseWriter).SetWriteDeadline(at)
}

func (s *fixture) notice() {
	select {
	case s.noticed <- struct{}{}:
	default:
	}
}

// startFixture starts a row's engines, with their faults, and its sidecar.
func startFixture(t *testing.T, r row) *fixture {
	t.Helper()
	s := startEngines(t, r)
	if !r.protocol.tested {
		s.addFaults(t, r)
		s.startSidecar(t, r)
		return s
	}
	s.startSidecar(t, r)
	s.Recognize(within(t)) // else the sidecar's own request could take the fault
	if n := s.decode.load().requests; n != 1 {
		t.Fatalf("the sidecar has tested its engine with %d requests", n)
	}
	s.addFaults(t, r)
	return s
}

func startEngines(t *testing.T, r row) *fixture {
	t.Helper()
	s := &fixture{link: &link{up: make(chan struct{})}, reg: prometheus.NewRegistry(), spans: tracetest.NewSpanRecorder(),
		client: &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: testTimeout}, noticed: make(chan struct{}, 1), answers: make(chan struct{})}
	var reach time.Duration // the default
	switch {
	case r.action == freeze:
		reach = testTimeout
	case r.action == kill, r.prefill.Arg == "wrong-port":
		reach = briefly
	}
	if r.action != freeze {
		s.link.repair()
	}
	candidates := 1
	if r.situation == another {
		candidates = 2
	}
	prefill, decode := s.fronts(r)
	for range candidates {
		if r.protocol.start != nil {
			s.prefill = append(s.prefill, r.protocol.start(t, r, pd.RolePrefill))
			continue
		}
		s.prefill = append(s.prefill, startEngine(t, sim.Config{ScaleOut: true, KV: sim.KVConfig{Push: r.protocol.pushes}}, prefill...))
	}
	if r.protocol.start != nil {
		s.decode = r.protocol.start(t, r, pd.RoleDecode)
	} else {
		s.decode = startEngine(t, sim.Config{ScaleOut: true, KV: sim.KVConfig{HandshakeTimeout: reach, Push: r.protocol.pushes}, Transfer: sim.TransferConfig{Fetch: s.link.fetch, ServeSideChannel: true}}, decode...)
	}
	t.Cleanup(s.link.repair)
	return s
}

// addFaults has the engines fail as the row says.
func (s *fixture) addFaults(t *testing.T, r row) {
	t.Helper()
	for e, f := range map[*engine]fault.Fault{s.prefill[0]: r.prefill, s.decode: r.decode} {
		if f.Fault == "" {
			continue
		}
		if f.At == firstToken {
			f.At = strconv.Itoa(r.protocol.firstEvents[r.api])
		}
		if err := e.faults.Add(f); err != nil {
			t.Fatal(err)
		}
	}
}

// fronts are what makes the engines speak a made-up protocol.
func (s *fixture) fronts(r row) (prefill, decode []server.Front) {
	if r.protocol.dialect == nil || r.protocol.pushes || r.protocol.start != nil {
		return nil, nil
	}
	x := madeup.NewExchange()
	prefill, decode = []server.Front{x.Engine(false)}, []server.Front{x.Engine(true)}
	if r.action == answer {
		decode = append(decode, func(engine http.Handler) http.Handler { return s.answering(r.status, engine) })
	}
	return prefill, decode
}

// answering answers legs of a meeting with a status, when the test says so: before they come to the engine.
func (s *fixture) answering(status int, engine http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return // the caller has left
		}
		if !bytes.Contains(b, []byte(`"meet_pod"`)) {
			r.Body = io.NopCloser(bytes.NewReader(b))
			engine.ServeHTTP(w, r)
			return
		}
		select {
		case <-s.answers:
		case <-r.Context().Done():
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":{"message":"no","type":"Made up","param":null,"code":%d}}`, status)
	})
}

func (s *fixture) startSidecar(t *testing.T, r row) {
	t.Helper()
	host, port, err := net.SplitHostPort(s.decode.addr())
	if err != nil {
		t.Fatal(err)
	}
	cfg := sidecar.Defaults()
	cfg.Fallback.Lease = lease
	cfg.Engine.Host, cfg.Engine.Dialect = host, r.protocol.dialect
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
	// Elsewhere an engine that gets no processor time, for others have it, must not seem to hang.
	if cfg.Engine.HangAfter = 0; r.cause == "hung" {
		cfg.Engine.HangAfter = time.Second
	}
	if r.situation == budgetEmpty {
		cfg.Fallback.Ratio, cfg.Fallback.Burst = 0, 0
	}
	if r.action == tooOld {
		cfg.Fallback.Lease = time.Nanosecond
	}
	if r.protocol.configure != nil {
		r.protocol.configure(&cfg, s)
	}
	cfg.Keep.Notifier = s.startKeeper(t, r.keeper)
	cfg.Problems(func(flag, format string, args ...any) { t.Errorf("--%s: "+format, append([]any{flag}, args...)...) })
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.spans)).Tracer("")
	s.Server, err = sidecar.New(cfg, sidecar.Telemetry{Log: slog.New(slog.DiscardHandler), Metrics: s.reg, Tracer: tracer,
		Propagator: propagation.TraceContext{}})
	if err != nil {
		t.Fatal(err)
	}
	s.httpServer = httptest.NewServer(s)
	s.url = s.httpServer.URL
	t.Cleanup(s.end)
}

// blockSize is the size of the engines' KV blocks, in tokens.
const blockSize = 32

// end waits until requests and releases are over, and closes the sidecar. Later calls do nothing more.
func (s *fixture) end() {
	s.busy.Wait()
	s.Close()
	if s.keeper != nil {
		s.keeper.Close()
	}
	s.client.CloseIdleConnections()
	s.httpServer.Close()
}
