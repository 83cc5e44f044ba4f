package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/mux"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/encode"
	"github.com/tandem-serving/tandem/pd/recent"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/handoff"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/lease"
	"github.com/tandem-serving/tandem/sidecar/transport"
	"github.com/tandem-serving/tandem/sidecar/warmup"
)

// Server is one sidecar. Make it with New, serve its Handlers, end it with Drain and Close.
type Server struct {
	cfg       Config
	log       *slog.Logger
	dialect   dialect.Dialect
	table     *request.Table
	strips    transport.Stripped
	intake    *intake.Intake
	routes    intake.RouteReader
	ranks     []*rank      // of the local engine; at least one
	firstPort atomic.Int32 // of the data ports, one for each rank; set by Handlers

	local, prefill *http.Transport
	grpc           *http.Transport             // to the local engine
	bootstrap      *http.Transport             // to the bootstrap servers of prefill engines
	asks           map[pd.Role]*http.Transport // to engines, to ask them what they are

	budget  *pd.FallbackBudget
	goesOn  handoff.Continue
	leases  *lease.Registry // nil: hand-offs are not renewed, and only decode releases them
	metrics *metrics
	recent  *recent.Store[*handoff.Record]

	life      life
	evacuated atomic.Pointer[time.Time] // when the last evacuation began; nil: there was none
}

// Telemetry is where a Server reports. No field may be nil; Tracer and Propagator may be no-ops.
type Telemetry struct {
	Log        *slog.Logger
	Metrics    prometheus.Registerer
	Tracer     trace.Tracer
	Propagator propagation.TextMapPropagator
}

// New makes a sidecar from a configuration without Problems, and starts its watch and its warm-up. The error says which
// setting could not be used.
func New(cfg Config, t Telemetry) (*Server, error) {
	s := &Server{
		cfg: cfg, log: t.Log,
		budget: pd.NewFallbackBudget(cfg.Fallback.Ratio, cfg.Fallback.Burst),
		goesOn: handoff.Continue{Times: cfg.Continue.Times, OnPrefill: cfg.Continue.OnPrefill, Memory: pd.NewBufferedBytes(cfg.Continue.Memory),
			Budget: pd.NewFallbackBudget(pd.FallbackRatio, cfg.Continue.Burst)},
		recent: recent.New[*handoff.Record](cfg.Tell.Recent, recentBytes),
	}
	if err := s.chooseDialect(); err != nil {
		return nil, err
	}
	s.intake = intake.New(intake.Config{BodyPause: cfg.Trust.BodyPause, BodyLimit: cfg.Trust.BodyLimit, BufferLimit: cfg.Trust.BufferLimit,
		Table: s.table, Log: t.Log})
	s.routes = intake.RouteReader{Modes: cfg.Trust.PDHeader != "off", Secrets: cfg.Trust.Secrets, Allow: intake.NewAllowList(cfg.Trust.Allow, cfg.Trust.Loopback, cfg.Trust.Pods),
		Sampling: cfg.Prefill.Sampling, Others: cfg.Continue.Times > 0, Budget: s.budget, Encoders: cfg.Encode.Connector != ""}
	if cfg.Continue.Discovery != "" {
		find, err := warmup.ParseDiscovery(cfg.Continue.Discovery)
		if err != nil {
			return nil, err
		}
		s.goesOn.Others = handoff.Others{Find: find, Allowed: s.allowed, Own: s.ownsPort}
	}
	if p, ok := s.dialect.(dialect.Puller); ok {
		_, s.routes.Sources = p.Tier(pd.Target{}, 0)
	}
	if cfg.Prefill.ReadBack {
		s.routes.Self = cfg.Prefill.PodIP
	}
	s.local = transport.New(cfg.Engine.IdleConns, cfg.Engine.TLS, nil)
	s.prefill = transport.New(cfg.Engine.IdleConns, cfg.Prefill.TLS, s.routes.Allow.Control)
	s.grpc = transport.NewHTTP2(cfg.Engine.TLS)
	s.bootstrap = transport.New(cfg.Engine.IdleConns, nil, s.routes.Allow.ControlHost)
	s.asks = map[pd.Role]*http.Transport{pd.RoleDecode: transport.New(1, cfg.Engine.TLS, nil), pd.RolePrefill: transport.New(1, cfg.Prefill.TLS, s.routes.Allow.Control)}
	for _, t := range s.asks {
		t.DisableKeepAlives = true
	}
	if d, ok := s.dialect.(dialect.IdleLimiter); ok {
		s.local.IdleConnTimeout, s.prefill.IdleConnTimeout = d.IdleTimeout(), d.IdleTimeout()
	}
	s.metrics = newMetrics(t.Metrics, gauges{s.budget.Left, s.open, s.intake.Buffered, s.mismatches}, handoff.NewLinks(cfg.Prefill.BlockBytes, time.Now))
	if n, ok := s.dialect.(dialect.Noticer); ok && cfg.Keep.Notifier != nil {
		s.leases = lease.New(lease.Config{Notifier: cfg.Keep.Notifier, Noticer: n, Lease: cfg.Fallback.Lease, Log: t.Log,
			Dialer: &net.Dialer{KeepAlive: transport.KeepAlive, ControlContext: s.routes.Allow.ControlHost}})
		leaseMetrics(t.Metrics, s.leases.Counts)
	}
	s.ranks = s.makeRanks(t)
	s.life.start()
	s.life.run(s.legs().Watch)
	for _, r := range s.ranks {
		s.life.run(r.legs.Recognize)
	}
	if cfg.Prefill.Discovery != "" {
		find, err := warmup.ParseDiscovery(cfg.Prefill.Discovery)
		if err != nil {
			s.Close()
			return nil, err
		}
		for i, r := range s.ranks {
			if i == 0 || cfg.Keep.WarmUp { // the first one asks side channels, for all ranks
				s.life.run(warmup.New(s.warmupConfig(find, r)).Run)
			}
		}
	}
	return s, nil
}

// chooseDialect makes the dialect, the table of members that it needs, and the headers that it strips.
func (s *Server) chooseDialect() error {
	var ok bool
	if s.dialect, ok = s.cfg.Engine.Dialect, true; s.dialect == nil {
		s.dialect, ok = dialect.New(s.cfg.protocol(), dialect.Options{BlockSize: s.cfg.Prefill.BlockSize, Lease: s.cfg.Fallback.Lease,
			BootstrapPort: s.cfg.Prefill.BootstrapPort, MooncakePort: s.cfg.Prefill.MooncakePort, P2PPort: s.cfg.Prefill.P2PPort,
			Pull: s.cfg.Prefill.Pull, ReadBack: s.cfg.Prefill.ReadBack, MoRIIO: s.cfg.MoRIIO.engines(&s.cfg), Ask: s.askPod, AskBootstrap: s.askBootstrap})
	}
	if !ok {
		return fmt.Errorf("choosing the hand-off protocol: %q is not one of %s", s.cfg.Engine.Connector, dialect.Names())
	}
	s.table = dialect.Members(s.dialect)
	if own, ok := s.dialect.(dialect.HeaderStripper); ok {
		s.strips = own.StripsHeader
	}
	return nil
}

// askPod implements dialect.Options.Ask.
func (s *Server) askPod(ctx context.Context, prefill pd.Target, path string) ([]byte, error) {
	return s.prefillEngine(prefill).Page(ctx, path, transport.ProbeTimeout)
}

// askBootstrap implements dialect.Options.AskBootstrap.
func (s *Server) askBootstrap(ctx context.Context, server pd.Target, path string) ([]byte, error) {
	return transport.Engine{Transport: s.bootstrap, URL: transport.Scheme(nil) + server.String()}.Page(ctx, path, transport.ProbeTimeout)
}

// legsConfig returns the configuration of the legs of the first rank.
func (s *Server) legsConfig(t Telemetry) handoff.Config {
	return handoff.Config{
		Dialect: s.dialect, Stripped: s.strips, Intake: s.intake, Budget: s.budget, Leases: s.leases,
		Decode: s.decodeEngine(0), Host: s.cfg.Engine.Host, Port: s.cfg.Engine.Port, FirstEvent: s.cfg.Engine.FirstEvent, HangAfter: s.cfg.Engine.HangAfter, AnswerPause: s.cfg.Trust.AnswerPause,
		Ask:     s.toAsk,
		Prefill: s.prefillEngine, PrefillTimeout: s.cfg.prefillTimeout(), MaxRetries: s.cfg.Prefill.MaxRetries, RetryBackoff: s.cfg.Prefill.RetryBackoff, HedgeRatio: s.cfg.Prefill.HedgeRatio,
		Encoding: handoff.Encoding{Connector: encode.Find(s.cfg.Encode.Connector), References: s.cfg.Encode.References, Timeout: s.cfg.Encode.Timeout},
		Pulls:    s.pulls(),
		Continue: s.goesOn, TellPods: s.cfg.Tell.Pods, Record: s.cfg.Tell.Recent > 0,
		Tracer: t.Tracer, Propagator: t.Propagator, Metrics: s.metrics.handoff, Log: t.Log,
	}
}

// allowed reports whether a pod may get legs.
func (s *Server) allowed(t pd.Target) bool { return s.routes.Allow.Check(t) == nil }

// warmupConfig returns the configuration of the warm-up of a rank.
func (s *Server) warmupConfig(find warmup.Finder, r *rank) warmup.Config {
	c := warmup.Config{
		Find:            find,
		Allowed:         s.allowed,
		SideChannelPort: s.cfg.Keep.SideChannel,
		Decode:          r.engine,
		Prefill:         s.prefillEngine,
		Draining:        s.life.draining.Load,
		Drained:         s.life.idle,
		Log:             s.log,
		Count:           func(result string) { s.metrics.warmups.WithLabelValues(result).Inc() },
	}
	if s.leases != nil && r == s.ranks[0] {
		c.SideChannels = s.leases
	}
	if s.cfg.Keep.WarmUp {
		c.HandOff = r.warmUp
	}
	return c
}

// warmUp implements warmup.HandOff.
func (r *rank) warmUp(ctx context.Context, t pd.Target, header http.Header, body []byte) error {
	err := r.legs.WarmUp(ctx, t, header, body)
	var refused *handoff.ClientError
	if errors.As(err, &refused) && warmup.IsLocked(refused.Status) {
		return fmt.Errorf("%w: %w", warmup.ErrLocked, err)
	}
	return err
}

// HTTP2 returns how the data port's server buffers the bodies of HTTP/2 clients: at most 3 MiB for a connection (net/http
// allows 4) and 256 KiB for a request. The default is 1 MiB for both, so that an engine that stops reading one body would
// block all other bodies of the connection.
func HTTP2() *http.HTTP2Config {
	return &http.HTTP2Config{MaxReceiveBufferPerConnection: 3 << 20, MaxReceiveBufferPerStream: 256 << 10}
}

// handler returns the handler of a data port. Paths reach the engine unchanged: the router neither cleans nor decodes them.
func (s *Server) handler(of rankOf) http.Handler {
	r := mux.NewRouter().SkipClean(true).UseEncodedPath()
	apis := pd.GenerateAPIs()
	if own, ok := s.dialect.(dialect.Caller); ok {
		apis = append(apis, own.APIs()...)
	}
	for _, api := range apis {
		r.Path(api.Path()).Methods(http.MethodPost).HandlerFunc(func(w http.ResponseWriter, req *http.Request) { s.generate(w, req, api, of) })
	}
	r.Path(pd.PathSidecar).Methods(http.MethodGet).HandlerFunc(identify)
	if of, ok := s.dialect.(dialect.EventTeller); ok {
		r.Path(pd.PathEventSources).Methods(http.MethodGet).HandlerFunc(func(w http.ResponseWriter, req *http.Request) { s.eventSources(w, req, of) })
	}
	if s.cfg.Engine.AnswerHealth {
		r.Path(pathHealth).Methods(http.MethodGet, http.MethodHead).HandlerFunc(func(http.ResponseWriter, *http.Request) {}) // 200, without a body
	}
	r.NotFoundHandler = s.passthrough(of)
	if limit, ok := s.dialect.(dialect.PathLimiter); ok {
		r.NotFoundHandler = s.limit(limit, r.NotFoundHandler)
	}
	r.MethodNotAllowedHandler = r.NotFoundHandler
	return s.intake.CheckHeaders(r)
}

// limit passes calls through, but for those that the engine must not get.
func (s *Server) limit(to dialect.PathLimiter, passed http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !to.Passes(r.Method, r.URL.Path) {
			s.intake.Refuse(w, r, pd.Refuse(pd.BadRequest, "%s is not a call that this pod passes to its engine.", r.Method+" "+r.URL.Path))
			return
		}
		passed.ServeHTTP(w, r)
	})
}

// eventSources answers pd.PathEventSources for an engine that tells of its KV events on another page.
func (s *Server) eventSources(w http.ResponseWriter, r *http.Request, of dialect.EventTeller) {
	answer, err := s.toAsk(s.decodeEngine(0), pd.RoleDecode).Page(r.Context(), of.EventsPath(), transport.ProbeTimeout)
	if err == nil {
		answer, err = of.EventSources(answer)
	}
	if err != nil {
		s.intake.Refuse(w, r, pd.Refuse(pd.NoEndpoint, "The engine does not tell where it publishes KV events: %v.", err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer) // the client may have left
}

// pathHealth is where engines answer probes.
const pathHealth = "/health"

// identify answers pd.PathSidecar.
func identify(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, pd.SidecarIdentity) // the client may have left
}

// Recognize waits until the local engine has said which protocol it speaks, and its test is over, or until ctx ends.
func (s *Server) Recognize(ctx context.Context) {
	for _, r := range s.ranks {
		r.legs.Recognize(ctx)
	}
}

// Recent has what happened to the latest requests, for the admin port; nil if that is not kept.
func (s *Server) Recent() *recent.Store[*handoff.Record] { return s.recent }

// Ready returns why the sidecar should get no requests now, or nil: it is draining, its engine is to end, or a rank of that does not
// answer.
func (s *Server) Ready() error {
	if s.life.draining.Load() {
		return errors.New("draining")
	}
	if s.evacuated.Load() != nil {
		return errors.New("evacuated: the local engine is to end")
	}
	ctx, cancel := context.WithTimeout(context.Background(), transport.ProbeTimeout)
	defer cancel()
	return s.healthy(ctx)
}

// EngineReady returns why the local engine should get no requests now, or nil. Unlike Ready it does not depend on what the sidecar is
// to do.
func (s *Server) EngineReady(ctx context.Context) error { return s.healthy(ctx) }

// EngineLive returns why the local engine should be started again, or nil: a rank of it fails /health. SGLang's engines generate a token
// for that, so the answer may take seconds.
func (s *Server) EngineLive(ctx context.Context) error {
	return s.everyRank(func(e transport.Engine) error {
		e.HealthPath = pathHealth
		return e.Healthy(ctx)
	})
}

// decodeEngine returns a rank of the local engine.
func (s *Server) decodeEngine(rank int) transport.Engine {
	return transport.Engine{Transport: s.local, URL: s.cfg.Engine.url(rank), HealthPath: s.healthPath()}
}

// prefillEngine returns the engine of a prefill pod.
func (s *Server) prefillEngine(t pd.Target) transport.Engine {
	return transport.Engine{Transport: s.prefill, URL: transport.Scheme(s.cfg.Prefill.TLS) + t.String(), HealthPath: s.healthPath()}
}

// toAsk returns an engine over connections of its own.
func (s *Server) toAsk(e transport.Engine, role pd.Role) transport.Engine {
	e.Transport = s.asks[role]
	return e
}

// healthPath is where the engines of the dialect are probed; "" is the usual path.
func (s *Server) healthPath() string {
	if own, ok := s.dialect.(dialect.Prober); ok {
		return own.HealthPath()
	}
	return ""
}

// Drain fails readiness and refuses new generate calls from now on, and returns when none runs any more. When ctx ends, or
// after the configured drain timeout, it cuts the rest: streams get an error event. Those that an evacuation has moved may go on
// until the timeout of that.
func (s *Server) Drain(ctx context.Context) {
	local, cancel := context.WithTimeout(ctx, s.cfg.Fallback.Drain)
	defer cancel()
	end, _ := local.Deadline()
	if began := s.evacuated.Load(); began != nil && began.Add(s.cfg.Continue.Evacuated).After(end) {
		end = began.Add(s.cfg.Continue.Evacuated)
	}
	moved, cancelMoved := context.WithDeadline(ctx, end)
	defer cancelMoved()
	s.life.drain(local, moved)
}

// Evacuate has streams go on at other engines that can, those that run and those that come: the local engine is to end.
func (s *Server) Evacuate() {
	s.log.Info("streams leave the local engine")
	now := time.Now()
	s.evacuated.Store(&now)
	s.legs().Evacuate()
}

// Close ends the watch and the warm-up, waits for running releases, and closes idle connections. Call it after Drain.
func (s *Server) Close() {
	s.life.close()
	s.legs().Wait()
	s.leases.Close()
	s.local.CloseIdleConnections()
	s.grpc.CloseIdleConnections()
	s.prefill.CloseIdleConnections()
	s.bootstrap.CloseIdleConnections()
}

// open returns how many exchanges and releases run. A release begins before its exchange ends, so exchanges are counted
// first; then none is missed.
func (s *Server) open() float64 {
	running := s.life.exchanges()
	return float64(running + s.legs().Releasing())
}

// mismatches returns how many engines of a role speak another hand-off protocol.
func (s *Server) mismatches(role pd.Role) float64 { return float64(s.legs().Mismatches(role)) }

// life counts the running exchanges, so that Drain can wait for them and cut them.
type life struct {
	draining atomic.Bool

	mu      sync.Mutex // guards the fields below
	running map[*handoff.Exchange]struct{}
	idle    chan struct{} // closed when draining and nothing runs

	stops      []context.CancelFunc // end the functions that run started
	background sync.WaitGroup       // the functions that run started
}

func (l *life) start() {
	l.running = map[*handoff.Exchange]struct{}{}
	l.idle = make(chan struct{})
}

// run runs f until close.
func (l *life) run(f func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	l.stops = append(l.stops, cancel)
	l.background.Go(func() { f(ctx) })
}

// enter admits an exchange unless the sidecar drains.
func (l *life) enter(x *handoff.Exchange) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.draining.Load() {
		return false
	}
	l.running[x] = struct{}{}
	return true
}

func (l *life) leave(x *handoff.Exchange) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.running, x)
	l.closeIfIdle()
}

// exchanges returns how many exchanges run that need the local engine.
func (l *life) exchanges() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for x := range l.running {
		if !x.Moved() {
			n++
		}
	}
	return n
}

// closeIfIdle closes idle if the sidecar drains and nothing runs. The caller holds mu.
func (l *life) closeIfIdle() {
	if !l.draining.Load() || len(l.running) > 0 {
		return
	}
	select {
	case <-l.idle:
	default:
		close(l.idle)
	}
}

// drain returns when nothing runs any more. It cuts what needs the local engine when local ends, and all when moved ends.
func (l *life) drain(local, moved context.Context) {
	l.mu.Lock()
	l.draining.Store(true)
	l.closeIfIdle()
	l.mu.Unlock()
	select {
	case <-l.idle:
		return
	case <-local.Done():
	}
	l.cut(func(x *handoff.Exchange) bool { return !x.Moved() })
	select {
	case <-l.idle:
		return
	case <-moved.Done():
	}
	l.cut(func(*handoff.Exchange) bool { return true })
	<-l.idle
}

// cut ends some exchanges.
func (l *life) cut(which func(*handoff.Exchange) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for x := range l.running {
		if which(x) {
			x.Cut()
		}
	}
}

func (l *life) close() {
	for _, stop := range l.stops {
		stop()
	}
	l.background.Wait()
}
