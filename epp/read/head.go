package read

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Head holds the request headers that the picker reads.
type Head struct {
	Method      string
	Path        string // as the client sent it, with the query
	ContentType string
	RequestID   string      // x-request-id
	Mode        []string    // the values of x-tandem-pd; nil if the picker ignores them
	Objective   string      // x-llm-d-inference-objective
	Target      string      // x-llm-d-model-name-rewrite
	IfAvailable bool        // the client prefers a refusal to an endpoint that has nothing of the prompt cached
	Subset      *epp.Subset // nil: the whole pool
	Headers     epp.Headers // all of them, for plugins
	Reads       epp.APISet  // APIs whose requests are read
}

// HeadOf makes the head of a request that came over HTTP, as /explain and other parts of the admin port receive it. path
// stands in for the path of the request that is asked about.
func HeadOf(r *http.Request, path string) Head {
	h := Head{Method: r.Method, Path: path, ContentType: r.Header.Get("Content-Type"), RequestID: r.Header.Get(pd.HeaderRequestID),
		Mode:        r.Header.Values(pd.HeaderMode),
		Headers:     r.Header,
		IfAvailable: slices.ContainsFunc(r.Header.Values(epp.HeaderPrefer), epp.IfAvailable),
		Objective:   cmp.Or(r.Header.Get(epp.HeaderObjective), r.Header.Get(epp.HeaderObjectiveOld)),
		Target:      cmp.Or(r.Header.Get(epp.HeaderTarget), r.Header.Get(epp.HeaderTargetOld))}
	if hint, ok := r.Header[http.CanonicalHeaderKey(epp.HeaderSubset)]; ok {
		h.Subset = epp.NewSubset(epp.SplitList(hint...)...)
	}
	return h
}

// API returns the API of a request by the end of its path: gateways that route by a path prefix remove the prefix only after
// the picker has answered. A request that is not POST generates nothing; it is a preflight, or a mistake that the engine
// explains best. Neither does one of an API that is not to be read.
func (h *Head) API() pd.API {
	if h.Method != http.MethodPost {
		return pd.APIOther
	}
	path, grpc := h.path(), h.GRPC()
	for _, api := range readable {
		if api.GRPC() == grpc && strings.HasSuffix(path, api.Path()) {
			if !h.Reads.Has(api) {
				return pd.APIOther
			}
			return api
		}
	}
	return pd.APIOther
}

// readable are all APIs that can be read. A path may end with that of several: the first one counts.
var readable = slices.Concat(pd.APIs(), []pd.API{pd.APISGLang}, pd.GRPCAPIs())

// GRPC reports whether the client speaks gRPC, and expects refusals in its form.
func (h *Head) GRPC() bool { return pd.IsGRPC(h.ContentType) }

// path returns Path without the query.
func (h *Head) path() string {
	path, _, _ := strings.Cut(h.Path, "?")
	return path
}
