package envoyconfig

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
)

// Summary is what the command does, for help pages.
const Summary = "write a complete Envoy configuration for an EPP"

// The files that can be written.
const (
	writeBootstrap   = "bootstrap"
	writeCertificate = "certificate"
	writeClient      = "client-certificate"
)

// settings are the flags.
type settings struct {
	Listen  listen     `group:"Envoy"`
	Picker  picker     `group:"EPP"`
	Pool    pool       `group:"Decode endpoints"`
	Canary  canary     `group:"Canary"`
	Request boot.Bytes `flag:"body-limit" arg:"BYTES" help:"largest request body that can be retried on another endpoint; the EPP's --body-limit"`
	MaxHeap boot.Bytes `flag:"max-heap" arg:"BYTES" help:"Envoy's memory: at 95 % of it new requests get 503, and those that run go on; some 85 % of a container's limit. 0: no limit"`
	Write   string     `flag:"write" enum:"bootstrap,certificate,client-certificate" help:"which file to write: Envoy's configuration, or the file that --cert-file or --client-cert-file names in it"`
}

type listen struct {
	Address    string  `flag:"listen" arg:"IP:PORT" help:"address that clients connect to"`
	CertDir    string  `flag:"cert-path" arg:"DIR" help:"directory with tls.crt and tls.key, to serve clients over TLS"`
	CertFile   string  `flag:"cert-file" arg:"FILE" help:"path at which Envoy finds the output of --write certificate; with it, Envoy uses renewed certificates at once, without it at its next start"`
	ClientCA   string  `flag:"client-ca" arg:"FILE" help:"authorities that must have signed clients' certificates; with it, clients must show one"`
	Client     string  `flag:"client-cert-path" arg:"DIR" help:"directory with tls.crt and tls.key, the client certificate for the EPP and endpoints"`
	ClientFile string  `flag:"client-cert-file" arg:"FILE" help:"path at which Envoy finds the output of --write client-certificate, as with --cert-file"`
	Filters    string  `flag:"http-filters" arg:"FILE" help:"YAML list of Envoy's HTTP filters that requests pass before the EPP is asked, such as those for API keys and rate limits"`
	Admin      string  `flag:"admin-address" arg:"IP:PORT" help:"Envoy's admin pages; keep it on loopback"`
	Operations string  `flag:"operations-address" arg:"IP:PORT" help:"/livez, /readyz and /metrics, for probes and Prometheus"`
	AccessLog  bool    `flag:"access-log" help:"one line of JSON for each request, on stdout"`
	Collector  string  `flag:"otlp" arg:"HOST:PORT" help:"OTLP/gRPC collector of spans"`
	TraceRatio float64 `flag:"trace-ratio" help:"share of the traces that begin here that are kept"`
}

type picker struct {
	Addresses []string          `flag:"epp" arg:"HOST:PORT[,…]" help:"ext-proc port of every replica of the EPP, all by IP address or all by name; a name may resolve to several"`
	Mode      envoyconf.Filters `flag:"mode" enum:"pair,single" help:"pair: two ext-proc filters, so that an EPP can die without cutting answers; single: one ext-proc filter, for an EPP that does not support the pair"`
	Plaintext bool              `flag:"epp-plaintext" help:"no TLS to the EPP, if it runs with --secure-serving=false"`
	FailOpen  bool              `flag:"fail-open" help:"while no EPP answers, serve each request on some decode endpoint, without prefill on another pod; otherwise such requests get 503"`
	CA        string            `flag:"epp-ca" arg:"FILE" help:"authorities that must have signed the EPP's certificate. Default: no verification, since the EPP's is self-signed"`
	Name      string            `flag:"epp-server-name" arg:"NAME" help:"DNS name that the EPP's certificate must be for"`
}

type pool struct {
	Source    envoyconf.PoolSource `flag:"pool" enum:"eds,static,original-dst" help:"how Envoy learns the decode endpoints: eds subscribes to the EPP; static lists them; original-dst connects to the address in the EPP's answer, without retry on another endpoint"`
	Endpoints []netip.AddrPort     `flag:"endpoint" arg:"IP:PORT[,…]" help:"decode endpoints of a static pool"`
	Idle      time.Duration        `flag:"idle-timeout" arg:"DURATION" help:"how long an idle connection to an endpoint stays open; the endpoint must keep it longer (our sidecar: 5m)"`
	TLS       bool                 `flag:"pool-tls" help:"TLS to the endpoints, if sidecars run with --secure-serving"`
	HTTP2     bool                 `flag:"pool-http2" help:"HTTP/2 to the endpoints, also without TLS (h2c), as appProtocol kubernetes.io/h2c of an InferencePool says; sidecars speak HTTP/1.1 only"`
	CA        string               `flag:"pool-ca" arg:"FILE" help:"authorities that must have signed the endpoints' certificates. Default: no verification, since those of sidecars are self-signed"`
	Name      string               `flag:"pool-server-name" arg:"NAME" help:"DNS name that the endpoints' certificates must be for"`
}

type canary struct {
	Address string  `flag:"canary" arg:"HOST:PORT" help:"listener for clients of another installation's Envoy, which takes a share of the requests"`
	Percent float64 `flag:"canary-percent" help:"share of the requests that go to --canary, 0 to 100, to a hundredth"`
	TLS     bool    `flag:"canary-tls" help:"TLS to --canary, without verification"`
}

func defaults() settings {
	d := envoyconf.Defaults()
	return settings{
		Listen: listen{Address: d.Listen, Admin: d.Admin, TraceRatio: d.TraceRatio}, Picker: picker{Addresses: d.Pickers, Mode: d.Filters},
		Pool: pool{Source: d.Pool, Idle: d.Idle, TLS: !d.PoolTLS.Plaintext}, Request: boot.Bytes(d.BodyLimit), Write: writeBootstrap,
	}
}

// options returns the settings as Bootstrap takes them. The error is that of reading the filters.
func (s *settings) options() (envoyconf.Options, error) {
	l, e, p := s.Listen, s.Picker, s.Pool
	o := envoyconf.Options{
		Listen: l.Address, Cert: envoyconf.OwnCert{Dir: l.CertDir, File: l.CertFile}, ClientCA: l.ClientCA,
		Client: envoyconf.OwnCert{Dir: l.Client, File: l.ClientFile}, Admin: l.Admin, Operations: l.Operations,
		AccessLog: l.AccessLog, Collector: l.Collector, TraceRatio: l.TraceRatio, BodyLimit: int64(s.Request), MaxHeap: int64(s.MaxHeap),
		Canary:  envoyconf.Canary{Address: s.Canary.Address, Percent: s.Canary.Percent, TLS: s.Canary.TLS},
		Pickers: e.Addresses, Filters: e.Mode, PickerTLS: envoyconf.PeerTLS{Plaintext: e.Plaintext, CAFile: e.CA, Name: e.Name},
		FailOpen: e.FailOpen, PoolHTTP2: p.HTTP2,
		Pool: p.Source, Static: p.Endpoints, Idle: p.Idle, PoolTLS: envoyconf.PeerTLS{Plaintext: !p.TLS, CAFile: p.CA, Name: p.Name},
	}
	if l.Filters != "" {
		text, err := os.ReadFile(l.Filters)
		if err != nil {
			return o, fmt.Errorf("reading the HTTP filters: %w", err)
		}
		o.HTTPFilters = string(text)
	}
	return o, nil
}

// Validate implements boot.Validator.
func (s *settings) Validate(p *boot.Problems) {
	o, err := s.options()
	if err != nil {
		p.Add("http-filters", "%w", err)
	}
	o.Problems(p.Add)
	p.Require(s.Write != writeCertificate || s.Listen.CertDir != "", "write", "there is no certificate to refer to: cert-path is missing")
	p.Require(s.Write != writeClient || s.Listen.Client != "", "write", "there is no certificate to refer to: client-cert-path is missing")
}

// Run runs the command.
func Run(_ context.Context, std boot.IO, args []string) error {
	s := defaults()
	if _, err := (boot.Program{Summary: "envoy-config: " + Summary + "."}).Load(std, &s, args); err != nil {
		return err
	}
	switch s.Write {
	case writeCertificate:
		return envoyconf.Certificate(std.Stdout, s.Listen.CertDir)
	case writeClient:
		return envoyconf.Certificate(std.Stdout, s.Listen.Client)
	}
	o, err := s.options()
	if err != nil {
		return err
	}
	return envoyconf.Bootstrap(std.Stdout, o)
}
