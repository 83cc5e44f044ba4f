package boot

import (
	"crypto/tls"
	"log/slog"
)

// tls13 is the name of TLS 1.3 in the flag tls-min-version.
const tls13 = "VersionTLS13"

// Handshake restricts the TLS of a listener that serves requests.
type Handshake struct {
	MinVersion string   `flag:"tls-min-version" enum:"VersionTLS12,VersionTLS13" arg:"VERSION" help:"oldest TLS version that is accepted"`
	Suites     []string `flag:"tls-cipher-suites" arg:"NAME[,…]" help:"cipher suites that are accepted with TLS 1.2, by their names in Go's crypto/tls; empty: Go's choice. Those of TLS 1.3 cannot be chosen"`
}

// DefaultHandshake returns the restrictions without flags: TLS 1.2 or newer.
func DefaultHandshake() Handshake { return Handshake{MinVersion: "VersionTLS12"} }

// Validate implements [Validator].
func (h *Handshake) Validate(p *Problems) {
	for _, name := range h.Suites {
		p.Require(suiteID(name) != 0, "tls-cipher-suites", "%q is not a cipher suite of TLS 1.2 that Go considers secure, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", name)
	}
}

// ServesHTTP2 reports whether net/http can serve HTTP/2 with these suites: it refuses to start a server whose suites lack the
// one that HTTP/2 requires.
func (h Handshake) ServesHTTP2() bool {
	if len(h.Suites) == 0 || h.MinVersion == tls13 {
		return true
	}
	for _, name := range h.Suites {
		if id := suiteID(name); id == tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 || id == tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 {
			return true
		}
	}
	return false
}

// Apply restricts the TLS configuration of a server.
func (h Handshake) Apply(config *tls.Config) {
	config.MinVersion = tls.VersionTLS12
	if h.MinVersion == tls13 {
		config.MinVersion = tls.VersionTLS13
	}
	for _, name := range h.Suites {
		config.CipherSuites = append(config.CipherSuites, suiteID(name))
	}
}

// suiteID returns the number of a cipher suite of TLS 1.2, or 0 if Go has none of this name or considers it insecure.
func suiteID(name string) uint16 {
	for _, suite := range tls.CipherSuites() {
		if suite.Name == name && suite.SupportedVersions[0] <= tls.VersionTLS12 {
			return suite.ID
		}
	}
	return 0
}

// MetricsTLS chooses the TLS of the port with metrics, /livez and /readyz.
type MetricsTLS struct {
	CertDir  string `flag:"metrics-cert-dir" arg:"DIR" help:"directory with tls.crt and tls.key, read again when they change: the metrics port, /livez and /readyz too, is served over TLS; empty: plaintext"`
	ClientCA string `flag:"metrics-client-ca-file" arg:"FILE" help:"authorities that must have signed the certificates of the metrics port's clients, probes too; read again when it changes; empty: clients need no certificate"`
}

// Validate implements [Validator].
func (m *MetricsTLS) Validate(p *Problems) {
	if m.CertDir == "" {
		p.Require(m.ClientCA == "", "metrics-client-ca-file", "is of no use without --metrics-cert-dir")
		return
	}
	discard := slog.New(slog.DiscardHandler)
	if _, err := ServerTLS(m.CertDir, "", discard); err != nil {
		p.Add("metrics-cert-dir", "%w", err)
		return
	}
	_, err := ServerTLS(m.CertDir, m.ClientCA, discard)
	p.Require(err == nil, "metrics-client-ca-file", "%w", err)
}

// Config returns the TLS configuration of the port, nil for plaintext. The error is an [Exit] with CodeConfig.
func (m MetricsTLS) Config(log *slog.Logger) (*tls.Config, error) {
	if m.CertDir == "" {
		return nil, nil
	}
	return ServerTLS(m.CertDir, m.ClientCA, log)
}
