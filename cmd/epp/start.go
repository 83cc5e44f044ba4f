package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc"
	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
	"github.com/tandem-serving/tandem/pd"
)

// handshakeTimeout bounds the handshake of a connection. A server cannot stop, not even by force, before the handshakes end: with
// gRPC's default of two minutes, one silent connection would delay a drain until the kubelet kills the process.
const handshakeTimeout = 5 * time.Second

// takeover is how long a reservation waits for the accountant's stream, according to the contract.
const takeover = 2 * time.Second

// start makes the picker, opens its ports and serves until ctx ends.
func start(ctx context.Context, std boot.IO, log *slog.Logger, telemetry *boot.Telemetry, cfg settings) (err error) {
	registry := boot.NewRegistry(std)
	picker, err := newPicker(cfg, std.Env, log, registry)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, picker.close()) }()
	ledger := epp.NewLedger(takeover, epp.SystemClock)
	defer ledger.Close()
	serving := cfg.extproc()
	serving.Secret = picker.hashes
	if serving.Auth, err = cfg.followSecret(log); err != nil {
		return err
	}
	scheduler, observers := picker.asked()
	server, err := extproc.New(serving, extproc.Deps{Scheduler: scheduler, Endpoints: picker.pool, Policy: picker.rules.policy, Ledger: ledger,
		Observers: observers, Await: picker.awaitKnown,
		Log: log, Metrics: registry, Tracer: telemetry.Tracer("github.com/tandem-serving/tandem/epp/extproc"), Propagator: telemetry.Propagator})
	if err != nil {
		return fmt.Errorf("starting the ext-proc server: %w", err)
	}
	p := &process{log: log, cfg: cfg, picker: picker, server: server, eds: envoyconf.NewEDS(picker.pool), health: newHealth(),
		traffic: newTraffic(), drained: make(chan struct{}), notReady: errUnknown}
	if err := p.makeServers(serving); err != nil {
		return err
	}
	if p.ports, err = cfg.open(ctx); err != nil {
		return err
	}
	p.traffic.Listener = p.ports.extproc
	scrapes, err := cfg.Listen.MetricsTLS.Config(log)
	if err != nil {
		return err
	}
	p.operations = []boot.Service{
		{Name: "metrics", Listener: p.ports.metrics, Handler: boot.Operations(registry, p.ready, picker.detail), TLS: scrapes},
		{Name: "admin", Listener: p.ports.admin, Handler: picker.admin()},
	}
	if p.ports.share != nil {
		share, err := cfg.Share.service(picker.exchange, p.ports.share, log)
		if err != nil {
			return err
		}
		p.operations = append(p.operations, share)
	}
	if err := p.makeScalers(); err != nil {
		return err
	}
	return p.serve(ctx, std)
}

// extproc returns the configuration of the ext-proc server.
func (c *settings) extproc() extproc.Config {
	f := extproc.Defaults()
	f.BodyLimit, f.BufferLimit, f.BodyPause = int64(c.Listen.BodyLimit), int64(c.Listen.BufferLimit), c.Listen.BodyPause
	f.PDHeader, f.Subset, f.SingleEndpoint = c.Picking.PDHeader == "on", !c.Picking.NoSubset, c.Picking.Single
	f.ClearRouteCache, f.AllTakePlans = c.Picking.Route, c.Picking.Headers == "always"
	return f
}

// followSecret returns the secret that is sent to sidecars, nil if none is. It is read again when its file changes.
func (c *settings) followSecret(log *slog.Logger) (func() string, error) {
	if c.Picking.AuthFile == "" {
		return nil, nil
	}
	secrets, err := boot.FollowFile(log, "shared secret", c.Picking.AuthFile, pd.ParseSecrets)
	if err != nil {
		return nil, boot.Configf("reading the shared secret: %w", err)
	}
	return func() string { return secrets.Get()[0] }, nil
}

// ports are the listeners of a picker.
type ports struct {
	extproc, health, metrics, admin net.Listener
	share, scaler, external         net.Listener // nil: not served
}

func (c *settings) open(ctx context.Context) (p ports, err error) {
	l := c.Listen
	var all []boot.Port
	var to []*net.Listener
	for _, one := range []struct {
		flag, address string // "": not served
		listener      *net.Listener
	}{
		{"grpc-port", net.JoinHostPort(l.Host, strconv.Itoa(l.GRPC)), &p.extproc},
		{"grpc-health-port", net.JoinHostPort(l.Host, strconv.Itoa(l.Health)), &p.health},
		{"metrics-port", net.JoinHostPort(l.Host, strconv.Itoa(l.Metrics)), &p.metrics},
		{"admin-address", l.Admin, &p.admin},
		{"share-address", c.Share.Address, &p.share},
		{"scaler-address", c.Scaling.Address, &p.scaler},
		{"external-metrics-address", c.Scaling.External, &p.external},
	} {
		if one.address != "" {
			all, to = append(all, boot.Port{Flag: one.flag, Addr: one.address}), append(to, one.listener)
		}
	}
	open, err := boot.ListenAll(ctx, all...)
	for i := range open {
		*to[i] = open[i]
	}
	return p, err
}

// Service names of the endpoint picker protocol's health check. chartService is what llm-d's charts ask for.
const (
	serviceLiveness  = "liveness"
	serviceReadiness = "readiness"
	serviceExtProc   = "envoy.service.ext_proc.v3.ExternalProcessor"
	chartService     = "inference-extension"
)

func newHealth() *health.Server {
	h := health.NewServer()
	h.SetServingStatus(serviceLiveness, healthpb.HealthCheckResponse_SERVING)
	setReady(h, false)
	return h
}

func setReady(h *health.Server, ready bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		status = healthpb.HealthCheckResponse_SERVING
	}
	// Readiness comes last: when a watcher sees it change, the others have changed.
	for _, service := range []string{"", serviceExtProc, chartService, serviceReadiness} {
		h.SetServingStatus(service, status)
	}
}

// drainedHealth is the health service of a port that drains. It ends the streams of watchers, which would not end by themselves.
type drainedHealth struct {
	*health.Server
	drained <-chan struct{}
}

// Watch implements the health service.
func (h drainedHealth) Watch(r *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	ctx, end := context.WithCancel(stream.Context())
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer end()
	waiting.Go(func() {
		defer end()
		select {
		case <-h.drained:
		case <-ctx.Done():
		}
	})
	return h.Server.Watch(r, watch{stream, ctx})
}

// watch is a stream whose context may end before its client leaves.
type watch struct {
	healthpb.Health_WatchServer
	ctx context.Context
}

func (w watch) Context() context.Context { return w.ctx }

// process is a picker with its listeners and servers.
type process struct {
	log        *slog.Logger
	cfg        settings
	picker     *picker
	server     *extproc.Server
	eds        *envoyconf.EDS
	ports      ports
	health     *health.Server
	extproc    *grpc.Server
	probes     *grpc.Server
	scaler     *grpc.Server // nil: KEDA is not answered
	operations []boot.Service
	traffic    *traffic
	drained    chan struct{} // closed when the ext-proc port begins to close

	mu       sync.Mutex
	notReady error // why gateways must not send requests; nil = ready
}

func (p *process) makeServers(serving extproc.Config) error {
	var security credentials.TransportCredentials
	if p.cfg.Listen.Secure {
		secure, err := boot.ServerTLS(p.cfg.Listen.CertDir, p.cfg.Listen.ClientCA, p.log)
		if err != nil {
			return err
		}
		secure.NextProtos = []string{"h2"}
		p.cfg.Listen.TLS.Apply(secure)
		security = newSecured(secure, p.log)
	}
	p.extproc = grpc.NewServer(append(extproc.ServerOptions(serving, security), grpc.ConnectionTimeout(handshakeTimeout),
		grpc.StreamInterceptor(p.traffic.note))...)
	p.server.Register(p.extproc)
	p.eds.Register(p.extproc)
	p.probes = grpc.NewServer(grpc.ConnectionTimeout(handshakeTimeout))
	healthpb.RegisterHealthServer(p.probes, p.health)
	healthpb.RegisterHealthServer(p.extproc, drainedHealth{p.health, p.drained})
	return nil
}

// errUnknown is the initial reason not to be ready.
var errUnknown = errors.New("the endpoints are not known yet")

// ready returns why gateways must not send requests; nil = ready.
func (p *process) ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if trouble := p.picker.pool.Trouble(); trouble != nil && errors.Is(p.notReady, errUnknown) {
		return fmt.Errorf("%w: %w", errUnknown, trouble)
	}
	return p.notReady
}

func (p *process) setReady(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notReady = reason
	setReady(p.health, reason == nil)
}

// serve runs all listeners until ctx ends or one fails, then drains the ext-proc port while probes and metrics still answer.
func (p *process) serve(ctx context.Context, std boot.IO) error {
	operations, endOperations := context.WithCancel(context.WithoutCancel(ctx))
	defer endOperations()
	ctx, fail := context.WithCancel(ctx)
	defer fail()
	serving, endServing := context.WithCancel(operations)
	defer endServing()
	var errs [7]error
	var running sync.WaitGroup
	for i, one := range []func() error{
		func() error { return p.serveScaler() },
		func() error { return boot.Serve(operations, p.log, p.operations...) },
		func() error { return p.picker.run(operations) },
		func() error { return p.eds.Run(serving) },
		func() error { return serveGRPC(p.extproc, p.traffic, "ext-proc") },
		func() error { return serveGRPC(p.probes, p.ports.health, "health") },
	} {
		running.Go(func() { defer fail(); errs[i] = one() })
	}
	if errs[6] = p.announce(ctx, std); errs[6] != nil {
		fail()
	}
	<-ctx.Done()
	p.drain(endServing)
	endOperations()
	p.probes.Stop()
	if p.scaler != nil {
		p.scaler.Stop()
	}
	running.Wait()
	return errors.Join(errs[:]...)
}

func serveGRPC(server *grpc.Server, l net.Listener, name string) error {
	if err := server.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it began
		return fmt.Errorf("serving the %s port: %w", name, err)
	}
	return nil
}

// awaitKnown waits until the pool and the cluster's policy are known. The error is that of ctx, if it ends first.
func (p *picker) awaitKnown(ctx context.Context) error {
	known := [2]<-chan struct{}{p.pool.Synced(), p.pool.Synced()}
	if p.watch != nil {
		known[1] = p.watch.Synced()
	}
	for _, synced := range known {
		select {
		case <-synced:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// announce waits until the pool and the cluster's policy are known, and then reports that the picker is ready.
func (p *process) announce(ctx context.Context, std boot.IO) error {
	if p.picker.watch != nil {
		p.log.Info("not ready until the endpoints of the cluster are known")
	}
	if p.picker.awaitKnown(ctx) != nil {
		return nil
	}
	p.setReady(nil)
	p.log.Info("ready")
	addresses := boot.Addresses{"extproc": p.ports.extproc.Addr(), "health": p.ports.health.Addr(),
		"metrics": p.ports.metrics.Addr(), "admin": p.ports.admin.Addr()}
	for name, l := range map[string]net.Listener{"share": p.ports.share, "scaler": p.ports.scaler, "external-metrics": p.ports.external} {
		if l != nil {
			addresses[name] = l.Addr()
		}
	}
	return boot.Ready(std.Stdout, "epp", addresses)
}

const (
	// drainIdle is how long no gateway must have asked for a pick before a draining picker closes its port. Gateways that check its
	// health every second know by then that it drains, and ask other pickers.
	drainIdle = 2 * time.Second
	// drainIdleMost bounds the wait for that: a gateway that still asks does not check health, and must be told by GOAWAY.
	drainIdleMost = 5 * time.Second
)

// drain reports that the picker is not ready, ends the streams that only wait for an answer's end, and serves requests until no more
// come. Only then it closes the port, with GOAWAY: a request whose stream has to move to another picker fails if its body is too
// large for Envoy to send again. endServing ends EDS, whose streams would not end by themselves.
func (p *process) drain(endServing func()) {
	p.log.Info("draining")
	p.setReady(errors.New("draining"))
	p.server.Drain()
	late, cancel := context.WithTimeout(context.Background(), p.cfg.Listen.Drain)
	defer cancel()
	p.traffic.awaitIdle(late, drainIdle, min(drainIdleMost, p.cfg.Listen.Drain/2))
	endServing()
	close(p.drained)
	ended := make(chan struct{})
	go func() { defer close(ended); p.extproc.GracefulStop() }()
	select {
	case <-ended:
	case <-late.Done():
		p.log.Warn("drain-timeout is over, ending the streams that are left")
		p.extproc.Stop()
		<-ended
	}
}
