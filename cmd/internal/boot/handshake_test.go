package boot

import (
	"crypto/tls"
	"slices"
	"testing"
)

func TestHandshake(t *testing.T) {
	const small, large, modern = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256"
	for _, c := range []struct {
		name   string
		given  Handshake
		min    uint16
		suites []uint16
		http2  bool
		valid  bool
	}{
		{"by default", DefaultHandshake(), tls.VersionTLS12, nil, true, true},
		{"newer only", Handshake{MinVersion: "VersionTLS13"}, tls.VersionTLS13, nil, true, true},
		{"suites", Handshake{Suites: []string{large, small}}, tls.VersionTLS12,
			[]uint16{tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}, true, true},
		{"none that HTTP/2 requires", Handshake{Suites: []string{large}}, tls.VersionTLS12, []uint16{tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384}, false, true},
		{"none that HTTP/2 requires, newer only", Handshake{"VersionTLS13", []string{large}}, tls.VersionTLS13,
			[]uint16{tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384}, true, true},
		{"insecure", Handshake{Suites: []string{"TLS_RSA_WITH_RC4_128_SHA"}}, tls.VersionTLS12, []uint16{0}, false, false},
		{"of TLS 1.3, which has no choice", Handshake{Suites: []string{modern}}, tls.VersionTLS12, []uint16{0}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var config tls.Config
			c.given.Apply(&config)
			if config.MinVersion != c.min || !slices.Equal(config.CipherSuites, c.suites) || c.given.ServesHTTP2() != c.http2 {
				t.Errorf("version %x, suites %x, HTTP/2 %v; want %x, %x, %v", config.MinVersion, config.CipherSuites, c.given.ServesHTTP2(), c.min, c.suites, c.http2)
			}
			found := &Problems{table: newTable(&c.given)}
			c.given.Validate(found)
			if err := found.joined(); (err == nil) != c.valid {
				t.Errorf("Validate reports %v, want a problem: %v", err, !c.valid)
			}
		})
	}
}
