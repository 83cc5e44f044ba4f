package sidecar

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/relay"
)

// An engine that repeats a long prompt in its first event (as ids, or by echo) sends events of megabytes.
func TestLongEvent(t *testing.T) {
	long := `data: {"prompt_token_ids":[` + strings.Repeat("123456,", 1<<20) + "0]}\n\n"
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			s, header := serve(t, way, handoffParams, streams(long, secondEvent, doneEvent))
			got := post(t, s.url+completionsPath, ask(true).body, header...)
			if got.body != long+secondEvent+doneEvent || got.err != nil {
				t.Errorf("%d bytes of %d, ending in %q, %v", len(got.body), len(long+secondEvent+doneEvent), tail(got.body), got.err)
			}
		})
	}
}

// A client whose connection breaks while it sends has left; it did not send a bad request.
func TestClientResetsWhileSending(t *testing.T) {
	decode := startEngine(t, ask(false).answer())
	for name, header := range map[string]string{"local": "", "remote": pd.HeaderPrefill + ": 127.0.0.1:1\r\n"} {
		t.Run(name, func(t *testing.T) {
			s := startRig(t, decode.addr)
			conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n%s\r\n", completionsPath, header)
			if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "100") {
				t.Fatalf("%q, %v", line, err)
			}
			_, _ = io.WriteString(conn, `{"model":`)
			_ = conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
			s.mustCount(t, 1, "tandem_requests_total", "code", "499")
			s.mustCount(t, 1, "tandem_requests_total")
		})
	}
}

// An event that comes when its deadline passes is relayed, or the request is redone; the answer is never broken off.
func TestEventAtTheDeadline(t *testing.T) {
	t.Parallel()
	q := ask(true)
	const deadline = 2 * time.Millisecond
	prefill := startEngine(t, offering(handoffParams))
	decode := startEngine(t, func(w http.ResponseWriter, r *asked) {
		if r.body == q.local {
			q.answer()(w, r)
			return
		}
		streams()(w, r)
		<-time.After(deadline)
		streams(firstEvent, secondEvent, doneEvent)(w, r)
	})
	s := startRig(t, decode.addr, set(func(c *Config) { c.Engine.FirstEvent, c.Fallback.Burst = deadline, 1000 }))
	for range 300 {
		if got := post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, prefill.addr); got.body != q.right() {
			t.Fatalf("%d %s\n%s", got.status, got.header.Get(pd.HeaderDecision), got.body)
		}
	}
}

// An answer that is too long to be buffered is complete even if the correction makes it shorter.
func TestCorrectedLongAnswer(t *testing.T) {
	answer := `{"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":40}},"text":"`
	answer += strings.Repeat("x", relay.MaxBuffered+1-len(answer)) + `the end"}`
	s, header := serve(t, ways["remote"], oldHandoff, chunked(200, "application/json", answer))
	got := post(t, s.url+completionsPath, ask(false).body, header...)
	if want := strings.Replace(answer, `cached_tokens":40`, `cached_tokens":8`, 1); got.body != want || got.err != nil {
		t.Errorf("%d bytes ending in %q, want %d, %v", len(got.body), tail(got.body), len(want), got.err)
	}
}

// A host that does not fit into a URL is reported as a problem of the configuration, and does not crash the start.
func TestEngineHost(t *testing.T) {
	for host, ok := range map[string]bool{"127.0.0.1": true, "::1": true, "localhost": true, "vllm.svc.local.": true,
		"a b": false, " h": false, "fe80::1%eth0": false, "[::1]": false, "h/path": false, "u@h": false, "": false, "h:1": false, "a%zz": false} {
		cfg, problems := Defaults(), []string(nil)
		cfg.Engine.Host = host
		cfg.Problems(func(flag, format string, args ...any) {
			problems = append(problems, flag+": "+fmt.Sprintf(format, args...))
		})
		if (len(problems) == 0) != ok || len(problems) > 1 {
			t.Errorf("%q: problems %q", host, problems)
		}
	}
}

// The same over HTTP/2, where a stream and a connection can break.
func TestClientBreaksOffWhileSendingHTTP2(t *testing.T) {
	decode := startEngine(t, ask(false).answer())
	for _, way := range []string{"stream", "connection"} {
		t.Run(way, func(t *testing.T) {
			s := startRig(t, decode.addr)
			const times = 20
			var served sync.WaitGroup // closing the server does not wait for streams whose connection is closed
			served.Add(times)
			front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer served.Done()
				s.ServeHTTP(w, r)
			}))
			front.Config.Protocols = new(http.Protocols)
			front.Config.Protocols.SetUnencryptedHTTP2(true)
			front.Start()
			t.Cleanup(front.Close)
			for range times {
				breakOff(t, front.URL+completionsPath, way == "stream")
			}
			served.Wait()
			s.mustCount(t, times, "tandem_requests_total", "code", "499")
		})
	}
}

// breakOff sends a part of a request over HTTP/2, then ends the stream or the connection.
func breakOff(t *testing.T, url string, stream bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	var conn net.Conn
	transport := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		conn, err = new(net.Dialer).DialContext(ctx, network, addr)
		return conn, err
	}}
	defer transport.CloseIdleConnections()
	transport.Protocols.SetUnencryptedHTTP2(true)
	continued := make(chan struct{})
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got100Continue: func() { close(continued) }})
	body, w := io.Pipe()
	defer w.Close()
	req, err := http.NewRequestWithContext(traced, http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Expect", "100-continue")
	req.Header.Set(pd.HeaderPrefill, "127.0.0.1:1")
	transport.ExpectContinueTimeout = testTimeout
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if resp, err := transport.RoundTrip(req); err == nil {
			resp.Body.Close()
		}
	}()
	wait(t, continued, "the sidecar to read")
	if stream {
		cancel()
	} else {
		conn.Close()
	}
	wait(t, ended, "the request to end")
}

// Errors of passing through go to the given log, and to no other.
func TestPassthroughLogs(t *testing.T) {
	var stray, given strings.Builder
	log.SetOutput(&stray)
	t.Cleanup(func() { log.SetOutput(os.Stderr) })
	engine := startEngine(t, breaks("text/plain", "half"))
	s := startRig(t, engine.addr, func(_ *Config, to *Telemetry) {
		to.Log = slog.New(slog.NewTextHandler(&given, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	if resp, err := open(t, within(t), http.MethodGet, s.url+"/metrics", nil); err == nil {
		resp.Body.Close()
	}
	s.busy.Wait()
	if stray.Len() > 0 || !strings.Contains(given.String(), "unexpected EOF") {
		t.Errorf("log %q, elsewhere %q", given.String(), stray.String())
	}
}

// The log says why a stream broke off; its client learns only that it did.
func TestBrokenStreamIsExplained(t *testing.T) {
	var given strings.Builder
	decode := startEngine(t, then(streams(firstEvent), resets))
	s := startRig(t, decode.addr, func(_ *Config, to *Telemetry) {
		to.Log = slog.New(slog.NewTextHandler(&given, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	got := post(t, s.url+completionsPath, ask(true).body)
	s.busy.Wait()
	if !strings.Contains(given.String(), "reset by peer") || strings.Contains(got.body, "reset by peer") {
		t.Errorf("log %q\nclient %q", given.String(), got.body)
	}
}
