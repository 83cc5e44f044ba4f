package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	procclient "github.com/tandem-serving/tandem/epp/extproc/client"
)

// engine answers as a vLLM engine does on the wire, with prepared bytes, so that its own cost stays small against that of
// the program in front of it.
type engine struct {
	listener net.Listener
	accepted atomic.Int64 // requests received completely
	hold     gate         // answers wait until it is open
	buffer   int          // size for each connection and direction, bytes
	work     sync.WaitGroup

	mu     sync.Mutex
	answer answer
	made   func(body []byte) answer // makes the answer to a request with this body; nil: all get answer, and no body is kept
	conns  map[net.Conn]bool
}

// answer writes an answer to a request.
type answer func(w *bufio.Writer) error

// Sizes of the buffers of a connection, in bytes: for requests of megabytes, and for thousands of connections.
const (
	largeBuffer = 64 << 10
	smallBuffer = 4 << 10
)

// gate is open unless it was closed.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // nil while open; else closed when the gate opens
}

func (g *gate) close() (open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := make(chan struct{})
	g.open = c
	return sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		close(c)
		g.open = nil
	})
}

func (g *gate) pass(ctx context.Context) {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	if open != nil {
		select {
		case <-open:
		case <-ctx.Done():
		}
	}
}

// startEngine serves on a free port of loopback until ctx ends; stop waits for the end.
func startEngine(ctx context.Context, buffer int, answer answer) (e *engine, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, fmt.Errorf("starting an engine: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	e = &engine{listener: l, buffer: buffer, answer: answer, conns: make(map[net.Conn]bool)}
	e.work.Go(func() { e.accept(ctx) })
	e.work.Go(func() { <-ctx.Done(); e.close() })
	return e, func() { cancel(); e.work.Wait() }, nil
}

func (e *engine) addr() string { return e.listener.Addr().String() }

func (e *engine) accept(ctx context.Context) {
	for {
		c, err := e.listener.Accept()
		if err != nil {
			return
		}
		if !e.keep(ctx, c) {
			_ = c.Close()
			return
		}
		e.work.Go(func() { e.serve(ctx, c) })
	}
}

// keep stores a connection, so that it is closed at the end. It returns false if the end has already come.
func (e *engine) keep(ctx context.Context, c net.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conns[c] = true
	return ctx.Err() == nil
}

func (e *engine) close() {
	_ = e.listener.Close()
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.conns {
		_ = c.Close()
	}
}

func (e *engine) serve(ctx context.Context, c net.Conn) {
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.conns, c)
		_ = c.Close()
	}()
	r, w := bufio.NewReaderSize(c, e.buffer), bufio.NewWriterSize(c, e.buffer)
	var body bytes.Buffer
	for {
		request, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if request.Method != http.MethodPost {
			if err := described(request.URL.Path)(w); err != nil {
				return
			}
			continue
		}
		body.Reset()
		to := io.Discard
		answer, made := e.answering()
		if made != nil {
			to = &body
		}
		if _, err := io.Copy(to, request.Body); err != nil {
			return
		}
		e.accepted.Add(1)
		e.hold.pass(ctx)
		if made != nil {
			answer = made(body.Bytes())
		}
		if err := answer(w); err != nil {
			return
		}
	}
}

// described returns the answer to a request that does not generate: that of Mooncake's bootstrap server to its only path, and else an empty list
// of models, which also says what the engines of SGLang and TensorRT-LLM say of themselves.
func described(path string) answer {
	if path == "/query" {
		return whole(`{"0":{"engine_id":"5b2f7c0e-54a1-4d0f-9d1e-0d6c1f6f2a11","worker_addr":{"0":{"0":"tcp://127.0.0.1:42353"}}}}`)
	}
	return whole(`{"object":"list","data":[],"disaggregation_mode":"prefill","disaggregation_bootstrap_port":8998,"dp_size":1,` +
		`"disaggregated_params":{"ctx_dp_rank":0,"ctx_info_endpoint":["tcp://127.0.0.1:42353"]}}`)
}

// answering returns how requests are answered now.
func (e *engine) answering() (answer, func(body []byte) answer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.answer, e.made
}

// makes has the answers to later requests made of their bodies.
func (e *engine) makes(made func(body []byte) answer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.made = made
}

// answers replaces the answer to later requests.
func (e *engine) answers(answer answer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer, e.made = answer, nil
}

// whole returns an answer of one JSON document.
func whole(document string) answer {
	bytes := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		len(document), document)
	return func(w *bufio.Writer) error {
		_, _ = w.Write(bytes)
		return w.Flush()
	}
}

// Sizes of a prompt: bytes in a token of English text, and tokens in a block of the KV cache.
const (
	bytesPerToken  = 4
	tokensPerBlock = 16
)

// prefilled returns the answer of a vLLM 0.32 prefill engine to the first leg of a completion of size bytes, with the
// hand-off: the longer the prompt, the more blocks.
func prefilled(size int) string { return handedOff(size, nixlParams(size, 0, "pull")) }

// decoded is the answer of a decode engine, and decodedCached that of one that counts what it was handed over as cached.
const (
	decoded = `{"id":"cmpl-bench","object":"text_completion","created":1700000000,"model":"bench","choices":[{"index":0,` +
		`"text":" quick brown fox jumps over the lazy dog","logprobs":null,"finish_reason":"length","stop_reason":null}],` +
		`"usage":{"prompt_tokens":256,"total_tokens":264,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":0}}}`
	decodedCached = `{"id":"cmpl-bench","object":"text_completion","created":1700000000,"model":"bench","choices":[{"index":0,` +
		`"text":" quick brown fox jumps over the lazy dog","logprobs":null,"finish_reason":"length","stop_reason":null}],` +
		`"usage":{"prompt_tokens":256,"total_tokens":264,"completion_tokens":8,"prompt_tokens_details":{"cached_tokens":256}}}`
)

// streamed returns an answer of events, one write each, at a pace that keeps them apart on the wire as tokens are.
func streamed(events int, pace time.Duration) answer {
	const head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	event := chunk(`data: {"id":"cmpl-bench","object":"text_completion","created":1700000000,"model":"bench",` +
		`"choices":[{"index":0,"text":" fox","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}` + "\n\n")
	end := append(chunk("data: [DONE]\n\n"), "0\r\n\r\n"...)
	return func(w *bufio.Writer) error {
		_, _ = w.WriteString(head)
		_, _ = w.Write(event)
		if err := w.Flush(); err != nil {
			return err
		}
		if err := apart(events-1, pace, func() error { _, _ = w.Write(event); return w.Flush() }); err != nil {
			return err
		}
		_, _ = w.Write(end)
		return w.Flush()
	}
}

// apart calls do n times, once in each interval of pace.
func apart(n int, pace time.Duration, do func() error) error {
	if n == 0 {
		return nil
	}
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for range n {
		<-tick.C
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// chunk returns one chunk of a chunked body.
func chunk(data string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(data), data) }

// page returns a metrics page like that of a vLLM engine, of about the given size in bytes.
func page(size int) []byte {
	var b bytes.Buffer
	for _, gauge := range []string{"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"} {
		fmt.Fprintf(&b, "# HELP vllm:%[1]s A gauge.\n# TYPE vllm:%[1]s gauge\n"+
			"vllm:%[1]s{engine=\"0\",model_name=\"bench\"} 0.0\n", gauge)
	}
	b.WriteString("# TYPE vllm:cache_config_info gauge\n" +
		"vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"8192\"} 1.0\n")
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "vllm:request_time_%d_seconds_bucket{engine=\"0\",le=\"%d.5\",model_name=\"bench\"} %d.0\n", i/20, i%20, i)
	}
	return b.Bytes()
}

// serveBaseline runs a baseline: the cheapest program that could stand in the place of one under test. bench starts it as a
// process of its own. It forwards to target, host:port.
func serveBaseline(ctx context.Context, std boot.IO, baseline, target string) error {
	l, err := boot.Listen(ctx, "baseline", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := boot.Ready(std.Stdout, "baseline", boot.Addresses{baseline: l.Addr()}); err != nil {
		return errors.Join(err, l.Close())
	}
	if baseline == baselinePicker {
		server := grpc.NewServer()
		(&procclient.Baseline{Endpoints: target}).Register(server)
		stop := context.AfterFunc(ctx, server.Stop)
		defer stop()
		return server.Serve(l)
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: target})
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: maxLanes}
	// Without full duplex the server closes the request's body when the answer begins. The transport may not have read its
	// end yet, and would cut the answer.
	duplex := func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex() // never fails over HTTP/1
		proxy.ServeHTTP(w, r)
	}
	server := &http.Server{Handler: http.HandlerFunc(duplex)}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
