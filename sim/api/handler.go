package api

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/pyjson"
)

// route is one path of the data port. A path knows its methods, because a wrong one is a 405 that names them.
type route struct {
	methods []string
	serve   func(*handler, *call)
}

var routes = map[string]route{
	"/v1/completions":              {[]string{http.MethodPost}, (*handler).serveCompletions},
	"/v1/chat/completions":         {[]string{http.MethodPost}, (*handler).serveChat},
	"/v1/responses":                {[]string{http.MethodPost}, (*handler).serveResponses},
	"/v1/messages":                 {[]string{http.MethodPost}, (*handler).serveMessages},
	"/invocations":                 {[]string{http.MethodPost}, (*handler).serveInvocations},
	countTokensPath:                {[]string{http.MethodPost}, (*handler).serveCountTokens},
	"/tokenize":                    {[]string{http.MethodPost}, (*handler).serveTokenize},
	"/detokenize":                  {[]string{http.MethodPost}, (*handler).serveDetokenize},
	"/v1/models":                   {[]string{http.MethodGet}, (*handler).serveModels},
	"/health":                      {[]string{http.MethodGet}, (*handler).serveHealth},
	"/ping":                        {[]string{http.MethodGet, http.MethodPost}, (*handler).serveHealth},
	"/version":                     {[]string{http.MethodGet}, (*handler).serveVersion},
	"/load":                        {[]string{http.MethodGet}, (*handler).serveLoad},
	"/metrics":                     {[]string{http.MethodGet}, (*handler).serveMetrics},
	"/kv_event_sources":            {[]string{http.MethodGet}, (*handler).serveEventSources},
	"/reset_prefix_cache":          {[]string{http.MethodPost}, (*handler).serveResetPrefixCache},
	"/v1/completions/render":       {[]string{http.MethodPost}, (*handler).serveScaleOut},
	"/v1/chat/completions/render":  {[]string{http.MethodPost}, (*handler).serveScaleOut},
	"/inference/v1/generate":       {[]string{http.MethodPost}, (*handler).serveGenerate},
	"/inference/v1/abort_requests": {[]string{http.MethodPost}, (*handler).serveScaleOut},
}

// handler serves the data port of one engine.
type handler struct {
	engine *sim.Engine
	cfg    sim.Config // the engine's, with defaults
	faults *fault.List
}

// NewHandler serves the data port of an engine, whose requests the faults of a list hit.
func NewHandler(e *sim.Engine, faults *fault.List) http.Handler {
	return &handler{engine: e, cfg: e.Config(), faults: faults}
}

// call is one HTTP request with its body read.
type call struct {
	w     http.ResponseWriter
	r     *http.Request
	body  []byte
	fault *fault.Fault // nil: none hits the request
}

func (c *call) ctx() context.Context { return c.r.Context() }

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
	if r.URL.Path != "/metrics" && !h.injectFault(c) {
		return
	}
	rt.serve(h, c)
}

// detail is FastAPI's own error body, for requests that reach no handler of the engine.
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
	c.write(status, pyjson.Encode(body))
}

func (c *call) write(status int, body []byte) {
	c.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(status)
	if _, err := c.w.Write(body); err != nil {
		return // the client has left, and reads no answer
	}
}

func (c *call) fail(err *apiError) { c.json(err.Code, err.envelope(c.r.URL.Path)) }

// unreadable answers a request whose body is not valid HTTP. If the client has left instead, the answer is not read.
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

// serveInvocations serves chat if the body has messages, and completions otherwise.
func (h *handler) serveInvocations(c *call) {
	var chat struct{ Messages json.RawMessage }
	if json.Unmarshal(c.body, &chat) == nil && chat.Messages != nil {
		h.serveChat(c)
		return
	}
	h.serveCompletions(c)
}

// submit checks a request and queues it, or answers and returns nil. requests makes what the engine gets; it is called only for
// a request that passes the checks. The hand-off of a decode leg that is refused here is released; one that its request model
// refuses (inSchema) is not.
func (h *handler) submit(c *call, q *generateRequest, requests func() []sim.Request) *sim.Generation {
	err := q.check(&h.cfg)
	if err == nil && loneSurrogate(c.body) {
		err = badRequest("TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]")
	}
	if err == nil {
		q.requests = requests()
		g, refusal := h.engine.Submit(q.requests)
		if refusal == nil {
			return g
		}
		err = engineError(refusal)
	}
	c.fail(err)
	h.engine.Refused(q.params)
	return nil
}
