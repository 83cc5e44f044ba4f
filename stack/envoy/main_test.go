package envoy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/stack/envoy"
)

// playVariable makes the test binary start an Envoy and wait until it is killed.
const playVariable = "ENVOY_TEST_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(playVariable) != "" {
		os.Exit(parent())
	}
	goleak.VerifyTestMain(m)
}

func parent() int {
	e, err := envoy.Start(context.Background(), bootstrap)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(e.Admin())
	select {}
}

// bootstrap has a listener that answers every request itself.
var bootstrap = []byte(`
admin: { address: { socket_address: { address: 127.0.0.1, port_value: 0 } } }
static_resources:
  listeners:
  - name: front
    address: { socket_address: { address: 127.0.0.1, port_value: 0 } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          route_config:
            virtual_hosts: [ { name: all, domains: [ "*" ], routes: [ { match: { prefix: "/" }, direct_response: { status: 204 } } ] } ]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
  clusters:
  - name: pool
    type: STATIC
    load_assignment:
      cluster_name: pool
      endpoints: [ { lb_endpoints: [ { endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 8001 } } } } ] } ]
`)

func start(t *testing.T) *envoy.Envoy {
	t.Helper()
	envoy.Require(t)
	e, err := envoy.Start(t.Context(), bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Stop() })
	return e
}

func TestRun(t *testing.T) {
	e := start(t)
	address, err := e.Listener(t.Context(), "front")
	if err != nil {
		t.Fatal(err)
	}
	a, err := http.Get("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	a.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	stats, err := e.Stats(t.Context(), `^http\.front\.downstream_rq_2xx$`)
	if err != nil || len(stats) != 1 || stats["http.front.downstream_rq_2xx"] != 1 {
		t.Errorf("statistics %v, %v", stats, err)
	}
	if hosts, err := e.Hosts(t.Context(), "pool"); err != nil || len(hosts) != 1 || hosts[0] != "127.0.0.1:8001" {
		t.Errorf("hosts %q, %v", hosts, err)
	}
	if _, err := e.Listener(t.Context(), "back"); err == nil || !strings.Contains(err.Error(), `"back"`) {
		t.Errorf("error %v", err)
	}
	if err := e.Stop(); err != nil {
		t.Error(err)
	}
	if err := e.Wait(); err != nil {
		t.Errorf("it was asked to end, but: %v", err)
	}
	if _, err := e.Stats(t.Context(), "."); err == nil {
		t.Error("it answers after its end")
	}
}

func TestUnaskedEnd(t *testing.T) {
	e := start(t)
	if version, err := e.Version(t.Context()); err != nil || strings.Count(version, ".") != 2 {
		t.Errorf("version %q, %v", version, err)
	}
	if err := syscall.Kill(e.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := e.Wait(); err == nil || !strings.HasPrefix(err.Error(), "envoy ended: killed by SIGKILL") || e.Name() != "envoy" {
		t.Errorf("error %v", err)
	}
	if err := e.Stop(); err == nil || !strings.Contains(err.Error(), "killed by SIGKILL") {
		t.Errorf("stopping what has died: %v", err)
	}
}

func TestBadBootstrap(t *testing.T) {
	envoy.Require(t)
	bad := []byte("static_resources: { nonsense: 1 }")
	if _, err := envoy.Start(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("error %v does not say why", err)
	}
	if err := envoy.Validate(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("error %v does not say why", err)
	}
	if err := envoy.Validate(t.Context(), bootstrap); err != nil {
		t.Error(err)
	}
}

func TestStartIsCancelled(t *testing.T) {
	envoy.Require(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := envoy.Start(ctx, bootstrap); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestFind(t *testing.T) {
	mine := filepath.Join(t.TempDir(), "envoy")
	if err := os.WriteFile(mine, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	t.Setenv("ENVOY_BIN", mine)
	if path, err := envoy.Find(); err != nil || path != mine {
		t.Errorf("found %q, %v", path, err)
	}
	t.Setenv("ENVOY_BIN", mine+"x")
	if _, err := envoy.Find(); err == nil || !strings.Contains(err.Error(), "ENVOY_BIN") {
		t.Errorf("error %v", err)
	}
	t.Setenv("ENVOY_BIN", "")
	t.Setenv("PATH", filepath.Dir(mine))
	if path, err := envoy.Find(); err != nil || path != mine {
		t.Errorf("found %q, %v", path, err)
	}
	t.Setenv("PATH", "")
	if _, err := envoy.Find(); err == nil || !strings.Contains(err.Error(), "make .tools/envoy") {
		t.Errorf("error %v does not help", err)
	}
}

// verdict stores what Require reports.
type verdict struct{ said string }

func (v *verdict) Helper()      {}
func (v *verdict) Fatal(...any) { v.said = "fatal" }
func (v *verdict) Skip(...any)  { v.said = "skip" }

func TestRequire(t *testing.T) {
	t.Setenv("ENVOY_BIN", filepath.Join(t.TempDir(), "none"))
	for ci, want := range map[string]string{"": "skip", "true": "fatal"} {
		t.Setenv("CI", ci)
		var v verdict
		envoy.Require(&v)
		if v.said != want {
			t.Errorf("CI=%q: %q, want %q", ci, v.said, want)
		}
	}
}

// An Envoy ends with the test that started it, even if the test is killed.
func TestDiesWithItsParent(t *testing.T) {
	envoy.Require(t)
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), playVariable+"=1", "TMPDIR="+t.TempDir())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	admin, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the kill is its error
	transport := &http.Transport{DisableKeepAlives: true}
	for t.Context().Err() == nil {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+strings.TrimSpace(admin)+"/ready", nil)
		if err != nil {
			t.Fatal(err)
		}
		a, err := transport.RoundTrip(r)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
		if err == nil {
			a.Body.Close()
		}
	}
}
