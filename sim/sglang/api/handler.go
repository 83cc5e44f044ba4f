package api

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/web"
)

// route is one path of the data port.
type route struct {
	methods []string
	serve   func(*handler, *call)
}

// The paths that generate.
const (
	generatePath    = "/generate"
	completionsPath = "/v1/completions"
	chatPath        = "/v1/chat/completions"
	responsesPath   = "/v1/responses"
	messagesPath    = "/v1/messages"
)

var routes = map[string]route{
	generatePath:       {[]string{http.MethodPost, http.MethodPut}, (*handler).serveGenerate},
	completionsPath:    {[]string{http.MethodPost}, (*handler).serveCompletions},
	chatPath:           {[]string{http.MethodPost}, (*handler).serveChat},
	responsesPath:      {[]string{http.MethodPost}, (*handler).serveResponses},
	messagesPath:       {[]string{http.MethodPost}, (*handler).serveMessages},
	"/abort_request":   {[]string{http.MethodPost}, (*handler).serveAbort},
	"/flush_cache":     {[]string{http.MethodGet, http.MethodPost}, (*handler).serveFlush},
	"/health":          {[]string{http.MethodGet}, (*handler).serveHealth},
	"/health_generate": {[]string{http.MethodGet}, (*handler).serveHealth},
	"/ready":           {[]string{http.MethodGet}, (*handler).serveReady},
	"/ping":            {[]string{http.MethodGet}, (*handler).servePing},
	"/model_info":      {[]string{http.MethodGet}, (*handler).serveModelInfo},
	"/get_model_info":  {[]string{http.MethodGet}, (*handler).serveModelInfo},
	"/server_info":     {[]string{http.MethodGet}, (*handler).serveServerInfo},
	"/get_server_info": {[]string{http.MethodGet}, (*handler).serveServerInfo},
	"/v1/models":       {[]string{http.MethodGet}, (*handler).serveModels},
	"/v1/loads":        {[]string{http.MethodGet}, (*handler).serveLoads},
	"/metrics":         {[]string{http.MethodGet}, (*handler).serveMetrics},
	"/metrics/":        {[]string{http.MethodGet}, (*handler).serveMetrics},
}

// handler serves the data port of one engine.
type handler struct {
	engine *sglang.Engine
	cfg    sglang.Config // the engine's, with defaults
	faults web.Injector
	seed   int // of the engine's random numbers, which the real one draws at its start
}

// NewHandler serves the data port of an engine, whose requests the faults of a list hit.
func NewHandler(e *sglang.Engine, faults *fault.List) http.Handler {
	h := &handler{engine: e, cfg: e.Config(), seed: rand.IntN(1 << 30)}
	h.faults = web.Injector{Engine: e, Faults: faults, Fail: failByFault, Dead: func(c *web.Call) { fault.Cut(c.W, true) }}
	return h
}

// call is one HTTP request.
type call struct{ *web.Call }

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.hangIfCrashed(r)
	h.engine.CountCall(r.Method, r.URL.Path)
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
	if !c.ReadBody() || r.URL.Path != "/metrics" && !h.faults.Inject(c.Call, func() web.Target { return h.target(c) }) {
		return
	}
	rt.serve(h, c)
}

// hangIfCrashed does not return if a scheduler has died: no request gets an answer any more. The connection breaks when the engine's
// ports close, or the client leaves.
func (h *handler) hangIfCrashed(r *http.Request) {
	select {
	case <-h.engine.Crashed():
		h.hang(r)
	default:
	}
}

func (h *handler) hang(r *http.Request) {
	select {
	case <-h.engine.Done():
	case <-r.Context().Done():
	}
	panic(http.ErrAbortHandler)
}

// target returns what a fault chooses a call by. It accepts invalid bodies.
func (h *handler) target(c *call) web.Target {
	t := web.Target{RequestID: c.R.Header.Get("X-Request-Id")}
	if !slices.Contains([]string{generatePath, completionsPath, chatPath, responsesPath, messagesPath}, c.R.URL.Path) {
		return t
	}
	t.Leg = fault.LegDecode
	if h.cfg.Mode == sglang.Prefill {
		t.Leg = fault.LegPrefill
	}
	var b struct {
		Model json.RawMessage `json:"model"`
		RID   json.RawMessage `json:"rid"`
	}
	if json.Unmarshal(c.Body, &b) == nil {
		t.Model = strings.Trim(string(b.Model), `"`)
		t.RequestID += " " + strings.Trim(string(b.RID), `"`)
	}
	return t
}

// failByFault answers with the status of a fault, in the envelope of failures.
func failByFault(c *web.Call, status int) {
	(&call{c}).fail(&sglang.Failure{Status: status, Message: http.StatusText(status)})
}

// object reads the body as a JSON object, or answers and returns nil.
func (c *call) object() *web.Fields {
	kind, _, _ := strings.Cut(c.R.Header.Get("Content-Type"), ";")
	if strings.TrimSpace(strings.ToLower(kind)) != "application/json" {
		c.fail(c.schemaError("Unsupported Media Type: Only 'application/json' is allowed"))
		return nil
	}
	if position, message := pyjson.FindSyntaxError(c.Body); message != "" || !utf8.Valid(c.Body) {
		c.fail(c.schemaError("1 validation error:\n  {'type': 'json_invalid', 'loc': ('body', " + strconv.Itoa(position) + "), 'msg': 'JSON decode error'}"))
		return nil
	}
	f := web.ReadObject(c.Body)
	if f == nil {
		if c.R.URL.Path == chatPath && len(c.Body) > 0 && c.Body[0] == '"' {
			c.Text(http.StatusInternalServerError, "Internal Server Error") // which the real validation does not survive
			return nil
		}
		c.fail(c.schemaError("1 validation error:\n  {'type': 'model_attributes_type', 'loc': ('body',), 'msg': 'Input should be a valid dictionary or object to extract fields from'}"))
	}
	return f
}
