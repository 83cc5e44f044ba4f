package epp

import (
	"net/http"
	"strings"

	"github.com/tandem-serving/tandem/pd"
)

// Head is what the headers say of a request.
type Head struct {
	Method      string
	Path        string // as it came, with the query
	ContentType string
	RequestID   string   // x-request-id
	Mode        []string // the values of x-tandem-pd; nil if they are to be ignored
	Objective   string   // x-llm-d-inference-objective
	Target      string   // x-llm-d-model-name-rewrite
	Subset      *Subset  // nil: the whole pool
}

// API is the API that a Reader takes a request with this head for. Gateways that route by a path prefix cut it off only
// after the picker has answered, so the end of the path decides. What is not POST generates nothing: it is a preflight, or
// a mistake that the engine explains best.
func (h *Head) API() pd.API {
	if h.Method != http.MethodPost {
		return pd.APIOther
	}
	path := h.path()
	for _, api := range pd.GenerateAPIs() {
		if strings.HasSuffix(path, api.Path()) {
			return api
		}
	}
	return pd.APIOther
}

// path is Path without the query.
func (h *Head) path() string {
	path, _, _ := strings.Cut(h.Path, "?")
	return path
}
