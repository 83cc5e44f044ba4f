package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
)

// container has the fields of a container that the test needs.
type container struct {
	Name string
	Args []string
}

// routingProxies returns the arguments of all routing proxies in a file of Deployments, by the Deployment's name.
func routingProxies(t *testing.T, file string) map[string][]string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	for objects := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var deployment struct {
			Metadata struct{ Name string }
			Spec     struct {
				Template struct {
					Spec struct {
						InitContainers []container `yaml:"initContainers"`
					}
				}
			}
		}
		if err := objects.Decode(&deployment); errors.Is(err, io.EOF) {
			return found
		} else if err != nil {
			t.Fatal(err)
		}
		for _, c := range deployment.Spec.Template.Spec.InitContainers {
			if c.Name == "routing-proxy" {
				found[deployment.Metadata.Name] = c.Args
			}
		}
	}
}

// TestInPlaceOfLLMD starts the sidecar with the arguments of the sidecars in llm-d's decode pods.
func TestInPlaceOfLLMD(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) }))
	defer engine.Close()
	at, err := url.Parse(engine.URL)
	if err != nil {
		t.Fatal(err)
	}
	all := routingProxies(t, "testdata/llm-d/decode.yaml")
	if len(all) != 2 {
		t.Fatalf("found the routing proxies of %v", all)
	}
	for name, args := range all {
		t.Run(name, func(t *testing.T) {
			var told bytes.Buffer
			std := boot.IO{Name: "sidecar", Stdout: io.Discard, Stderr: &told}
			if code := boot.Run(t.Context(), std, append(slices.Clone(args), "--check"), run); code != boot.CodeOK {
				t.Fatalf("a check of %q ends with %d: %s", args, code, &told)
			}
			addresses, end := serving(t, append(slices.Clone(args), "--host=127.0.0.1", "--port=0", "--metrics-port=0", "--admin-address=127.0.0.1:0",
				"--model-server-port="+at.Port()))
			defer end()
			answer, err := http.Get("http://" + addresses["http"] + "/v1/models") // the request of the pod's probes
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			defer http.DefaultClient.CloseIdleConnections()
			if text, err := io.ReadAll(answer.Body); err != nil || string(text) != "/v1/models" {
				t.Errorf("got %q, %v", text, err)
			}
		})
	}
}

// TestMetricsOverTLS: with llm-d's flag the metrics port, and the probes on it, have the certificate of the directory; the data port
// stays plaintext.
func TestMetricsOverTLS(t *testing.T) {
	dir := t.TempDir()
	boottest.KeyPair(t, dir, 7)
	addresses, end := serving(t, []string{"--host=127.0.0.1", "--port=0", "--metrics-port=0", "--admin-address=127.0.0.1:0",
		"--model-server-port=1", "--metrics-cert-dir=" + dir, "--answer-health"})
	defer end()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // the test compares the certificate itself
	defer transport.CloseIdleConnections()
	for _, url := range []string{"https://" + addresses["metrics"] + "/metrics", "https://" + addresses["metrics"] + "/livez",
		"http://" + addresses["http"] + "/health"} {
		answer, err := (&http.Client{Transport: transport}).Get(url)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", url, answer.Status)
		}
		if answer.TLS != nil && answer.TLS.PeerCertificates[0].SerialNumber.Int64() != 7 {
			t.Errorf("%s shows another certificate: %v", url, answer.TLS.PeerCertificates[0].SerialNumber)
		}
	}
}

// TestEngineProbes: kubelets, which have no certificate for the data port, read on the metrics port whether the engine is ready and lives.
func TestEngineProbes(t *testing.T) {
	const up, down = http.StatusOK, http.StatusServiceUnavailable
	for _, c := range []struct {
		name, connector string
		health, ready   int // of the engine
		livez, readyz   int // want
	}{
		{"vLLM", "nixlv2", up, http.StatusNotFound, up, up},
		{"vLLM that loads", "nixlv2", down, http.StatusNotFound, down, down},
		{"SGLang", "sglang", up, up, up, up},
		{"SGLang with a scheduler that hangs", "sglang", down, up, down, up},
		{"SGLang that loads", "sglang", up, down, up, down},
	} {
		t.Run(c.name, func(t *testing.T) {
			engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/health":
					w.WriteHeader(c.health)
				case "/ready":
					w.WriteHeader(c.ready)
				}
			}))
			defer engine.Close()
			at, err := url.Parse(engine.URL)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			boottest.KeyPair(t, dir, 7)
			addresses, end := serving(t, []string{"--host=127.0.0.1", "--port=0", "--metrics-port=0", "--admin-address=127.0.0.1:0",
				"--model-server-port=" + at.Port(), "--kv-connector=" + c.connector, "--secure-serving", "--cert-path=" + dir,
				"--client-ca=" + filepath.Join(dir, "tls.crt")})
			defer end()
			defer http.DefaultClient.CloseIdleConnections()
			for path, want := range map[string]int{"/engine/livez": c.livez, "/engine/readyz": c.readyz} {
				answer, err := http.Get("http://" + addresses["metrics"] + path)
				if err != nil {
					t.Fatal(err)
				}
				answer.Body.Close()
				if answer.StatusCode != want {
					t.Errorf("%s: %s, want %d", path, answer.Status, want)
				}
			}
		})
	}
}

// TestHandshakeFlags: the flags that restrict TLS reach the data port.
func TestHandshakeFlags(t *testing.T) {
	const small, chacha = tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
	for _, c := range []struct {
		name   string
		flag   string
		suite  uint16 // the only one that the client offers, with TLS 1.2
		served bool
	}{
		{"by default", "--tls-min-version=VersionTLS12", chacha, true},
		{"TLS 1.3 only", "--tls-min-version=VersionTLS13", chacha, false},
		{"a suite that is named", "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", small, true},
		{"a suite that is not named", "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", chacha, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			addresses, end := serving(t, []string{"--host=127.0.0.1", "--port=0", "--metrics-port=0", "--admin-address=127.0.0.1:0",
				"--model-server-port=1", "--secure-serving", c.flag})
			defer end()
			conn, err := tls.Dial("tcp", addresses["http"], &tls.Config{InsecureSkipVerify: true, // the certificate is not what is tested
				MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{c.suite}})
			if err == nil {
				err = conn.Close()
			}
			if (err == nil) != c.served {
				t.Errorf("the handshake ends with %v, want success: %v", err, c.served)
			}
		})
	}
}

// serving runs a sidecar until end is called, and returns the addresses of its ports.
func serving(t *testing.T, args []string) (addresses map[string]string, end func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	line, stdout := io.Pipe()
	ended := make(chan int, 1)
	var told bytes.Buffer
	go func() {
		ended <- boot.Run(ctx, boot.IO{Name: "sidecar", Stdout: stdout, Stderr: &told}, args, run)
		stdout.Close()
	}()
	text, err := bufio.NewReader(line).ReadBytes('\n')
	var ready struct{ Addresses map[string]string }
	if err == nil {
		err = json.Unmarshal(text, &ready)
	}
	end = func() {
		stop()
		if code := <-ended; code != boot.CodeOK {
			t.Errorf("the sidecar ended with %d: %s", code, &told)
		}
	}
	if err != nil {
		end()
		t.Fatal(err)
	}
	return ready.Addresses, end
}
