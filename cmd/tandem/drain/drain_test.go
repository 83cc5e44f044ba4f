package drain

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
	"github.com/tandem-serving/tandem/sidecar"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/stack/envoy"
)

func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"drain": func() { boot.Main(Run) }})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }

// running is a drain that runs in this process.
type running struct {
	lines *bufio.Scanner
	ended chan int
	err   bytes.Buffer
}

// drain starts the command with a short interval.
func drain(t *testing.T, args ...string) *running {
	t.Helper()
	r, w := io.Pipe()
	d := &running{lines: bufio.NewScanner(r), ended: make(chan int, 1)}
	args = append([]string{"--settle=0s", "--interval=5ms", "--timeout=30s"}, args...)
	go func() {
		code := boot.Run(context.Background(), boot.IO{Name: "drain", Stdout: w, Stderr: &d.err}, args, Run)
		w.Close()
		d.ended <- code
	}()
	t.Cleanup(func() { r.Close() })
	return d
}

// mustSay waits for a line that contains a text.
func (d *running) mustSay(t *testing.T, text string) {
	t.Helper()
	for d.lines.Scan() {
		if strings.Contains(d.lines.Text(), text) {
			return
		}
	}
	t.Fatalf("it did not say %q; exit %d: %s", text, <-d.ended, d.err.String())
}

// mustEnd waits for the end.
func (d *running) mustEnd(t *testing.T, code int, said string) {
	t.Helper()
	for d.lines.Scan() {
	}
	if got := <-d.ended; got != code || !strings.Contains(d.err.String(), said) {
		t.Errorf("exit %d, want %d: %s", got, code, d.err.String())
	}
}

// The streams of a sidecar leave before drain looks whether any are left.
func TestEvacuate(t *testing.T) {
	var asked atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("POST /evacuate", func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		open := 1 - min(asked.Load(), 1)
		fmt.Fprintf(w, "# TYPE tandem_open_requests gauge\ntandem_open_requests %d\n", open)
	})
	part := httptest.NewServer(mux)
	defer part.Close()
	addr := strings.TrimPrefix(part.URL, "http://")
	drain(t, "--sidecar="+addr, "--evacuate="+addr).mustEnd(t, 0, "")
	if asked.Load() != 1 {
		t.Errorf("asked %d times", asked.Load())
	}
	d := drain(t, "--sidecar="+addr, "--evacuate=127.0.0.1:1") // the sidecar has ended
	d.mustEnd(t, 0, "")
	d = drain(t, "--sidecar="+addr, "--evacuate="+strings.TrimPrefix(newEmptyServer(t), "http://"))
	d.mustSay(t, "cannot be drained: ")
	d.mustEnd(t, 0, "")
}

// A worker of a group asks for its leader by name: once the leader's pod is gone, no name server knows it.
func TestGone(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"refused":          {&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, true},
		"no such name":     {&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "decode-0.decode", IsNotFound: true}}, true},
		"no name server":   {&net.OpError{Op: "dial", Err: &net.DNSError{Err: "server misbehaving", Name: "decode-0.decode", IsTemporary: true}}, false},
		"no answer":        {context.DeadlineExceeded, false},
		"an answer at all": {nil, false},
	} {
		if got := gone(c.err); got != c.want {
			t.Errorf("%s: %v counts as gone: %t", name, c.err, got)
		}
	}
}

// newEmptyServer serves nothing, as the metrics port of a sidecar does at this path.
func newEmptyServer(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(s.Close)
	return s.URL
}

func startSim(t *testing.T, cfg sim.Config) *server.Server {
	t.Helper()
	s, err := server.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func addrOf(url string) string { return strings.TrimPrefix(url, "http://") }

// client closes its connections after each answer: idle ones would outlive the tests.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// ask sends a completion and returns the answer's body, which the caller reads or closes.
func ask(t *testing.T, ctx context.Context, url string, body map[string]any) io.ReadCloser {
	t.Helper()
	body["model"] = "tiny"
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	return resp.Body
}

// prefill runs a prefill leg and returns its hand-off, which no engine has pulled yet.
func prefill(t *testing.T, engine *server.Server) json.RawMessage {
	t.Helper()
	body := ask(t, t.Context(), engine.URL, map[string]any{"prompt": "a prompt of several blocks, " + strings.Repeat("on and on ", 20),
		"max_tokens": 1, "kv_transfer_params": map[string]any{"do_remote_decode": true}})
	var answer struct {
		Handoff json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.NewDecoder(body).Decode(&answer); err != nil || len(answer.Handoff) == 0 {
		t.Fatalf("hand-off %s, %v", answer.Handoff, err)
	}
	return answer.Handoff
}

func TestUnreadHandoff(t *testing.T) {
	const unread = "% of the KV cache in hand-offs that no decode engine has pulled"
	t.Run("pulled at last", func(t *testing.T) {
		p, decode := startSim(t, sim.Config{}), startSim(t, sim.Config{})
		handoff := prefill(t, p)
		d := drain(t, "--engine="+addrOf(p.URL), "--handoffs")
		d.mustSay(t, unread)
		body := ask(t, t.Context(), decode.URL, map[string]any{"prompt": "a prompt of several blocks, " + strings.Repeat("on and on ", 20),
			"max_tokens": 2, "kv_transfer_params": handoff})
		if _, err := io.Copy(io.Discard, body); err != nil {
			t.Fatal(err)
		}
		d.mustSay(t, " drained")
		d.mustEnd(t, 0, "")
	})
	t.Run("its lease ends", func(t *testing.T) {
		p := startSim(t, sim.Config{KV: sim.KVConfig{Lease: 500 * time.Millisecond}})
		prefill(t, p)
		d := drain(t, "--engine="+addrOf(p.URL), "--handoffs")
		d.mustSay(t, " drained")
		d.mustEnd(t, 0, "")
		if st := p.Engine.State(); st.Expired != 1 {
			t.Errorf("it did not wait for the end of the lease: %+v", st)
		}
	})
	t.Run("timeout", func(t *testing.T) {
		p := startSim(t, sim.Config{})
		prefill(t, p)
		drain(t, "--engine="+addrOf(p.URL), "--handoffs", "--timeout=300ms").mustEnd(t, 1, "timeout of 300ms; left: engine: ")
	})
	t.Run("without --handoffs", func(t *testing.T) {
		p := startSim(t, sim.Config{})
		prefill(t, p)
		drain(t, "--engine="+addrOf(p.URL)).mustEnd(t, 0, "")
	})
	t.Run("the engine is gone", func(t *testing.T) {
		p := startSim(t, sim.Config{})
		prefill(t, p)
		d := drain(t, "--engine="+addrOf(p.URL), "--handoffs")
		d.mustSay(t, unread)
		p.Close()
		d.mustSay(t, " drained")
		d.mustEnd(t, 0, "")
	})
}

// pod is a decode engine and its sidecar.
type pod struct {
	engine        *server.Server
	data, metrics string
}

func startPod(t *testing.T) pod {
	t.Helper()
	p := pod{engine: startSim(t, sim.Config{TimeScale: 1})}
	cfg := sidecar.Defaults()
	engine := netip.MustParseAddrPort(addrOf(p.engine.URL))
	cfg.Engine.Host, cfg.Engine.Port = engine.Addr().String(), int(engine.Port())
	registry := boot.NewRegistry(boot.IO{})
	s, err := sidecar.New(cfg, sidecar.Telemetry{Log: slog.New(slog.DiscardHandler), Metrics: registry,
		Tracer: noop.NewTracerProvider().Tracer(""), Propagator: propagation.NewCompositeTextMapPropagator()})
	if err != nil {
		t.Fatal(err)
	}
	data, metrics := httptest.NewServer(s.Handlers(0)[0]), httptest.NewServer(boot.Operations(registry, s.Ready))
	t.Cleanup(func() { data.Close(); metrics.Close(); s.Close() })
	p.data, p.metrics = data.URL, metrics.URL
	return p
}

// A decode pod is drained when its client has the whole answer, or has left.
func TestRunningDecode(t *testing.T) {
	for _, waitFor := range []string{"sidecar", "engine"} {
		t.Run(waitFor, func(t *testing.T) {
			p := startPod(t)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			body := ask(t, ctx, p.data, map[string]any{"prompt": "go on", "max_tokens": 4000, "stream": true})
			if _, err := io.ReadFull(body, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			args, says := []string{"--sidecar=" + addrOf(p.metrics)}, "left: sidecar: 1 in flight"
			if waitFor == "engine" {
				args, says = []string{"--engine=" + addrOf(p.engine.URL), "--sidecar=" + addrOf(p.metrics)}, "left: engine: 1 running, 0 waiting; sidecar"
			}
			d := drain(t, args...)
			d.mustSay(t, says)
			leave()
			d.mustSay(t, " drained")
			d.mustEnd(t, 0, "")
		})
	}
}

// A request that is still being received has no leg yet, but will need the engine.
func TestReceiving(t *testing.T) {
	p := startPod(t)
	body, sender := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.data+"/v1/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Prefiller-Host-Port", "10.0.0.1:8000") // the sidecar buffers a request for remote prefill
	req.Header.Set("Expect", "100-continue")                 // the sidecar has the request once it requests the body
	patient := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, ExpectContinueTimeout: 30 * time.Second}}
	answered := make(chan error, 1)
	go func() {
		resp, err := patient.Do(req)
		if err == nil {
			err = resp.Body.Close()
		}
		answered <- err
	}()
	if _, err := io.WriteString(sender, `{"model": "tiny", "prompt": "never `); err != nil {
		t.Fatal(err)
	}
	d := drain(t, "--engine="+addrOf(p.engine.URL), "--sidecar="+addrOf(p.metrics))
	d.mustSay(t, "left: sidecar: 1 in flight")
	sender.Close()
	if err := <-answered; err != nil {
		t.Error(err)
	}
	d.mustSay(t, " drained")
	d.mustEnd(t, 0, "")
}

func TestEndedBySignal(t *testing.T) {
	p := startSim(t, sim.Config{})
	prefill(t, p)
	d := drain(t, "--engine="+addrOf(p.URL), "--handoffs")
	d.mustSay(t, "left: engine")
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	d.mustEnd(t, 1, "ended by a signal; left: engine: ")
}

// silent accepts connections and sends nothing.
func silent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return addrOf(s.URL)
}

func page(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }
}

// A part whose work is unknown does not count as drained.
func TestUnknownWork(t *testing.T) {
	tests := []struct {
		name string
		flag string
		addr func(t *testing.T) string
		says string
	}{
		{"silence", "--engine=", silent, "engine: unknown: "},
		{"no page", "--engine=", func(t *testing.T) string { return serve(t, http.NotFound) }, "engine: unknown: reading http://"},
		{"page of another product", "--engine=", func(t *testing.T) string { return serve(t, page("up 1\n")) }, "neither vLLM's nor SGLang's"},
		{"no usage", "--handoffs --engine=", func(t *testing.T) string {
			return serve(t, page("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"))
		}, "no vllm:kv_cache_usage_perc"},
		{"no waiting requests", "--engine=", func(t *testing.T) string { return serve(t, page("vllm:num_requests_running 0\n")) }, "no vllm:num_requests_waiting"},
		{"no number", "--engine=", func(t *testing.T) string {
			return serve(t, page("vllm:num_requests_running NaN\nvllm:num_requests_waiting 0\n"))
		}, "no numbers of requests"},
		{"no number of usage", "--handoffs --engine=", func(t *testing.T) string {
			return serve(t, page("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc NaN\n"))
		}, "no vllm:kv_cache_usage_perc"},
		{"sidecar of another product", "--sidecar=", func(t *testing.T) string { return serve(t, page("up 1\n")) }, "sidecar: unknown: its metrics page is not that of Tandem's"},
		{"another proxy", "--envoy=", func(t *testing.T) string { return serve(t, page("up: up\n")) }, "envoy: unknown: it does not count requests"},
		{"a proxy without a drain", "--envoy=", func(t *testing.T) string { return serve(t, http.NotFound) }, "envoy: unknown: it answers 404 Not Found to /stats"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			d := drain(t, append(strings.Fields(test.flag+test.addr(t)), "--timeout=3s")...)
			d.mustSay(t, test.says)
			d.mustEnd(t, 1, "timeout of 3s; left: ")
		})
	}
}

func TestRanks(t *testing.T) {
	tests := []struct{ name, page, want string }{
		{"vLLM, two ranks", "vllm:num_requests_running{engine=\"0\"} 0\nvllm:num_requests_running{engine=\"1\"} 2\nvllm:num_requests_waiting{engine=\"0\"} 1\n", "2 running, 1 waiting"},
		{"usage of the second rank", "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc{engine=\"0\"} 0\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.25\n",
			"25.00 % of the KV cache in hand-offs that no decode engine has pulled"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			url := "http://" + serve(t, page(test.page))
			if got, err := engineLeft(t.Context(), client, url, true); err != nil || got != test.want {
				t.Errorf("%q, %v; want %q", got, err, test.want)
			}
		})
	}
}

// The metrics page of an SGLang engine shows no waiting leg: what it says does not count.
func TestSGLang(t *testing.T) {
	const idle = `{"dp_rank":0,"num_running_reqs":0,"num_waiting_reqs":0,"disaggregation":{"mode":"prefill","prefill_bootstrap_queue_reqs":0}}`
	tests := []struct{ name, loads, want, err string }{
		{"idle", `{"loads":[` + idle + `]}`, "", ""},
		{"without disaggregation", `{"loads":[{"num_running_reqs":2,"num_waiting_reqs":3,"disaggregation":null}]}`,
			"2 running, 3 waiting, 0 that meet the other engine of their pair", ""},
		{"second rank", `{"loads":[` + idle + `,{"num_running_reqs":2,"num_waiting_reqs":1}]}`,
			"2 running, 1 waiting, 0 that meet the other engine of their pair", ""},
		{"prefill leg without decode leg", `{"loads":[{"num_running_reqs":0,"num_waiting_reqs":1,"disaggregation":{"prefill_bootstrap_queue_reqs":1}}]}`,
			"0 running, 0 waiting, 1 that meet the other engine of their pair", ""},
		{"KV cache in transfer", `{"loads":[{"num_running_reqs":0,"num_waiting_reqs":0,"disaggregation":{"prefill_inflight_queue_reqs":2}}]}`,
			"0 running, 0 waiting, 2 that meet the other engine of their pair", ""},
		{"decode legs", `{"loads":[{"num_running_reqs":1,"num_waiting_reqs":4,"disaggregation":{"decode_prealloc_queue_reqs":2,"decode_transfer_queue_reqs":1}}]}`,
			"1 running, 1 waiting, 3 that meet the other engine of their pair", ""},
		{"no loads", `{"loads":[]}`, "", "it answers no loads to /v1/loads"},
		{"no JSON", `busy`, "", "it answers no loads to /v1/loads"},
		{"no such call", "", "", "it answers 404 Not Found to /v1/loads"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			mux := http.NewServeMux()
			mux.Handle("/metrics", page("sglang:num_running_reqs 0\nsglang:num_queue_reqs 0\n"))
			if test.loads != "" {
				mux.HandleFunc("/v1/loads", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, test.loads) })
			}
			got, err := engineLeft(t.Context(), client, "http://"+serve(t, mux.ServeHTTP), true)
			if got != test.want || err == nil && test.err != "" || err != nil && err.Error() != test.err {
				t.Errorf("%q, %v; want %q, %s", got, err, test.want, test.err)
			}
		})
	}
}

func TestEngineTLS(t *testing.T) {
	s := httptest.NewTLSServer(page("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"))
	defer s.Close()
	drain(t, "--engine="+s.URL).mustEnd(t, 0, "")
}

// bootstrap configures an Envoy in front of one upstream.
const bootstrap = `
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
            virtual_hosts: [ { name: all, domains: [ "*" ], routes: [ { match: { prefix: "/" }, route: { cluster: pool, timeout: 0s } } ] } ]
          http_filters:
          - name: envoy.filters.http.health_check
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.health_check.v3.HealthCheck
              pass_through_mode: false
              headers: [ { name: ":path", string_match: { exact: /ready } } ]
          - name: envoy.filters.http.router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
  clusters:
  - name: pool
    type: STATIC
    load_assignment:
      cluster_name: pool
      endpoints: [ { lb_endpoints: [ { endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: %d } } } } ] } ]
`

func TestEnvoy(t *testing.T) {
	envoy.Require(t)
	finish, arrived := make(chan struct{}), make(chan struct{})
	upstream := serve(t, func(http.ResponseWriter, *http.Request) {
		close(arrived)
		<-finish
	})
	_, port, err := net.SplitHostPort(upstream)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	e, err := envoy.Start(t.Context(), fmt.Appendf(nil, bootstrap, n))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Stop() })
	front, err := e.Listener(t.Context(), "front")
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) (int, error) {
		resp, err := client.Get("http://" + front + path)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	if code, err := get("/ready"); code != http.StatusOK || err != nil {
		t.Fatalf("before: %d, %v", code, err)
	}
	done := make(chan int, 1)
	go func() {
		code, _ := get("/long")
		done <- code
	}()
	<-arrived
	d := drain(t, "--envoy="+e.Admin())
	d.mustSay(t, "left: envoy: 1 requests")
	if code, err := get("/ready"); code != http.StatusServiceUnavailable || err != nil {
		t.Errorf("while it drains: %d, %v", code, err)
	}
	close(finish)
	if code := <-done; code != http.StatusOK {
		t.Errorf("the request that ran ended with %d", code)
	}
	d.mustSay(t, " drained")
	d.mustEnd(t, 0, "")
}

func TestInstalledCopy(t *testing.T) {
	dir := t.TempDir()
	var out bytes.Buffer
	if err := install(&out, dir); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.Stat(self)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.Stat(filepath.Join(dir, "tandem"))
	if err != nil || got.Size() != want.Size() || got.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", got, err)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 {
		t.Errorf("left behind: %v, %v", files, err)
	}
}
