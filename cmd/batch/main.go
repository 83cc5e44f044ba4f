// Command batch serves OpenAI's Batch API, and has the lines of batches, and the messages of queues, computed by an OpenAI server: the
// gateway in front of Tandem's picker, or an engine.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/api"
	"github.com/tandem-serving/tandem/batch/blob"
	"github.com/tandem-serving/tandem/batch/upstream"
	"github.com/tandem-serving/tandem/batch/webhook"
	"github.com/tandem-serving/tandem/batch/worker"
	"github.com/tandem-serving/tandem/cmd/internal/boot"
)

func main() { boot.Main(run) }

var program = boot.Program{Summary: "Tandem's batch server: OpenAI's Batch API, and consumers of queues, whose requests run on capacity that online traffic leaves."}

// config is every flag with its default and its meaning.
type config struct {
	Listen   listen   `group:"Listeners"`
	Keep     keep     `group:"Files and batches"`
	Upstream server   `group:"Server of the models"`
	Queues   queues   `group:"Queues"`
	Webhook  hook     `group:"Webhooks"`
	Log      boot.Log `group:"Log"`
}

type listen struct {
	Host         string `flag:"host" arg:"ADDRESS" help:"address of the API and metrics ports; empty means all interfaces"`
	Port         int    `flag:"port" arg:"PORT" help:"the API; 0 takes any free one"`
	Secure       bool   `flag:"secure-serving" help:"serve the API over TLS"`
	CertDir      string `flag:"cert-path" arg:"DIR" help:"directory with tls.crt and tls.key, read again when they change; empty: self-signed"`
	TLS          boot.Handshake
	Metrics      int `flag:"metrics-port" arg:"PORT" help:"own metrics, /livez and /readyz"`
	MetricsTLS   boot.MetricsTLS
	TenantHeader string `flag:"tenant-header" arg:"HEADER" help:"header by which a gateway names the tenant; requests without it are refused with 401. Only a gateway may reach the API then. Empty: each API key is a tenant, and so are requests without one"`
}

type keep struct {
	Data      string        `flag:"data" arg:"DIR" help:"directory of the database and of the contents of files; it is made if there is none, and belongs to one process"`
	Database  string        `flag:"database-file" arg:"FILE" help:"instead of --data: file with the address of a PostgreSQL database, such as postgres://user:password@host/name. All batch servers with the same database and bucket share the work"`
	Bucket    string        `flag:"bucket" arg:"URL" help:"with --database-file: bucket of an S3-compatible store for the contents of files, such as s3://batches?region=eu-west-1. Credentials are found as AWS's tools find them"`
	Retention time.Duration `flag:"retention" arg:"DURATION" help:"time after which files are deleted of which the client has not said when they expire, and after which ended batches are; 0 keeps them for ever"`
	MaxFile   boot.Bytes    `flag:"max-file" arg:"BYTES" help:"largest uploaded file; larger ones are refused with 413"`
	MaxLines  int64         `flag:"max-lines" arg:"LINES" help:"most requests of an input file; batches of larger ones fail"`

	TenantBytes   boot.Bytes `flag:"tenant-max-bytes" arg:"BYTES" help:"quota of each tenant: bytes of its files; 0 means none"`
	TenantBatches int64      `flag:"tenant-max-batches" arg:"BATCHES" help:"quota of each tenant: batches that have not ended; 0 means none"`
	TenantLines   int64      `flag:"tenant-max-lines" arg:"LINES" help:"quota of each tenant: lines without a result, of batches that have not ended; 0 means none"`
}

// shared reports whether files and batches are where other processes may use them too.
func (k *keep) shared() bool { return k.Database != "" }

func (k *keep) validate(p *boot.Problems) {
	if !k.shared() {
		p.Require(k.Data != "", "data", "is missing: name a directory on a durable disk, or a database and a bucket (--database-file, --bucket)")
		p.Require(k.Bucket == "", "bucket", "has no effect without --database-file")
		return
	}
	p.Require(k.Data == "", "data", "cannot be combined with --database-file: the contents of files are in the bucket")
	if _, err := boot.ReadLine(k.Database, "the address of the database"); err != nil {
		p.Add("database-file", "%w", err)
	}
	if err := blob.CheckAddress(k.Bucket); err != nil {
		p.Add("bucket", "%w", err)
	}
}

func (k *keep) quota() batch.Amounts {
	return batch.Amounts{Bytes: int64(k.TenantBytes), Batches: k.TenantBatches, Lines: k.TenantLines}
}

type server struct {
	URL       string        `flag:"upstream" arg:"URL" help:"server that answers the requests, such as http://gateway:8080; a path /v1 at its end is left out"`
	KeyFile   string        `flag:"upstream-key-file" arg:"FILE" help:"file with the API key that is sent to it; empty: none"`
	CAFile    string        `flag:"upstream-ca-file" arg:"FILE" help:"certificate authorities of its certificate, read again when they change; empty: the system's"`
	Objective string        `flag:"objective" arg:"NAME" help:"InferenceObjective that requests name to the picker; give it a negative priority, so that they yield to online traffic. Empty: none"`
	InFlight  int           `flag:"max-inflight" arg:"REQUESTS" help:"most requests in flight; how many there are follows what the server can take"`
	Timeout   time.Duration `flag:"request-timeout" arg:"DURATION" help:"longest time of one request"`
	Drain     time.Duration `flag:"drain-timeout" arg:"DURATION" help:"longest time after SIGTERM in which requests in flight may end"`
}

func defaults() config {
	return config{
		Listen:   listen{Host: "127.0.0.1", Port: 8085, TLS: boot.DefaultHandshake(), Metrics: 9097},
		Keep:     keep{Retention: 30 * 24 * time.Hour, MaxFile: 1 << 30, MaxLines: 1_000_000},
		Upstream: server{Objective: "batch", InFlight: 256, Timeout: 10 * time.Minute, Drain: 20 * time.Second},
	}
}

// Validate implements boot.Validator.
func (c *config) Validate(p *boot.Problems) {
	p.RequirePort("port", c.Listen.Port)
	p.RequirePort("metrics-port", c.Listen.Metrics)
	p.Require(c.Listen.Secure || c.Listen.CertDir == "", "cert-path", "has no effect without --secure-serving")
	if c.Listen.Secure {
		_, err := boot.ServerTLS(c.Listen.CertDir, "", slog.New(slog.DiscardHandler))
		p.Require(err == nil, "cert-path", "%w", err)
	}
	c.Keep.validate(p)
	p.Require(c.Keep.Retention == 0 || c.Keep.Retention >= time.Hour, "retention", "must be an hour at least, or 0")
	p.Require(c.Keep.TenantBatches >= 0, "tenant-max-batches", "must not be negative")
	p.Require(c.Keep.TenantLines >= 0, "tenant-max-lines", "must not be negative")
	p.Require(c.Keep.MaxFile > 0, "max-file", "must be positive")
	p.Require(c.Keep.MaxLines > 0, "max-lines", "must be positive")
	if _, err := c.Upstream.address(); err != nil {
		p.Add("upstream", "%w", err)
	}
	if _, err := c.Upstream.key(); err != nil {
		p.Add("upstream-key-file", "%w", err)
	}
	if _, err := boot.ClientTLS(boot.PeerTLS{CAFile: c.Upstream.CAFile}, slog.New(slog.DiscardHandler)); err != nil {
		p.Add("upstream-ca-file", "%w", err)
	}
	p.Require(c.Upstream.InFlight > 0, "max-inflight", "must be positive")
	p.Require(c.Upstream.Timeout > 0, "request-timeout", "must be positive")
	p.Require(c.Upstream.Drain >= 0, "drain-timeout", "must not be negative")
	c.Queues.validate(p)
	if _, flag, err := c.Webhook.config(); err != nil {
		p.Add(flag, "%w", err)
	}
}

func (u *server) address() (*url.URL, error) {
	if u.URL == "" {
		return nil, errors.New("is missing: name the server that answers the requests, such as http://gateway:8080")
	}
	at, err := url.Parse(u.URL)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" || at.RawQuery != "" || at.Fragment != "" || at.User != nil {
		return nil, errors.New("is not a URL like http://gateway:8080, without a user, a query or a fragment")
	}
	return at, nil
}

func (u *server) key() (string, error) {
	if u.KeyFile == "" {
		return "", nil
	}
	return boot.ReadLine(u.KeyFile, "the key")
}

func run(ctx context.Context, std boot.IO, args []string) error {
	cfg := defaults()
	if _, err := program.Load(std, &cfg, args); err != nil {
		return err
	}
	log := cfg.Log.New(std)
	telemetry, err := boot.StartTelemetry(ctx, std, "tandem-batch", log)
	if err != nil {
		return err
	}
	err = start(ctx, std, log, telemetry, cfg)
	return errors.Join(err, telemetry.Close())
}

// start opens the data and the ports, and serves until ctx ends.
func start(ctx context.Context, std boot.IO, log *slog.Logger, telemetry *boot.Telemetry, cfg config) error {
	data, err := cfg.Keep.open(ctx, log)
	if err != nil {
		return err
	}
	defer data.close()
	metrics := boot.NewRegistry(std)
	address, err := cfg.Upstream.config(log)
	if err != nil {
		return err
	}
	to := upstream.New(address, upstream.Telemetry{Metrics: metrics, Tracer: telemetry.Tracer("github.com/tandem-serving/tandem/batch/upstream"), Propagator: telemetry.Propagator})
	defer to.Close()
	works := worker.New(worker.Config{MaxLines: cfg.Keep.MaxLines, Drain: cfg.Upstream.Drain, Retention: cfg.Keep.Retention}, data.store, data.blobs, to,
		worker.Telemetry{Log: log, Metrics: metrics})
	consumers, err := cfg.Queues.open(to, cfg.Upstream.Drain, metrics, log, telemetry.Propagator)
	if err != nil {
		return err
	}
	defer consumers.close()
	hooks, err := cfg.Webhook.sender(data.store, metrics, log)
	if err != nil {
		return err
	}
	serves := api.New(api.Config{MaxFile: int64(cfg.Keep.MaxFile), TenantHeader: cfg.Listen.TenantHeader, Quota: cfg.Keep.quota(), Retention: cfg.Keep.Retention, Changed: works.Wake}, data.store, data.blobs, log)
	scrapes, err := cfg.Listen.MetricsTLS.Config(log)
	if err != nil {
		return err
	}
	server, err := cfg.Listen.server(serves.Handler(), log)
	if err != nil {
		return err
	}
	open, err := boot.ListenAll(ctx, boot.Port{Flag: "port", Addr: cfg.Listen.at(cfg.Listen.Port)}, boot.Port{Flag: "metrics-port", Addr: cfg.Listen.at(cfg.Listen.Metrics)})
	if err != nil {
		return err
	}
	ready := func() error { return data.ready(ctx) }
	p := process{log: log, server: server, api: open[0], works: works, consumers: consumers, hooks: hooks, sweep: data.sweepBucket,
		operations: boot.Service{Name: "metrics", Listener: open[1], Handler: boot.Operations(metrics, ready), TLS: scrapes}}
	return p.serve(ctx, std)
}

func (u *server) config(log *slog.Logger) (upstream.Config, error) {
	at, err := u.address()
	if err != nil {
		return upstream.Config{}, boot.Configf("upstream: %w", err)
	}
	key, err := u.key()
	if err != nil {
		return upstream.Config{}, boot.Configf("upstream-key-file: %w", err)
	}
	tlsOf, err := boot.ClientTLS(boot.PeerTLS{CAFile: u.CAFile}, log)
	if err != nil {
		return upstream.Config{}, fmt.Errorf("upstream-ca-file: %w", err)
	}
	return upstream.Config{URL: at, Key: key, TLS: tlsOf, Objective: u.Objective, Timeout: u.Timeout, InFlight: u.InFlight}, nil
}

func (l *listen) at(port int) string { return net.JoinHostPort(l.Host, strconv.Itoa(port)) }

const (
	// headerTimeout is the longest time in which a client may send its request header; the API bounds the pauses of bodies.
	headerTimeout = 30 * time.Second
	idleTimeout   = 5 * time.Minute
	// shutdownTimeout is how long uploads and downloads may go on after SIGTERM.
	shutdownTimeout = 10 * time.Second
)

func (l *listen) server(handler http.Handler, log *slog.Logger) (*http.Server, error) {
	s := &http.Server{Handler: handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	if l.Secure {
		secure, err := boot.ServerTLS(l.CertDir, "", log)
		if err != nil {
			return nil, err
		}
		l.TLS.Apply(secure)
		s.TLSConfig = secure
	}
	return s, nil
}

// process is a batch server with its listeners open.
type process struct {
	log        *slog.Logger
	server     *http.Server
	api        net.Listener
	works      *worker.Worker
	consumers  consumers
	hooks      *webhook.Sender                             // nil: none
	sweep      func(ctx context.Context, log *slog.Logger) // deletes what other processes have left; until ctx ends
	operations boot.Service
}

// serve serves and works until ctx ends or a listener fails. Then requests in flight, uploads and downloads may end, while probes and metrics
// are still served.
func (p process) serve(ctx context.Context, std boot.IO) error {
	operations, endOperations := context.WithCancel(context.WithoutCancel(ctx))
	defer endOperations()
	ctx, fail := context.WithCancel(ctx)
	defer fail()
	var running, working sync.WaitGroup
	var errs [3]error
	running.Go(func() { defer fail(); errs[0] = boot.Serve(operations, p.log, p.operations) })
	running.Go(func() { defer fail(); errs[1] = p.serveAPI() })
	working.Go(func() { p.works.Run(ctx) })
	working.Go(func() { p.sweep(ctx, p.log) })
	if p.hooks != nil {
		working.Go(func() { p.hooks.Run(ctx) })
	}
	for _, c := range p.consumers {
		working.Go(func() { c.Run(ctx) })
	}
	if errs[2] = boot.Ready(std.Stdout, "batch", boot.Addresses{"http": p.api.Addr(), "metrics": p.operations.Listener.Addr()}); errs[2] != nil {
		fail()
	}
	<-ctx.Done()
	p.log.Info("draining")
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if p.server.Shutdown(ending) != nil {
		_ = p.server.Close() // uploads and downloads that did not end in time are cut
	}
	working.Wait()
	endOperations()
	running.Wait()
	return errors.Join(errs[:]...)
}

func (p process) serveAPI() error {
	var err error
	if p.server.TLSConfig != nil {
		err = p.server.ServeTLS(p.api, "", "")
	} else {
		err = p.server.Serve(p.api)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving the API: %w", err)
}
