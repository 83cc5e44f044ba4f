package main

import (
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/extproc"
)

func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"epp": func() { boot.Main(run) }})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }

// TestForeignFlags holds the answer to every flag of llm-d's picker, and of its older documents.
func TestForeignFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, string(config.Default()))
	taken := []string{"--grpc-port=9002", "--grpc-health-port=9003", "--metrics-port=9090", "--grpc-max-recv-msg-size=1", "--grpc-max-send-msg-size=1",
		"--disable-endpoint-subset-filter", "--refresh-metrics-interval=50ms", "--refresh-prometheus-metrics-interval=5s",
		"--metrics-staleness-threshold=2s", "--drain-timeout=30s", "--tracing=false", "--health-checking", "--enable-pprof=false",
		"--enable-cert-reload", "--secure-serving=false", "--tls-min-version=VersionTLS12", "--metrics-endpoint-auth=false",
		"--enable-grpc-stream-metrics", "--config-file=" + file, "--config-text=" + string(config.Default()), "--allow-experimental-plugins", "--v=2", "--zap-log-level=1",
		"--zap-encoder=json", "--total-queued-requests-metric=m", "--kv-cache-usage-percentage-metric=m", "--lora-info-metric=m"}
	refused := []string{"--pool-group=g", "--pool-namespace=n", "--pool-name=p", "--endpoint-selector=a=b", "--endpoint-target-ports=8000",
		"--emit-endpoint-scores", "--ha-enable-leader-election", "--tls-cipher-suites=x", "--metrics-client-ca-file=f", "--metrics-cert-dir=d"}
	for _, f := range taken {
		cfg := defaults()
		if _, err := program.Load(boot.IO{Name: "epp", Stderr: io.Discard}, &cfg, []string{f}); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
	for _, f := range refused {
		cfg := defaults()
		_, err := program.Load(boot.IO{Name: "epp", Stderr: io.Discard}, &cfg, []string{f})
		if exit, ok := errors.AsType[boot.Exit](err); !ok || exit.Code != boot.CodeUsage {
			t.Errorf("%s: %v, want a refusal with exit code %d", f, err, boot.CodeUsage)
		}
	}
}

// TestFront holds that the flags of the front door reach it.
func TestFront(t *testing.T) {
	cfg := defaults()
	args := []string{"--body-limit=2MiB", "--body-timeout=7s", "--pd-header=off", "--disable-endpoint-subset-filter", "--single-endpoint", "--clear-route-cache"}
	if _, err := program.Load(boot.IO{Name: "epp", Stderr: io.Discard}, &cfg, args); err != nil {
		t.Fatal(err)
	}
	want := extproc.Defaults()
	want.BodyLimit, want.BodyPause, want.Auth = 2<<20, 7*time.Second, "secret"
	want.PDHeader, want.Subset, want.SingleEndpoint, want.ClearRouteCache = false, false, true, true
	if got := cfg.front("secret"); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
