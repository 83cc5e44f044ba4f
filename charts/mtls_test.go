package charts_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tandem-serving/tandem/stack"
	"github.com/tandem-serving/tandem/stack/envoy"
)

// mutual is a release of testdata/values/mtls.yaml whose programs run on loopback, with the arguments, files and certificates that the chart
// gives them. Engines are simulated.
type mutual struct {
	all                    objects
	sidecar, picker, proxy string // where clients of their main ports connect to
	probes                 string // the sidecar's metrics port
	endpoints              string // file
}

func startMutual(t *testing.T) mutual {
	t.Helper()
	envoy.Require(t)
	m := mutual{all: render(t, cases(t)["mtls"]...)}
	args, env, _ := m.container(t, "sidecar")
	blocks := strings.Replace(args[slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--prefill-block-size=") })], "prefill-", "", 1)
	engine := func(role string) *stack.Process {
		return m.start(t, stack.Sim(filepath.Dir(program(t, "sim")), role, "--role="+role, "--served-model-name=tiny", blocks))
	}
	decode, prefill := engine("decode"), engine("prefill")
	_, port, err := net.SplitHostPort(address(t, decode, "http"))
	if err != nil {
		t.Fatal(err)
	}
	sidecar := m.start(t, stack.Program{Name: "sidecar", Path: program(t, "sidecar"), Env: env, Args: append(args, "--host=127.0.0.1", "--port=0",
		"--metrics-port=0", "--admin-address=127.0.0.1:0", "--model-server-port="+port, "--prefill-allow-loopback")})
	m.sidecar, m.probes = address(t, sidecar, "http"), address(t, sidecar, "metrics")

	m.endpoints = filepath.Join(t.TempDir(), "endpoints.yaml")
	list := "endpoints:\n"
	for role, at := range map[string]string{"decode": m.sidecar, "prefill": behindTLS(t, address(t, prefill, "http"))} {
		_, port, err := net.SplitHostPort(at)
		if err != nil {
			t.Fatal(err)
		}
		list += fmt.Sprintf("- {name: %s-0, address: 127.0.0.1, port: %q, labels: {llm-d.ai/role: %s}}\n", role, port, role)
	}
	if err := os.WriteFile(m.endpoints, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	args, env, _ = m.container(t, "epp")
	args = slices.DeleteFunc(args, func(arg string) bool { // there is no cluster to find pods in
		return strings.HasPrefix(arg, "--endpoint-") || strings.HasPrefix(arg, "--pool-namespace=")
	})
	picker := m.start(t, stack.Program{Name: "epp", Path: program(t, "epp"), Env: env, Args: append(args, "--endpoints-file="+m.endpoints,
		"--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--admin-address=127.0.0.1:0", "--share-address=127.0.0.1:0")})
	m.picker = address(t, picker, "extproc")
	m.proxy = m.startProxy(t)
	return m
}

// start starts a program until the test ends.
func (m mutual) start(t *testing.T, program stack.Program) *stack.Process {
	t.Helper()
	program.ReadyTimeout = patience
	p, err := stack.Start(t.Context(), program)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", p.Name(), strings.Join(p.Output(), "\n"))
		}
	})
	return p
}

func address(t *testing.T, p *stack.Process, purpose string) string {
	t.Helper()
	at, err := p.Address(purpose)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// container returns the arguments and the environment of a container with the files that its pod mounts.
func (m mutual) container(t *testing.T, name string) (args, env []string, files *strings.Replacer) {
	t.Helper()
	for _, pod := range m.all.pods(t) {
		for _, c := range containers(t, pod) {
			if c["name"] != name {
				continue
			}
			files = mount(t, m.all, pod, c)
			args, _, err := unstructured.NestedStringSlice(c, "args")
			if err != nil {
				t.Fatal(err)
			}
			for i := range args {
				args[i] = files.Replace(args[i])
			}
			variables, _, err := unstructured.NestedSlice(c, "env")
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range variables {
				if value, ok := v.(map[string]any)["value"].(string); ok {
					env = append(env, v.(map[string]any)["name"].(string)+"="+files.Replace(value))
				}
			}
			return args, env, files
		}
	}
	t.Fatalf("no container is named %s", name)
	return nil, nil, nil
}

// startProxy starts Envoy with the release's bootstrap, and returns where clients reach it.
func (m mutual) startProxy(t *testing.T) string {
	t.Helper()
	_, _, files := m.container(t, "envoy")
	host, port, err := net.SplitHostPort(m.picker)
	if err != nil {
		t.Fatal(err)
	}
	here := strings.NewReplacer(`"0.0.0.0", port_value: 8080`, `"127.0.0.1", port_value: 0`, `"0.0.0.0", port_value: 9902`, `"127.0.0.1", port_value: 0`,
		`"127.0.0.1", port_value: 9901`, `"127.0.0.1", port_value: 0`,
		`"demo-tandem-epp-replicas.models.svc", port_value: 9002`, fmt.Sprintf("%q, port_value: %s", host, port))
	own := m.all.named(t, "ConfigMap", "-proxy")
	e, err := envoy.Start(t.Context(), []byte(here.Replace(files.Replace(data(t, own, "envoy.yaml")))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("Envoy said:\n%s", e.Log())
		}
	})
	at, err := e.Listener(t.Context(), "tandem")
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// behindTLS puts TLS before an engine. Clients must show a certificate of the authority of all Secrets.
func behindTLS(t *testing.T, engine string) string {
	t.Helper()
	server := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: engine}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pairOf(t, authority().issue())}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority().pool}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func pairOf(t *testing.T, secret map[string]string) tls.Certificate {
	t.Helper()
	pair, err := tls.X509KeyPair([]byte(secret["tls.crt"]), []byte(secret["tls.key"]))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// client returns an HTTP client that shows a certificate, if there is one.
func client(t *testing.T, shown ...tls.Certificate) *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: shown}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// request asks for a completion whose prompt a prefill engine is to compute.
func request(ctx context.Context, t *testing.T, by *http.Client, url string) (*http.Response, error) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": "tiny", "max_tokens": 4, "prompt": strings.Repeat("Hello, how do you do? ", 100)})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("x-tandem-pd", "force")
	return by.Do(r)
}

// TestMutualTLS runs a release with tls.clients: a request passes Envoy, picker, sidecar and prefill engine, all of which but Envoy demand
// certificates; a client without one is refused by picker and sidecar; probes, Prometheus and helm test work.
func TestMutualTLS(t *testing.T) {
	m := startMutual(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	t.Run("a request", func(t *testing.T) {
		got, err := request(ctx, t, client(t), "http://"+m.proxy)
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		if decision := got.Header.Get("x-tandem-pd-decision"); got.StatusCode != http.StatusOK || !strings.HasPrefix(decision, "remote") {
			text, _ := io.ReadAll(got.Body)
			t.Errorf("%s, decision %q: %s", got.Status, decision, text)
		}
	})
	for name, at := range map[string]string{"sidecar": m.sidecar, "picker": m.picker} {
		t.Run("clients of the "+name, func(t *testing.T) {
			for _, c := range []struct {
				name   string
				shown  []tls.Certificate
				served bool
			}{
				{"of the authority", []tls.Certificate{pairOf(t, authority().issue())}, true},
				{"without a certificate", nil, false},
				{"of another authority", []tls.Certificate{pairOf(t, newAuthority().issue())}, false},
			} {
				if err := converses(ctx, at, c.shown); (err == nil) != c.served || !c.served && !strings.Contains(err.Error(), "tls: ") {
					t.Errorf("%s: %v", c.name, err)
				}
			}
		})
	}
	t.Run("probes of the decode engine", func(t *testing.T) {
		pod := podOf(t, m.all, "-decode")
		engine := pod.Spec.Containers[0]
		for _, probe := range []struct {
			of   string
			path string
			port int32
		}{
			{"startup", engine.StartupProbe.HTTPGet.Path, engine.StartupProbe.HTTPGet.Port.IntVal},
			{"readiness", engine.ReadinessProbe.HTTPGet.Path, engine.ReadinessProbe.HTTPGet.Port.IntVal},
			{"liveness", engine.LivenessProbe.HTTPGet.Path, engine.LivenessProbe.HTTPGet.Port.IntVal},
		} {
			if probe.port != 9095 {
				t.Errorf("the %s probe asks port %d, want that of the sidecar's metrics", probe.of, probe.port)
			}
			got, err := client(t).Get("http://" + m.probes + probe.path)
			if err != nil {
				t.Fatal(err)
			}
			got.Body.Close()
			if got.StatusCode != http.StatusOK {
				t.Errorf("the %s probe %s: %s", probe.of, probe.path, got.Status)
			}
		}
	})
	t.Run("Prometheus", func(t *testing.T) {
		got, err := client(t, pairOf(t, authority().issue())).Get("https://" + m.sidecar + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer got.Body.Close()
		if text, err := io.ReadAll(got.Body); err != nil || !bytes.Contains(text, []byte("vllm:")) {
			t.Errorf("%v %.200s", err, text)
		}
	})
	t.Run("helm test", func(t *testing.T) {
		args, _, _ := m.container(t, "doctor")
		shown := args[slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--client-cert-path=") })]
		doctor := func(more ...string) string {
			// Findings make it fail that are about simulated engines: what it prints is looked at.
			out, _ := exec.CommandContext(ctx, program(t, "tandem"), append([]string{"doctor", "--endpoints-file=" + m.endpoints, "--epp=" + m.picker,
				"--sidecar-metrics=" + m.probes, "--idle-wait=0"}, more...)...).CombinedOutput()
			return string(out)
		}
		const all = "endpoints      2, and all answer"
		if said := doctor(shown); !strings.Contains(said, all) || strings.Contains(said, "FAIL     tls") {
			t.Errorf("with a certificate:\n%s", said)
		}
		if said := doctor(); strings.Contains(said, all) {
			t.Errorf("without one:\n%s", said)
		}
	})
}

// converses makes a TLS connection to an HTTP/2 or HTTP/1.1 server, and waits for it to answer: with TLS 1.3 a client learns only then that its
// certificate is refused.
func converses(ctx context.Context, at string, shown []tls.Certificate) error {
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, Certificates: shown, NextProtos: []string{"h2"}}}
	conn, err := dialer.DialContext(ctx, "tcp", at)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")); err != nil { // with empty settings
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 9)) // the header of the server's settings
	return err
}
