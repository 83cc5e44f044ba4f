package sim

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// route is one path of the data port. A path knows its methods, because a wrong one is a 405 that names them.
type route struct {
	methods []string
	serve   func(*Engine, *call)
}

var routes = map[string]route{
	"/v1/completions":              {[]string{http.MethodPost}, (*Engine).serveCompletions},
	"/v1/chat/completions":         {[]string{http.MethodPost}, (*Engine).serveChat},
	"/v1/responses":                {[]string{http.MethodPost}, (*Engine).serveResponses},
	"/v1/messages":                 {[]string{http.MethodPost}, (*Engine).serveMessages},
	"/invocations":                 {[]string{http.MethodPost}, (*Engine).serveInvocations},
	"/v1/messages/count_tokens":    {[]string{http.MethodPost}, (*Engine).serveCountTokens},
	"/tokenize":                    {[]string{http.MethodPost}, (*Engine).serveTokenize},
	"/detokenize":                  {[]string{http.MethodPost}, (*Engine).serveDetokenize},
	"/v1/models":                   {[]string{http.MethodGet}, (*Engine).serveModels},
	"/health":                      {[]string{http.MethodGet}, (*Engine).serveHealth},
	"/ping":                        {[]string{http.MethodGet, http.MethodPost}, (*Engine).serveHealth},
	"/version":                     {[]string{http.MethodGet}, (*Engine).serveVersion},
	"/load":                        {[]string{http.MethodGet}, (*Engine).serveLoad},
	"/metrics":                     {[]string{http.MethodGet}, (*Engine).serveMetrics},
	"/kv_event_sources":            {[]string{http.MethodGet}, (*Engine).serveEventSources},
	"/reset_prefix_cache":          {[]string{http.MethodPost}, (*Engine).serveResetPrefixCache},
	"/v1/completions/render":       {[]string{http.MethodPost}, (*Engine).serveScaleOut},
	"/v1/chat/completions/render":  {[]string{http.MethodPost}, (*Engine).serveScaleOut},
	"/inference/v1/generate":       {[]string{http.MethodPost}, (*Engine).serveScaleOut},
	"/inference/v1/abort_requests": {[]string{http.MethodPost}, (*Engine).serveScaleOut},
}

// call is one HTTP request with its body read.
type call struct {
	w     http.ResponseWriter
	r     *http.Request
	body  []byte
	fault *Fault
}

func (c *call) ctx() context.Context { return c.r.Context() }

// Handler serves the data port.
func (e *Engine) Handler() http.Handler { return http.HandlerFunc(e.serve) }

func (e *Engine) serve(w http.ResponseWriter, r *http.Request) {
	setCommonHeaders(w)
	c := &call{w: w, r: r}
	rt, ok := routes[r.URL.Path]
	switch {
	case !ok:
		c.json(http.StatusNotFound, detail{"Not Found"})
		return
	case !slices.Contains(rt.methods, r.Method):
		w.Header().Set("Allow", strings.Join(rt.methods, ", "))
		c.json(http.StatusMethodNotAllowed, detail{"Method Not Allowed"})
		return
	}
	var err error
	if c.body, err = io.ReadAll(r.Body); err != nil {
		c.unreadable()
		return
	}
	if r.URL.Path != "/metrics" && !e.faulty(c) {
		return
	}
	rt.serve(e, c)
}

// detail is FastAPI's own error body, for what no handler of the engine saw.
type detail struct {
	Detail string `json:"detail"`
}

func setCommonHeaders(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Server", "uvicorn")
	h.Set("Vary", "Origin")
	h.Set("Date", time.Now().UTC().Format(http.TimeFormat))
}

// json answers with a whole body.
func (c *call) json(status int, body any) {
	c.w.Header().Set("Content-Type", "application/json")
	c.write(status, encodeJSON(body))
}

func (c *call) write(status int, body []byte) {
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(status)
	if _, err := c.w.Write(body); err != nil {
		return // the client has left, and reads no answer
	}
}

func (c *call) fail(err *apiError) { c.json(err.Code, err.envelope(c.r.URL.Path)) }

// unreadable answers a body that is not sent as HTTP wants it. If the client has left instead, the answer is not read.
func (c *call) unreadable() {
	c.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	c.w.Header().Set("Connection", "close")
	c.write(http.StatusBadRequest, []byte("Invalid HTTP request received."))
}

// object reads the body as a JSON object, or answers and returns nil.
func (c *call) object() *fields {
	if !utf8.Valid(c.body) {
		c.json(http.StatusBadRequest, detail{"There was an error parsing the body"})
		return nil
	}
	kind, _, _ := strings.Cut(c.r.Header.Get("Content-Type"), ";")
	if strings.TrimSpace(strings.ToLower(kind)) != "application/json" {
		c.fail(&apiError{Message: "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", Type: typeSchema, Code: http.StatusBadRequest})
		return nil
	}
	f, err := parseBody(c.body)
	if err != nil {
		c.fail(err)
		return nil
	}
	return f
}

// serveInvocations serves chat or completions, by what the body has.
func (e *Engine) serveInvocations(c *call) {
	var chat struct{ Messages json.RawMessage }
	if json.Unmarshal(c.body, &chat) == nil && chat.Messages != nil {
		e.serveChat(c)
		return
	}
	e.serveCompletions(c)
}

// accept checks a request and queues its sequences, or answers and returns false. A refusal by the handler, and by
// admission, releases the hand-off of a decode leg; one by the request model does not.
func (e *Engine) accept(c *call, q *generateRequest, seqs func() []*sequence) ([]*sequence, bool) {
	err := q.check(e)
	if err == nil && loneSurrogate(c.body) {
		err = badRequest("TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]")
	}
	if err == nil {
		list := seqs()
		if err = e.submit(list); err == nil {
			return list, true
		}
	}
	c.fail(err)
	e.post(func() { e.rejectLoad(q.params) })
	return nil, false
}

// collect gathers whole answers: one per sequence, in the order of their indexes.
func (e *Engine) collect(ctx context.Context, seqs []*sequence) ([]answer, *apiError, error) {
	answers := make([]answer, len(seqs))
	for open := len(seqs); open > 0; {
		out, err := seqs[0].out.next(ctx)
		if err != nil {
			e.abort(seqs)
			return nil, nil, err
		}
		if out.err != nil {
			e.abort(seqs)
			return nil, out.err, nil
		}
		answers[out.index].add(out)
		if out.finish != "" {
			open--
		}
	}
	return answers, nil, nil
}

// answer is what a sequence has generated.
type answer struct {
	tokens     []int
	pieces     []string // of text, one per token
	finish     string
	stopReason any
	handoff    *handoff
	usage      promptUsage
}

func (a *answer) add(out output) {
	a.tokens = append(a.tokens, out.token)
	a.pieces = append(a.pieces, out.text)
	a.finish, a.stopReason, a.handoff, a.usage = out.finish, out.stopReason, out.handoff, out.usage
}

func (a *answer) text() string { return strings.Join(a.pieces, "") }

// collected answers the errors of collect; false if there is nothing to answer any more.
func (c *call) collected(apiErr *apiError, err error) bool {
	switch {
	case err != nil: // the client has left
		return false
	case apiErr != nil:
		c.fail(apiErr)
		return false
	}
	return true
}

// stream writes server-sent events, one HTTP chunk each.
type stream struct {
	w     http.ResponseWriter
	flush *http.ResponseController
}

func (c *call) stream() *stream {
	c.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	c.w.WriteHeader(http.StatusOK)
	s := &stream{w: c.w, flush: http.NewResponseController(c.w)}
	s.flushNow() // the headers go before the first token is there
	return s
}

func (s *stream) flushNow() {
	if err := s.flush.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return // the client has left; its context ends the request
	}
}

func (s *stream) data(v any) { s.raw("data: " + string(encodeJSON(v)) + "\n\n") }

func (s *stream) event(name string, v any) {
	s.raw("event: " + name + "\ndata: " + string(encodeJSON(v)) + "\n\n")
}

func (s *stream) raw(event string) {
	if _, err := io.WriteString(s.w, event); err == nil {
		s.flushNow()
	}
}

// done ends an OpenAI stream.
func (s *stream) done() { s.raw("data: [DONE]\n\n") }

// fail ends a stream whose status has already been a success.
func (s *stream) fail(err *apiError) {
	s.raw("data: " + err.event() + "\n\n")
	s.done()
}
