package api

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/trtllm"
	"github.com/tandem-serving/tandem/sim/web"
)

const (
	completionsPath = "/v1/completions"
	chatPath        = "/v1/chat/completions"
	metricsPath     = "/prometheus/metrics"
)

// route is one path of the data port.
type route struct {
	method string
	serve  func(*handler, *call)
}

var routes = map[string]route{
	completionsPath:   {http.MethodPost, (*handler).serveCompletions},
	chatPath:          {http.MethodPost, (*handler).serveChat},
	"/health":         {http.MethodGet, func(_ *handler, c *call) { c.Write(http.StatusOK, nil) }},
	"/version":        {http.MethodGet, func(_ *handler, c *call) { c.JSON(http.StatusOK, pyjson.Object{member("version", trtllm.Version)}) }},
	"/v1/models":      {http.MethodGet, (*handler).serveModels},
	"/server_info":    {http.MethodGet, (*handler).serveServerInfo},
	"/metrics":        {http.MethodGet, func(_ *handler, c *call) { c.JSON(http.StatusOK, []any{}) }},
	"/perf_metrics":   {http.MethodGet, func(_ *handler, c *call) { c.JSON(http.StatusOK, []any{}) }},
	metricsPath:       {http.MethodGet, (*handler).serveMetrics},
	metricsPath + "/": {http.MethodGet, (*handler).serveMetrics},
}

// handler serves the data port of one engine.
type handler struct {
	engine *trtllm.Engine
	cfg    trtllm.Config // the engine's, with defaults
	faults web.Injector
}

// NewHandler serves the data port of an engine, whose requests the faults of a list hit.
func NewHandler(e *trtllm.Engine, faults *fault.List) http.Handler {
	h := &handler{engine: e, cfg: e.Config()}
	h.faults = web.Injector{Engine: e, Faults: faults, Fail: failByFault, Dead: func(c *web.Call) { fault.Cut(c.W, true) }}
	return h
}

// call is one HTTP request.
type call struct{ *web.Call }

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{web.NewCall(w, r)}
	w.Header().Del("Vary") // trtllm-serve has no CORS middleware
	rt, ok := routes[r.URL.Path]
	switch {
	case !ok:
		c.Detail(http.StatusNotFound, "Not Found")
		return
	case rt.method != r.Method:
		w.Header().Set("Allow", rt.method)
		c.Detail(http.StatusMethodNotAllowed, "Method Not Allowed")
		return
	}
	if !c.ReadBody() || !strings.HasPrefix(r.URL.Path, metricsPath) && !h.faults.Inject(c.Call, func() web.Target { return h.target(c) }) {
		return
	}
	rt.serve(h, c)
}

// target returns what a fault chooses a call by. It accepts invalid bodies.
func (h *handler) target(c *call) web.Target {
	t := web.Target{RequestID: c.R.Header.Get("X-Request-Id")}
	if !slices.Contains([]string{completionsPath, chatPath}, c.R.URL.Path) {
		return t
	}
	var b struct {
		Model  json.RawMessage `json:"model"`
		Params struct {
			Type string `json:"request_type"`
		} `json:"disaggregated_params"`
	}
	if json.Unmarshal(c.Body, &b) == nil {
		t.Model = strings.Trim(string(b.Model), `"`)
	}
	t.Leg = fault.LegDecode
	if b.Params.Type == trtllm.ContextOnly {
		t.Leg = fault.LegPrefill
	}
	return t
}

// failByFault answers with the status of a fault.
func failByFault(c *web.Call, status int) { (&call{c}).fail(status, http.StatusText(status)) }

// fail answers with an error, which trtllm-serve calls a bad request whatever it is.
func (c *call) fail(status int, message string) {
	c.JSON(status, pyjson.Object{member("object", "error"), member("message", message), member("type", "BadRequestError"), member("param", nil), member("code", status)})
}

// invalid answers with the error of a request model.
func (c *call) invalid(message string) {
	c.JSON(http.StatusBadRequest, pyjson.Object{member("error", message)})
}

// object reads the body as a JSON object, or answers and returns nil.
func (c *call) object() *web.Fields {
	if _, message := pyjson.FindSyntaxError(c.Body); message != "" || !utf8.Valid(c.Body) {
		c.invalid("[{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error', 'input': {}}]")
		return nil
	}
	f := web.ReadObject(c.Body)
	if f == nil {
		c.invalid("[{'type': 'model_attributes_type', 'loc': ('body',), 'msg': 'Input should be a valid dictionary or object to extract fields from'}]")
	}
	return f
}

// problems answers with what a request model refuses, and reports whether there was something.
func (c *call) problems(f *web.Fields) bool {
	if len(f.Problems) == 0 {
		return false
	}
	var list []string
	for _, p := range f.Problems {
		loc := "'" + strings.ReplaceAll(p.Loc, ".", "', '") + "'"
		list = append(list, "{'type': "+pyjson.Quote(p.Kind)+", 'loc': ("+loc+"), 'msg': "+pyjson.Quote(p.Message)+", 'input': "+p.Input+"}")
	}
	c.invalid("[" + strings.Join(list, ", ") + "]")
	return true
}

func (h *handler) serveModels(c *call) {
	c.JSON(http.StatusOK, pyjson.Object{member("object", "list"), member("data", []any{pyjson.Object{
		member("id", h.cfg.ServedModelName), member("object", "model"), member("created", time.Now().Unix()), member("owned_by", "tensorrt_llm")}})})
}

// serveServerInfo says where generation engines find this one.
func (h *handler) serveServerInfo(c *call) {
	params := pyjson.Object{}
	if !h.cfg.NoEndpointInfo {
		params = pyjson.Object{member("ctx_dp_rank", 0), member("ctx_info_endpoint", []string{"tcp://" + h.engine.Endpoint()})}
	}
	c.JSON(http.StatusOK, pyjson.Object{member("disaggregated_params", params)})
}

func (h *handler) serveMetrics(c *call) {
	c.W.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	c.Write(http.StatusOK, h.engine.MetricsPage())
}

// member makes a member of an object whose order matters.
func member(name string, value any) pyjson.Member { return pyjson.Member{Name: name, Value: value} }
