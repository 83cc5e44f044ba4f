package main

import (
	"crypto/tls"
	"log/slog"
	"slices"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar"
)

// secure configures whom the sidecar trusts and how it authenticates. All files are read again when they change.
type secure struct {
	AuthFile        string `flag:"auth-file" arg:"FILE" help:"shared secrets, one per line; a request with a prefill header must have one of them in x-tandem-auth; read again when it changes"`
	ClientCA        string `flag:"client-ca" arg:"FILE" help:"authorities that must have signed the certificates of the data port's clients, with --secure-serving; empty: clients need no certificate"`
	Prefill         bool   `flag:"prefill-tls" alias:"prefill-use-tls" help:"use TLS to prefill engines"`
	PrefillInsecure bool   `flag:"prefill-tls-insecure-skip-verify" help:"do not verify the certificates of prefill engines"`
	Decode          bool   `flag:"decode-tls" alias:"decode-use-tls" help:"use TLS to the decode engine"`
	DecodeInsecure  bool   `flag:"decode-tls-insecure-skip-verify" help:"do not verify the certificate of the decode engine"`
	EngineCA        string `flag:"engine-ca" arg:"FILE" help:"authorities that must have signed the certificates of engines, read again when it changes; empty: the system's"`
	EngineCert      string `flag:"engine-client-cert" arg:"DIR" help:"directory with tls.crt and tls.key, the client certificate for engines, read again when they change"`
	EngineName      string `flag:"engine-server-name" arg:"NAME" help:"DNS name that the certificates of engines must be for; empty: the host that is called"`
}

// Stages are llm-d's names of the engine roles, in its lists of stages.
const (
	prefiller = "prefiller"
	decoder   = "decoder"
)

// adopt reads llm-d's lists of stages.
func (s *secure) adopt(encrypted, unverified []string) {
	s.Prefill = s.Prefill || slices.Contains(encrypted, prefiller)
	s.Decode = s.Decode || slices.Contains(encrypted, decoder)
	s.PrefillInsecure = s.PrefillInsecure || slices.Contains(unverified, prefiller)
	s.DecodeInsecure = s.DecodeInsecure || slices.Contains(unverified, decoder)
}

// validate reports settings that contradict each other, and files that cannot be read.
func (s *secure) validate(p *boot.Problems, serving bool) {
	p.Require(s.ClientCA == "" || serving, "client-ca", "without --secure-serving clients show no certificates")
	p.Require(s.Prefill || !s.PrefillInsecure, "prefill-tls-insecure-skip-verify", "without --prefill-tls there is no certificate to verify")
	p.Require(s.Decode || !s.DecodeInsecure, "decode-tls-insecure-skip-verify", "without --decode-tls there is no certificate to verify")
	for flag, value := range map[string]string{"engine-ca": s.EngineCA, "engine-client-cert": s.EngineCert, "engine-server-name": s.EngineName} {
		p.Require(value == "" || s.Prefill || s.Decode, flag, "has no effect without --prefill-tls or --decode-tls")
	}
	var c sidecar.Config
	s.open(&c, slog.New(slog.DiscardHandler), p.Add)
}

// open reads the files, which the configuration follows from now on, and reports those that cannot be read.
func (s *secure) open(c *sidecar.Config, log *slog.Logger, report func(flag, format string, args ...any)) {
	if s.AuthFile != "" {
		secrets, err := boot.FollowFile(log, "shared secret", s.AuthFile, pd.ParseSecrets)
		if err != nil {
			report("auth-file", "reading the shared secret: %w", err)
		}
		c.Trust.Secrets = secrets.Get
	}
	var err error
	if c.Prefill.TLS, err = s.engine(s.Prefill, s.PrefillInsecure, log); err != nil {
		report("prefill-tls", "%w", err)
	}
	if c.Engine.TLS, err = s.engine(s.Decode, s.DecodeInsecure, log); err != nil {
		report("decode-tls", "%w", err)
	}
}

// engine returns the TLS configuration for the engines of one role, or nil for plaintext.
func (s *secure) engine(encrypted, insecure bool, log *slog.Logger) (func() *tls.Config, error) {
	if !encrypted {
		return nil, nil
	}
	return boot.ClientTLS(boot.PeerTLS{CAFile: s.EngineCA, CertDir: s.EngineCert, Name: s.EngineName, Insecure: insecure}, log)
}
