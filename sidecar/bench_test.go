package sidecar

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// rawEngine answers every request with the same bytes, at next to no cost of its own.
func rawEngine(t testing.TB, answer []byte) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { answerAll(conn, answer) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait() // the sidecar's idle connections are closed by then
	})
	return l.Addr().String()
}

func answerAll(conn net.Conn, answer []byte) {
	defer conn.Close()
	r := bufio.NewReaderSize(conn, 64<<10)
	length := []byte("Content-Length: ")
	for {
		n := 0
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				return
			}
			if line = bytes.TrimSpace(line); len(line) == 0 {
				break
			}
			if digits, ok := bytes.CutPrefix(line, length); ok {
				for _, c := range digits {
					n = n*10 + int(c-'0')
				}
			}
		}
		if _, err := r.Discard(n); err != nil {
			return
		}
		if _, err := conn.Write(answer); err != nil {
			return
		}
	}
}

func httpAnswer(contentType, body string) []byte {
	return []byte("HTTP/1.1 200 OK\r\nContent-Type: " + contentType + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}

// streamAnswer returns a stream of n events, each in a chunk of its own.
func streamAnswer(n int) []byte {
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
	event := `data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" hello","logprobs":null,"finish_reason":null}],"usage":null}` + "\n\n"
	for range n {
		b.WriteString(strconv.FormatInt(int64(len(event)), 16) + "\r\n" + event + "\r\n")
	}
	b.WriteString(strconv.FormatInt(int64(len(doneEvent)), 16) + "\r\n" + doneEvent + "\r\n0\r\n\r\n")
	return b.Bytes()
}

// baseline returns a bare net/http reverse proxy: the lower bound that the benchmarks compare the sidecar with.
func baseline(b *testing.B, engine string) http.Handler {
	to, err := url.Parse("http://" + engine)
	if err != nil {
		b.Fatal(err)
	}
	pool := transport.New(64, nil, nil)
	b.Cleanup(pool.CloseIdleConnections)
	return &httputil.ReverseProxy{Transport: pool, Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(to) }}
}

// sink is a client that discards its answer at no cost.
type sink struct {
	header http.Header
	status int
	bytes  int
}

// Header implements http.ResponseWriter.
func (s *sink) Header() http.Header { return s.header }

// WriteHeader implements http.ResponseWriter.
func (s *sink) WriteHeader(status int) { s.status = status }

// Write implements http.ResponseWriter.
func (s *sink) Write(p []byte) (int, error) { s.bytes += len(p); return len(p), nil }

// Flush implements http.Flusher.
func (s *sink) Flush() {}

// SetReadDeadline is what a connection has: without it, each request would cost an error.
func (s *sink) SetReadDeadline(time.Time) error { return nil }

// drive sends one request after another to a handler.
func drive(b *testing.B, h http.Handler, body string, answer int, header ...string) {
	b.Helper()
	b.ReportAllocs()
	b.SetBytes(int64(len(body) + answer))
	for b.Loop() {
		serveOne(b, h, body, answer, header...)
	}
}

var completions = &url.URL{Path: completionsPath}

// serveOne sends a request to a handler, and checks how much of the answer came.
func serveOne(t testing.TB, h http.Handler, body string, answer int, header ...string) {
	w := &sink{header: http.Header{}}
	r := &http.Request{Method: http.MethodPost, URL: completions, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Host: "x",
		ContentLength: int64(len(body)), Body: io.NopCloser(strings.NewReader(body)),
		Header: http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"bench"}}}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	h.ServeHTTP(w, r)
	if w.status != http.StatusOK || w.bytes != answer {
		t.Fatalf("%d, %d bytes, want %d", w.status, w.bytes, answer)
	}
}

func promptOf(size int) string {
	return `{"model":"m","max_tokens":16,"prompt":"` + strings.Repeat("lorem ip", (size-50)/8) + `"}`
}

func BenchmarkLocal(b *testing.B) {
	engine := rawEngine(b, httpAnswer("application/json", wholeAnswer))
	s, proxy := startRig(b, engine), baseline(b, engine)
	for _, size := range []int{1, 32} {
		name := strconv.Itoa(size) + "KB"
		b.Run("sidecar/"+name, func(b *testing.B) { drive(b, s.Handler(), promptOf(size<<10), len(wholeAnswer)) })
		b.Run("baseline/"+name, func(b *testing.B) { drive(b, proxy, promptOf(size<<10), len(wholeAnswer)) })
	}
}

// BenchmarkRemote runs two legs; its baseline has one.
func BenchmarkRemote(b *testing.B) {
	engine := rawEngine(b, httpAnswer("application/json", wholeAnswer))
	prefill := rawEngine(b, httpAnswer("application/json", offer(handoffParams)))
	s, proxy := startRig(b, engine), baseline(b, engine)
	for _, size := range []int{1, 220} {
		name := strconv.Itoa(size) + "KB"
		b.Run("sidecar/"+name, func(b *testing.B) {
			drive(b, s.Handler(), promptOf(size<<10), len(wholeAnswer), pd.HeaderPrefill, prefill)
		})
		b.Run("baseline/"+name, func(b *testing.B) { drive(b, proxy, promptOf(size<<10), len(wholeAnswer)) })
	}
}

func BenchmarkStream(b *testing.B) {
	const events = 200
	stream := streamAnswer(events)
	engine, prefill := rawEngine(b, stream), rawEngine(b, httpAnswer("application/json", offer(handoffParams)))
	s, proxy := startRig(b, engine), baseline(b, engine)
	n, body := bodyLength(b, stream), streamed(promptOf(1<<10))
	b.Run("sidecar/local", func(b *testing.B) { drive(b, s.Handler(), body, n) })
	b.Run("sidecar/remote", func(b *testing.B) { drive(b, s.Handler(), body, n, pd.HeaderPrefill, prefill) })
	b.Run("baseline", func(b *testing.B) { drive(b, proxy, body, n) })
}

// idsAnswer returns a stream of n events in vLLM's form, with token ids or without.
func idsAnswer(n int, ids bool) []byte {
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
	for i := range n {
		prompt, token := "null", "null"
		if ids {
			token = "[12345]"
		}
		if ids && i == 0 {
			prompt = "[1" + strings.Repeat(",23456", 255) + "]"
		}
		finish := "null"
		if i == n-1 {
			finish = `"length"`
		}
		event := fmt.Sprintf(`data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" hello","logprobs":null,"finish_reason":%s,"stop_reason":null,"prompt_token_ids":%s,"token_ids":%s}]}`+"\n\n",
			finish, prompt, token)
		b.WriteString(strconv.FormatInt(int64(len(event)), 16) + "\r\n" + event + "\r\n")
	}
	b.WriteString(strconv.FormatInt(int64(len(doneEvent)), 16) + "\r\n" + doneEvent + "\r\n0\r\n\r\n")
	return b.Bytes()
}

// BenchmarkStreamThatMayGoOn measures what it costs, while no engine dies, that a stream could go on elsewhere.
func BenchmarkStreamThatMayGoOn(b *testing.B) {
	const events = 200
	prefill := rawEngine(b, httpAnswer("application/json", offer(handoffParams)))
	n, body := bodyLength(b, idsAnswer(events, false)), streamed(promptOf(1<<10))
	b.Run("never", func(b *testing.B) {
		s := startRig(b, rawEngine(b, idsAnswer(events, false)))
		drive(b, s.Handler(), body, n, pd.HeaderPrefill, prefill)
	})
	b.Run("may", func(b *testing.B) {
		s := startRig(b, rawEngine(b, idsAnswer(events, true)), goesOn)
		drive(b, s.Handler(), body, n, pd.HeaderPrefill, prefill)
	})
}

func streamed(body string) string { return strings.Replace(body, "{", `{"stream":true,`, 1) }

// bodyLength returns how much of a raw answer is body.
func bodyLength(t testing.TB, answer []byte) int {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

// TestStreamAllocs checks that an event allocates nothing, and that a whole exchange allocates little. It compares the least of some means, since
// the race detector empties pools at random.
func TestStreamAllocs(t *testing.T) {
	const most = 290 // some 257, and 275 with the race detector; two thirds are net/http's, for the two legs
	mean := map[int]float64{}
	for _, events := range []int{2, 200} {
		stream := streamAnswer(events)
		engine, prefill := rawEngine(t, stream), rawEngine(t, httpAnswer("application/json", offer(handoffParams)))
		h := startRig(t, engine).Handler()
		n, body := bodyLength(t, stream), streamed(promptOf(1<<10))
		mean[events] = math.Inf(1)
		// On a busy machine the sidecar asks engines meanwhile whether they are well.
		for i := 0; i < 4 || i < 20 && mean[events] > most; i++ {
			mean[events] = min(mean[events], testing.AllocsPerRun(50, func() { serveOne(t, h, body, n, pd.HeaderPrefill, prefill) }))
		}
	}
	t.Logf("%v objects for a stream of 2 events, %v for one of 200", mean[2], mean[200])
	if mean[200] > most {
		t.Errorf("%v objects for a stream of 200 events, want at most %d", mean[200], most)
	}
	if more := mean[200] - mean[2]; more > 20 {
		t.Errorf("200 events cost %v objects more than 2", more)
	}
}

// TestLocalAllocs checks that a long body costs no more objects or buffers than a short one.
func TestLocalAllocs(t *testing.T) {
	h := startRig(t, rawEngine(t, httpAnswer("application/json", wholeAnswer))).Handler()
	const size = 32 << 10
	prompt := promptOf(size)
	serveOne(t, h, prompt, len(wholeAnswer))
	var before, after runtime.MemStats
	least := uint64(math.MaxUint64)
	for range 20 {
		runtime.ReadMemStats(&before)
		serveOne(t, h, prompt, len(wholeAnswer))
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	if least > size {
		t.Errorf("%d bytes allocated for a body of %d that is passed on", least, len(prompt))
	}
}

// notifying is a client that reports when a part of its answer has come.
type notifying struct {
	sink
	once sync.Once
	came chan struct{}
}

// Write implements http.ResponseWriter.
func (n *notifying) Write(p []byte) (int, error) {
	n.once.Do(func() { close(n.came) })
	return n.sink.Write(p)
}

// TestStreamHoldsNoBody checks that a long prompt is not kept in memory while its answer streams.
func TestStreamHoldsNoBody(t *testing.T) {
	endless, _, _ := strings.Cut(string(streamAnswer(1)), "\r\ne\r\n") // without its end
	engine, prefill := rawEngine(t, []byte(endless+"\r\n")), rawEngine(t, httpAnswer("application/json", offer(handoffParams)))
	h := startRig(t, engine).Handler()
	prompt := streamed(promptOf(8 << 20))
	before := heap()
	ctx, leave := context.WithCancel(t.Context())
	r := (&http.Request{Method: http.MethodPost, URL: completions, ContentLength: int64(len(prompt)),
		Body: io.NopCloser(strings.NewReader(prompt)), Header: http.Header{"Content-Type": {"application/json"}}}).WithContext(ctx)
	r.Header.Set(pd.HeaderPrefill, prefill)
	w := &notifying{sink: sink{header: http.Header{}}, came: make(chan struct{})}
	ended := make(chan struct{})
	go func() { defer close(ended); h.ServeHTTP(w, r) }()
	wait(t, w.came, "the first event")
	// The goroutine that wrote the leg's last bytes may still hold their segment when the answer arrives, but not for long.
	until(t, "the prompt is not in memory while its answer streams", func() bool { return heap()-before < 4<<20 })
	leave()
	wait(t, ended, "the end")
	runtime.KeepAlive(prompt)
}

// heap returns how many bytes of the heap are live. What is in a sync.Pool survives one collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
