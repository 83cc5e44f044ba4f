package serving

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
)

// TestTLS has the proxies reach the picker over TLS: with the certificate that it signs itself, which is the default, with
// one that is verified, and not at all if it was not signed by whom they trust.
func TestTLS(t *testing.T) {
	own, foreign := t.TempDir(), t.TempDir()
	writeCertificate(t, own)
	writeCertificate(t, foreign)
	for _, l := range harness.Layouts() {
		for _, c := range []struct {
			name   string
			picker []string
			front  []string
			status int
		}{
			{"self-signed", nil, nil, http.StatusOK},
			{"verified", []string{"--cert-path=" + own}, []string{"--epp-ca=" + filepath.Join(own, "tls.crt")}, http.StatusOK},
			{"foreign", []string{"--cert-path=" + own}, []string{"--epp-ca=" + filepath.Join(foreign, "tls.crt")}, http.StatusServiceUnavailable},
		} {
			t.Run(l.String()+"/"+c.name, func(t *testing.T) {
				f := harness.NewFleet(t, 1, 1)
				f.StartPicker(t, append([]string{"--secure-serving"}, c.picker...)...)
				f.Hasty = c.status != http.StatusOK
				f.StartFront(t, l, append([]string{"--epp-plaintext=false"}, c.front...)...)
				for i := range 4 {
					q := f.TokensCall(harness.Threshold/2+i%2*2*harness.Threshold, i < 2)
					got := f.Send(t, q)
					if got.Status != c.status {
						t.Fatalf("status %d: %s", got.Status, got.Body)
					}
					if c.status == http.StatusOK {
						harness.MustMatch(t, got, q.Stream, f.Want(t, q))
					}
				}
				f.MustRest(t)
			})
		}
	}
}

// writeCertificate writes a certificate for 127.0.0.1, signed by itself, and its key as Kubernetes names them.
func writeCertificate(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: certificate}, "tls.key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
