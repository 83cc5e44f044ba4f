package sidecar

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
)

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// logBook keeps what was logged. Whoever waits for it makes wrote.
type logBook struct {
	wrote chan struct{} // gets one for each line, up to its size

	mu   sync.Mutex // guards what follows
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.wrote <- struct{}{}:
	default:
	}
	return l.text.Write(p)
}

// mustSay waits for a line with a text.
func (l *logBook) mustSay(t *testing.T, text string) {
	t.Helper()
	for l.lines(text) == 0 {
		wait(t, l.wrote, text)
	}
}

// lines counts those with a text.
func (l *logBook) lines(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// to has a sidecar write it, without what is for debugging.
func (l *logBook) to(_ *Config, t *Telemetry) { t.Log = slog.New(slog.NewTextHandler(l, nil)) }

// warms has a sidecar warm up the engines listed in a file.
func warms(file string) option {
	return set(func(c *Config) { c.Keep.WarmUp, c.Prefill.Discovery = true, "file:"+file })
}

// byHand makes the warm-up of a sidecar that has none, for a test to run step by step.
func byHand(s *rig, find func(context.Context) ([]pd.Target, error)) *warmup {
	s.cfg.Keep.WarmUp = true
	return &warmup{s: s.Server, find: find}
}

// all lists engines.
func all(t *testing.T, addrs ...string) func(context.Context) ([]pd.Target, error) {
	t.Helper()
	targets, err := pd.ParseTargets(addrs)
	if err != nil {
		t.Fatal(err)
	}
	return func(context.Context) ([]pd.Target, error) { return targets, nil }
}

// step is one round, and a hand-off for every pair that is cold then.
func (w *warmup) step(t *testing.T) {
	t.Helper()
	w.round(within(t))
	for range w.known {
		w.send(within(t))
	}
}

// warm tells of an engine whether the pair is.
func (w *warmup) warm(addr string) bool {
	for t, p := range w.known {
		if t.String() == addr {
			return p.warm
		}
	}
	return false
}

// A pair is warmed up once for as long as its engine is listed, and that leaves nothing behind.
func TestWarmupMeetsOnce(t *testing.T) {
	prefill, other, decode := startSim(t, sim.Config{}), startSim(t, sim.Config{}), startSim(t, sim.Config{})
	file := filepath.Join(t.TempDir(), "pods")
	listed := "# prefill pods\n\n  " + addrOf(prefill) + " # the first\n8.8.8.8:80\n" + refusingAddr(t) + "\n"
	var log logBook
	s := startRig(t, addrOf(decode), log.to)
	w := byHand(s, func(context.Context) ([]pd.Target, error) { return readTargets(file) })

	w.step(t) // no file: nothing to meet
	for _, step := range []struct {
		name, list    string
		first, second int64 // requests by then
	}{
		{"listed", listed, 1, 0}, {"still listed", listed, 1, 0}, {"one more", listed + addrOf(other), 1, 1},
		{"gone", addrOf(other), 1, 1}, {"back", listed + addrOf(other), 2, 1},
	} {
		write(t, file, step.list)
		read := decode.Engine.State().KVBytesRead
		asked := prefill.Engine.State().Requests + other.Engine.State().Requests
		w.step(t)
		got, gotOther := prefill.Engine.State().Requests, other.Engine.State().Requests
		if got != step.first || gotOther != step.second {
			t.Errorf("%s: %d and %d requests, want %d and %d", step.name, got, gotOther, step.first, step.second)
		}
		if warmed := got+gotOther > asked; warmed != (decode.Engine.State().KVBytesRead > read) {
			t.Errorf("%s: decode has read nothing: the pair is as cold as before", step.name)
		}
	}
	mustFree(t, prefill, decode)
	s.mustCount(t, 3, "tandem_warmup_total", "result", "ok")
	s.mustCount(t, 2, "tandem_warmup_total", "result", "failed") // nobody listens there
	if got := log.lines("level=WARN"); got != 1 {
		t.Errorf("%d warnings within a moment", got)
	}
}

func TestWarmupFails(t *testing.T) {
	models := says(200, "application/json", `{"data":[{"id":"m"}]}`)
	status := func(code int) act { return says(code, "text/plain", "") }
	cases := []struct {
		name    string
		prefill act
		decode  []act
		err     string
		forgot  int // releases, one for each of two tries
	}{
		{"no model", offering(handoff), []act{says(200, "application/json", `{"data":[]}`)}, "serves none", 0},
		{"no list of models", offering(handoff), []act{says(200, "text/html", "<")}, "asking decode for its model", 0},
		{"prefill", status(500), []act{models}, "500", 0},
		{"hand-off", offering("null"), []act{models}, "kv_transfer_params", 0},
		{"decode", offering(handoff), []act{models, status(500), models, status(500)}, "decode answered 500", 2},
		// A leg that meets a used connection is sent a second time by itself.
		{"decode gone", offering(handoff), []act{models, resets, resets, models, resets, resets}, "reset", 2},
		{"decode full", offering(handoff), []act{models, status(503), models, status(503)}, "decode answered 503", 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			prefill, decode := startEngine(t, c.prefill), startEngine(t, c.decode...)
			s := startRig(t, decode.addr)
			w := byHand(s, all(t, prefill.addr))
			targets, _ := w.find(within(t))
			if err := w.meet(within(t), targets[0]); err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, want something with %q", err, c.err)
			}
			if w.step(t); w.warm(prefill.addr) {
				t.Error("a pod that failed was taken for warm")
			}
			if got := len(decode.releases()); got != c.forgot {
				t.Errorf("%d hand-offs were given back, want %d", got, c.forgot)
			}
			s.mustCount(t, float64(c.forgot), "tandem_kv_release_total")
			s.mustCount(t, 1, "tandem_warmup_total", "result", "failed")
		})
	}
	t.Run("nothing found", func(t *testing.T) {
		prefill, decode := startSim(t, sim.Config{}), startSim(t, sim.Config{})
		w := byHand(startRig(t, addrOf(decode)), all(t, addrOf(prefill)))
		w.step(t)
		w.find = func(context.Context) ([]pd.Target, error) { return nil, errors.New("no such name") }
		if w.step(t); !w.warm(addrOf(prefill)) {
			t.Error("a list that could not be read made known pods unknown")
		}
	})
}

// Engines that want a key are asked once, and that is said once.
func TestWarmupWithoutKey(t *testing.T) {
	models := says(200, "application/json", `{"data":[{"id":"m"}]}`)
	locked := says(http.StatusUnauthorized, "application/json", `{"error":"Unauthorized"}`)
	for name, c := range map[string]struct {
		prefill, decode act
		asked           int // prefill engines
	}{
		"decode":  {offering(handoff), locked, 0},
		"prefill": {locked, models, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var log logBook
			first, second, decode := startEngine(t, c.prefill), startEngine(t, c.prefill), startEngine(t, c.decode)
			s := startRig(t, decode.addr, log.to)
			w := byHand(s, all(t, first.addr, second.addr))
			for range 3 {
				w.step(t)
				for _, p := range w.known {
					p.again = p.ask // long ago
				}
			}
			if got := len(first.requests()) + len(second.requests()); got != c.asked {
				t.Errorf("prefill engines were asked %d times, want %d", got, c.asked)
			}
			s.mustCount(t, float64(max(c.asked, 1)), "tandem_warmup_total", "result", "refused")
			if got := log.lines("level=WARN"); got != 1 || log.lines("--warm-up") != 1 {
				t.Errorf("%d warnings", got)
			}
		})
	}
}

// An engine that hands over whole blocks alone gets longer prompts, up to some length.
func TestWarmupGrows(t *testing.T) {
	for name, c := range map[string]struct {
		block   int // bytes of a body that make one
		lengths []bool
	}{
		"long blocks": {1000, []bool{false, false, true}},
		"no hand-off": {1 << 30, []bool{false, false, false, false}},
	} {
		t.Run(name, func(t *testing.T) {
			prefill := startEngine(t, func(w http.ResponseWriter, r *asked) {
				params := "null"
				if len(r.body) > c.block {
					params = handoff
				}
				offering(params)(w, r)
			})
			decode := startEngine(t, says(200, "application/json", `{"data":[{"id":"m"}]}`))
			var log logBook
			w := byHand(startRig(t, decode.addr, log.to), all(t, prefill.addr))
			for range 10 {
				w.step(t)
			}
			var got []bool
			for _, r := range prefill.requests() {
				got = append(got, len(r.body) > c.block)
			}
			if !slices.Equal(got, c.lengths) {
				t.Errorf("long enough were %v, want %v", got, c.lengths)
			}
			if hopeless := log.lines("--warm-up") == 1; w.warm(prefill.addr) == hopeless {
				t.Errorf("it said %s", log.text.String())
			}
		})
	}
}

// New starts the warm-up, Close ends it. Its requests can be told, and are none of the users'.
func TestWarmupRuns(t *testing.T) {
	prefill, decode := startSim(t, sim.Config{}), startSim(t, sim.Config{})
	seen := make(chan *http.Request, 2)
	file := filepath.Join(t.TempDir(), "pods")
	write(t, file, passes(t, prefill, seen)+"\n")
	spans, record := recorder(t)
	log := logBook{wrote: make(chan struct{}, 16)}
	s := startRig(t, passes(t, decode, seen), warms(file), record, log.to)
	first := wait(t, seen, "the prefill leg")
	second := wait(t, seen, "the decode leg")
	log.mustSay(t, "prefill engine is warm")
	s.Drain(within(t))
	s.Close()
	id := first.Header.Get("X-Request-Id")
	if !strings.HasPrefix(id, "tandem-warmup-") || second.Header.Get("X-Request-Id") != id {
		t.Errorf("the legs are %s and %s", id, second.Header.Get("X-Request-Id"))
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

// Without a keeper and without --warm-up, there is nothing to look for.
func TestWarmupIsOff(t *testing.T) {
	var log logBook
	w := &warmup{s: startRig(t, refusingAddr(t), log.to).Server, find: func(context.Context) ([]pd.Target, error) {
		t.Error("engines were looked for")
		return nil, nil
	}}
	w.run(context.Background()) // returns by itself
	if log.lines("not looked for") != 1 {
		t.Error("it does not say that it does nothing")
	}
}

// passes serves an engine's port once more, and shows the generate calls that come to it.
func passes(t *testing.T, engine *sim.Server, seen chan<- *http.Request) (addr string) {
	t.Helper()
	to, err := url.Parse(engine.URL)
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
