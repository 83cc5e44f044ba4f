package security

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}
}

// file returns a file of the authority's certificate.
func (a authority) file(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.crt")
	a.write(t, path)
	return path
}

func (a authority) write(t *testing.T, path string) {
	t.Helper()
	harness.Replace(t, path, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})))
}

// issue puts a certificate for a name and 127.0.0.1, valid until end, and its key into a folder, as Kubernetes does.
func (a authority) issue(t *testing.T, dir, name string, end time.Time) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: end,
		DNSNames: []string{name}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if name == "" {
		template.DNSNames, template.IPAddresses = nil, []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	harness.Replace(t, filepath.Join(dir, "tls.key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	harness.Replace(t, filepath.Join(dir, "tls.crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	return dir
}

// own returns a certificate that is valid for an hour.
func (a authority) own(t *testing.T, name string) (dir string) {
	t.Helper()
	return a.issue(t, t.TempDir(), name, time.Now().Add(time.Hour))
}

// behindTLS puts TLS before an engine, with the certificate of a folder as it is at each handshake. Of an authority, clients
// must show a certificate.
func behindTLS(t *testing.T, addr, dir string, clients *authority) (secure string) {
	t.Helper()
	relay := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: addr})
	relay.Transport = harness.Client.Transport
	server := httptest.NewUnstartedServer(relay)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are to fail
	server.Config.SetKeepAlivesEnabled(false)           // each request has a handshake
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
		config := &tls.Config{Certificates: []tls.Certificate{pair}}
		if clients != nil {
			config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
			config.ClientCAs.AddCert(clients.cert)
		}
		return config, err
	}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// TestSecurityTLSToEngines has a sidecar speak TLS to both engines, with an authority of the operator's, a certificate of
// its own, and everything that can be wrong with them.
func TestSecurityTLSToEngines(t *testing.T) {
	ca, foreign := newAuthority(t), newAuthority(t)
	prefill, decode := harness.StartSim(t, "prefill", "--role=prefill"), harness.StartSim(t, "decode", "--role=decode")
	model, err := harness.DecodeModel(decode.Addr)
	if err != nil {
		t.Fatal(err)
	}
	caFile := ca.file(t)
	served := ca.own(t, "engine.invalid")
	name, ours := "--engine-server-name=engine.invalid", "--engine-client-cert="+ca.own(t, "sidecar.invalid")
	const remote, local = "remote;reason=external", "local;reason=prefill-failed"
	for _, c := range []struct {
		name    string
		served  string
		clients *authority
		flags   []string
		want    string
		told    string // in the sidecar's log; an alert of the other side may come after the end of the connection
	}{
		{"verified by address", ca.own(t, ""), nil, []string{"--prefill-tls", "--engine-ca=" + caFile}, remote, ""},
		{"verified by name", served, nil, []string{"--prefill-use-tls", "--engine-ca=" + caFile, name}, remote, ""},
		{"not verified", foreign.own(t, "x"), nil, []string{"--enable-tls=prefiller", "--tls-insecure-skip-verify=prefiller"}, remote, ""},
		{"both sides", served, &ca, []string{"--prefill-tls", "--engine-ca=" + caFile, name, ours}, remote, ""},
		{"system's authorities", served, nil, []string{"--prefill-tls", name}, local, "certificate signed by unknown authority"},
		{"another authority", foreign.own(t, "engine.invalid"), nil, []string{"--prefill-tls", "--engine-ca=" + caFile, name}, local,
			"certificate signed by unknown authority"},
		{"another name", ca.own(t, "other.invalid"), nil, []string{"--prefill-tls", "--engine-ca=" + caFile, name}, local,
			"certificate is valid for other.invalid, not engine.invalid"},
		{"another address", served, nil, []string{"--prefill-tls", "--engine-ca=" + caFile}, local, "cannot validate certificate for 127.0.0.1"},
		{"expired", ca.issue(t, t.TempDir(), "engine.invalid", time.Now().Add(-time.Hour)), nil,
			[]string{"--prefill-tls", "--engine-ca=" + caFile, name}, local, "certificate has expired"},
		{"no certificate of ours", served, &ca, []string{"--prefill-tls", "--engine-ca=" + caFile, name}, local, ""},
		{"another authority's of ours", served, &ca, []string{"--prefill-tls", "--engine-ca=" + caFile, name,
			"--engine-client-cert=" + foreign.own(t, "sidecar.invalid")}, local, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := harness.StartSidecar(t, decode.Addr, c.flags...)
			q := (&harness.Pair{TokenIDs: [2]int{300, 1000}}).Fresh(2 * harness.Threshold)
			got := harness.MustSend(t, harness.Call{API: pd.APICompletions, Prompt: q, Tokens: 4}.Remote(behindTLS(t, prefill.Addr, c.served, c.clients)), s.Addr("http"), model)
			if got.Status != http.StatusOK || harness.Planned(got) != c.want {
				t.Errorf("status %d, decision %q, want %q: %s", got.Status, harness.Planned(got), c.want, got.Body)
			}
			if said := strings.Join(s.Output(), "\n"); !strings.Contains(said, c.told) {
				t.Errorf("the log does not say %q:\n%s", c.told, said)
			}
		})
	}
	t.Run("decode", func(t *testing.T) {
		s := harness.StartSidecar(t, behindTLS(t, decode.Addr, served, &ca), "--enable-tls=decoder", "--engine-ca="+caFile, name, ours)
		if got := harness.MustSend(t, harness.Call{API: pd.APICompletions, Text: "a", Tokens: 1}, s.Addr("http"), model); got.Status != http.StatusOK {
			t.Errorf("status %d %s", got.Status, got.Body)
		}
		if status, text := harness.FetchPage(t, "http://"+s.Addr("http")+"/metrics"); status != http.StatusOK || !strings.Contains(text, "vllm:") {
			t.Errorf("the engine's metrics: %d %.100s", status, text)
		}
		if status, text := harness.FetchPage(t, "http://"+s.Addr("metrics")+"/readyz"); status != http.StatusOK {
			t.Errorf("readiness: %d %s", status, text)
		}
	})
}

// TestSecurityCertificatesAreRenewed changes the authority, the engine's certificate and the sidecar's own while all run.
func TestSecurityCertificatesAreRenewed(t *testing.T) {
	before, after := newAuthority(t), newAuthority(t)
	prefill, decode := harness.StartSim(t, "prefill", "--role=prefill"), harness.StartSim(t, "decode", "--role=decode")
	f := &harness.Fleet{}
	var err error
	if f.Model, err = harness.DecodeModel(decode.Addr); err != nil {
		t.Fatal(err)
	}
	caFile, ours, theirs := before.file(t), before.own(t, "sidecar.invalid"), before.own(t, "engine.invalid")
	s := harness.StartSidecar(t, decode.Addr, "--prefill-tls", "--engine-ca="+caFile, "--engine-client-cert="+ours,
		"--engine-server-name=engine.invalid", "--fallback-burst=100000")
	first, second := behindTLS(t, prefill.Addr, theirs, &before), behindTLS(t, prefill.Addr, theirs, &after)
	ask := func(engine string) string {
		q := harness.Call{API: pd.APICompletions, Prompt: f.Fresh(2 * harness.Threshold), Tokens: 2}.Remote(engine)
		return harness.Planned(harness.MustSend(t, q, s.Addr("http"), f.Model))
	}
	const remote, local = "remote;reason=external", "local;reason=prefill-failed"
	if a, b := ask(first), ask(second); a != remote || b != local {
		t.Fatalf("before: %q and %q", a, b)
	}
	after.write(t, caFile)
	after.issue(t, theirs, "engine.invalid", time.Now().Add(time.Hour))
	after.issue(t, ours, "sidecar.invalid", time.Now().Add(time.Hour))
	f.Eventually(t, "the new authority's engine is asked", func() (string, bool) { got := ask(second); return got, got == remote })
	if got := ask(first); got != local {
		t.Errorf("an engine that takes the old certificates only: %q", got)
	}
	harness.Replace(t, caFile, "torn")
	f.Eventually(t, "the torn file is told of", func() (string, bool) {
		got := ask(second)
		said := strings.Contains(strings.Join(s.Output(), "\n"), "certificate authorities not reloaded")
		return got, said && got == remote
	})
}

// TestSecurityMutualTLS has Envoy, the picker and the sidecar show certificates to each other. Other clients are refused.
func TestSecurityMutualTLS(t *testing.T) {
	ca, foreign := newAuthority(t), newAuthority(t)
	caFile := ca.file(t)
	front, stranger := ca.own(t, "front.invalid"), foreign.own(t, "front.invalid")
	f := harness.NewFleet(t, 1, 0)
	decode := harness.StartSim(t, "decode", "--role=decode")
	sidecar := harness.StartSidecar(t, decode.Addr, "--secure-serving", "--cert-path="+ca.own(t, "sidecar.invalid"), "--client-ca="+caFile)
	f.Decode = append(f.Decode, harness.DecodePod{Engine: decode, Sidecar: sidecar})
	f.WriteEndpoints(t)
	f.StartPicker(t, "--secure-serving", "--cert-path="+ca.own(t, "epp.invalid"), "--client-ca="+caFile)
	flags := []string{"--epp-plaintext=false", "--epp-ca=" + caFile, "--epp-server-name=epp.invalid",
		"--pool-tls", "--pool-ca=" + caFile, "--pool-server-name=sidecar.invalid"}
	for _, c := range []struct {
		name, cert string
		status     int
	}{
		{"shown", front, http.StatusOK}, {"not shown", "", http.StatusServiceUnavailable}, {"another authority's", stranger, http.StatusServiceUnavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := flags
			if c.cert != "" {
				all = append(all[:len(all):len(all)], "--client-cert-path="+c.cert)
			}
			f.Hasty = c.status != http.StatusOK
			f.StartFront(t, harness.Layout{Proxy: "envoy", Mode: "pair"}, all...)
			q := f.TokensCall(2*harness.Threshold, false)
			got := f.Send(t, q)
			if got.Status != c.status {
				t.Fatalf("status %d %s", got.Status, got.Body)
			}
			if c.status == http.StatusOK {
				harness.MustMatch(t, got, false, f.Want(t, q))
			}
		})
	}
	t.Run("past Envoy", func(t *testing.T) {
		for _, c := range []struct {
			name, dir string
			served    bool
		}{{"a certificate", front, true}, {"none", "", false}, {"another authority's", stranger, false}} {
			config := &tls.Config{InsecureSkipVerify: true}
			if c.dir != "" {
				pair, err := tls.LoadX509KeyPair(filepath.Join(c.dir, "tls.crt"), filepath.Join(c.dir, "tls.key"))
				if err != nil {
					t.Fatal(err)
				}
				config.Certificates = []tls.Certificate{pair}
			}
			by := &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}
			req, err := http.NewRequestWithContext(harness.Within(t), http.MethodPost, "https://"+sidecar.Addr("http")+pd.APICompletions.Path(),
				bytes.NewReader(f.TokensCall(10, false).Body(f.Model)))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := by.RoundTrip(req)
			if err == nil {
				resp.Body.Close()
			}
			if (err == nil) != c.served || !c.served && !strings.Contains(err.Error(), "tls: ") {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	})
	t.Run("renewed in Envoy", func(t *testing.T) {
		dir := t.TempDir()
		foreign.issue(t, dir, "front.invalid", time.Now().Add(time.Hour))
		resource, err := harness.Output("tandem", "envoy-config", "--write=client-certificate", "--epp-plaintext=false", "--client-cert-path="+dir)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "own.yaml")
		if err := os.WriteFile(file, []byte(resource), 0o600); err != nil {
			t.Fatal(err)
		}
		f.Hasty = true
		f.StartFront(t, harness.Layout{Proxy: "envoy", Mode: "pair"}, append(flags[:len(flags):len(flags)], "--client-cert-path="+dir, "--client-cert-file="+file)...)
		q := f.TokensCall(10, false)
		if got := f.Send(t, q); got.Status != http.StatusServiceUnavailable {
			t.Fatalf("status %d with a stranger's certificate", got.Status)
		}
		ca.issue(t, dir, "front.invalid", time.Now().Add(time.Hour))
		f.Eventually(t, "Envoy shows the new certificate", func() (string, bool) {
			got := f.Send(t, q)
			return http.StatusText(got.Status), got.Status == http.StatusOK
		})
	})
}
