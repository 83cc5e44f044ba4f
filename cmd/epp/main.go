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
	"github.com/tandem-serving/tandem/epp/kube"
)

func main() { boot.Main(run) }

var program = boot.Program{Summary: "Tandem's endpoint picker: an Envoy ext-proc server that picks the decode pod and, when it pays, prefill pods."}

// settings are all flags with their defaults and their help, and the flags of llm-d's picker that are not served or have no
// effect.
type settings struct {
	Listen    listen    `group:"Listeners"`
	Endpoints endpoints `group:"Endpoints"`
	Picking   picking   `group:"Picking"`
	Metrics   scrapes   `group:"Engine metrics"`
	Share     share     `group:"Other replicas of the picker"`
	Scaling   scaling   `group:"Autoscalers"`
	Tell      tell      `group:"What is told about requests"`
	Log       boot.Log  `group:"Log"`
	Foreign   foreign   `group:"Known from llm-d"`
}

type listen struct {
	Host        string `flag:"host" arg:"ADDRESS" help:"address of all ports but the admin one; empty means all interfaces"`
	GRPC        int    `flag:"grpc-port" arg:"PORT" help:"ext-proc and EDS; 0 takes any free one"`
	Health      int    `flag:"grpc-health-port" arg:"PORT" help:"gRPC health service"`
	Metrics     int    `flag:"metrics-port" arg:"PORT" help:"own metrics, /livez and /readyz"`
	MetricsTLS  boot.MetricsTLS
	Admin       string `flag:"admin-address" arg:"HOST:PORT" help:"/debug, /explain and profiles; keep it on loopback"`
	Secure      bool   `flag:"secure-serving" help:"serve ext-proc over TLS"`
	CertDir     string `flag:"cert-path" arg:"DIR" help:"directory with tls.crt and tls.key, read again when they change; empty: self-signed"`
	ClientCA    string `flag:"client-ca" arg:"FILE" help:"authorities that must have signed the certificates of gateways, read again when it changes; empty: gateways need no certificate"`
	TLS         boot.Handshake
	BodyLimit   boot.Bytes    `flag:"body-limit" arg:"BYTES" help:"largest request body; larger ones are refused with 413"`
	BufferLimit boot.Bytes    `flag:"buffer-limit" arg:"BYTES" help:"bytes of request bodies that are buffered until a pod is picked, over all requests; more are refused with 503. The process takes two to three times as much memory"`
	BodyPause   time.Duration `flag:"body-timeout" arg:"DURATION" help:"longest wait for the next part of a request body; on average it must come with 1 KiB/s at least"`
	Drain       time.Duration `flag:"drain-timeout" arg:"DURATION" help:"longest time after SIGTERM in which requests are still picked for and streams may end"`
}

type picking struct {
	File     string `flag:"config-file" arg:"FILE" help:"EndpointPickerConfig, read again when it changes; empty: a P/D configuration that works for most pools"`
	Text     string `flag:"config-text" arg:"YAML" help:"EndpointPickerConfig as text, instead of a file"`
	Shadow   string `flag:"shadow-config" arg:"FILE" help:"another EndpointPickerConfig that decides about the same requests without effect, read again when it changes: /debug/shadow and tandem shadow tell how it differs, and what it would bring. Empty: none"`
	PDHeader string `flag:"pd-header" enum:"on,off" help:"whether clients may force or bypass P/D with x-tandem-pd"`
	Headers  string `flag:"tandem-headers" enum:"known,always" help:"whether x-tandem-* headers and the shared secret go to endpoints that are known to have Tandem's sidecar, because their metrics page comes through it on their own port, or always"`
	AuthFile string `flag:"auth-file" arg:"FILE" help:"shared secrets, one per line; the first is sent to sidecars (x-tandem-auth); read again when it changes"`
	NoSubset bool   `flag:"disable-endpoint-subset-filter" help:"pick from the whole pool whatever subset the gateway names"`
	Single   bool   `flag:"single-endpoint" help:"name only the best endpoint, for gateways that cannot read a list (ORIGINAL_DST clusters)"`
	Route    bool   `flag:"clear-route-cache" help:"have Envoy choose the route again after the pick, as llm-d does; only routes that match on the header of the pick need it"`
	Tests    bool   `flag:"conformance" help:"for conformance tests of gateways, never in production: serve header-based-testing-filter and destination-endpoint-served-verifier, with which every client chooses its endpoint; without a configuration, pick by them alone"`
	Seed     int64  `flag:"seed" arg:"NUMBER" help:"seed of the random numbers that break ties; 0: a new one at each start"`
}

type tell struct {
	Recent int `flag:"recent-requests" arg:"NUMBER" help:"requests that the admin port can tell about (/debug/requests, tandem why), and as many that failed; at most 4 MiB each. 0: none"`

	Capture      string     `flag:"capture" arg:"FILE" help:"write what requests ask, what is decided and how they end, for tandem replay: lengths and hashes, no text. Empty: nothing is written"`
	CaptureMax   boot.Bytes `flag:"capture-max-bytes" arg:"BYTES" help:"size at which the capture begins another file; the full one becomes FILE.1, that one FILE.2, and so on"`
	CaptureFiles int        `flag:"capture-files" arg:"NUMBER" help:"files of the capture that are kept"`
	CaptureKey   string     `flag:"capture-key-file" arg:"FILE" help:"secret that keys the hashes of the capture, so that those of several pickers can be compared; empty: a new one at each start"`
}

type scrapes struct {
	Interval time.Duration `flag:"refresh-metrics-interval" arg:"DURATION" help:"time between two readings of a busy engine's metrics; idle engines are read every second"`
	Stale    time.Duration `flag:"metrics-staleness-threshold" arg:"DURATION" help:"age from which scorers trust an endpoint's load less and less; at three times this age the load is unknown"`
	Queued   string        `flag:"total-queued-requests-metric" arg:"SPEC" help:"gauge of waiting requests of the default engine; empty: the usual one"`
	KVUsage  string        `flag:"kv-cache-usage-percentage-metric" arg:"SPEC" help:"gauge of KV cache usage of the default engine; empty: the usual one"`
	LoRA     string        `flag:"lora-info-metric" arg:"SPEC" help:"gauge of LoRA adapters of the default engine; empty: the usual one"`
}

// foreign are flags of llm-d's picker that are not served, or have no effect here. A switch may be given with its default value,
// because charts write out defaults.
type foreign struct {
	MetricsAuth bool `flag:"metrics-endpoint-auth" help:"not supported, must be false: restrict access to the metrics port by a network policy, or with --metrics-client-ca-file"`
	Scores      bool `flag:"emit-endpoint-scores" help:"not supported, must be false: ask POST /explain on the admin port for the scores of a request"`

	_ struct{} `flag:"feature-gates" refused:"list them as featureGates in the configuration of --config-file"`
	_ struct{} `flag:"total-running-requests-metric" refused:"name it in engineConfigs of the plugin core-metrics-extractor"`
	_ struct{} `flag:"cache-info-metric" refused:"name it in engineConfigs of the plugin core-metrics-extractor"`
	_ struct{} `flag:"model-server-metrics-scheme" refused:"give scheme to the plugin metrics-data-source"`
	_ struct{} `flag:"model-server-metrics-path" refused:"give path to the plugin metrics-data-source"`
	_ struct{} `flag:"model-server-metrics-port" refused:"give port to the plugin metrics-data-source"`
	_ struct{} `flag:"model-server-metrics-https-insecure-skip-verify" refused:"give insecureSkipVerify to the plugin metrics-data-source"`
	_ bool     `flag:"ha-enable-leader-election" ignored:"all replicas serve at once; --share-with has them count each other's load"`
	_ bool     `flag:"health-checking" ignored:"the ext-proc port always answers the gRPC health service, as the health port does"`
	_ bool     `flag:"enable-cert-reload" ignored:"certificates are always read again"`
	_ bool     `flag:"enable-pprof" ignored:"profiles are on the admin port"`
	_ bool     `flag:"tracing" ignored:"spans go out if OTEL_EXPORTER_OTLP_ENDPOINT is set"`
	_ struct{} `flag:"grpc-max-recv-msg-size" ignored:"follows --body-limit"`
	_ struct{} `flag:"grpc-max-send-msg-size" ignored:"messages are small"`
	_ struct{} `flag:"refresh-prometheus-metrics-interval" ignored:"metrics are computed when they are read"`
	_ struct{} `flag:"plugin-state-staleness-threshold" ignored:"the state of a request is freed when its stream ends"`
	_ struct{} `flag:"fairness-id-metric-label-limit" ignored:"the limit is 1000 clients and models together"`
	_ bool     `flag:"enable-grpc-stream-metrics" ignored:"they are always there"`
	_ bool     `flag:"allow-experimental-plugins" ignored:"there are none"`
	_ bool     `flag:"zap-devel" ignored:"use --log-level and --log-format"`
	_ struct{} `flag:"zap-stacktrace-level" ignored:"errors say what was being done, without stacks"`
	_ struct{} `flag:"zap-time-encoding" ignored:"times are RFC 3339"`

	_ struct{} `env:"PREDICTION_SERVER_URL" ignored:"latencies are predicted in the picker: set router.latencyPredictor.enabled=false in the values of llm-d's chart"`
	_ struct{} `env:"TRAINING_SERVER_URL" ignored:"latencies are predicted in the picker: set router.latencyPredictor.enabled=false in the values of llm-d's chart"`
	_ struct{} `env:"LATENCY_MAX_SAMPLE_SIZE" ignored:"latencies are predicted in the picker: set router.latencyPredictor.enabled=false in the values of llm-d's chart"`
	_ struct{} `env:"MAX_CONCURRENT_DISPATCHES" ignored:"latencies are predicted in the picker: set router.latencyPredictor.enabled=false in the values of llm-d's chart"`
	_ struct{} `env:"COALESCE_WINDOW_MS" ignored:"latencies are predicted in the picker: set router.latencyPredictor.enabled=false in the values of llm-d's chart"`
}

// Validate implements boot.Validator.
func (f *foreign) Validate(p *boot.Problems) {
	p.Require(!f.MetricsAuth, "metrics-endpoint-auth", "is not served: restrict access to the metrics port by a network policy, or with --metrics-client-ca-file")
	p.Require(!f.Scores, "emit-endpoint-scores", "is not served: ask POST /explain on the admin port for the scores of a request")
}

func defaults() settings {
	return settings{
		Listen: listen{GRPC: 9002, Health: 9003, Metrics: 9090, Admin: "127.0.0.1:9091", Secure: true, TLS: boot.DefaultHandshake(),
			BodyLimit: boot.Bytes(extproc.Defaults().BodyLimit), BufferLimit: boot.Bytes(extproc.Defaults().BufferLimit), BodyPause: extproc.Defaults().BodyPause, Drain: 30 * time.Second},
		Endpoints: endpoints{Group: kube.PoolGroup},
		Picking:   picking{PDHeader: "on", Headers: "known"},
		Metrics:   scrapes{Interval: 200 * time.Millisecond, Stale: 2 * time.Second},
		Tell:      tell{Recent: 1000, CaptureMax: 256 << 20, CaptureFiles: 4},
	}
}

// Validate implements boot.Validator.
func (c *settings) Validate(p *boot.Problems) {
	p.RequirePort("grpc-port", c.Listen.GRPC)
	p.RequirePort("grpc-health-port", c.Listen.Health)
	p.RequirePort("metrics-port", c.Listen.Metrics)
	p.RequireAddress("admin-address", c.Listen.Admin)
	p.Require(c.Listen.BodyLimit > 0, "body-limit", "must be positive")
	p.Require(c.Listen.BufferLimit/2 >= c.Listen.BodyLimit, "buffer-limit", "must be twice the body-limit at least, or one large body would keep all others out")
	p.Require(c.Listen.BodyPause > 0, "body-timeout", "must be positive")
	p.Require(c.Listen.Drain >= 0, "drain-timeout", "must not be negative")
	p.Require(c.Metrics.Interval >= 50*time.Millisecond, "refresh-metrics-interval", "must be 50ms or more")
	p.Require(c.Metrics.Stale > 0, "metrics-staleness-threshold", "must be positive")
	p.Require(c.Tell.Recent >= 0, "recent-requests", "must not be negative")
	c.Tell.validateCapture(p)
	p.Require(c.Picking.File == "" || c.Picking.Text == "", "config-text", "cannot be given beside --config-file")
	c.validateFiles(p)
	c.validateShadow(p)
	c.Listen.validateTLS(p)
	c.Share.validate(p)
	c.requireOneKey(p)
	c.Scaling.validate(p, c.Endpoints.cluster())
}

// requireOneKey requires that the keys of captures and of replicas, which both key the hashes of prompts, are the same.
func (c *settings) requireOneKey(p *boot.Problems) {
	shared, err := c.Share.key()
	if shared == nil || err != nil || c.Tell.CaptureKey == "" {
		return
	}
	captured, err := c.Tell.key()
	p.Require(err != nil || captured == *shared, "share-key-file", "must have the secret of --capture-key-file: prompts are hashed with one")
}

func (l listen) validateTLS(p *boot.Problems) {
	p.Require(l.ClientCA == "" || l.Secure, "client-ca", "without --secure-serving gateways show no certificates")
	if !l.Secure {
		return
	}
	for flag, files := range map[string][2]string{"cert-path": {l.CertDir, ""}, "client-ca": {"", l.ClientCA}} {
		_, err := boot.ServerTLS(files[0], files[1], slog.New(slog.DiscardHandler))
		p.Require(err == nil, flag, "%w", err)
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
