package sidecar

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestPassthrough(t *testing.T) {
	engine := startEngine(t, says(200, "text/plain", "from the engine", "X-Engine", "1"))
	s := startRig(t, engine.addr)
	cases := []struct{ method, uri, body string }{
		{"GET", "/metrics", ""},
		{"GET", "/v1/models", ""},
		{"HEAD", "/v1/models", ""},
		{"GET", "/v1/models/a%2Fb?x=%2F", ""},
		{"GET", "//v1//models/", ""},
		{"GET", "/a/../b/./c", ""},
		{"GET", "/x?a;b&&c=%zz", ""},
		{"GET", chatPath, ""},
		{"DELETE", "/v1/responses/r1", ""},
		{"PUT", completionsPath, `{"a": 1}`},
		{"POST", "/tokenize", `{"prompt":"a\u0062"}`},
		{"OPTIONS", "/v1/completions", ""},
	}
	for i, c := range cases {
		t.Run(c.method+" "+c.uri, func(t *testing.T) {
			resp, err := open(t, within(t), c.method, s.url+c.uri, strings.NewReader(c.body), "X-Forwarded-For", "1.2.3.4", "X-Request-Id", "a b", pd.HeaderPrefill, "x", "X-Tandem-Any", "x")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			b, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != 200 || resp.Header.Get("X-Engine") != "1" || c.method != "HEAD" && string(b) != "from the engine" {
				t.Errorf("%d %s, %v", resp.StatusCode, b, err)
			}
			got := engine.requests()[i]
			if got.Method != c.method || got.RequestURI != c.uri || got.body != c.body {
				t.Errorf("the engine got %s %s %s", got.Method, got.RequestURI, got.body)
			}
			if got.Header.Get("X-Forwarded-For") != "1.2.3.4" || got.Header.Get("X-Request-Id") != "a b" || got.Host != strings.TrimPrefix(s.url, "http://") {
				t.Errorf("headers %v of %s", got.Header, got.Host)
			}
			if got.Header.Get(pd.HeaderPrefill) != "" || got.Header.Get("X-Tandem-Any") != "" {
				t.Errorf("internal headers reached the engine: %v", got.Header)
			}
		})
	}
}

// An upload is not JSON: it passes unchanged, whatever it contains.
func TestUploadsPass(t *testing.T) {
	engine := startEngine(t, ask(false).answer())
	s := startRig(t, engine.addr, set(func(c *Config) { c.Trust.BodyLimit = 8 }))
	const body = `{"kv_transfer_params":{},"model":1,"model":2}`
	for i, kind := range []string{"audio/wav", "image/png", "video/mp4", "application/octet-stream"} {
		req, err := http.NewRequestWithContext(within(t), http.MethodPost, s.url+"/v1/audio/transcriptions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", kind)
		resp, err := newClient(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := engine.requests()[i].body; got != body {
			t.Errorf("%s: the engine got %s", kind, got)
		}
	}
}

// A form's fields may be JSON that an engine reads: vLLM's transcriptions accept vllm_xargs this way.
func TestForms(t *testing.T) {
	engine := startEngine(t, ask(false).answer())
	s := startRig(t, engine.addr, set(func(c *Config) { c.Trust.BodyLimit = 8 }))
	field := func(name, value string) string {
		return "--x\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n--x--\r\n"
	}
	const form = "multipart/form-data; boundary=x"
	for name, c := range map[string]struct {
		kind, body string
		status     int
	}{
		"an ordinary form":   {form, field("prompt", "a b c"), 200},
		"its own xargs":      {form, field("vllm_xargs", `{"x":1}`), 200},
		"in UTF-8":           {form + "; charset=UTF-8", field("prompt", "a"), 200},
		"a hand-off":         {form, field("vllm_xargs", `{"kv_transfer_params":0}`), 400},
		"an escaped one":     {form, field("vllm_xargs", `{"kv\u005ftransfer_params":0}`), 400},
		"in another charset": {form + "; charset=utf-16", field("prompt", "a"), 400},
	} {
		before := len(engine.requests())
		resp, err := newClient(t).Post(s.url+"/v1/audio/transcriptions", c.kind, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s: status %d", name, resp.StatusCode)
		}
		if seen := engine.requests()[before:]; c.status == 200 && (len(seen) != 1 || seen[0].body != c.body) || c.status != 200 && len(seen) != 0 {
			t.Errorf("%s: the engine was asked %d times", name, len(seen))
		}
	}
}

// Clients cannot end the requests of others.
func TestAbortsDoNotPass(t *testing.T) {
	engine := startEngine(t, says(200, "text/plain", "aborted"))
	s := startRig(t, engine.addr)
	for _, uri := range []string{"/inference/v1/abort_requests", "/inference//v1/./abort_requests/", "/inference/v1/abort%5Frequests", "/abort_requests"} {
		resp, err := open(t, within(t), http.MethodPost, s.url+uri, strings.NewReader(`{"request_ids":["a"]}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest || len(engine.requests()) > 0 {
			t.Errorf("%s: status %d", uri, resp.StatusCode)
		}
	}
}

func TestPassthroughWithoutEngine(t *testing.T) {
	s := startRig(t, refusingAddr(t))
	got := get(t, s.url+"/v1/models")
	got.mustBe(t, http.StatusServiceUnavailable, "refused;reason=no-endpoint")
	if got.header.Get(pd.HeaderRetry) != "1" || got.header.Get("Retry-After") != "1" {
		t.Errorf("headers %v", got.header)
	}
}

func TestUpgradePasses(t *testing.T) {
	engine := startEngine(t, func(w http.ResponseWriter, r *asked) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		if err := rw.Flush(); err != nil {
			return
		}
		line, err := rw.ReadString('\n')
		if err != nil {
			return
		}
		fmt.Fprintf(conn, "you said %s", line)
	})
	s := startRig(t, engine.addr)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /v1/realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	from := bufio.NewReader(conn)
	resp, err := http.ReadResponse(from, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != "websocket" {
		t.Fatalf("%v, %v", resp, err)
	}
	fmt.Fprintf(conn, "hello\n")
	if line, err := from.ReadString('\n'); line != "you said hello\n" {
		t.Errorf("%q, %v", line, err)
	}
}

type connKey struct{}

// fickleEngine closes each connection instead of answering the second request on it, as an engine does whose idle timeout
// and the next request meet.
func fickleEngine(t *testing.T, answer act) (addr string, cuts *atomic.Int64) {
	t.Helper()
	cuts = &atomic.Int64{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asksWhatItIs(r) {
			w.Header().Set("Connection", "close") // it does not count among the requests of a connection
			w.WriteHeader(http.StatusNotFound)
			return
		}
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if r.Context().Value(connKey{}).(*atomic.Int64).Add(1) > 1 {
			cuts.Add(1)
			closes(w, nil)
			return
		}
		answer(w, &asked{r, string(b)})
	}))
	s.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, &atomic.Int64{})
	}
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), cuts
}

// No request that can be sent again fails because an engine closes a connection just as it is reused.
func TestStaleConnections(t *testing.T) {
	twice := func(t *testing.T, s *rig, want string, cuts *atomic.Int64, header ...string) {
		t.Helper()
		for range 2 {
			got := post(t, s.url+completionsPath, ask(false).body, header...)
			got.mustBe(t, 200, want)
			if got.body != wholeAnswer {
				t.Errorf("body %s", got.body)
			}
		}
		if cuts.Load() != 1 {
			t.Errorf("%d connections were closed under a request, want 1", cuts.Load())
		}
	}
	t.Run("prefill", func(t *testing.T) {
		addr, cuts := fickleEngine(t, offering(handoffParams))
		twice(t, startRig(t, startEngine(t, ask(false).answer()).addr), servedRemote, cuts, pd.HeaderPrefill, addr)
	})
	t.Run("decode", func(t *testing.T) {
		addr, cuts := fickleEngine(t, ask(false).answer())
		twice(t, startRig(t, addr), servedRemote, cuts, pd.HeaderPrefill, startEngine(t, offering(handoffParams)).addr)
	})
	t.Run("buffered local", func(t *testing.T) {
		addr, cuts := fickleEngine(t, ask(false).answer())
		prefill := startEngine(t, says(500, "text/plain", ""))
		twice(t, startRig(t, addr), "local;reason=prefill-failed;attempts=1;candidate=0", cuts, pd.HeaderPrefill, prefill.addr)
	})
	t.Run("passed", func(t *testing.T) {
		addr, cuts := fickleEngine(t, ask(false).answer())
		s := startRig(t, addr)
		for range 2 {
			if got := get(t, s.url+"/v1/models"); got.status != 200 {
				t.Errorf("%d %s", got.status, got.body)
			}
		}
		if cuts.Load() != 1 {
			t.Errorf("%d connections were closed under a request, want 1", cuts.Load())
		}
	})
	t.Run("streamed local", func(t *testing.T) {
		addr, cuts := fickleEngine(t, ask(false).answer())
		twice(t, startRig(t, addr), "local;reason=unplanned", cuts)
	})
	t.Run("streamed local, read too far", func(t *testing.T) {
		// The body has been read and cannot be sent again, but another pod may try.
		addr, _ := fickleEngine(t, ask(false).answer())
		s := startRig(t, addr)
		long := strings.Replace(ask(false).body, `"prompt":"`, `"prompt":"`+strings.Repeat("a", 8<<20), 1)
		post(t, s.url+completionsPath, long).mustBe(t, 200, "local;reason=unplanned")
		post(t, s.url+completionsPath, long).mustRefuse(t, http.StatusServiceUnavailable, pd.NoEndpoint)
	})
}

// TestMetricsPageNamesTheSidecar: a picker that reads the engine's page learns from it that it may send its plans. Engines cannot
// claim that, and other answers do not tell it to clients.
func TestMetricsPageNamesTheSidecar(t *testing.T) {
	s := startRig(t, startEngine(t, says(200, "text/plain", "vllm:num_requests_running 0\n", pd.HeaderSidecar, "lie", pd.HeaderSidecarReads, "lie")).addr)
	for path, want := range map[string]string{"/metrics": pd.SidecarTakesPlans + " " + pd.SidecarReadsRanks + ", " + pd.SidecarReadsSource, "/v1/models": " "} {
		resp, err := http.Get(s.url + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		got := strings.Join(resp.Header.Values(pd.HeaderSidecar), ",") + " " + strings.Join(resp.Header.Values(pd.HeaderSidecarReads), ",")
		if got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// TestIdentify: a program can tell a sidecar from an engine without a request that one of them would count.
func TestIdentify(t *testing.T) {
	p := startPool(t)
	resp, err := http.Get(p.url + pd.PathSidecar)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || string(body) != pd.SidecarIdentity {
		t.Errorf("%s %s (%v)", resp.Status, body, err)
	}
	if n := p.count(t, "tandem_requests_total"); n != 0 || len(p.decode.requests()) != 0 {
		t.Errorf("%v requests counted, the engine got %d", n, len(p.decode.requests()))
	}
}

// TestAnswerHealth: by default the engine answers probes; with the option the sidecar does, as llm-d's.
func TestAnswerHealth(t *testing.T) {
	for _, c := range []struct {
		name, method, path string
		own                bool
		want               int
	}{
		{"the engine's state", "GET", "/health", false, 503},
		{"always well", "GET", "/health", true, 200},
		{"always well, without a body", "HEAD", "/health", true, 200},
		{"another method", "POST", "/health", true, 503},
		{"another path", "GET", "/health/", true, 503},
		{"the path of tests of the model", "GET", "/v1/models", true, 503},
	} {
		t.Run(c.name, func(t *testing.T) {
			engine := startEngine(t, says(503, "text/plain", "loading"))
			engine.failHealth()
			s := startRig(t, engine.addr, func(cfg *Config, _ *Telemetry) { cfg.Engine.AnswerHealth = c.own })
			resp, err := open(t, within(t), c.method, s.url+c.path, strings.NewReader(""))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != c.want {
				t.Errorf("got %d, want %d", resp.StatusCode, c.want)
			}
		})
	}
}
