package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/web"
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
	faults web.Injector
}

// NewHandler serves the data port of an engine, whose requests the faults of a list hit.
func NewHandler(e *sim.Engine, faults *fault.List) http.Handler {
	h := &handler{engine: e, cfg: e.Config()}
	h.faults = web.Injector{Engine: e, Faults: faults, Fail: h.answerStatus,
		Dead: func(c *web.Call) { (&call{c}).fail(errEngineDead) }}
	return h
}

// call is one HTTP request.
type call struct{ *web.Call }

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{web.NewCall(w, r)}
	rt, ok := routes[r.URL.Path]
	switch {
	case !ok:
		c.Detail(http.StatusNotFound, "Not Found")
		return
	case !slices.Contains(rt.methods, r.Method):
		w.Header().Set("Allow", strings.Join(rt.methods, ", "))
		c.Detail(http.StatusMethodNotAllowed, "Method Not Allowed")
		return
	}
	if !c.ReadBody() || r.URL.Path != "/metrics" && !h.faults.Inject(c.Call, c.target) {
		return
	}
	rt.serve(h, c)
}

func (c *call) fail(err *apiError) { c.JSON(err.Code, err.envelope(c.R.URL.Path)) }

// object reads the body as a JSON object, or answers and returns nil.
func (c *call) object() *web.Fields {
	if !utf8.Valid(c.Body) {
		c.Detail(http.StatusBadRequest, "There was an error parsing the body")
		return nil
	}
	kind, _, _ := strings.Cut(c.R.Header.Get("Content-Type"), ";")
	if strings.TrimSpace(strings.ToLower(kind)) != "application/json" {
		c.fail(&apiError{Message: "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", Type: typeSchema, Code: http.StatusBadRequest})
		return nil
	}
	f, err := parseBody(c.Body)
	if err != nil {
		c.fail(err)
		return nil
	}
	return f
}

// serveInvocations serves chat if the body has messages, and completions otherwise.
func (h *handler) serveInvocations(c *call) {
	var chat struct{ Messages json.RawMessage }
	if json.Unmarshal(c.Body, &chat) == nil && chat.Messages != nil {
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
	if err == nil && web.LoneSurrogate(c.Body) {
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
