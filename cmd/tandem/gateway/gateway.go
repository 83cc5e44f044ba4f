package gateway

import (
	"context"
	"errors"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/stack/gateway"
)

// Summary is what the command does, for help pages.
const Summary = "run a minimal gateway, for trials without Envoy"

// settings are the flags. Flags that envoy-config has too have the same meaning.
type settings struct {
	Listen    string     `flag:"listen" arg:"HOST:PORT" help:"address that clients connect to"`
	EPP       []string   `flag:"epp" arg:"HOST:PORT[,…]" help:"ext-proc port of every replica of the EPP"`
	Plaintext bool       `flag:"epp-plaintext" help:"no TLS to the EPP, if it runs with --secure-serving=false"`
	CA        string     `flag:"epp-ca" arg:"FILE" help:"authorities that must have signed the EPP's certificate. Default: no verification, since the EPP's is self-signed"`
	Mode      string     `flag:"mode" enum:"pair,single" help:"pair: two ext-proc filters, so that an EPP can die without cutting answers; single: one ext-proc filter, for an EPP that does not support the pair"`
	BodyLimit boot.Bytes `flag:"body-limit" arg:"BYTES" help:"largest request body that can be retried on another endpoint; the EPP's --body-limit"`
	Log       boot.Log   `group:"Log"`
}

// Validate implements boot.Validator.
func (s *settings) Validate(p *boot.Problems) {
	p.RequireAddress("listen", s.Listen)
	for _, address := range s.EPP {
		p.RequireAddress("epp", address)
	}
	p.Require(len(s.EPP) > 0, "epp", "must not be empty: the gateway needs an EPP")
	p.Require(!s.Plaintext || s.CA == "", "epp-ca", "without TLS there is no certificate to verify")
	p.Require(s.BodyLimit > 0, "body-limit", "%d is not a positive size", s.BodyLimit)
}

// Run runs the command.
func Run(ctx context.Context, std boot.IO, args []string) error {
	s := settings{Listen: "127.0.0.1:8080", EPP: []string{"127.0.0.1:9002"}, Mode: "pair", BodyLimit: 64 << 20}
	if _, err := (boot.Program{Summary: "gateway: " + Summary + "."}).Load(std, &s, args); err != nil {
		return err
	}
	log := s.Log.New(std)
	g, err := gateway.New(gateway.Options{
		Picker: client.Options{Addresses: s.EPP, Plaintext: s.Plaintext, CAFile: s.CA},
		Single: s.Mode == "single", Keep: int64(s.BodyLimit), Log: log,
	})
	if err != nil {
		return boot.Configf("starting the gateway: %w", err)
	}
	l, err := boot.Listen(ctx, "listen", s.Listen)
	if err != nil {
		return errors.Join(err, g.Close())
	}
	if err := boot.Ready(std.Stdout, "gateway", boot.Addresses{"http": l.Addr()}); err != nil {
		return errors.Join(err, l.Close(), g.Close())
	}
	log.Info("the embedded gateway is for trials only; in production, run Envoy with the output of tandem envoy-config",
		"listen", l.Addr().String())
	return errors.Join(g.Serve(ctx, l), g.Close())
}
