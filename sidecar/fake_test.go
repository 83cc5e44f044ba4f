package sidecar

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/sidecar/continuation"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// fakeEngine is an engine that answers by a script and records its requests. It answers /health, releases, and the sidecar's question what
// it is, without the script.
type fakeEngine struct {
	addr   string
	server *httptest.Server
	probed chan struct{} // gets one for each /health, up to its size

	mu            sync.Mutex // guards the fields below
	script        []act      // one per request; the last one goes on
	releaseAnswer act        // answers releases
	sick          bool       // fails /health
	noParser      bool       // parses nothing for others
	hung          bool       // does not answer it
	metrics       string     // its page when the sidecar asks what it is; "": it has none
	seen          []*asked
	released      []*asked
}

// act is one answer.
type act func(w http.ResponseWriter, r *asked)

// asked is a request as the engine got it.
type asked struct {
	*http.Request
	body string
}

// startEngine serves an engine until the test ends.
func startEngine(t testing.TB, script ...act) *fakeEngine {
	t.Helper()
	return startEngineAt(t, listen(t, "127.0.0.1:0"), script...)
}

// startEngineAt is startEngine on a listener.
func startEngineAt(t testing.TB, at net.Listener, script ...act) *fakeEngine {
	t.Helper()
	e := &fakeEngine{script: script, probed: make(chan struct{}, 16), releaseAnswer: says(http.StatusNotFound, "application/json", `{"error":{"message":"no such model"}}`)}
	e.server = httptest.NewUnstartedServer(e)
	e.server.Listener.Close()
	e.server.Listener = at
	e.server.Start()
	e.addr = at.Addr().String()
	t.Cleanup(e.server.Close)
	return e
}

func listen(t testing.TB, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// ServeHTTP implements http.Handler.
func (e *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		e.health(w, r)
		return
	}
	if asksWhatItIs(r) {
		e.introduce(w, r.URL.Path)
		return
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return // the caller has left
	}
	q := &asked{r, string(b)}
	e.next(q)(w, q)
}

func (e *fakeEngine) health(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hung {
		<-r.Context().Done() // the others wait meanwhile, as at an engine that hangs
		return
	}
	if e.sick {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	select {
	case e.probed <- struct{}{}:
	default:
	}
}

// asksWhatItIs reports whether the sidecar wants to know which protocol the engine speaks, or whether it parses for others.
func asksWhatItIs(r *http.Request) bool {
	return r.UserAgent() == transport.Agent && (r.URL.Path == "/metrics" || r.URL.Path == "/v1/models" || r.URL.Path == continuation.ParsePath)
}

// silent is an engine that does not say what it is, with a handler for all else.
func silent(engine http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asksWhatItIs(r) {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		engine(w, r)
	})
}

// introduce tells the sidecar what the engine is.
func (e *fakeEngine) introduce(w http.ResponseWriter, path string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if path == continuation.ParsePath {
		status := http.StatusBadRequest // it parses, but not this
		if e.noParser {
			status = http.StatusForbidden
		}
		w.WriteHeader(status)
		return
	}
	if e.metrics == "" || path != "/metrics" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	_, _ = io.WriteString(w, e.metrics)
}

// becomes gives the engine another metrics page.
func (e *fakeEngine) becomes(metrics string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.metrics = metrics
}

// parsesNot has the engine parse nothing for others from now on.
func (e *fakeEngine) parsesNot() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.noParser = true
}

// failHealth fails /health from now on.
func (e *fakeEngine) failHealth() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sick = true
}

// hang has the engine answer no further probe.
func (e *fakeEngine) hang() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hung = true
}

// goOn has the engine answer probes again.
func (e *fakeEngine) goOn() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hung = false
}

// crash ends the engine as a crash does.
func (e *fakeEngine) crash() {
	e.server.Listener.Close()
	e.server.CloseClientConnections()
}

// next records a request and takes its act from the script.
func (e *fakeEngine) next(r *asked) act {
	e.mu.Lock()
	defer e.mu.Unlock()
	if strings.Contains(r.body, `"tandem-release"`) {
		e.released = append(e.released, r)
		return e.releaseAnswer
	}
	e.seen = append(e.seen, r)
	return e.script[min(len(e.seen), len(e.script))-1]
}

// requests returns what was asked so far, without releases.
func (e *fakeEngine) requests() []*asked {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]*asked(nil), e.seen...)
}

func (e *fakeEngine) releases() []*asked {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]*asked(nil), e.released...)
}

// only returns the request of an engine that was asked once.
func (e *fakeEngine) only(t *testing.T) *asked {
	t.Helper()
	seen := e.requests()
	if len(seen) != 1 {
		t.Fatalf("the engine was asked %d times", len(seen))
	}
	return seen[0]
}

// mustSee checks the bodies an engine was asked with.
func (e *fakeEngine) mustSee(t *testing.T, bodies ...string) {
	t.Helper()
	seen := e.requests()
	if len(seen) != len(bodies) {
		t.Errorf("the engine was asked %d times, want %d", len(seen), len(bodies))
	}
	for i := range min(len(seen), len(bodies)) {
		if seen[i].body != bodies[i] {
			t.Errorf("request %d was\n%s\nwant\n%s", i, seen[i].body, bodies[i])
		}
	}
}

// says answers whole.
func says(status int, contentType, body string, header ...string) act {
	return func(w http.ResponseWriter, _ *asked) {
		h := w.Header()
		h.Set("Content-Type", contentType)
		for i := 0; i < len(header); i += 2 {
			h.Add(header[i], header[i+1])
		}
		h.Set("Content-Length", strconv.Itoa(len(body)))
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body) // a client that does not read it has left
	}
}

// chunked answers without a Content-Length.
func chunked(status int, contentType, body string) act {
	return func(w http.ResponseWriter, _ *asked) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
		flush(w)
	}
}

// streams answers with pieces of an event stream, each in a chunk of its own.
func streams(pieces ...string) act {
	return func(w http.ResponseWriter, _ *asked) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		flush(w)
		for _, p := range pieces {
			_, _ = io.WriteString(w, p)
			flush(w)
		}
	}
}

// then runs one act after another.
func then(acts ...act) act {
	return func(w http.ResponseWriter, r *asked) {
		for _, a := range acts {
			a(w, r)
		}
	}
}

func flush(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() }

// resets ends the connection by RST, with what was not flushed unsent.
func resets(w http.ResponseWriter, _ *asked) { cut(w, true) }

// closes ends the connection by FIN, whatever was promised.
func closes(w http.ResponseWriter, _ *asked) { cut(w, false) }

func cut(w http.ResponseWriter, reset bool) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
	conn.Close()
}

// breaks sends the beginning of a whole answer, and ends the connection by FIN.
func breaks(contentType, body string) act {
	return func(w http.ResponseWriter, r *asked) {
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Content-Length", strconv.Itoa(2*len(body)+1))
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, body)
		flush(w)
		closes(w, r)
	}
}

// hangs answers nothing until the other side has left.
func hangs(_ http.ResponseWriter, r *asked) { <-r.Context().Done() }

// gate blocks a request until it is opened.
type gate struct{ arrived, opened chan struct{} }

func newGate() gate { return gate{make(chan struct{}, 16), make(chan struct{})} }

// act waits at the gate, or until the other side has left.
func (g gate) act(_ http.ResponseWriter, r *asked) {
	g.arrived <- struct{}{}
	select {
	case <-g.opened:
	case <-r.Context().Done():
	}
}

// open opens the gate, once.
func (g gate) open(http.ResponseWriter, *asked) { close(g.opened) }

// The texts of the tests: a prompt of 40 tokens, of which prefill had 8 cached.
const (
	chatPath        = "/v1/chat/completions"
	completionsPath = "/v1/completions"

	handoffParams = `{"do_remote_prefill": true, "remote_block_ids": [[3, 1, 2]], "remote_engine_id": "e-1", "remote_request_id": "cmpl-r-1", ` +
		`"remote_host": "10.9.9.9", "remote_port": 5600, "remote_num_tokens": 40, "remote_prefill_cached_tokens": 8, "x": 12345678901234567890}`
	oldHandoff = `{"do_remote_prefill":true,"remote_block_ids":[[3,1,2]],"remote_engine_id":"e-1","remote_request_id":"cmpl-r-1",` +
		`"remote_host":"10.9.9.9","remote_port":5600}`

	primed = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

	wholeAnswer = `{"id":"cmpl-1","choices":[{"index":0,"text":" hello"}],"usage":{"prompt_tokens":40,"completion_tokens":1}}`

	firstEvent  = "data: {\"choices\":[{\"text\":\" hel\"}]}\n\n"
	secondEvent = "data: {\"choices\":[{\"text\":\"lo\"}]}\n\n"
	doneEvent   = "data: [DONE]\n\n"
	wholeStream = firstEvent + secondEvent + doneEvent
	errorEvent  = `data: {"error": {"message": "Internal server error", "type": "InternalServerError", "param": null, "code": 500}}` + "\n\n"
)

// offering returns a prefill engine's answer that offers a hand-off.
func offering(params string) act {
	return says(http.StatusOK, "application/json", offer(params))
}

func offer(params string) string {
	return `{"id":"cmpl-p","choices":[{"text":"x"}],"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":8},` +
		`"completion_tokens":1},"kv_transfer_params":` + params + `}`
}

// question is a request and what both engines must get of it.
type question struct {
	stream                                bool
	local, prefill, decode, release, body string
}

// ask returns a completion request.
func ask(stream bool) question {
	q := question{stream: stream, body: `{"model":"m", "prompt":"a b c", "seed":12345678901234567}`}
	q.prefill = fmt.Sprintf(`{"model":"m", "prompt":"a b c", "seed":12345678901234567,"max_tokens":1,"kv_transfer_params":%s}`, primed)
	q.decode = fmt.Sprintf(`{"model":"m", "prompt":"a b c", "seed":12345678901234567,"kv_transfer_params":%s}`, handoffParams)
	q.release = strings.Replace(q.decode, `,"kv_`, `,"stream":true,"kv_`, 1)
	if stream {
		q.body = strings.Replace(q.body, "{", `{"stream": true, `, 1)
		q.prefill = strings.Replace(q.prefill, "{", `{"stream": false, `, 1)
		q.decode = strings.Replace(q.decode, "{", `{"stream": true, `, 1)
		q.release = q.decode
	}
	q.local = q.body
	return q
}

// answer returns the act of a decode engine that serves the question.
func (q question) answer() act {
	if q.stream {
		return streams(firstEvent, secondEvent, doneEvent)
	}
	return says(http.StatusOK, "application/json", wholeAnswer)
}

func (q question) right() string {
	if q.stream {
		return wholeStream
	}
	return wholeAnswer
}

// both runs a case with a stream and with a whole answer.
func both(t *testing.T, run func(t *testing.T, q question)) {
	for _, stream := range []bool{false, true} {
		t.Run(map[bool]string{false: "whole", true: "stream"}[stream], func(t *testing.T) { run(t, ask(stream)) })
	}
}
