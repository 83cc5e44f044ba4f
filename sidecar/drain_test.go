package sidecar

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// expired returns a context at its deadline.
func expired() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// startDrain drains until ctx ends, and returns when new calls are refused.
func startDrain(t *testing.T, s *rig, ctx context.Context) (drained <-chan struct{}) {
	t.Helper()
	over := make(chan struct{})
	go func() { defer close(over); s.Drain(ctx) }()
	for !s.life.draining.Load() {
		runtime.Gosched()
	}
	return over
}

func TestReady(t *testing.T) {
	engine := startEngine(t, returnsSilently)
	s := startRig(t, engine.addr)
	if err := s.Ready(); err != nil {
		t.Errorf("a healthy engine: %v", err)
	}
	engine.failHealth()
	if err := s.Ready(); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a sick engine: %v", err)
	}
	if err := startRig(t, refusingAddr(t)).Ready(); err == nil {
		t.Error("an absent engine: ready")
	}
	s.Drain(within(t)) // nothing runs: it returns at once
	if err := s.Ready(); err == nil || err.Error() != "draining" {
		t.Errorf("draining: %v", err)
	}
}

// Running calls end normally while new calls are refused.
func TestDrainWaits(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			s, header := serve(t, way, handoffParams, then(streams(firstEvent), g.act, streams(secondEvent, doneEvent)))
			resp := mustOpen(t, s.url+completionsPath, ask(true).body, header...)
			readEvent(t, resp.Body)
			drained := startDrain(t, s, within(t))
			if err := s.Ready(); err == nil || err.Error() != "draining" {
				t.Errorf("readiness: %v", err)
			}
			got := post(t, s.url+completionsPath, ask(false).body, header...)
			got.mustRefuse(t, http.StatusServiceUnavailable, pd.Draining)
			if passed := get(t, s.url+"/health"); passed.status != 200 {
				t.Errorf("what is no generate call gets %d", passed.status)
			}
			select {
			case <-drained:
				t.Fatal("drained while a stream runs")
			default:
			}
			close(g.opened)
			rest, err := io.ReadAll(resp.Body)
			if err != nil || string(rest) != secondEvent+doneEvent {
				t.Errorf("rest %q, %v", rest, err)
			}
			wait(t, drained, "the drain to end")
			s.mustCount(t, 1, "tandem_requests_total", "decision", "refused", "reason", "draining", "code", "503")
		})
	}
}

func get(t *testing.T, url string) reply {
	t.Helper()
	resp, err := open(t, within(t), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, resp.Trailer, string(b), err}
}

// At the deadline, streams end with an error event that says why, and calls without an answer yet are refused.
func TestDrainCuts(t *testing.T) {
	t.Parallel()
	for name, way := range ways {
		t.Run(name+"/stream", func(t *testing.T) {
			s, header := serve(t, way, handoffParams, then(streams(firstEvent), hangs))
			resp := mustOpen(t, s.url+completionsPath, ask(true).body, append(header, "TE", "trailers")...)
			readEvent(t, resp.Body)
			s.Drain(expired())
			rest, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Error(err)
			}
			if _, message := lastError(t, pd.APICompletions, string(rest)); !strings.Contains(message, "shutting down") {
				t.Errorf("rest %s", rest)
			}
			if got := resp.Trailer.Get(pd.HeaderOutcome); got != "error" {
				t.Errorf("outcome %q", got)
			}
		})
		t.Run(name+"/whole, begun", func(t *testing.T) {
			s, header := serve(t, way, handoffParams, then(chunked(200, "application/json", wholeAnswer[:20]), hangs))
			resp := mustOpen(t, s.url+completionsPath, ask(false).body, header...)
			s.Drain(expired())
			if rest, err := io.ReadAll(resp.Body); err == nil {
				t.Errorf("half an answer looks whole: %s", rest)
			}
		})
		t.Run(name+"/before the answer", func(t *testing.T) {
			g := newGate()
			s, header := serve(t, way, handoffParams, g.act)
			answers := make(chan reply, 1)
			go func() { answers <- post(t, s.url+completionsPath, ask(false).body, header...) }()
			wait(t, g.arrived, "the decode leg")
			s.Drain(expired())
			got := wait(t, answers, "the answer")
			got.mustRefuse(t, http.StatusServiceUnavailable, pd.Draining)
			s.end()
			s.mustCount(t, map[string]float64{"remote": 1}[name], "tandem_kv_release_total", "result", "ok")
		})
		t.Run(name+"/a client that sends no more", func(t *testing.T) {
			g := newGate()
			s, header := serve(t, way, handoffParams, g.act)
			body, send := io.Pipe()
			defer send.Close()
			answers := make(chan reply, 1)
			go func() {
				resp, err := open(t, within(t), http.MethodPost, s.url+completionsPath, body, header...)
				if err != nil {
					answers <- reply{err: err}
					return
				}
				defer resp.Body.Close()
				b, err := io.ReadAll(resp.Body)
				answers <- reply{resp.StatusCode, resp.Header, nil, string(b), err}
			}()
			if _, err := io.WriteString(send, `{"model":"m","prompt":"a`); err != nil {
				t.Fatal(err)
			}
			for s.running() == 0 {
				runtime.Gosched()
			}
			s.Drain(expired())
			wait(t, answers, "the end of the call")
		})
		t.Run(name+"/a client that does not read", func(t *testing.T) {
			s, header := serve(t, way, handoffParams, then(streams(firstEvent), hangs))
			w := newStuckWriter()
			r := httptest.NewRequest(http.MethodPost, completionsPath, strings.NewReader(ask(true).body))
			for i := 0; i < len(header); i += 2 {
				r.Header.Set(header[i], header[i+1])
			}
			over := make(chan struct{})
			go func() { defer close(over); s.ServeHTTP(w, r) }()
			wait(t, w.stuck, "the answer to be stuck")
			s.Drain(expired())
			wait(t, over, "the end of the call")
		})
	}
	t.Run("during prefill", func(t *testing.T) {
		g := newGate()
		prefill, decode := startEngine(t, g.act), startEngine(t, ask(false).answer())
		s := startRig(t, decode.addr)
		answers := make(chan reply, 1)
		go func() { answers <- post(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, prefill.addr) }()
		wait(t, g.arrived, "the prefill leg")
		s.Drain(expired())
		got := wait(t, answers, "the answer")
		got.mustRefuse(t, http.StatusServiceUnavailable, pd.Draining)
		decode.mustSee(t)
	})
	t.Run("by the configured timeout", func(t *testing.T) {
		s, header := serve(t, ways["local"], handoffParams, then(streams(firstEvent), hangs), set(func(c *Config) { c.Fallback.Drain = time.Millisecond }))
		resp := mustOpen(t, s.url+completionsPath, ask(true).body, header...)
		readEvent(t, resp.Body)
		s.Drain(within(t))
		if rest, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(rest), "shutting down") {
			t.Errorf("rest %q, %v", rest, err)
		}
	})
}

// A release in progress counts as open work of the pod, although its client has left.
func TestReleaseIsOpen(t *testing.T) {
	g := newGate()
	s, header := serve(t, ways["remote"], handoffParams, then(g.act, streams(firstEvent)))
	l := startLeaver(t, s.url+completionsPath, ask(true).body, header...)
	wait(t, g.arrived, "the decode leg")
	l.mustLeave(t)
	s.busy.Wait()
	if running := s.running(); running != 0 {
		t.Fatalf("%d calls run", running)
	}
	s.mustCount(t, 1, "tandem_open_requests")
	close(g.opened)
	s.end()
	s.mustCount(t, 0, "tandem_open_requests")
	s.mustCount(t, 1, "tandem_kv_release_total", "way", "cancel", "result", "ok")
}

// stuckWriter is a client's connection that blocks until its deadline is set.
type stuckWriter struct {
	*httptest.ResponseRecorder
	stuck, given chan struct{}
	once         sync.Once
}

func newStuckWriter() *stuckWriter {
	return &stuckWriter{ResponseRecorder: httptest.NewRecorder(), stuck: make(chan struct{}, 16), given: make(chan struct{})}
}

// Write implements http.ResponseWriter.
func (w *stuckWriter) Write([]byte) (int, error) {
	w.stuck <- struct{}{}
	<-w.given
	return 0, os.ErrDeadlineExceeded
}

// SetReadDeadline is part of what http.ResponseController asks for.
func (w *stuckWriter) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline is part of what http.ResponseController asks for.
func (w *stuckWriter) SetWriteDeadline(time.Time) error {
	w.once.Do(func() { close(w.given) })
	return nil
}

// running returns how many calls have entered.
func (r *rig) running() int {
	r.life.mu.Lock()
	defer r.life.mu.Unlock()
	return len(r.life.running)
}
