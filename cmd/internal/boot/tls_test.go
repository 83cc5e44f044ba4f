package boot

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// trusting returns a client configuration that trusts the given certificate.
func trusting(t *testing.T, cert tls.Certificate) *tls.Config {
	t.Helper()
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return &tls.Config{RootCAs: pool}
}

func TestSelfSigned(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	cert, err := selfSigned(now)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if key, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		t.Errorf("key is a %T, want ECDSA P-256", leaf.PublicKey)
	}
	for _, host := range []string{"localhost", "127.0.0.1", "::1"} {
		if err := leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	if leaf.NotBefore.After(now) || leaf.NotAfter.Before(now.AddDate(9, 0, 0)) {
		t.Errorf("valid from %v to %v", leaf.NotBefore, leaf.NotAfter)
	}
}

// writePair puts a fresh certificate into dir, its files dated at.
func writePair(t *testing.T, dir string, at time.Time) []byte {
	t.Helper()
	cert, err := selfSigned(at)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	writeDated(t, filepath.Join(dir, "tls.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}), at)
	writeDated(t, filepath.Join(dir, "tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), at)
	return cert.Certificate[0]
}

func writeDated(t *testing.T, path string, data []byte, at time.Time) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

func TestCertificateFollowsItsFiles(t *testing.T) {
	dir, now := t.TempDir(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var warnings bytes.Buffer
	first := writePair(t, dir, now)
	files, err := followPair(dir, slog.New(slog.NewTextHandler(&warnings, nil)))
	if err != nil {
		t.Fatal(err)
	}
	files.now, files.checked = func() time.Time { return now }, now
	want := func(what string, der []byte, warned int) {
		t.Helper()
		if cert := files.Get(); !bytes.Equal(cert.Certificate[0], der) {
			t.Errorf("%s: not the expected certificate", what)
		}
		if n := strings.Count(warnings.String(), "keeping the last one"); n != warned {
			t.Errorf("%s: %d warnings, want %d", what, n, warned)
		}
	}
	want("at the start", first, 0)
	second := writePair(t, dir, now.Add(time.Hour))
	want("changed, within the interval", first, 0)
	now = now.Add(recheckInterval)
	want("changed, after the interval", second, 0)

	writeDated(t, filepath.Join(dir, "tls.key"), []byte("torn"), now.Add(2*time.Hour))
	now = now.Add(recheckInterval)
	want("broken pair", second, 1)
	now = now.Add(recheckInterval)
	want("still the same broken pair", second, 1)

	third := writePair(t, dir, now.Add(3*time.Hour))
	now = now.Add(recheckInterval)
	want("repaired", third, 1)
}

func TestServerTLS(t *testing.T) {
	good := t.TempDir()
	der := writePair(t, good, time.Now())
	config, err := ServerTLS(good, "", quiet())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := config.GetCertificate(nil)
	if err != nil || !bytes.Equal(cert.Certificate[0], der) || config.MinVersion != tls.VersionTLS12 {
		t.Errorf("certificate of the directory is not served (%v), or old TLS is", err)
	}

	torn := t.TempDir()
	writePair(t, torn, time.Now())
	if err := os.WriteFile(filepath.Join(torn, "tls.crt"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, dir := range map[string]string{"empty directory": t.TempDir(), "torn file": torn} {
		_, err := ServerTLS(dir, "", quiet())
		if exit, ok := errors.AsType[Exit](err); !ok || exit.Code != CodeConfig || !strings.Contains(err.Error(), "tls.crt") {
			t.Errorf("%s: err = %v; want exit 3 naming tls.crt", name, err)
		}
	}
}

func BenchmarkFollowed(b *testing.B) {
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "secret"), []byte("x"), 0o600); err != nil {
		b.Fatal(err)
	}
	secret, err := Follow(quiet(), "secret", func() (string, error) { return "x", nil }, filepath.Join(dir, "secret"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		secret.Get()
	}
}
