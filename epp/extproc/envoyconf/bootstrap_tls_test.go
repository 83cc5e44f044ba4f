package envoyconf_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
)

// writeKeyPair writes a self-signed certificate for a name, and its key, under the names that Kubernetes uses. It returns the
// certificate's file. The files are behind a link that is replaced atomically, as in a mounted secret.
func writeKeyPair(t *testing.T, dir, name string, serial int64) (certificate string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{name}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	version, err := os.MkdirTemp(dir, "..version")
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: cert}, "tls.key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(version, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join("..data", file), filepath.Join(dir, file)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	next := filepath.Join(dir, "..next")
	if err := os.Symlink(filepath.Base(version), next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "tls.crt")
}

// writeCertificateFile writes the file that makes Envoy follow a certificate.
func writeCertificateFile(t *testing.T, dir string) (file string) {
	t.Helper()
	var b bytes.Buffer
	if err := envoyconf.Certificate(&b, dir); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "certificate.yaml")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func keyPair(t *testing.T, dir string) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// Clients are served with the certificate that is there now: without a restart if a file of its own names it.
func TestEnvoyFollowsItsCertificate(t *testing.T) {
	dir := t.TempDir()
	writeKeyPair(t, dir, "way-in.invalid", 1)
	f := startFront(t, &client.Baseline{Endpoints: "127.0.0.1:9"}, func(o *envoyconf.Options) {
		o.Cert.Dir, o.Cert.File = dir, writeCertificateFile(t, dir)
		o.Pool, o.Static = envoyconf.PoolStatic, static("127.0.0.1:9")
	})
	serial := func() int64 {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(f.url, "http://"),
			&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		state := conn.ConnectionState()
		if state.NegotiatedProtocol != "h2" {
			t.Errorf("protocol %q, want h2", state.NegotiatedProtocol)
		}
		return state.PeerCertificates[0].SerialNumber.Int64()
	}
	if got := serial(); got != 1 {
		t.Fatalf("certificate %d is served", got)
	}
	writeKeyPair(t, dir, "way-in.invalid", 2)
	eventually(t, "the renewed certificate is served", func() bool { return serial() == 2 })
}

// eventually polls a condition that no event announces.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	late := time.NewTimer(15 * time.Second)
	defer late.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-late.C:
			t.Fatalf("%s: not within 15s", what)
		}
	}
}

// Peers whose certificate is to be verified are asked for one that the right authority signed for the right name.
func TestEnvoyVerifiesItsPeers(t *testing.T) {
	own, foreign := t.TempDir(), t.TempDir()
	ca := writeKeyPair(t, own, "peer.invalid", 1)
	foreignCA := writeKeyPair(t, foreign, "peer.invalid", 1)
	endpoint := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
	}))
	endpoint.TLS = &tls.Config{Certificates: []tls.Certificate{keyPair(t, own)}}
	endpoint.StartTLS()
	defer endpoint.Close()
	address := endpoint.Listener.Addr().String()
	anyPeer, signed := envoyconf.PeerTLS{}, envoyconf.PeerTLS{CAFile: ca}
	named, misnamed := envoyconf.PeerTLS{CAFile: ca, Name: "peer.invalid"}, envoyconf.PeerTLS{CAFile: ca, Name: "other.invalid"}
	for _, test := range []struct {
		name         string
		picker, pool envoyconf.PeerTLS
		status       int
	}{
		{"any peer", anyPeer, anyPeer, http.StatusOK},
		{"signed", signed, signed, http.StatusOK},
		{"named", named, named, http.StatusOK},
		{"picker of another name", misnamed, anyPeer, http.StatusServiceUnavailable},
		{"endpoint of another name", anyPeer, misnamed, http.StatusServiceUnavailable},
		{"endpoint of another authority", anyPeer, envoyconf.PeerTLS{CAFile: foreignCA}, http.StatusServiceUnavailable},
		{"plaintext to a TLS endpoint", anyPeer, envoyconf.PeerTLS{Plaintext: true}, http.StatusBadRequest},
	} {
		t.Run(test.name, func(t *testing.T) {
			pair := keyPair(t, own)
			server := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&pair)))
			(&client.Baseline{Endpoints: address}).Register(server)
			f := startEnvoy(t, server, func(o *envoyconf.Options) {
				o.Pool, o.Static, o.PickerTLS, o.PoolTLS = envoyconf.PoolStatic, static(address), test.picker, test.pool
			})
			if a := f.post(t, http.Header{}, "{}"); a.status != test.status {
				t.Errorf("answer %+v, want status %d", a, test.status)
			}
		})
	}
}

// Probes and Prometheus get what they need of the admin pages and nothing else. An Envoy that drains lives, but is not
// ready.
func TestEnvoyOperations(t *testing.T) {
	free, err := net.Listen("tcp", "127.83.1.2:0") // no other process takes the port on this address
	if err != nil {
		t.Fatal(err)
	}
	admin := free.Addr().String()
	free.Close()
	f := startFront(t, &client.Baseline{Endpoints: "127.0.0.1:9"}, func(o *envoyconf.Options) {
		o.Admin, o.Operations = admin, "127.0.0.1:0"
		o.Pool, o.Static = envoyconf.PoolStatic, static("127.0.0.1:9")
	})
	address, err := f.envoy.Listener(t.Context(), envoyconf.OperationsListener)
	if err != nil {
		t.Fatal(err)
	}
	want := func(method, url string, status int, text string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+url, nil)
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		a, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		body, err := io.ReadAll(a.Body)
		if err != nil || a.StatusCode != status || !strings.Contains(string(body), text) {
			t.Errorf("%s %s: %s %.200q, error %v, want %d with %q", method, url, a.Status, body, err, status, text)
		}
	}
	want("GET", address+"/livez", 200, "ok")
	want("GET", address+"/readyz", 200, "LIVE")
	want("GET", address+"/metrics", 200, "envoy_cluster_upstream_rq_active")
	want("POST", address+"/quitquitquit", 404, "")
	want("GET", address+"/metrics/../config_dump", 404, "")
	want("POST", admin+"/healthcheck/fail", 200, "")
	want("GET", address+"/readyz", 503, "DRAINING")
	want("GET", address+"/livez", 200, "ok")
}

// An idle connection to an endpoint is closed by Envoy, before the endpoint may do so.
func TestEnvoyClosesIdleConnections(t *testing.T) {
	closed := make(chan struct{}, 1)
	endpoint := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
	}))
	endpoint.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			closed <- struct{}{}
		}
	}
	endpoint.Start()
	defer endpoint.Close()
	f := startFront(t, &client.Baseline{Endpoints: endpoint.Listener.Addr().String()}, func(o *envoyconf.Options) {
		o.Pool, o.Static, o.Idle = envoyconf.PoolStatic, static(endpoint.Listener.Addr().String()), time.Second
	})
	if a := f.post(t, http.Header{}, "{}"); a.status != http.StatusOK {
		t.Fatalf("answer %+v", a)
	}
	select {
	case <-closed:
	case <-time.After(15 * time.Second):
		t.Error("the connection is still open")
	}
}
