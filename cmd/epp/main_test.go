package main

import (
	"crypto/tls"
	"io"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
	"github.com/tandem-serving/tandem/cmd/internal/flagpage"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/extproc"
)

func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"epp": func() { boot.Main(run) }})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }

// TestFlagsPage checks what docs/flags.md says about llm-d's flags.
func TestFlagsPage(t *testing.T) {
	page, err := filepath.Abs("../../docs/flags.md")
	must(t, err)
	t.Chdir(t.TempDir())
	boottest.KeyPair(t, "certs", 1)
	write(t, "config.yaml", string(config.Default()))
	flagpage.Check(t, page, "llm-d's picker", settings{}, func(std boot.IO, args []string) error {
		cfg := defaults()
		_, err := program.Load(std, &cfg, args)
		return err
	})
}

// TestExtProcFlags checks that the flags of the ext-proc server reach it.
func TestExtProcFlags(t *testing.T) {
	cfg := defaults()
	args := []string{"--body-limit=2MiB", "--buffer-limit=8MiB", "--body-timeout=7s", "--pd-header=off", "--disable-endpoint-subset-filter", "--single-endpoint", "--clear-route-cache", "--tandem-headers=known"}
	if _, err := program.Load(boot.IO{Name: "epp", Stderr: io.Discard}, &cfg, args); err != nil {
		t.Fatal(err)
	}
	want := extproc.Defaults()
	want.BodyLimit, want.BufferLimit, want.BodyPause = 2<<20, 8<<20, 7*time.Second
	want.PDHeader, want.Subset, want.SingleEndpoint, want.ClearRouteCache, want.AllTakePlans = false, false, true, true, false
	if got := cfg.extproc(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestHandshakeFlags: the flags that restrict TLS reach the ext-proc port.
func TestHandshakeFlags(t *testing.T) {
	const small, chacha = tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
	for _, c := range []struct {
		name   string
		flag   string
		suite  uint16 // the only one that the gateway offers, with TLS 1.2
		served bool
	}{
		{"by default", "--tls-min-version=VersionTLS12", chacha, true},
		{"TLS 1.3 only", "--tls-min-version=VersionTLS13", chacha, false},
		{"a suite that is named", "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", small, true},
		{"a suite that is not named", "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", chacha, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, "--secure-serving", c.flag)
			conn, err := tls.Dial("tcp", s.addresses["extproc"], &tls.Config{InsecureSkipVerify: true, // the certificate is not what is tested
				NextProtos: []string{"h2"}, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{c.suite}})
			if err == nil {
				err = conn.Close()
			}
			if (err == nil) != c.served {
				t.Errorf("the handshake ends with %v, want success: %v", err, c.served)
			}
		})
	}
}
