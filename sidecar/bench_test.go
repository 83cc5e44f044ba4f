package sidecar

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// rawEngine answers every request with the same bytes, and costs next to nothing itself.
func rawEngine(b *testing.B, answer []byte) (addr string) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
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
	b.Cleanup(func() {
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

// streamAnswer is a stream of n events, each in a chunk of its own.
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

// floor is the least that a proxy costs.
func floor(b *testing.B, engine string) http.Handler {
	to, err := url.Parse("http://" + engine)
	if err != nil {
		b.Fatal(err)
	}
	transport := newTransport(64, nil, nil)
	b.Cleanup(transport.CloseIdleConnections)
	return &httputil.ReverseProxy{Transport: transport, Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(to) }}
}

// sink is a client that takes everything and costs nothing.
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

// drive sends one request after another to a handler, and checks how much of each answer came.
func drive(b *testing.B, h http.Handler, body string, answer int, header ...string) {
	b.Helper()
	at := &url.URL{Path: completionsPath}
	b.ReportAllocs()
	b.SetBytes(int64(len(body) + answer))
	for b.Loop() {
		w := &sink{header: http.Header{}}
		r := &http.Request{Method: http.MethodPost, URL: at, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Host: "x", ContentLength: int64(len(body)),
			Body: io.NopCloser(strings.NewReader(body)), Header: http.Header{"Content-Type": {"application/json"}, "X-Request-Id": {"bench"}}}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		h.ServeHTTP(w, r)
		if w.status != http.StatusOK || w.bytes != answer {
			b.Fatalf("%d, %d bytes, want %d", w.status, w.bytes, answer)
		}
	}
}

func promptOf(size int) string {
	return `{"model":"m","max_tokens":16,"prompt":"` + strings.Repeat("lorem ip", (size-50)/8) + `"}`
}

func BenchmarkLocal(b *testing.B) {
	engine := rawEngine(b, httpAnswer("application/json", wholeAnswer))
	s, proxy := startRig(b, engine), floor(b, engine)
	for _, size := range []int{1, 32} {
		name := strconv.Itoa(size) + "KB"
		b.Run("sidecar/"+name, func(b *testing.B) { drive(b, s.Handler(), promptOf(size<<10), len(wholeAnswer)) })
		b.Run("floor/"+name, func(b *testing.B) { drive(b, proxy, promptOf(size<<10), len(wholeAnswer)) })
	}
}

// BenchmarkRemote runs two legs; the floor beside it is one.
func BenchmarkRemote(b *testing.B) {
	engine := rawEngine(b, httpAnswer("application/json", wholeAnswer))
	prefill := rawEngine(b, httpAnswer("application/json", offer(handoff)))
	s, proxy := startRig(b, engine), floor(b, engine)
	for _, size := range []int{1, 220} {
		name := strconv.Itoa(size) + "KB"
		b.Run("sidecar/"+name, func(b *testing.B) {
			drive(b, s.Handler(), promptOf(size<<10), len(wholeAnswer), pd.HeaderPrefill, prefill)
		})
		b.Run("floor/"+name, func(b *testing.B) { drive(b, proxy, promptOf(size<<10), len(wholeAnswer)) })
	}
}

func BenchmarkStream(b *testing.B) {
	const events = 200
	stream := streamAnswer(events)
	engine, prefill := rawEngine(b, stream), rawEngine(b, httpAnswer("application/json", offer(handoff)))
	s, proxy := startRig(b, engine), floor(b, engine)
	resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(stream)), nil)
	if err != nil {
		b.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil {
		b.Fatal(err)
	}
	body := strings.Replace(promptOf(1<<10), "{", `{"stream":true,`, 1)
	b.Run("sidecar/local", func(b *testing.B) { drive(b, s.Handler(), body, int(n)) })
	b.Run("sidecar/remote", func(b *testing.B) { drive(b, s.Handler(), body, int(n), pd.HeaderPrefill, prefill) })
	b.Run("floor", func(b *testing.B) { drive(b, proxy, body, int(n)) })
}
