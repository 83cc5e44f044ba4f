package stack_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	otlp "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/stack"
	"github.com/tandem-serving/tandem/stack/envoy"
)

// proxies are the proxies that a stack can have.
var proxies = []string{stack.ProxyEnvoy, stack.ProxyGateway}

func requireProxy(t *testing.T, proxy string) {
	t.Helper()
	if proxy == stack.ProxyEnvoy {
		envoy.Require(t)
	}
}

func programsDir(t *testing.T) string {
	t.Helper()
	dir, err := buildPrograms()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// startPD starts a stack that ends with the test, and checks that its files are then gone.
func startPD(t *testing.T, o stack.PDOptions) (*stack.Group, context.Context, *stack.PD) {
	t.Helper()
	o.Dir = programsDir(t)
	files := t.TempDir()
	t.Setenv("TMPDIR", files)
	g, alive := stack.NewGroup(t.Context())
	t.Cleanup(func() {
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(files); len(left) > 0 || err != nil {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	pd, err := stack.StartPD(alive, g, o)
	if err != nil {
		t.Fatal(err)
	}
	return g, alive, pd
}

// decision sends a prompt of so many words and returns the P/D decision.
func decision(t *testing.T, pd *stack.PD, words int, mode string) string {
	t.Helper()
	body := fmt.Sprintf(`{"model":%q,"prompt":%q,"max_tokens":4}`, pd.Model, strings.Repeat("hello ", words))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+pd.Proxy+"/v1/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("x-tandem-pd", mode)
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", resp.Status, answer, err)
	}
	return resp.Header.Get("x-tandem-pd-decision")
}

func TestPD(t *testing.T) {
	for _, proxy := range proxies {
		t.Run(proxy, func(t *testing.T) {
			requireProxy(t, proxy)
			_, _, pd := startPD(t, stack.PDOptions{Prefill: 2, Decode: 2, Threshold: 64, Proxy: proxy, SimFlags: []string{"--time-scale=0"}})
			if len(pd.Prefill) != 2 || len(pd.Decode) != 2 || pd.Model != "tiny" {
				t.Errorf("%d prefill, %d decode, model %q", len(pd.Prefill), len(pd.Decode), pd.Model)
			}
			for _, test := range []struct {
				words      int
				mode, want string
			}{{3, "auto", "local;reason=short-prompt"}, {300, "auto", "remote;reason=uncached"}, {3, "force", "remote;reason=forced"}} {
				if got := decision(t, pd, test.words, test.mode); !strings.HasPrefix(got, test.want) {
					t.Errorf("%d words, %s: %q, want %s", test.words, test.mode, got, test.want)
				}
			}
			checkPorts(t, pd, proxy)
		})
	}
}

// A plain engine of SGLang takes what stays local; the others are pairs.
func TestPDWithPlainEngines(t *testing.T) {
	_, _, pd := startPD(t, stack.PDOptions{Engine: stack.EngineSGLang, Prefill: 1, Decode: 1, Plain: 1, Threshold: 64, Proxy: stack.ProxyGateway,
		SimFlags: []string{"--time-scale=0"}})
	for _, test := range []struct {
		words      int
		mode, want string
	}{
		{3, "auto", "local;reason=short-prompt"}, {300, "auto", "remote;reason=uncached"},
		{3, "force", "remote;reason=forced"}, {300, "bypass", "local;reason=bypassed"},
	} {
		if got := decision(t, pd, test.words, test.mode); !strings.HasPrefix(got, test.want) {
			t.Errorf("%d words, %s: %q, want %s", test.words, test.mode, got, test.want)
		}
	}
	if len(pd.Plain) != 1 || pd.Plain[0].Name != "plain-0" || pd.Plain[0].Address == pd.Plain[0].Engine || pd.Plain[0].SidecarAdmin == "" {
		t.Errorf("%+v", pd.Plain)
	}
	listed := 0
	for _, line := range pd.Ports() {
		if strings.HasPrefix(line.Name, "plain-0") {
			listed++
		}
	}
	if listed != 5 {
		t.Errorf("%d ports of the plain engine and its sidecar: %+v", listed, pd.Ports())
	}
}

// checkPorts checks that a process listens on every port that users are told of.
func checkPorts(t *testing.T, pd *stack.PD, proxy string) {
	t.Helper()
	lines, seen := pd.Ports(), map[string]bool{}
	for _, line := range lines {
		if line.What == "" || seen[line.Address] {
			t.Errorf("%+v", line)
		}
		seen[line.Address] = true
		c, err := net.Dial("tcp", line.Address)
		if err != nil {
			t.Errorf("%s: %v", line.Name, err)
			continue
		}
		c.Close()
	}
	want, name := 1+4+2*2+2*5, "embedded gateway"
	if proxy == stack.ProxyEnvoy {
		want, name = want+1, "Envoy 1."
	}
	if len(lines) != want || lines[0].Name != proxy || lines[0].Address != pd.Proxy || !strings.HasPrefix(pd.ProxyName, name) {
		t.Errorf("%s, %d ports, want %d: %+v", pd.ProxyName, len(lines), want, lines)
	}
}

// A stack for engines that already run, named as users name them.
func TestPDBeforeRunningEngines(t *testing.T) {
	dir := programsDir(t)
	var engines []string
	for _, role := range []string{"prefill", "decode"} {
		address, err := start(t, stack.Sim(dir, role, "--time-scale=0")).Address("http")
		if err != nil {
			t.Fatal(err)
		}
		engines = append(engines, strings.Replace(address, "127.0.0.1", "localhost", 1))
	}
	_, _, pd := startPD(t, stack.PDOptions{PrefillEngines: engines[:1], DecodeEngines: engines[1:], Proxy: stack.ProxyGateway, Prefill: 3})
	if len(pd.Prefill) != 1 || len(pd.Decode) != 1 || pd.Prefill[0].EngineAdmin != "" || pd.Decode[0].Address == pd.Decode[0].Engine {
		t.Errorf("%+v", pd)
	}
	if got := decision(t, pd, 3, "force"); !strings.HasPrefix(got, "remote;reason=forced") {
		t.Errorf("forced: %q", got)
	}
	if got := decision(t, pd, 300, "auto"); !strings.HasPrefix(got, "local") {
		t.Errorf("no threshold: %q", got)
	}
	if lines := pd.Ports(); len(lines) != 1+4+1+4 {
		t.Errorf("%d ports: %+v", len(lines), lines)
	}
}

func TestPDNamesTheDead(t *testing.T) {
	for _, victim := range []string{"prefill-0", "decode-0", "decode-0 sidecar", "epp", "gateway", "envoy"} {
		t.Run(victim, func(t *testing.T) {
			proxy := stack.ProxyGateway
			if victim == stack.ProxyEnvoy {
				proxy = victim
			}
			requireProxy(t, proxy)
			g, alive, _ := startPD(t, stack.PDOptions{Prefill: 1, Decode: 1, Proxy: proxy})
			m, ok := g.Member(victim)
			if !ok {
				t.Fatal("there is no such program")
			}
			if err := syscall.Kill(m.(interface{ PID() int }).PID(), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			<-alive.Done()
			contains(t, context.Cause(alive), victim+" ended: killed by SIGKILL")
		})
	}
}

// With Restarted, the end of a program is no end of the stack, which then serves as before.
func TestPDRestartsTheDead(t *testing.T) {
	logs, events := t.TempDir(), make(chan string, 100)
	g, alive, pd := startPD(t, stack.PDOptions{Prefill: 2, Decode: 2, Proxy: stack.ProxyGateway, Keeper: true, LogDir: logs, LogLevel: "debug",
		Restarted: func(event string) { events <- event }})
	for _, victim := range []string{"prefill-0", "decode-0", "decode-0 sidecar", "epp", "gateway"} {
		m, ok := g.Member(victim)
		if !ok {
			t.Fatalf("there is no %s", victim)
		}
		kill(t, m.(interface{ PID() int }).PID())
		if got := <-events; got != victim+" ended: killed by SIGKILL; starting it again" {
			t.Errorf("said %q", got)
		}
		if got := <-events; !strings.HasPrefix(got, victim+" is ready again after ") {
			t.Fatalf("said %q", got)
		}
		if victim == "epp" {
			awaitPicker(t, pd)
		}
		if got := decision(t, pd, 3, "force"); !strings.HasPrefix(got, "remote;reason=forced") {
			t.Errorf("after the end of %s: %q", victim, got)
		}
		log, err := os.ReadFile(filepath.Join(logs, stack.LogFile(victim)))
		if n := strings.Count(string(log), `{"ready":`); n != 2 || err != nil {
			t.Errorf("log of %s: %d ready lines, want 2: %v\n%s", victim, n, err, log)
		}
	}
	if alive.Err() != nil {
		t.Errorf("the stack has ended: %v", context.Cause(alive))
	}
}

// awaitPicker waits until the gateway has connected to the only picker again. Until then it answers 503.
func awaitPicker(t *testing.T, pd *stack.PD) {
	t.Helper()
	late, again := time.After(20*time.Second), time.NewTicker(20*time.Millisecond)
	defer again.Stop()
	for {
		resp, err := http.Post("http://"+pd.Proxy+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"hello","max_tokens":1}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable {
			return
		}
		select {
		case <-again.C:
		case <-late:
			t.Fatal("the gateway does not connect to the picker again")
		}
	}
}

// Engines may want an API key.
func TestPDShowsEnginesItsKey(t *testing.T) {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/health":
		case r.Header.Get("Authorization") != "Bearer sesame":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			io.WriteString(w, `{"data":[{"id":"llama"}]}`)
		}
	}))
	t.Cleanup(engine.Close)
	for _, test := range []struct {
		key  string
		want error
	}{{"", stack.ErrUnauthorized}, {"mustard", stack.ErrUnauthorized}, {"sesame", nil}} {
		g, alive := stack.NewGroup(t.Context())
		_, err := stack.StartPD(alive, g, stack.PDOptions{Dir: programsDir(t), Proxy: stack.ProxyGateway,
			DecodeEngines: []string{engine.Listener.Addr().String()}, EngineKey: test.key})
		if !errors.Is(err, test.want) {
			t.Errorf("key %q: %v, want %v", test.key, err, test.want)
		}
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	}
}

// collector receives spans and notes their services.
type collector struct {
	otlp.UnimplementedTraceServiceServer
	services chan string
}

func (c collector) Export(ctx context.Context, r *otlp.ExportTraceServiceRequest) (*otlp.ExportTraceServiceResponse, error) {
	for _, of := range r.ResourceSpans {
		for _, attribute := range of.Resource.Attributes {
			if attribute.Key == "service.name" {
				select {
				case c.services <- attribute.Value.GetStringValue():
				case <-ctx.Done():
				}
			}
		}
	}
	return &otlp.ExportTraceServiceResponse{}, nil
}

func TestPDSendsSpans(t *testing.T) {
	envoy.Require(t)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10") // ms
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, server := collector{services: make(chan string, 1000)}, grpc.NewServer()
	otlp.RegisterTraceServiceServer(server, c)
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	t.Cleanup(serving.Wait)
	t.Cleanup(server.Stop)
	_, _, pd := startPD(t, stack.PDOptions{Decode: 1, Proxy: stack.ProxyEnvoy, OTLP: l.Addr().String()})
	for range 5 { // Envoy sends so many at once, and fewer after 5 s
		decision(t, pd, 3, "auto")
	}
	for missing := map[string]bool{"tandem-gateway": true, "tandem-epp": true, "tandem-sidecar": true}; len(missing) > 0; {
		delete(missing, <-c.services)
	}
}

// notReady is an engine that answers with a status.
func notReady(t *testing.T, health int, models string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(health) })
	if models != "" {
		mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, models) })
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// taken returns a port that a process listens on; free returns one without.
func taken(t *testing.T) (taken, free string) {
	t.Helper()
	var addresses [2]string
	for i := range addresses {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if addresses[i] = l.Addr().String(); i == 0 {
			t.Cleanup(func() { l.Close() })
		} else {
			l.Close()
		}
	}
	return addresses[0], addresses[1]
}

func TestPDErrors(t *testing.T) {
	dir, empty := programsDir(t), t.TempDir()
	full, free := taken(t)
	loading := notReady(t, http.StatusServiceUnavailable, "")
	lame, modelless := notReady(t, http.StatusOK, ""), notReady(t, http.StatusOK, `{"data":[]}`)
	llama, qwen := notReady(t, http.StatusOK, `{"data":[{"id":"llama"}]}`), notReady(t, http.StatusOK, `{"data":[{"id":"qwen"},{"id":"lora"}]}`)
	list := func(engines ...string) []string { return engines }
	tests := []struct {
		name string
		o    stack.PDOptions
		want string // the whole error; … ends what is said
	}{
		{"no decode engine", stack.PDOptions{Prefill: 1}, "there is no decode engine: …"},
		{"no decode engine beside the prefill engine", stack.PDOptions{PrefillEngines: list(llama), Decode: 1}, "there is no decode engine: …"},
		{"plain engines of vLLM", stack.PDOptions{Decode: 1, Plain: 1},
			"plain engines are SGLang's: those of vLLM compute whole requests and take part in hand-offs too"},
		{"unknown proxy", stack.PDOptions{Decode: 1, Proxy: "nginx"}, `"nginx" is not a proxy: want envoy or gateway`},
		{"missing program", stack.PDOptions{Decode: 1, Dir: empty},
			"finding the programs of the stack: stat " + filepath.Join(empty, "epp") + ": no such file or directory (make build builds them into bin)"},
		{"taken port", stack.PDOptions{Decode: 1, Listen: full}, "listening on " + full + ": address already in use"},
		{"no engine", stack.PDOptions{DecodeEngines: list(free)}, "decode engine " + free + " is not ready: connection refused"},
		{"two not ready", stack.PDOptions{PrefillEngines: list(free), DecodeEngines: list(loading)},
			"prefill engine " + free + " is not ready: connection refused\ndecode engine " + loading + " is not ready: GET /health: 503 Service Unavailable"},
		{"no port", stack.PDOptions{DecodeEngines: list("127.0.0.1")}, "decode engine 127.0.0.1 is not ready: address 127.0.0.1: missing port in address"},
		{"no models", stack.PDOptions{DecodeEngines: list(lame)}, "engine " + lame + " (decode-0) is not ready: GET /v1/models: 404 Not Found"},
		{"no model", stack.PDOptions{DecodeEngines: list(modelless)}, "engine " + modelless + " (decode-0) is not ready: GET /v1/models names no model"},
		{"two models", stack.PDOptions{DecodeEngines: list(llama), PrefillEngines: list(qwen)},
			"the engines serve no model in common: llama at " + llama + ", qwen, lora at " + qwen},
		{"named twice", stack.PDOptions{DecodeEngines: list(llama), PrefillEngines: list(llama)}, "engine " + llama + " is named twice: …"},
		{"wrong flag of the simulator", stack.PDOptions{Decode: 1, SimFlags: list("--model=huge")}, "starting decode-0: decode-0 ended: exit status 3; its last lines:…"},
		{"wrong configuration", stack.PDOptions{Decode: 1, Config: filepath.Join(empty, "config.yaml")}, "starting epp: epp ended: exit status 3; …"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			g, alive := stack.NewGroup(t.Context())
			defer g.Stop()
			if test.o.Dir == "" {
				test.o.Dir = dir
			}
			if test.o.Proxy == "" {
				test.o.Proxy = stack.ProxyGateway
			}
			pd, err := stack.StartPD(alive, g, test.o)
			if pd != nil || err == nil {
				t.Fatalf("a stack: %+v", pd)
			}
			got, want := err.Error(), test.want
			if head, cut := strings.CutSuffix(want, "…"); cut && strings.HasPrefix(got, head) {
				got = want
			}
			if got != want {
				t.Errorf("error\n%v\nwant\n%s", err, test.want)
			}
			if err := g.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPDChoosesTheProxy(t *testing.T) {
	o := stack.PDOptions{Dir: programsDir(t), Decode: 1}
	t.Chdir(t.TempDir())
	t.Setenv("PATH", "")
	t.Setenv("ENVOY_BIN", "")
	g, alive := stack.NewGroup(t.Context())
	defer g.Stop()
	pd, err := stack.StartPD(alive, g, o)
	if err != nil || pd.ProxyName != "embedded gateway" {
		t.Fatalf("without Envoy: %+v, %v", pd, err)
	}
	o.Proxy = stack.ProxyEnvoy
	_, err = stack.StartPD(alive, g, o)
	if !errors.Is(err, envoy.ErrNone) {
		t.Errorf("Envoy that is not there: %v", err)
	}
	o.Proxy = ""
	t.Setenv("ENVOY_BIN", filepath.Join(o.Dir, "no-envoy"))
	_, err = stack.StartPD(alive, g, o)
	contains(t, err, "ENVOY_BIN")
}

// If a program dies while others start, its death is reported, not the failures that follow from it.
func TestPDStartIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	g, alive := stack.NewGroup(ctx)
	defer g.Stop()
	cancel(errors.New("the user left"))
	_, err := stack.StartPD(alive, g, stack.PDOptions{Dir: programsDir(t), Decode: 1, Proxy: stack.ProxyGateway})
	if err == nil || err.Error() != "the user left" {
		t.Errorf("error %v", err)
	}
}
