package envoyconfig

import (
	"context"
	"net/netip"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp/extproc"
)

// Summary is what the command does, for help pages.
const Summary = "write a complete Envoy configuration for an EPP"

// settings are the flags.
type settings struct {
	Listen    string             `flag:"listen" arg:"IP:PORT" help:"where clients connect to"`
	Admin     string             `flag:"admin-address" arg:"IP:PORT" help:"Envoy's own pages; keep it on loopback"`
	AccessLog bool               `flag:"access-log" help:"one line of JSON for each request, on stdout"`
	Collector string             `flag:"otlp" arg:"HOST:PORT" help:"OTLP/gRPC collector of spans"`
	EPP       []string           `flag:"epp" arg:"HOST:PORT[,…]" help:"ext-proc port of every replica of the EPP, all by IP address or all by name; a name may stand for several"`
	Plaintext bool               `flag:"epp-plaintext" help:"no TLS to the EPP, for one that runs with --secure-serving=false"`
	CA        string             `flag:"epp-ca" arg:"FILE" help:"certificates that the EPP's must be signed by. Default: it is not verified, since the EPP signs its own"`
	Mode      extproc.Filters    `flag:"mode" enum:"pair,single" help:"pair: an EPP that dies cuts no answer; single: one ext-proc filter, for an EPP that knows no pair"`
	Pool      extproc.PoolSource `flag:"pool" enum:"eds,static,original-dst" help:"where Envoy knows the decode endpoints from: eds asks the EPP; static lists them; original-dst dials what the EPP says, one endpoint without retry on another"`
	Endpoints []netip.AddrPort   `flag:"endpoint" arg:"IP:PORT[,…]" help:"decode endpoints of a static pool"`
	BodyLimit boot.Bytes         `flag:"body-limit" arg:"BYTES" help:"largest request body that can be retried on another endpoint; the EPP's --body-limit"`
}

func defaults() settings {
	d := extproc.DefaultBootstrap()
	return settings{
		Listen: d.Listen, Admin: d.Admin, EPP: d.Pickers, Mode: d.Filters, Pool: d.Pool, BodyLimit: boot.Bytes(d.BodyLimit),
	}
}

func (s *settings) options() extproc.BootstrapOptions {
	return extproc.BootstrapOptions{
		Listen: s.Listen, Admin: s.Admin, AccessLog: s.AccessLog, Collector: s.Collector,
		Pickers: s.EPP, Plaintext: s.Plaintext, CAFile: s.CA, Filters: s.Mode,
		Pool: s.Pool, Static: s.Endpoints, BodyLimit: int64(s.BodyLimit),
	}
}

// Validate implements boot.Validator.
func (s *settings) Validate(p *boot.Problems) {
	o := s.options()
	o.Problems(p.Add)
}

// Run is the command.
func Run(_ context.Context, std boot.IO, args []string) error {
	s := defaults()
	if _, err := (boot.Program{Summary: "envoy-config: " + Summary + "."}).Load(std, &s, args); err != nil {
		return err
	}
	return extproc.Bootstrap(std.Stdout, s.options())
}
