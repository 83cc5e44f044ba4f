package sidecar

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// leaver is a client that can leave while it waits.
type leaver struct {
	leave context.CancelFunc
	begun chan struct{} // closed when the first byte of the answer's body is there
	ended chan error
}

// startLeaver sends a request and reads its answer until it ends, or the client leaves.
func startLeaver(t *testing.T, url, body string, header ...string) *leaver {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	l := &leaver{cancel, make(chan struct{}), make(chan error, 1)}
	go func() {
		resp, err := open(t, ctx, http.MethodPost, url, strings.NewReader(body), header...)
		if err == nil {
			if _, err = io.ReadFull(resp.Body, make([]byte, 1)); err == nil {
				close(l.begun)
				_, err = io.Copy(io.Discard, resp.Body)
			}
			resp.Body.Close()
		}
		l.ended <- err
	}()
	return l
}

func (l *leaver) mustLeave(t *testing.T) {
	t.Helper()
	l.leave()
	if err := wait(t, l.ended, "the client to leave"); err == nil {
		t.Error("the answer was complete before the client left")
	}
}

// noticed reports when an act's engine lost its client.
func noticed(before act) (act, <-chan struct{}) {
	lost := make(chan struct{}, 1)
	return then(before, func(w http.ResponseWriter, r *asked) {
		<-r.Context().Done()
		lost <- struct{}{}
	}), lost
}

func returnsSilently(http.ResponseWriter, *asked) {}

func TestClientGoneDuringPrefill(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, q question) {
		g := newGate()
		act, lost := noticed(g.act)
		prefill, other, decode := startEngine(t, act), startEngine(t, offering(handoffParams)), startEngine(t, q.answer())
		s := startRig(t, decode.addr)
		l := startLeaver(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr+","+other.addr)
		wait(t, g.arrived, "the prefill leg")
		l.mustLeave(t)
		wait(t, lost, "prefill to notice")
		s.mustReleaseByDecode(t, decode, 0)
		other.mustSee(t)
		decode.mustSee(t)
		s.mustCount(t, 1, "tandem_requests_total", "decision", "remote", "reason", "external", "code", "499")
	})
}

// A prefill leg that is ended because its client has left is not sent again over another connection, although its engine closes the first one as if
// it had been idle for too long.
func TestLegOfLeftClientIsNotSentAgain(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, q question) {
		g := newGate()
		act, lost := noticed(g.act)
		prefill, decode := startEngine(t, offering(handoffParams), then(act, closes)), startEngine(t, q.answer())
		s := startRig(t, decode.addr)
		post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr) // so that there is an idle connection
		l := startLeaver(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr)
		wait(t, g.arrived, "the prefill leg")
		l.mustLeave(t)
		wait(t, lost, "prefill to notice")
		s.end()
		if n := len(prefill.requests()); n != 2 {
			t.Errorf("the engine got %d legs for two requests", n)
		}
	})
}

// Prefill has finished when the client leaves, but its answer has not arrived yet: the hand-off in it is released.
func TestClientGoneBeforePrefillIsRead(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, q question) {
		g := newGate()
		act, lost := noticed(streams())
		prefill, decode := startEngine(t, then(g.act, offering(handoffParams))), startEngine(t, act)
		s := startRig(t, decode.addr)
		l := startLeaver(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr)
		wait(t, g.arrived, "the prefill leg")
		l.mustLeave(t) // which also opens the gate
		wait(t, lost, "decode to get the leg and lose it")
		s.end()
		decode.mustSee(t, q.release)
		s.mustCount(t, 1, "tandem_kv_release_total", "way", "cancel", "result", "ok")
		s.mustCount(t, 0, "tandem_kv_stranded_total")
		s.mustCount(t, 1, "tandem_requests_total", "decision", "remote", "code", "499")
	})
}

// A pause between two tries on the same candidate does not outlast the client.
func TestClientGoneBetweenTries(t *testing.T) {
	failed := make(chan struct{}, 1)
	prefill, decode := startEngine(t, says(503, "text/plain", "")), startEngine(t, ask(false).answer())
	s := startRig(t, decode.addr, func(c *Config, to *Telemetry) {
		c.Prefill.MaxRetries, c.Prefill.RetryBackoff = 1, testTimeout
		to.Log = slog.New(slog.NewTextHandler(writerFunc(func() { failed <- struct{}{} }), &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	l := startLeaver(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, prefill.addr)
	wait(t, failed, "the first try to fail")
	l.mustLeave(t)
	s.mustCount(t, 1, "tandem_requests_total", "code", "499")
	prefill.mustSee(t, ask(false).prefill)
}

// writerFunc is a log that calls a function for each line.
type writerFunc func()

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) { f(); return len(p), nil }

func TestClientGoneDuringDecode(t *testing.T) {
	cases := []struct {
		name     string
		before   act  // what the engine does until the client leaves
		begun    bool // the client has received a part of it
		released []float64
	}{
		{"before the headers", returnsSilently, false, []float64{1}},
		{"before the first event", streams(), false, []float64{1}},
		// The sidecar may or may not have seen the headers, which show that the engine has noted the hand-off.
		{"before the first byte", chunked(200, "application/json", ""), false, []float64{0, 1}},
		{"within a stream", streams(firstEvent), true, []float64{0}},
		{"within a whole answer", chunked(200, "application/json", wholeAnswer[:20]), true, []float64{0}},
		{"within a refusal", chunked(400, "application/json", "{"), true, []float64{1}},
	}
	for _, c := range cases {
		for name, way := range ways {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				g := newGate()
				act, lost := noticed(then(c.before, signal(g)))
				prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, act)
				s := startRig(t, decode.addr)
				l := startLeaver(t, s.url+completionsPath, ask(strings.Contains(c.name, "event")).body, way(prefill)...)
				wait(t, g.arrived, "the decode leg")
				if c.begun {
					wait(t, l.begun, "the answer to begin")
				}
				l.mustLeave(t)
				wait(t, lost, "decode to notice")
				s.end()
				want := c.released
				if name == "local" {
					want = []float64{0}
				}
				if got := s.count(t, "tandem_kv_release_total", "way", "cancel", "result", "ok"); !slices.Contains(want, got) {
					t.Errorf("%v releases, want %v", got, want)
				}
				s.mustCount(t, 0, "tandem_kv_stranded_total")
				s.mustCount(t, 0, "tandem_retries_total")
				s.mustCount(t, 0, "tandem_inflight")
				s.mustCount(t, 1, "tandem_requests_total", "decision", name)
			})
		}
	}
}

// signal says that an act has come this far, and goes on.
func signal(g gate) act { return func(http.ResponseWriter, *asked) { g.arrived <- struct{}{} } }

// An engine that answers the leg of a client that has left may not have released the hand-off.
func TestAbandonedLegIsAnswered(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name     string
		act      act
		releases int // by a request of its own
	}{
		{"served", says(200, "application/json", wholeAnswer), 0},
		{"not admitted", says(503, "application/json", "{}"), 0},
		{"too many", says(429, "application/json", "{}"), 1}, // a proxy before the engine, which has not seen the leg
		{"refused", says(404, "application/json", "{}"), 1},
		{"failed", says(500, "application/json", "{}"), 1},
		{"reset", resets, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newGate()
			// The client has left when prefill's answer goes out, so the decode leg is sent only for its release.
			prefill, decode := startEngine(t, then(g.act, offering(handoffParams))), startEngine(t, c.act)
			s := startRig(t, decode.addr)
			l := startLeaver(t, s.url+completionsPath, ask(false).body, pd.HeaderPrefill, prefill.addr)
			wait(t, g.arrived, "the prefill leg")
			l.mustLeave(t)
			s.end()
			decode.mustSee(t, ask(false).release)
			if got := len(decode.releases()); got != c.releases {
				t.Errorf("%d releases, want %d", got, c.releases)
			}
			s.mustCount(t, 1, "tandem_kv_release_total")
			s.mustCount(t, 1, "tandem_kv_release_total", "way", "cancel", "result", "ok")
			s.mustCount(t, 0, "tandem_kv_stranded_total")
		})
	}
}

// rawRequest writes a request whose body is announced longer than it is sent.
func rawRequest(t *testing.T, s *rig, header, part string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n%s\r\n%s", completionsPath, header, part)
	return conn.(*net.TCPConn)
}

// A client that stops in the middle of its request gets no complete answer, and no engine computes for it.
func TestClientGoneWhileItSends(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			prefill, decode := startEngine(t, offering(handoffParams)), startEngine(t, ask(false).answer())
			s := startRig(t, decode.addr)
			header := ""
			if h := way(prefill); h != nil {
				header = h[0] + ": " + h[1] + "\r\n"
			}
			conn := rawRequest(t, s, header, `{"model":"m","prompt":"a`)
			if err := conn.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
				t.Errorf("half a request was answered with %s", resp.Status)
				resp.Body.Close()
			}
			s.mustCount(t, 1, "tandem_requests_total", "decision", name, "code", "499")
			prefill.mustSee(t)
			decode.mustSee(t)
			s.mustReleaseByDecode(t, decode, 0)
		})
	}
}
