package sidecar

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/intake"
)

// rawPost begins a request and leaves its body to the test.
func rawPost(t *testing.T, s *rig, path string, header ...string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%s\r\n", path, strings.Join(append(header, ""), "\r\n"))
	return conn
}

func rawReply(t *testing.T, conn net.Conn) reply {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, resp.Trailer, string(b), err}
}

// until polls a condition that no channel reports.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, poll := within(t), time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for !is() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain until %s", what)
		case <-poll.C:
		}
	}
}

// A body beyond the limit is refused before it is read, or where it exceeds the limit; buffered requests are served, and
// all bytes are released.
func TestBufferLimit(t *testing.T) {
	q := ask(false)
	engine, prefill := startEngine(t, q.answer()), startEngine(t, offering(handoffParams))
	const limit = 1 << 20
	s := startRig(t, engine.addr, set(func(c *Config) { c.Trust.BodyLimit, c.Trust.BufferLimit = limit/2, limit }))
	remote := pd.HeaderPrefill + ": " + prefill.addr
	const part = 450 << 10
	filler := fmt.Sprintf("%x\r\n%s\r\n", part, strings.Repeat(" ", part))
	var buffered []net.Conn
	// The test waits for the last segment of each: one that needed more could be refused instead of those below.
	// Segments have 16, 32, 64, 128, 256 KiB, and beyond half of the limit 16 each.
	for _, taken := range []float64{496 << 10, (496 + 16 + 32 + 26*16) << 10} {
		conn := rawPost(t, s, completionsPath, remote, "Transfer-Encoding: chunked")
		fmt.Fprint(conn, filler)
		buffered = append(buffered, conn)
		until(t, "the body is buffered", func() bool { return s.intake.Buffered() == taken })
	}
	announced := rawPost(t, s, completionsPath, remote, fmt.Sprint("Content-Length: ", limit/2))
	rawReply(t, announced).mustRefuse(t, http.StatusServiceUnavailable, pd.Busy)
	growing := rawPost(t, s, completionsPath, remote, "Transfer-Encoding: chunked")
	fmt.Fprint(growing, filler)
	rawReply(t, growing).mustRefuse(t, http.StatusServiceUnavailable, pd.Busy)
	local := post(t, s.url+completionsPath, q.body)
	local.mustBe(t, http.StatusOK, "local;reason=unplanned") // a body that is not buffered is not counted

	for _, conn := range buffered {
		fmt.Fprintf(conn, "%x\r\n%s\r\n0\r\n\r\n", len(q.body), q.body)
		rawReply(t, conn).mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
	}
	s.busy.Wait()
	s.mustCount(t, 0, "tandem_buffered_bytes")
}

// A client that announces many bytes and sends none costs little memory once half of the limit is used.
func TestAnnouncedBodiesCostLittle(t *testing.T) {
	engine, prefill := startEngine(t, ask(false).answer()), startEngine(t, offering(handoffParams))
	const limit, clients = 2 << 20, 30
	const segment, smallSegment = 256 << 10, 16 << 10 // while memory is plentiful, and scarce
	s := startRig(t, engine.addr, set(func(c *Config) { c.Trust.BodyLimit, c.Trust.BufferLimit = limit/2, limit }))
	var all []net.Conn
	for n := range clients {
		before := s.intake.Buffered()
		conn := rawPost(t, s, completionsPath, pd.HeaderPrefill+": "+prefill.addr, fmt.Sprint("Content-Length: ", segment))
		fmt.Fprint(conn, "{")
		all = append(all, conn)
		// The next one comes when this one has its segments, so that it sees how scarce memory is.
		until(t, "one more is received", func() bool { return s.open() == float64(n+1) && s.intake.Buffered() > before })
	}
	if buffered := s.intake.Buffered(); buffered <= limit/2 {
		t.Errorf("%v bytes are buffered, less than what may be", buffered)
	}
	if buffered := s.intake.Buffered(); buffered > limit*3/4+clients*smallSegment {
		t.Errorf("%v bytes are buffered for %d clients that have sent one each", buffered, clients)
	}
	for _, conn := range all {
		conn.Close()
	}
	s.busy.Wait()
	s.mustCount(t, 0, "tandem_buffered_bytes")
}

// A body that stops is refused on every path, and no engine waits for it.
func TestStoppedBodiesAreRefused(t *testing.T) {
	engine, prefill := startEngine(t, ask(false).answer()), startEngine(t, offering(handoffParams))
	s := startRig(t, engine.addr, set(func(c *Config) { c.Trust.BodyPause = 50 * time.Millisecond }))
	for _, c := range []struct {
		name, path string
		header     []string
	}{
		{"to be buffered", completionsPath, []string{pd.HeaderPrefill + ": " + prefill.addr, "Content-Length: 100"}},
		{"to be buffered, chunked", completionsPath, []string{pd.HeaderPrefill + ": " + prefill.addr, "Transfer-Encoding: chunked"}},
		{"to be streamed", completionsPath, []string{"Content-Length: 100"}},
		{"to be passed on", "/v1/rerank", []string{"Content-Length: 100"}},
		{"to be passed on, not JSON", "/v1/audio/transcriptions", []string{"Content-Type: audio/wav", "Content-Length: 100"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := rawPost(t, s, c.path, c.header...)
			fmt.Fprint(conn, "1\r\n{\r\n")
			got := rawReply(t, conn)
			if d := got.decision(t); got.status != http.StatusRequestTimeout || d.Reason != pd.SlowBody {
				t.Errorf("%d %v %s", got.status, d, got.body)
			}
			if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("the connection is still open: %v", err)
			}
		})
	}
	if n := len(prefill.requests()); n != 0 {
		t.Errorf("prefill was asked %d times", n)
	}
}

// The pause limit of bodies does not limit how long an answer may take after the body is complete.
func TestBodyPauseEndsWithTheBody(t *testing.T) {
	g := newGate()
	engine := startEngine(t, then(g.act, ask(false).answer()))
	s := startRig(t, engine.addr, set(func(c *Config) { c.Trust.BodyPause = shortPause / 2 }))
	conn := rawPost(t, s, completionsPath, fmt.Sprint("Content-Length: ", len(ask(false).body)))
	fmt.Fprint(conn, ask(false).body)
	wait(t, g.arrived, "the engine")
	over := time.NewTimer(shortPause) // two pauses long
	defer over.Stop()
	<-over.C
	close(g.opened)
	rawReply(t, conn).mustBe(t, http.StatusOK, "local;reason=unplanned")
}

// startSluggish serves an engine that does not read a request's body for a while.
func startSluggish(t *testing.T, pause time.Duration, then http.HandlerFunc) (addr string) {
	t.Helper()
	e := httptest.NewServer(silent(func(w http.ResponseWriter, r *http.Request) {
		over := time.NewTimer(pause)
		defer over.Stop()
		<-over.C
		then(w, r)
	}))
	t.Cleanup(e.Close)
	return e.Listener.Addr().String()
}

// hugeBody is larger than the socket buffers between client and engine.
var hugeBody = `{"prompt":"` + strings.Repeat("a", 20<<20) + `"}`

// shortPause is a client's pause that no busy machine makes; the engine makes a longer one.
const shortPause, longPause = time.Second, 1500 * time.Millisecond

// An engine that does not read does not use up the client's time, over either protocol: net/http's HTTP/2 ends a body for
// good when a deadline passes, even while no reader waits.
func TestBodiesWaitForTheEngine(t *testing.T) {
	t.Parallel()
	engine := startSluggish(t, longPause, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		says(http.StatusOK, "application/json", wholeAnswer)(w, nil)
	})
	s := startRig(t, engine, set(func(c *Config) { c.Trust.BodyPause = shortPause }))
	front := httptest.NewUnstartedServer(s)
	front.Config.Protocols = new(http.Protocols)
	front.Config.Protocols.SetUnencryptedHTTP2(true)
	front.Config.HTTP2 = HTTP2()
	front.Start()
	t.Cleanup(front.Close)
	two := &http.Transport{Protocols: front.Config.Protocols}
	t.Cleanup(two.CloseIdleConnections)
	for _, c := range []struct {
		name, url string
		client    *http.Client
	}{{"HTTP/1", s.url, newClient(t)}, {"HTTP/2", front.URL, &http.Client{Transport: two}}} {
		for _, path := range []string{completionsPath, "/v1/rerank"} {
			t.Run(c.name+path, func(t *testing.T) {
				t.Parallel()
				resp, err := c.client.Post(c.url+path, "application/json", strings.NewReader(hugeBody))
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if b, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || string(b) != wholeAnswer || err != nil {
					t.Errorf("%d %s (%v)", resp.StatusCode, b, err)
				}
			})
		}
	}
}

// A client is not refused for slowness when the engine stops reading and dies.
func TestEngineDiesOverABody(t *testing.T) {
	t.Parallel()
	engine := startSluggish(t, longPause, func(w http.ResponseWriter, _ *http.Request) { resets(w, nil) })
	s := startRig(t, engine, set(func(c *Config) { c.Trust.BodyPause = shortPause }))
	got := post(t, s.url+"/v1/rerank", hugeBody)
	if d := got.decision(t); got.status != http.StatusServiceUnavailable || d.Reason != pd.NoEndpoint || got.header.Get(pd.HeaderRetry) != "1" {
		t.Errorf("%d %v", got.status, d)
	}
}

// A request may have many bytes of headers, but not many lines.
func TestTooManyHeaders(t *testing.T) {
	engine := startEngine(t, ask(false).answer())
	s := startRig(t, engine.addr)
	for _, path := range []string{completionsPath, "/v1/models"} {
		for lines, want := range map[int]int{intake.MaxHeaders / 2: http.StatusOK, intake.MaxHeaders + 1: http.StatusRequestHeaderFieldsTooLarge} {
			var flood []string
			for range lines {
				flood = append(flood, "x-a: b")
			}
			conn := rawPost(t, s, path, append(flood, fmt.Sprint("Content-Length: ", len(ask(false).body)))...)
			fmt.Fprint(conn, ask(false).body)
			if got := rawReply(t, conn); got.status != want {
				t.Errorf("%s with %d lines: %d %s", path, lines, got.status, got.body)
			}
		}
	}
}
