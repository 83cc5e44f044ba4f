package pool

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp/pool/page"
)

func TestSourceProblems(t *testing.T) {
	cases := []struct {
		name   string
		change func(*Source)
		want   string
	}{
		{"defaults", func(*Source) {}, ""},
		{"https with a query", func(s *Source) { s.Scheme, s.Path = "https", "/m?a=b" }, ""},
		{"scheme", func(s *Source) { s.Scheme = "ftp" }, `scheme: must be http or https, got "ftp"`},
		{"no path", func(s *Source) { s.Path = "" }, "path: must be a URL path"},
		{"relative path", func(s *Source) { s.Path = "metrics" }, "path: must be a URL path"},
		{"another host", func(s *Source) { s.Path = "http://elsewhere/metrics" }, "path: must be a URL path"},
		{"port", func(s *Source) { s.Port = 65536 }, "port: must be from 0"},
		{"certificate without key", func(s *Source) { s.ClientCertPath = "c.pem" }, "clientKeyPath: "},
		{"key without certificate", func(s *Source) { s.ClientKeyPath = "k.pem" }, "clientKeyPath: "},
		{"interval", func(s *Source) { s.Interval = -1 }, "interval: must not be negative"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := DefaultSource()
			c.change(&s)
			got := problemsOf(&s)
			if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], c.want)) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if _, err := s.transport(time.Second); (err != nil) != (c.want != "") {
				t.Errorf("making the transport: %v", err)
			}
		})
	}
}

func TestSourceRequest(t *testing.T) {
	cases := []struct {
		name, hostport string
		port           int
		want           string // "" = refused
	}{
		{"own port", "10.0.0.1:8000", 0, "http://10.0.0.1:8000/metrics"},
		{"other port", "10.0.0.1:8000", 9100, "http://10.0.0.1:9100/metrics"},
		{"IPv6", "[2001:db8::1]:8000", 0, "http://[2001:db8::1]:8000/metrics"},
		{"IPv6, other port", "[2001:db8::1]:8000", 9100, "http://[2001:db8::1]:9100/metrics"},
		{"name", "node-exporter:9100", 0, "http://node-exporter:9100/metrics"},
		{"no port", "10.0.0.1", 0, ""},
		{"port 0", "10.0.0.1:0", 0, ""},
		{"no host", ":8000", 0, ""},
		{"a path", "host/x?:80", 0, ""},
		{"a user", "me@host:80", 0, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := DefaultSource()
			s.Port = c.port
			r, err := s.request(c.hostport)
			if (err != nil) != (c.want == "") || err == nil && r.URL.String() != c.want {
				t.Errorf("got %v, %v, want %q", r, err, c.want)
			}
		})
	}
}

func TestSourceCertificates(t *testing.T) {
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("vllm:num_requests_running 1\n"))
	}))
	engine.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	engine.Config.ErrorLog = quiet()
	engine.StartTLS()
	defer engine.Close()
	dir := t.TempDir()
	write := func(name string, blocks ...*pem.Block) string {
		var text []byte
		for _, b := range blocks {
			text = append(text, pem.EncodeToMemory(b)...)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pair := selfSigned(t)
	ca := write("ca.pem", &pem.Block{Type: "CERTIFICATE", Bytes: engine.Certificate().Raw})
	cert, key := write("cert.pem", pair[0]), write("key.pem", pair[1])
	empty := write("empty.pem")
	cases := []struct {
		name   string
		change func(*Source)
		built  bool
		result string
	}{
		{"verified by our authority", func(s *Source) { s.InsecureSkipVerify, s.CACertPath = false, ca }, true, "ok"},
		{"not verified", func(*Source) {}, true, "ok"},
		{"unknown authority", func(s *Source) { s.InsecureSkipVerify = false }, true, "unreachable"},
		{"no client certificate", func(s *Source) { s.ClientCertPath, s.ClientKeyPath = "", "" }, true, "unreachable"},
		{"no such file", func(s *Source) { s.CACertPath = filepath.Join(dir, "none") }, false, ""},
		{"no certificate in the file", func(s *Source) { s.CACertPath = empty }, false, ""},
		{"no key in the file", func(s *Source) { s.ClientKeyPath = empty }, false, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := DefaultSource()
			s.Scheme, s.ClientCertPath, s.ClientKeyPath = "https", cert, key
			c.change(&s)
			p := New(Options{})
			err := p.Configure(nil, s, page.DefaultExtractor())
			if (err == nil) != c.built {
				t.Fatalf("configuring: %v", err)
			}
			if err == nil {
				defer p.closeConnections()
				_, err := scraperOf(p, engine.Listener.Addr().String()).read(t.Context())
				if got := resultOf(err); got != c.result {
					t.Errorf("got %s (%v), want %s", got, err, c.result)
				}
			}
		})
	}
}

// A client certificate that is renewed while the picker runs is shown at the next connection, and the last one while its files do not match.
func TestSourceCertificateIsRenewed(t *testing.T) {
	var shown []byte
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown = r.TLS.PeerCertificates[0].Raw
		_, _ = w.Write([]byte("vllm:num_requests_running 1\n"))
	}))
	engine.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	engine.Config.SetKeepAlivesEnabled(false) // each reading has a handshake
	engine.StartTLS()
	defer engine.Close()
	s, dir := DefaultSource(), t.TempDir()
	s.Scheme, s.ClientCertPath, s.ClientKeyPath = "https", filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	write := func(path string, block *pem.Block) {
		t.Helper()
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old, renewed := selfSigned(t), selfSigned(t)
	write(s.ClientCertPath, old[0])
	write(s.ClientKeyPath, old[1])
	p := New(Options{})
	if err := p.Configure(nil, s, page.DefaultExtractor()); err != nil {
		t.Fatal(err)
	}
	defer p.closeConnections()
	must := func(when string, want *pem.Block) {
		t.Helper()
		if _, err := scraperOf(p, engine.Listener.Addr().String()).read(t.Context()); err != nil || !bytes.Equal(shown, want.Bytes) {
			t.Errorf("%s: error %v, another certificate was shown: %v", when, err, !bytes.Equal(shown, want.Bytes))
		}
	}
	must("before", old[0])
	write(s.ClientCertPath, renewed[0])
	must("between the two files", old[0])
	write(s.ClientKeyPath, renewed[1])
	must("after", renewed[0])
}
