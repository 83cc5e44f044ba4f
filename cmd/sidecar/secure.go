package main

import (
	"crypto/tls"
	"log/slog"
	"slices"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar"
)

// secure is whom the sidecar believes, and how it shows who it is. All files are read again when they change.
type secure struct {
	AuthFile        string `flag:"auth-file" arg:"FILE" help:"secrets, one a line, of which x-tandem-auth must carry one beside a prefill header; read again when it changes"`
	ClientCA        string `flag:"client-ca" arg:"FILE" help:"certificates that those of the data port's clients must be signed by, with --secure-serving; empty: clients need none"`
	Prefill         bool   `flag:"prefill-tls" alias:"prefill-use-tls" help:"speak TLS to prefill engines"`
	PrefillInsecure bool   `flag:"prefill-tls-insecure-skip-verify" help:"do not verify the certificates of prefill engines"`
	Decode          bool   `flag:"decode-tls" alias:"decode-use-tls" help:"speak TLS to the decode engine"`
	DecodeInsecure  bool   `flag:"decode-tls-insecure-skip-verify" help:"do not verify the certificate of the decode engine"`
	EngineCA        string `flag:"engine-ca" arg:"FILE" help:"certificates that those of engines must be signed by, read again when it changes; empty: the system's"`
	EngineCert      string `flag:"engine-client-cert" arg:"DIR" help:"directory with tls.crt and tls.key to show to engines that ask, read again when they change"`
	EngineName      string `flag:"engine-server-name" arg:"NAME" help:"DNS name that the certificates of engines must be for; empty: the host that is called"`
}

// Stages are llm-d's names of the engines, in its lists of stages.
const (
	prefiller = "prefiller"
	decoder   = "decoder"
)

// adopt takes llm-d's lists of stages.
func (s *secure) adopt(encrypted, unverified []string) {
	s.Prefill = s.Prefill || slices.Contains(encrypted, prefiller)
	s.Decode = s.Decode || slices.Contains(encrypted, decoder)
	s.PrefillInsecure = s.PrefillInsecure || slices.Contains(unverified, prefiller)
	s.DecodeInsecure = s.DecodeInsecure || slices.Contains(unverified, decoder)
}

// validate reports what does not fit together, and files that cannot be used.
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

// open reads the files, which the configuration follows from now on, and reports those that cannot be used.
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

// engine is TLS to the engines of one role, nil for plaintext.
func (s *secure) engine(encrypted, insecure bool, log *slog.Logger) (func() *tls.Config, error) {
	if !encrypted {
		return nil, nil
	}
	return boot.ClientTLS(boot.PeerTLS{CAFile: s.EngineCA, CertDir: s.EngineCert, Name: s.EngineName, Insecure: insecure}, log)
}
