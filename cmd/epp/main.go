// Command epp runs the endpoint picker: an Envoy ext-proc server that picks a decode endpoint for every request and, when
// it pays, prefill endpoints.
package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp/extproc"
)

func main() { boot.Main(run) }

var program = boot.Program{Summary: "Tandem's endpoint picker: an Envoy ext-proc server that picks the decode pod and, when it pays, prefill pods."}

// settings is the manual: every flag, its default and its meaning, and the flags of llm-d's picker with what became of
// them.
type settings struct {
	Listen  listen   `group:"Listeners"`
	Picking picking  `group:"Picking"`
	Metrics scrapes  `group:"Engine metrics"`
	Log     boot.Log `group:"Log"`
	Foreign foreign
}

type listen struct {
	Host        string        `flag:"host" arg:"ADDRESS" help:"address of all ports but the admin one; empty means all interfaces"`
	GRPC        int           `flag:"grpc-port" arg:"PORT" help:"ext-proc and EDS; 0 takes any free one"`
	Health      int           `flag:"grpc-health-port" arg:"PORT" help:"gRPC health service"`
	HealthToo   bool          `flag:"health-checking" help:"answer the gRPC health service on the ext-proc port as well"`
	Metrics     int           `flag:"metrics-port" arg:"PORT" help:"own metrics, /livez and /readyz"`
	MetricsAuth bool          `flag:"metrics-endpoint-auth" help:"not served: restrict who reaches the metrics port by a network policy"`
	Admin       string        `flag:"admin-address" arg:"HOST:PORT" help:"/debug, /explain and profiles; keep it on loopback"`
	Secure      bool          `flag:"secure-serving" help:"serve ext-proc over TLS"`
	CertDir     string        `flag:"cert-path" arg:"DIR" help:"directory with tls.crt and tls.key, read again when they change; empty: self-signed"`
	BodyLimit   boot.Bytes    `flag:"body-limit" arg:"BYTES" help:"largest request body; larger ones are refused with 413"`
	BodyPause   time.Duration `flag:"body-timeout" arg:"DURATION" help:"longest wait for the next part of a request body"`
	Drain       time.Duration `flag:"drain-timeout" arg:"DURATION" help:"longest time for requests to be picked for and streams to end after SIGTERM"`
}

type picking struct {
	File      string `flag:"config-file" arg:"FILE" help:"EndpointPickerConfig, read again when it changes; none: a P/D configuration that works for most pools"`
	Text      string `flag:"config-text" arg:"YAML" help:"EndpointPickerConfig as text, instead of a file"`
	Endpoints string `flag:"endpoints-file" arg:"FILE" help:"endpoints of the pool, read again when they change, where the configuration names no discovery"`
	PDHeader  string `flag:"pd-header" enum:"on,off" help:"whether clients may force or bypass P/D with x-tandem-pd"`
	AuthFile  string `flag:"auth-file" arg:"FILE" help:"file with the secret that sidecars ask for (x-tandem-auth)"`
	NoSubset  bool   `flag:"disable-endpoint-subset-filter" help:"pick from the whole pool whatever subset the gateway names"`
	Single    bool   `flag:"single-endpoint" help:"name only the best endpoint, for gateways that cannot read a list (ORIGINAL_DST clusters)"`
	Route     bool   `flag:"clear-route-cache" help:"have Envoy choose the route again after the pick, as llm-d does; only routes that match on the pick's header need it"`
	Seed      int64  `flag:"seed" arg:"NUMBER" help:"makes picks among equals repeatable; 0 takes a random one"`
}

type scrapes struct {
	Interval time.Duration `flag:"refresh-metrics-interval" arg:"DURATION" help:"time between two looks at a busy engine's metrics; idle ones are looked at every second"`
	Stale    time.Duration `flag:"metrics-staleness-threshold" arg:"DURATION" help:"age from which a load counts less and less; at three times of it, it is unknown"`
	Queued   string        `flag:"total-queued-requests-metric" arg:"SPEC" help:"default engine's gauge of waiting requests, where it differs"`
	KVUsage  string        `flag:"kv-cache-usage-percentage-metric" arg:"SPEC" help:"default engine's gauge of KV cache usage, where it differs"`
	LoRA     string        `flag:"lora-info-metric" arg:"SPEC" help:"default engine's gauge of LoRA adapters, where it differs"`
}

// foreign are flags of llm-d's picker that are known and not taken, or without effect here.
type foreign struct {
	_ struct{} `flag:"pool-name" refused:"endpoints come from a file here; name it with --endpoints-file, or use the plugin file-discovery"`
	_ struct{} `flag:"pool-namespace" refused:"endpoints come from a file here; name it with --endpoints-file, or use the plugin file-discovery"`
	_ struct{} `flag:"pool-group" refused:"endpoints come from a file here; name it with --endpoints-file, or use the plugin file-discovery"`
	_ struct{} `flag:"endpoint-selector" refused:"endpoints come from a file here; name it with --endpoints-file, or use the plugin file-discovery"`
	_ struct{} `flag:"endpoint-target-ports" refused:"endpoints come from a file here; every rank is an endpoint of its own in it"`
	_ struct{} `flag:"ha-enable-leader-election" refused:"all replicas serve at once; leave it out"`
	_ struct{} `flag:"emit-endpoint-scores" refused:"ask POST /explain on the admin port for the scores of a request"`
	_ struct{} `flag:"metrics-client-ca-file" refused:"metrics are served without client certificates; restrict who reaches the port by a network policy"`
	_ struct{} `flag:"metrics-cert-dir" refused:"metrics are served in plaintext; restrict who reaches the port by a network policy"`
	_ struct{} `flag:"tls-cipher-suites" refused:"Go's own choice for TLS 1.2 and 1.3 is used"`
	_ struct{} `flag:"tls-min-version" ignored:"TLS 1.2 is the least"`
	_ bool     `flag:"enable-cert-reload" ignored:"certificates are always read again"`
	_ bool     `flag:"enable-pprof" ignored:"profiles are on the admin port"`
	_ bool     `flag:"tracing" ignored:"spans go out if OTEL_EXPORTER_OTLP_ENDPOINT is set"`
	_ struct{} `flag:"grpc-max-recv-msg-size" ignored:"follows --body-limit"`
	_ struct{} `flag:"grpc-max-send-msg-size" ignored:"messages are small"`
	_ struct{} `flag:"refresh-prometheus-metrics-interval" ignored:"metrics are computed when they are read"`
	_ bool     `flag:"enable-grpc-stream-metrics" ignored:"they are always there"`
	_ bool     `flag:"allow-experimental-plugins" ignored:"there are none"`
}

func defaults() settings {
	return settings{
		Listen: listen{GRPC: 9002, Health: 9003, Metrics: 9090, Admin: "127.0.0.1:9091", Secure: true, BodyLimit: boot.Bytes(extproc.Defaults().BodyLimit),
			BodyPause: extproc.Defaults().BodyPause, Drain: 30 * time.Second},
		Picking: picking{PDHeader: "on"},
		Metrics: scrapes{Interval: 200 * time.Millisecond, Stale: 2 * time.Second},
	}
}

// Validate implements boot.Validator.
func (c *settings) Validate(p *boot.Problems) {
	p.RequirePort("grpc-port", c.Listen.GRPC)
	p.RequirePort("grpc-health-port", c.Listen.Health)
	p.RequirePort("metrics-port", c.Listen.Metrics)
	p.RequireAddress("admin-address", c.Listen.Admin)
	p.Require(!c.Listen.MetricsAuth, "metrics-endpoint-auth", "is not served: restrict who reaches the metrics port by a network policy")
	p.Require(c.Listen.BodyLimit > 0, "body-limit", "must be positive")
	p.Require(c.Listen.BodyPause > 0, "body-timeout", "must be positive")
	p.Require(c.Listen.Drain >= 0, "drain-timeout", "must not be negative")
	p.Require(c.Metrics.Interval >= 50*time.Millisecond, "refresh-metrics-interval", "must be 50ms or more")
	p.Require(c.Metrics.Stale > 0, "metrics-staleness-threshold", "must be positive")
	p.Require(c.Picking.File == "" || c.Picking.Text == "", "config-text", "cannot be given beside --config-file")
	c.Picking.validate(p)
	if c.Listen.Secure && c.Listen.CertDir != "" {
		if _, err := boot.ServerTLS(c.Listen.CertDir, slog.New(slog.DiscardHandler)); err != nil {
			p.Add("cert-path", "%w", err)
		}
	}
}

func run(ctx context.Context, std boot.IO, args []string) error {
	cfg := defaults()
	if _, err := program.Load(std, &cfg, args); err != nil {
		return err
	}
	log := cfg.Log.New(std)
	telemetry, err := boot.StartTelemetry(ctx, std, "tandem-epp", log)
	if err != nil {
		return err
	}
	err = start(ctx, std, log, telemetry, cfg)
	return errors.Join(err, telemetry.Close())
}
