package madeup

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Paths that the engines of the made-up protocols have besides those of the simulator.
const (
	abortPath  = "/meeting/abort"
	returnPath = "/ticket/return"
)

// Translator makes a simulated engine speak the made-up protocols: it serves the engine's data port, and has the engine
// itself serve what it does not translate. Faults of the engine hit its connections as they do without a Translator.
type Translator struct {
	exchange *Exchange
	decodes  bool
	engine   http.Handler
}

// Engine returns the Translator of one engine, as a server.Front. decodes says that it is the decode engine, which releases what
// it does not read.
func (x *Exchange) Engine(decodes bool) func(engine http.Handler) http.Handler {
	return func(engine http.Handler) http.Handler { return &Translator{x, decodes, engine} }
}

// ServeHTTP implements http.Handler.
func (t *Translator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		t.engine.ServeHTTP(w, r)
		return
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the caller has left
	}
	var in map[string]json.RawMessage
	if json.Unmarshal(raw, &in) != nil {
		in = nil // the engine itself says what is wrong with it
	}
	if number := r.Header.Get(meetHeaders + "Number"); number != "" && in != nil {
		in[meetNumber] = json.RawMessage(number)
	}
	_, decodes := in[meetPod]
	switch {
	case r.URL.Path == abortPath:
		if t.decodes {
			t.exchange.giveUp(string(in[meetNumber]), t.releaser(r))
		}
		w.WriteHeader(http.StatusOK)
	case r.URL.Path == returnPath:
		t.takeBack(w, r, string(in[ticketName]))
	case in[meetNumber] != nil && decodes:
		t.decode(w, r, in, string(in[meetNumber]))
	case in[meetNumber] != nil:
		ctx, cancel := lingering(r.Context())
		defer cancel()
		t.prefill(w, r.WithContext(ctx), in, string(in[meetNumber]), []byte(`{"met":`+string(in[meetNumber])+`}`))
	case in[wantTicket] != nil:
		name := fmt.Sprintf("%q", rand.Text())
		t.prefill(w, r, in, name, []byte(`{"ticket":`+name+`}`))
	case in[ticketName] != nil:
		t.decode(w, r, in, string(in[ticketName]))
	default:
		t.engine.ServeHTTP(w, withBody(r, raw))
	}
}

// linger is how long a prefill of a meeting goes on for a caller that has left. Only the simulator's answer says what has to
// be released of a prefill that has just finished.
const linger = time.Second

// lingering returns a context that ends a while after ctx.
func lingering(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(linger, cancel) })
	return longer, func() { stop(); cancel() }
}

// withBody returns a request with another body.
func withBody(r *http.Request, body []byte) *http.Request {
	r = r.Clone(r.Context())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return r
}

// edit replaces the members of the made-up protocols by the simulator's.
func edit(in map[string]json.RawMessage, params json.RawMessage) []byte {
	for _, name := range []string{meetNumber, meetPod, wantTicket, ticketName} {
		delete(in, name)
	}
	in["kv_transfer_params"] = params
	raw, err := json.Marshal(in)
	if err != nil {
		panic(err) // it was read as JSON
	}
	return raw
}

// prefill runs a prefill leg, leaves its hand-off under a name, and answers.
func (t *Translator) prefill(w http.ResponseWriter, r *http.Request, in map[string]json.RawMessage, name string, answer []byte) {
	in["stream"], in["max_tokens"] = json.RawMessage("false"), json.RawMessage("1")
	delete(in, "stream_options")
	delete(in, "max_completion_tokens")
	said := &recorded{header: http.Header{}, to: w}
	t.engine.ServeHTTP(said, withBody(r, edit(in, json.RawMessage(`{"do_remote_decode":true}`))))
	if said.cut || said.status == 0 {
		return // by a fault, or because the caller has left
	}
	text := said.body.Bytes()
	var offer struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if said.status == http.StatusOK && json.Unmarshal(text, &offer) == nil {
		if text = []byte(`{}`); len(offer.Params) > 0 && string(offer.Params) != "null" {
			defer t.exchange.leave(name, offer.Params)
			text = answer
		}
	}
	w.Header().Set("Content-Type", said.header.Get("Content-Type"))
	w.WriteHeader(said.status)
	_, _ = w.Write(text) // a caller that does not read it has left
	_ = http.NewResponseController(w).Flush()
}

// decode runs a decode leg once the hand-off of a name is there.
func (t *Translator) decode(w http.ResponseWriter, r *http.Request, in map[string]json.RawMessage, name string) {
	params, err := t.exchange.take(r.Context(), name)
	if err != nil {
		panic(http.ErrAbortHandler) // the caller has left
	}
	reader := &reading{ResponseWriter: w}
	reader.end = sync.OnceFunc(func() { t.exchange.end(name, reader.done) })
	defer reader.end()
	t.engine.ServeHTTP(reader, withBody(r, edit(in, params)))
}

// takeBack releases the hand-off of a ticket.
func (t *Translator) takeBack(w http.ResponseWriter, r *http.Request, name string) {
	status := t.exchange.giveUp(name, t.releaser(r))
	switch {
	case status == broken:
		panic(http.ErrAbortHandler)
	case status == notReleased, noted(status):
		status = http.StatusNoContent
	}
	w.WriteHeader(status)
}

// releaser has a decode engine release a hand-off as the simulator's own protocol does: by a model that it does not serve. It
// returns the status of the engine's answer, or broken.
func (t *Translator) releaser(r *http.Request) func(params json.RawMessage) (status int) {
	r = r.Clone(context.WithoutCancel(r.Context()))
	r.URL.Path = "/v1/completions"
	return func(params json.RawMessage) int {
		said := &recorded{header: http.Header{}}
		func() {
			defer func() {
				if e := recover(); e != nil && e != http.ErrAbortHandler {
					panic(e)
				}
			}()
			t.engine.ServeHTTP(said, withBody(r, []byte(`{"model":"none","prompt":"x","max_tokens":1,"kv_transfer_params":`+string(params)+`}`)))
		}()
		if said.status == 0 {
			return broken
		}
		return said.status
	}
}

// recorded is an answer of the simulator that is not sent. A fault that cuts it cuts the connection of to, if there is one.
type recorded struct {
	header http.Header
	status int
	body   bytes.Buffer
	to     http.ResponseWriter
	cut    bool
}

// Header implements http.ResponseWriter.
func (a *recorded) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *recorded) WriteHeader(status int) { a.status = status }

// Write implements http.ResponseWriter.
func (a *recorded) Write(p []byte) (int, error) { return a.body.Write(p) }

// Flush implements http.Flusher: there is nothing to send.
func (a *recorded) Flush() {}

var errNoConnection = errors.New("a recorded answer has no connection")

// Hijack implements http.Hijacker.
func (a *recorded) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	a.cut = true
	if a.to == nil {
		return nil, nil, errNoConnection
	}
	return http.NewResponseController(a.to).Hijack()
}

// reading notes whether an answer of decode shows that the hand-off is not pinned any more.
type reading struct {
	http.ResponseWriter
	status int
	wrote  bool // some of the body
	done   bool
	end    func() // ends the leg at the exchange; only the first call counts
}

// WriteHeader implements http.ResponseWriter. An engine that does not admit a request, which 503 says, releases its hand-off.
func (w *reading) WriteHeader(status int) {
	w.status = status
	w.done = status == http.StatusServiceUnavailable
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter. An answer that does not begin with an error begins after the KV cache has come.
func (w *reading) Write(p []byte) (int, error) {
	if !w.wrote && w.status < http.StatusBadRequest {
		w.done = !bytes.Contains(p, []byte(`"error"`))
	}
	w.wrote = true
	return w.ResponseWriter.Write(p)
}

// Hijack implements http.Hijacker. A leg whose connection a fault cuts ends before its caller can know: a release may follow at once.
func (w *reading) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.end()
	return http.NewResponseController(w.ResponseWriter).Hijack()
}

// Unwrap lets http.ResponseController reach the connection.
func (w *reading) Unwrap() http.ResponseWriter { return w.ResponseWriter }
