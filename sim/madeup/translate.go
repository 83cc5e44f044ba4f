package madeup

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
)

// Paths that the engines of the made-up protocols have besides those of the simulator.
const (
	abortPath  = "/meeting/abort"
	returnPath = "/ticket/return"
)

// Exchange is where the translators of all engines leave the simulator's hand-offs for each other, by number and by ticket.
type Exchange struct {
	mu   sync.Mutex // guards what follows
	left map[string]*deposit
}

// deposit is one hand-off. Exchange.mu guards it.
type deposit struct {
	there    chan struct{}   // closed when params are there
	params   json.RawMessage // kv_transfer_params; nil = not there yet
	taken    bool            // by decode, or released
	released func(params json.RawMessage)
}

// NewExchange makes an empty exchange.
func NewExchange() *Exchange { return &Exchange{left: map[string]*deposit{}} }

// at returns the deposit of a name. mu is held.
func (x *Exchange) at(name string) *deposit {
	if x.left[name] == nil {
		x.left[name] = &deposit{there: make(chan struct{})}
	}
	return x.left[name]
}

// leave leaves a hand-off, or releases it if it was aborted before.
func (x *Exchange) leave(name string, params json.RawMessage) {
	x.mu.Lock()
	d := x.at(name)
	d.params = params
	close(d.there)
	release := d.released
	x.mu.Unlock()
	if release != nil {
		release(params)
	}
}

// take waits for a hand-off, and takes it for decode.
func (x *Exchange) take(ctx context.Context, name string) (json.RawMessage, error) {
	x.mu.Lock()
	there := x.at(name).there
	x.mu.Unlock()
	select {
	case <-there:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.at(name).taken = true
	return x.at(name).params, nil
}

// untake notes that decode did not read a hand-off after all. One that was aborted meanwhile is released.
func (x *Exchange) untake(name string) {
	x.mu.Lock()
	d := x.at(name)
	d.taken = false
	release := d.released
	x.mu.Unlock()
	if release != nil {
		release(d.params)
	}
}

// abort has a hand-off that decode did not take released, now or when it is left.
func (x *Exchange) abort(name string, release func(params json.RawMessage)) {
	x.mu.Lock()
	d := x.at(name)
	params, taken := d.params, d.taken
	d.taken = true
	if params == nil || taken {
		d.released = release // when it is left, or decode fails
	}
	x.mu.Unlock()
	if params != nil && !taken {
		release(params)
	}
}

// Translator is an engine of the made-up protocols: a simulated one with a proxy in front of it.
type Translator struct {
	exchange *Exchange
	decodes  bool
	engine   string // URL
	client   *http.Client
	proxy    *httputil.ReverseProxy
}

// NewTranslator stands in front of the simulated engine at a URL. decodes says that it is the decode engine, which releases
// what it does not read.
func NewTranslator(x *Exchange, engine string, decodes bool, client *http.Client) (*Translator, error) {
	to, err := url.Parse(engine)
	if err != nil {
		return nil, fmt.Errorf("translating for the engine at %s: %w", engine, err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport, proxy.FlushInterval = client.Transport, -1
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }
	return &Translator{exchange: x, engine: engine, decodes: decodes, client: client, proxy: proxy}, nil
}

// ServeHTTP implements http.Handler.
func (t *Translator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		t.proxy.ServeHTTP(w, r)
		return
	}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // the caller has left
	}
	var in map[string]json.RawMessage
	if err := json.Unmarshal(raw, &in); err != nil {
		t.pass(w, r, raw)
		return
	}
	if number := r.Header.Get(meetHeaders + "Number"); number != "" {
		in[meetNumber] = json.RawMessage(number)
	}
	_, decodes := in[meetPod]
	switch {
	case r.URL.Path == abortPath:
		if t.decodes {
			t.exchange.abort(string(in[meetNumber]), func(params json.RawMessage) { t.release(r.Clone(context.WithoutCancel(r.Context())), params) })
		}
		w.WriteHeader(http.StatusOK)
	case r.URL.Path == returnPath:
		t.takeBack(w, r, string(in[ticketName]))
	case in[meetNumber] != nil && !decodes:
		t.prefill(w, r, in, string(in[meetNumber]), []byte(`{"met":`+string(in[meetNumber])+`}`))
	case in[meetNumber] != nil:
		t.decode(w, r, in, string(in[meetNumber]))
	case in[wantTicket] != nil:
		name := fmt.Sprintf("%q", rand.Text())
		t.prefill(w, r, in, name, []byte(`{"ticket":`+name+`}`))
	case in[ticketName] != nil:
		t.decode(w, r, in, string(in[ticketName]))
	default:
		t.pass(w, r, raw)
	}
}

// pass sends a body to the engine, and its answer back.
func (t *Translator) pass(w http.ResponseWriter, r *http.Request, body []byte) {
	out := r.Clone(r.Context())
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	t.proxy.ServeHTTP(w, out)
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
	status, header, said := t.send(r, edit(in, json.RawMessage(`{"do_remote_decode":true}`)))
	var offer struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if status == http.StatusOK && json.Unmarshal(said, &offer) == nil {
		if said = []byte(`{}`); len(offer.Params) > 0 && string(offer.Params) != "null" {
			t.exchange.leave(name, offer.Params)
			said = answer
		}
	}
	w.Header().Set("Content-Type", header.Get("Content-Type"))
	w.WriteHeader(status)
	_, _ = w.Write(said) // a caller that does not read it has left
}

// send sends a body to the engine and reads its answer. It breaks the caller's connection where the engine's broke.
func (t *Translator) send(r *http.Request, body []byte) (int, http.Header, []byte) {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, t.engine+r.URL.Path, bytes.NewReader(body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	req.Header = r.Header.Clone()
	resp, err := t.client.Do(req)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return resp.StatusCode, resp.Header, said
}

// decode runs a decode leg once the hand-off of a name is there. A streamed one has its headers before.
func (t *Translator) decode(w http.ResponseWriter, r *http.Request, in map[string]json.RawMessage, name string) {
	params, err := t.exchange.take(r.Context(), name)
	if err != nil {
		panic(http.ErrAbortHandler) // the caller has left
	}
	status := &statusWriter{ResponseWriter: w}
	defer func() {
		if status.code == 0 || status.code >= http.StatusBadRequest && status.code != http.StatusServiceUnavailable {
			t.exchange.untake(name)
		}
	}()
	t.pass(status, r, edit(in, params))
}

// statusWriter notes the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController flush.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// takeBack releases the hand-off of a ticket.
func (t *Translator) takeBack(w http.ResponseWriter, r *http.Request, name string) {
	params, err := t.exchange.take(r.Context(), name)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	status := t.release(r, params)
	if status == http.StatusNotFound {
		status = http.StatusNoContent
	}
	w.WriteHeader(status)
}

// release has a decode engine release a hand-off as the simulator's own protocol does: by a model that it does not serve.
func (t *Translator) release(r *http.Request, params json.RawMessage) (status int) {
	r = r.Clone(r.Context())
	r.URL.Path = "/v1/completions"
	status, _, _ = t.send(r, []byte(`{"model":"none","prompt":"x","max_tokens":1,"kv_transfer_params":`+string(params)+`}`))
	return status
}
