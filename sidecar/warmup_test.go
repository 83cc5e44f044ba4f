package sidecar

import (
	"bytes"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/madeup"
)

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// logBuffer collects what is logged.
type logBuffer struct {
	wrote chan struct{} // gets one for each line, up to its size

	mu   sync.Mutex // guards the fields below
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.wrote <- struct{}{}:
	default:
	}
	return l.text.Write(p)
}

// waitFor waits for a line with a text.
func (l *logBuffer) waitFor(t *testing.T, text string) {
	t.Helper()
	for l.lines(text) == 0 {
		wait(t, l.wrote, text)
	}
}

// lines counts those with a text.
func (l *logBuffer) lines(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// collect is an option: the sidecar logs here, at level Info and above.
func (l *logBuffer) collect(_ *Config, t *Telemetry) { t.Log = slog.New(slog.NewTextHandler(l, nil)) }

// warmsUp has a sidecar warm up the engines listed in a file.
func warmsUp(t *testing.T, addrs ...string) option {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pods")
	write(t, file, strings.Join(addrs, "\n")+"\n")
	return set(func(c *Config) { c.Keep.WarmUp, c.Prefill.Discovery = true, "file:"+file })
}

// warmUpOne runs one hand-off as the warm-up does.
func (r *rig) warmUpOne(t *testing.T, prefill string) error {
	t.Helper()
	targets, err := pd.ParseTargets([]string{prefill})
	if err != nil {
		t.Fatal(err)
	}
	header := http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"tandem-warmup-1"}}
	return r.ranks[0].warmUp(within(t), targets[0], header, []byte(`{"model":"m","prompt":"x","max_tokens":1}`))
}

func TestWarmupHandOffFails(t *testing.T) {
	status := func(code int) act { return says(code, "text/plain", "") }
	cases := []struct {
		name            string
		prefill, decode act
		err             string
		released        int
	}{
		{"prefill", status(500), returnsSilently, "500", 0},
		{"prefill asks for a key", status(401), returnsSilently, "asks for a key", 0},
		{"hand-off", offering("null"), returnsSilently, "is a KV connector configured", 0},
		{"decode", offering(handoffParams), status(500), "decode answered 500", 1},
		{"decode resets", offering(handoffParams), resets, "reset", 1},
		{"decode full", offering(handoffParams), status(503), "decode answered 503", 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			prefill, decode := startEngine(t, c.prefill), startEngine(t, c.decode)
			s := startRig(t, decode.addr)
			if err := s.warmUpOne(t, prefill.addr); err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, want something with %q", err, c.err)
			}
			if got := len(decode.releases()); got != c.released {
				t.Errorf("%d hand-offs were released, want %d", got, c.released)
			}
			s.mustCount(t, float64(c.released), "tandem_kv_release_total")
			s.mustCount(t, 0, "tandem_open_requests")
		})
	}
}

// untilAbort answers legs of madeup.Meeting by an act, and aborts with 200.
func untilAbort(leg act) act {
	return func(w http.ResponseWriter, r *asked) {
		if r.URL.Path != "/meeting/abort" {
			leg(w, r)
		}
	}
}

// Of two legs that are sent at once, neither is left alone: the engines are asked to abort both.
func TestWarmupHandOffFailsAtOnce(t *testing.T) {
	status := func(code int) act { return says(code, "text/plain", "") }
	cases := []struct {
		name            string
		prefill, decode act
		err             string
	}{
		{"prefill", status(500), hangs, "500"},
		{"prefill asks for a key", status(401), hangs, "asks for a key"},
		{"hand-off", says(200, "application/json", "{}"), hangs, "is a KV connector configured"},
		{"decode", hangs, status(500), "decode answered 500"},
		{"decode resets", hangs, resets, "reset"},
		{"decode breaks off", hangs, breaks("application/json", wholeAnswer), "unexpected EOF"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			prefilling, decoding := newGate(), newGate() // each leg opens the other's: both have arrived when one fails
			prefill := startEngine(t, untilAbort(then(decoding.open, prefilling.act, c.prefill)))
			decode := startEngine(t, untilAbort(then(prefilling.open, decoding.act, c.decode)))
			s := startRig(t, decode.addr, speaks(madeup.Meeting{}))
			if err := s.warmUpOne(t, prefill.addr); err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, want something with %q", err, c.err)
			}
			for name, e := range map[string]*fakeEngine{"prefill": prefill, "decode": decode} {
				if seen := e.requests(); len(seen) != 3 || seen[1].URL.Path != "/meeting/abort" || seen[2].URL.Path != "/meeting/abort" {
					t.Errorf("%s was asked %d times, want a leg and its abort, which is sent twice", name, len(seen))
				}
			}
			s.mustCount(t, 1, "tandem_kv_release_total")
			s.mustCount(t, 1, "tandem_kv_release_total", "way", "abort", "result", "ok")
			s.mustCount(t, 0, "tandem_kv_stranded_total")
			s.mustCount(t, 0, "tandem_open_requests")
		})
	}
}

// The warm-up checks hand-offs as for a request: too few blocks would end the decode engine.
func TestWarmupChecksBlocks(t *testing.T) {
	prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, returnsSilently)
	s := startRig(t, decode.addr, set(func(c *Config) { c.Prefill.BlockSize = 8 }))
	if err := s.warmUpOne(t, prefill.addr); err == nil || !strings.Contains(err.Error(), "3 blocks") {
		t.Errorf("%v", err)
	}
	for _, r := range decode.requests() {
		t.Errorf("decode was asked for %s", r.URL.Path)
	}
}

// New starts the warm-up, Close ends it. Its requests are marked, and appear in no metrics and traces of users' requests.
func TestWarmupRuns(t *testing.T) {
	t.Parallel()
	for _, d := range []struct {
		name string
		of   dialect.Dialect // nil: vLLM's
	}{{"vLLM", nil}, {"serial", madeup.Ticket{}}, {"concurrent", madeup.Meeting{}}} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			warmupRuns(t, d.of)
		})
	}
}

func warmupRuns(t *testing.T, d dialect.Dialect) {
	prefill, decode := startMadeUp(t, sim.Config{}, sim.Config{})
	seen := make(chan *http.Request, 2)
	spans, record := recorder(t)
	log := logBuffer{wrote: make(chan struct{}, 16)}
	s := startRig(t, observe(t, decode.URL, seen), speaks(d), warmsUp(t, observe(t, prefill.URL, seen)), record, log.collect)
	first := wait(t, seen, "one leg")
	second := wait(t, seen, "the other leg")
	log.waitFor(t, "prefill engine is warm")
	s.Drain(within(t))
	s.Close()
	id := first.Header.Get("X-Request-Id")
	if !strings.HasPrefix(id, "tandem-warmup-") || second.Header.Get("X-Request-Id") != id {
		t.Errorf("the legs are %s and %s", id, second.Header.Get("X-Request-Id"))
	}
	if decode.Engine.State().KVBytesRead == 0 {
		t.Error("decode has read nothing: the pair is as cold as before")
	}
	s.mustCount(t, 1, "tandem_warmup_total", "result", "ok")
	for _, users := range []string{"tandem_requests_total", "tandem_leg_seconds", "tandem_phase_seconds",
		"tandem_handoff_age_seconds", "tandem_retries_total", "tandem_kv_release_total", "tandem_kv_stranded_total", "tandem_inflight", "tandem_open_requests"} {
		s.mustCount(t, 0, users)
	}
	s.mustCount(t, pd.FallbackBurst, "tandem_fallback_tokens")
	if got := spans.GetSpans(); len(got) != 0 {
		t.Errorf("spans %v", got)
	}
	mustFree(t, prefill, decode)
}

// observe serves an engine's port once more, and reports the generate calls that come to it.
func observe(t *testing.T, engine string, seen chan<- *http.Request) (addr string) {
	t.Helper()
	to, err := url.Parse(engine)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	proxy.Transport = transport
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			seen <- r
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// What is under way when the sidecar drains ends, and is released.
func TestWarmupDrains(t *testing.T) {
	t.Parallel()
	models := says(200, "application/json", `{"data":[{"id":"m"}]}`)
	for _, c := range []struct {
		name    string
		dialect dialect.Dialect // nil: vLLM's
		prefill func(gate) act
		decode  func(gate) act
		way     string // in which the hand-off is released; "": there is none
	}{
		{"prefill", nil, func(g gate) act { return g.act }, func(gate) act { return hangs }, ""},
		{"decode", nil, func(gate) act { return offering(handoffParams) }, func(g gate) act { return g.act }, "cancel"},
		{"both", madeup.Meeting{}, func(g gate) act { return untilAbort(g.act) }, func(g gate) act { return untilAbort(g.act) }, "abort"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGate()
			prefill, decode := startEngine(t, c.prefill(g)), startEngine(t, models, c.decode(g))
			s := startRig(t, decode.addr, speaks(c.dialect), warmsUp(t, prefill.addr))
			wait(t, g.arrived, "the leg")
			s.Drain(within(t))
			s.Close() // waits for the warm-up
			released := 0.0
			if c.way != "" {
				released = 1
			}
			s.mustCount(t, released, "tandem_kv_release_total", "way", c.way, "result", "ok")
			s.mustCount(t, released, "tandem_kv_release_total")
			s.mustCount(t, 0, "tandem_warmup_total")
			s.mustCount(t, 0, "tandem_open_requests")
		})
	}
}

// With a notifier, the side channels of engines that discovery finds are asked before there is a request.
func TestWarmupAsksSideChannels(t *testing.T) {
	prefill, decode := startSim(t, sim.Config{}), startSim(t, sim.Config{})
	_, port, err := net.SplitHostPort(prefill.SideChannel)
	if err != nil {
		t.Fatal(err)
	}
	log := logBuffer{wrote: make(chan struct{}, 16)}
	s := startRig(t, addrOf(decode), newNotifier(t).option(), warmsUp(t, addrOf(prefill)), log.collect, set(func(c *Config) {
		c.Keep.WarmUp = false
		c.Keep.SideChannel, err = strconv.Atoi(port)
	}))
	if err != nil {
		t.Fatal(err)
	}
	log.waitFor(t, "engine="+prefill.Engine.ID())
	s.mustCount(t, 1, "tandem_lease_connects_total", "result", "ok")
	if got := prefill.Engine.State().Requests; got != 0 {
		t.Errorf("%d requests without --warm-up", got)
	}
}
