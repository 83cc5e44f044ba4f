// Command sidecar runs the routing sidecar in front of one decode engine, the local engine.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/netdev"
	"github.com/tandem-serving/tandem/sidecar"
	"github.com/tandem-serving/tandem/sidecar/podwatch"
)

func main() { boot.Main(run) }

var program = boot.Program{Summary: "Tandem's routing sidecar: runs prefill on another pod, then decode on the local engine."}

// config is the manual: every flag, its default and its meaning, and how each flag of llm-d's sidecar is treated.
type config struct {
	Listen  listen `group:"Listeners"`
	Secure  secure `group:"Secrets and TLS"`
	Sidecar sidecar.Config
	Watch   following `group:"Following an InferencePool"`
	Keeper  keeping   `group:"Renewing and releasing hand-offs over NIXL"`
	Log     boot.Log  `group:"Log"`
	Foreign foreign   `group:"Known from llm-d"`
}

type listen struct {
	Port    int    `flag:"port" arg:"PORT" help:"data port, all interfaces; 0 takes any free one. With --data-parallel-size above 1, that of the first rank"`
	Host    string `flag:"host" arg:"ADDRESS" help:"address of the data and metrics ports; empty means all interfaces"`
	Secure  bool   `flag:"secure-serving" alias:"secure-proxy" help:"serve the data port over TLS (llm-d's default is true, ours is plaintext)"`
	CertDir string `flag:"cert-path" arg:"DIR" help:"directory with tls.crt and tls.key; empty: self-signed"`
	TLS     boot.Handshake
	Metrics int `flag:"metrics-port" arg:"PORT" help:"own metrics, /livez and /readyz; /engine/livez and /engine/readyz are those of the engine"`
	Scrapes boot.MetricsTLS
	Admin   string `flag:"admin-address" arg:"HOST:PORT" help:"what happened to the latest requests (/debug/requests), profiles; keep it on loopback"`
	// BodyLimit and BufferLimit are here because the command line spells them with units (64MiB).
	BodyLimit   boot.Bytes `flag:"body-limit" arg:"BYTES" help:"largest request body; larger ones are refused with 413"`
	BufferLimit boot.Bytes `flag:"buffer-limit" arg:"BYTES" help:"bytes of request bodies that are buffered for prefill on other pods, over all requests; more are refused with 503. The process takes two to three times as much memory"`
	// Kept is here for the same reason.
	Kept    boot.Bytes `flag:"continue-memory" arg:"BYTES" help:"memory for the token ids, or the requests, of streams that may go on elsewhere, over all streams; further streams cannot"`
	Clients int        `flag:"max-connections" arg:"NUMBER" help:"connections to one data port; further ones are closed at once"`
}

// foreign has flags of llm-d's sidecar that are supported in part, not at all, or have no effect. Their default values are
// accepted, because charts write them out.
type foreign struct {
	Chunk       int      `flag:"decode-chunk-size" arg:"TOKENS" help:"not supported, must be 0: chunked decode changes the answers of engines"`
	Speculative bool     `flag:"enable-speculative-prefill" help:"not supported, must be false: the decode engine's own prefix cache keeps what it has generated for the next turn"`
	TLS         []string `flag:"enable-tls" arg:"STAGE[,…]" help:"prefiller is the same as --prefill-tls, decoder as --decode-tls; no other stage is supported"`
	Insecure    []string `flag:"tls-insecure-skip-verify" arg:"STAGE[,…]" help:"prefiller is the same as --prefill-tls-insecure-skip-verify, decoder as --decode-tls-insecure-skip-verify; no other stage is supported"`

	_ struct{} `flag:"prefiller-use-tls" refused:"use --prefill-tls"`
	_ struct{} `flag:"decoder-use-tls" refused:"use --decode-tls"`
	_ struct{} `flag:"prefiller-tls-insecure-skip-verify" refused:"use --prefill-tls-insecure-skip-verify"`
	_ struct{} `flag:"decoder-tls-insecure-skip-verify" refused:"use --decode-tls-insecure-skip-verify"`
	_ struct{} `flag:"inference-pool-namespace" refused:"use --inference-pool=NAMESPACE/NAME"`
	_ struct{} `flag:"inference-pool-name" refused:"use --inference-pool=NAMESPACE/NAME"`
	_ struct{} `flag:"configuration" refused:"write the settings to a file and name it with --config; its keys are the flag names"`
	_ struct{} `flag:"configuration-file" refused:"use --config; its keys are the flag names"`
	_ bool     `flag:"tracing" ignored:"spans are exported if OTEL_EXPORTER_OTLP_ENDPOINT is set"`
	_ bool     `flag:"zap-devel" ignored:"use --log-level and --log-format"`
	_ struct{} `flag:"zap-stacktrace-level" ignored:"errors name the operation and have no stacks"`
	_ struct{} `flag:"zap-time-encoding" ignored:"times are RFC 3339"`

	_ struct{} `env:"INFERENCE_POOL_NAMESPACE" ignored:"use INFERENCE_POOL=NAMESPACE/NAME"`
	_ struct{} `env:"INFERENCE_POOL_NAME" ignored:"use INFERENCE_POOL=NAMESPACE/NAME"`
	_ struct{} `env:"MORIIO_METRICS_ADDR" ignored:"use --metrics-port and --host"`
}

// Validate implements boot.Validator.
func (f *foreign) Validate(p *boot.Problems) {
	p.Require(f.Chunk == 0, "decode-chunk-size", "must be 0: chunked decode changes the answers of engines, leave it out")
	p.Require(!f.Speculative, "enable-speculative-prefill", "must be false: the decode engine's own prefix cache keeps what it has generated for the next turn")
	for flag, stages := range map[string][]string{"enable-tls": f.TLS, "tls-insecure-skip-verify": f.Insecure} {
		for _, stage := range stages {
			p.Require(stage == prefiller || stage == decoder, flag, "%q is not supported, only prefiller and decoder are", stage)
		}
	}
}

func defaults() config {
	return config{
		Listen: listen{Port: 8000, TLS: boot.DefaultHandshake(), Metrics: 9095, Admin: "127.0.0.1:9096", BodyLimit: boot.Bytes(sidecar.Defaults().Trust.BodyLimit),
			BufferLimit: boot.Bytes(sidecar.Defaults().Trust.BufferLimit), Kept: boot.Bytes(sidecar.Defaults().Continue.Memory), Clients: maxClients},
		Sidecar: sidecar.Defaults(),
		Keeper:  keeping{Transport: "nixl"},
		Watch:   following{Group: podwatch.Groups[0]},
	}
}

// Validate implements boot.Validator.
func (c *config) Validate(p *boot.Problems) {
	p.RequirePort("port", c.Listen.Port)
	p.RequirePort("metrics-port", c.Listen.Metrics)
	p.RequireAddress("admin-address", c.Listen.Admin)
	if c.Listen.Secure {
		for flag, files := range map[string][2]string{"cert-path": {c.Listen.CertDir, ""}, "client-ca": {"", c.Secure.ClientCA}} {
			_, err := boot.ServerTLS(files[0], files[1], slog.New(slog.DiscardHandler))
			p.Require(err == nil, flag, "%w", err)
		}
		p.Require(c.Listen.TLS.ServesHTTP2(), "tls-cipher-suites", "needs TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 too, which HTTP/2 requires")
	}
	c.validateRanks(p)
	p.Require(c.Listen.Clients > 0, "max-connections", "must be positive")
	c.Sidecar.Trust.BodyLimit, c.Sidecar.Trust.BufferLimit = int64(c.Listen.BodyLimit), int64(c.Listen.BufferLimit)
	c.Sidecar.Continue.Memory = int64(c.Listen.Kept)
	c.Secure.adopt(c.Foreign.TLS, c.Foreign.Insecure)
	c.Secure.validate(p, c.Listen.Secure)
	c.Keeper.validate(p)
	c.Watch.validate(p)
	c.Sidecar.Problems(p.Add)
}

// validateRanks reports data ports that do not exist, or that are those of the engine.
func (c *config) validateRanks(p *boot.Problems) {
	engine, first := c.Sidecar.Engine, c.Listen.Port
	if ranks := engine.Ranks; ranks > 1 {
		p.Require(first != 0, "port", "must not be 0 with --data-parallel-size=%d: the ports of the ranks follow one another", ranks)
		p.Require(first+ranks-1 <= 65535, "data-parallel-size", "the ports of %d ranks from --port=%d on end above 65535", ranks, first)
	}
	if max(engine.Port, first)-min(engine.Port, first) < engine.Ranks && c.Listen.catches(engine.Host) {
		p.Add("model-server-port", "%d is a data port too: requests would come back to the sidecar", max(engine.Port, first))
	}
}

// catches reports whether calls to an engine at host reach the data port, if the port is the same.
func (l listen) catches(host string) bool {
	all := l.Host == "" || net.ParseIP(l.Host).IsUnspecified()
	return l.Host == host || all && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

func run(ctx context.Context, std boot.IO, args []string) error {
	cfg := defaults()
	if _, err := program.Load(std, &cfg, args); err != nil {
		return err
	}
	log := cfg.Log.New(std)
	telemetry, err := boot.StartTelemetry(ctx, std, "tandem-sidecar", log)
	if err != nil {
		return err
	}
	err = start(ctx, std, log, telemetry, cfg)
	return errors.Join(err, telemetry.Close())
}

// start makes the sidecar, opens its ports and serves until ctx ends.
func start(ctx context.Context, std boot.IO, log *slog.Logger, telemetry *boot.Telemetry, cfg config) error {
	metrics := boot.NewRegistry(std)
	metrics.MustRegister(netdev.New())
	var unusable error
	cfg.Secure.open(&cfg.Sidecar, log, func(flag, format string, args ...any) {
		unusable = errors.Join(unusable, boot.Configf(flag+": "+format, args...))
	})
	if unusable != nil {
		return unusable
	}
	kept, err := cfg.Keeper.start(log, metrics)
	if err != nil {
		return err
	}
	if kept != nil {
		cfg.Sidecar.Keep.Notifier = kept
		defer kept.Close()
	}
	pods, endWatch, err := cfg.Watch.start(ctx, std, log)
	if err != nil {
		return err
	}
	defer endWatch()
	if pods != nil {
		cfg.Sidecar.Trust.Pods = pods.Has
	}
	server, err := sidecar.New(cfg.Sidecar, sidecar.Telemetry{
		Log: log, Metrics: metrics, Tracer: telemetry.Tracer("github.com/tandem-serving/tandem/sidecar"), Propagator: telemetry.Propagator,
	})
	if err != nil {
		return boot.Configf("starting the sidecar: %w", err)
	}
	defer server.Close()
	data, err := cfg.dataServers(server, log)
	if err != nil {
		return err
	}
	scrapes, err := cfg.Listen.Scrapes.Config(log)
	if err != nil {
		return err
	}
	ports, err := cfg.Listen.open(ctx, cfg.Sidecar.Engine.Ranks)
	if err != nil {
		return err
	}
	p := process{log: log, server: server, data: data, ports: ports, operations: []boot.Service{
		{Name: "metrics", Listener: ports.metrics, Handler: operations(metrics, server, pods), TLS: scrapes},
		{Name: "admin", Listener: ports.admin, Handler: admin(server)},
	}}
	return p.serve(ctx, std)
}

// dataServers makes the servers of the data ports, one for each rank.
func (c *config) dataServers(server *sidecar.Server, log *slog.Logger) ([]*http.Server, error) {
	var secure *tls.Config
	if c.Listen.Secure {
		var err error
		if secure, err = boot.ServerTLS(c.Listen.CertDir, c.Secure.ClientCA, log); err != nil {
			return nil, err
		}
		c.Listen.TLS.Apply(secure)
	}
	var data []*http.Server
	for _, handler := range server.Handlers(c.Listen.Port) {
		s := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: headerBytes,
			ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), Protocols: new(http.Protocols), HTTP2: sidecar.HTTP2(), TLSConfig: secure}
		s.Protocols.SetHTTP1(true)
		s.Protocols.SetHTTP2(true)
		s.Protocols.SetUnencryptedHTTP2(true)
		data = append(data, s)
	}
	return data, nil
}

// readiness returns why the sidecar should get no requests now. pods is nil if no pool is followed.
func readiness(server *sidecar.Server, pods *podwatch.Watch) func() error {
	if pods == nil {
		return server.Ready
	}
	return func() error {
		if err := pods.Ready(); err != nil {
			return err
		}
		return server.Ready()
	}
}

// operations serves metrics and probes: those of the sidecar, and as /engine/readyz and /engine/livez those of the engine, for kubelets
// that cannot ask it. It may listen on loopback only, and they have no client certificate, which the data port may demand.
func operations(metrics prometheus.Gatherer, server *sidecar.Server, pods *podwatch.Watch) http.Handler {
	mux := boot.Operations(metrics, readiness(server, pods))
	for path, ask := range map[string]func(context.Context) error{"readyz": server.EngineReady, "livez": server.EngineLive} {
		mux.HandleFunc("GET /engine/"+path, func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), engineTimeout)
			defer cancel()
			if err := ask(ctx); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		})
	}
	return mux
}

// admin serves the pages that only the pod's operator may see.
func admin(server *sidecar.Server) http.Handler {
	mux := boot.Admin()
	server.Recent().Register(mux)
	mux.HandleFunc("POST /evacuate", func(http.ResponseWriter, *http.Request) { server.Evacuate() }) // 200, without a body
	return mux
}

// ports are the listeners of a sidecar.
type ports struct {
	metrics, admin net.Listener
	data           []net.Listener // one for each rank
}

func (l listen) open(ctx context.Context, ranks int) (ports, error) {
	wanted := []boot.Port{{Flag: "metrics-port", Addr: net.JoinHostPort(l.Host, strconv.Itoa(l.Metrics))}, {Flag: "admin-address", Addr: l.Admin}}
	for rank := range ranks {
		wanted = append(wanted, boot.Port{Flag: "port", Addr: net.JoinHostPort(l.Host, strconv.Itoa(l.Port+rank))})
	}
	open, err := boot.ListenAll(ctx, wanted...)
	if err != nil {
		return ports{}, err
	}
	p := ports{metrics: open[0], admin: open[1], data: open[2:]}
	for rank, at := range p.data {
		p.data[rank] = newCapped(at, l.Clients)
	}
	return p, nil
}

// addresses returns the addresses of the ready line. Data ports of further ranks are http-1 and so on.
func (p ports) addresses() boot.Addresses {
	addresses := boot.Addresses{"metrics": p.metrics.Addr(), "admin": p.admin.Addr(), "http": p.data[0].Addr()}
	for rank, at := range p.data[1:] {
		addresses["http-"+strconv.Itoa(rank+1)] = at.Addr()
	}
	return addresses
}

const (
	// headerTimeout is the longest time in which a client may send its request header. --body-timeout bounds bodies; answers
	// are not bounded.
	headerTimeout = 30 * time.Second
	// headerBytes is the largest header that h11, in front of vLLM and SGLang, accepts.
	headerBytes = 64 << 10
	// idleTimeout is longer than gateways keep a connection idle, so that they close it, not the sidecar.
	idleTimeout = 5 * time.Minute
	// engineTimeout bounds the wait for an engine's answer to a probe. Kubelets have their own, and leave sooner.
	engineTimeout = 10 * time.Second
	// shutdownTimeout bounds passed-through calls, which the drain does not wait for.
	shutdownTimeout = 5 * time.Second
)

// process is a sidecar with its listeners.
type process struct {
	log        *slog.Logger
	server     *sidecar.Server
	data       []*http.Server // one for each rank
	ports      ports
	operations []boot.Service
}

// serve runs all listeners until ctx ends or one fails, then drains the data ports while probes and metrics still answer.
func (p process) serve(ctx context.Context, std boot.IO) error {
	operations, endOperations := context.WithCancel(context.WithoutCancel(ctx))
	defer endOperations()
	ctx, fail := context.WithCancel(ctx)
	defer fail()
	errs := make([]error, 1+len(p.data))
	var running sync.WaitGroup
	running.Go(func() { defer fail(); errs[0] = boot.Serve(operations, p.log, p.operations...) })
	for rank, data := range p.data {
		running.Go(func() { defer fail(); errs[1+rank] = serveData(data, p.ports.data[rank]) })
	}
	readyErr := boot.Ready(std.Stdout, "sidecar", p.ports.addresses())
	if readyErr != nil {
		fail()
	}
	<-ctx.Done()
	p.log.Info("draining")
	p.server.Drain(operations)
	p.shutdown()
	endOperations()
	running.Wait()
	return errors.Join(append(errs, readyErr)...)
}

func serveData(data *http.Server, at net.Listener) error {
	var err error
	if data.TLSConfig != nil {
		err = data.ServeTLS(at, "", "")
	} else {
		err = data.Serve(at)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving the data port: %w", err)
}

func (p process) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	var ending sync.WaitGroup
	for _, data := range p.data {
		ending.Go(func() {
			if err := data.Shutdown(ctx); err != nil {
				_ = data.Close() // answers that did not finish in time are cut; the error has no reader
			}
		})
	}
	ending.Wait()
}
