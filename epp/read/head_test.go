package read_test

import (
	"net/http/httptest"
	"net/netip"
	"reflect"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
)

func TestHeadAPI(t *testing.T) {
	for _, c := range []struct {
		method, path string
		want         pd.API
	}{
		{"POST", "/v1/chat/completions", pd.APIChat},
		{"POST", "/v1/completions", pd.APICompletions},
		{"POST", "/v1/responses", pd.APIResponses},
		{"POST", "/v1/messages", pd.APIMessages},
		{"POST", "/inference/v1/generate", pd.APIGenerate},
		{"POST", "/v1/embeddings", pd.APIEmbeddings},
		{"POST", "/v1/completions?x=/v1/models", pd.APICompletions},
		{"POST", "/tenant-a/v1/chat/completions", pd.APIChat},
		{"POST", "/v1/models?x=/v1/completions", pd.APIOther},
		{"POST", "/xv1/completions", pd.APIOther},
		{"POST", "/v1/messages/count_tokens", pd.APICountTokens},
		{"POST", "/v1/completions/", pd.APIOther},
		{"POST", "/generate", pd.APIOther},
		{"POST", "", pd.APIOther},
		{"OPTIONS", "/v1/chat/completions", pd.APIOther},
		{"GET", "/v1/chat/completions", pd.APIOther},
		{"", "", pd.APIOther},
	} {
		h := read.Head{Method: c.method, Path: c.path}
		if got := h.API(); got != c.want {
			t.Errorf("%s %s: got %v, want %v", c.method, c.path, got, c.want)
		}
	}
}

func TestHeadOf(t *testing.T) {
	r := httptest.NewRequest("POST", "/explain", nil)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Request-Id", "r-1")
	r.Header.Add("X-Tandem-Pd", "force")
	h := read.HeadOf(r, "/v1/completions")
	if want := (read.Head{Method: "POST", Path: "/v1/completions", ContentType: "application/json", RequestID: "r-1", Mode: []string{"force"}, Headers: r.Header}); !reflect.DeepEqual(h, want) {
		t.Errorf("got %+v", h)
	}
	r.Header.Set(epp.HeaderSubset, "10.0.0.1:8000, 10.0.0.2")
	for addr, want := range map[string]bool{"10.0.0.1:8000": true, "10.0.0.1:8001": false, "10.0.0.2:8001": true} {
		if got := read.HeadOf(r, "/").Subset.Has(netip.MustParseAddrPort(addr)); got != want {
			t.Errorf("%s: got %v", addr, got)
		}
	}
}
