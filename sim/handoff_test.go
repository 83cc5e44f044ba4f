package sim

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestDecodeContinuesWherePrefillEnded(t *testing.T) {
	p, d, plain := start(t), start(t), start(t)
	for _, n := range []int{1, 20, 31, 32, 33, 64, 96, 100, 3000} {
		ids := prompt(n, n)
		want := complete(t, plain, ask(ids, 12, nil))
		got := complete(t, d, ask(ids, 12, prefill(t, p, ids)))
		if !slices.Equal(got.tokens(), want.tokens()) {
			t.Errorf("%d prompt tokens: decode generated %v, a plain engine %v", n, got.tokens(), want.tokens())
		}
		if got.Usage.PromptTokensDetails.CachedTokens != 0 {
			t.Errorf("%d prompt tokens: decode reports %d cached, prefill had none", n, got.Usage.PromptTokensDetails.CachedTokens)
		}
	}
	settle(t, p, "the release of every hand-off", idle)
	st := settle(t, d, "the end of every request", idle)
	if st.ForeignReads != 0 || st.KVBytesRead == 0 {
		t.Errorf("decode state %+v: want bytes read, and none of them foreign", st)
	}
	if page := metricsPage(t, d); !strings.Contains(page, `vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"} 0.0`) {
		t.Error("decode computed prompt tokens itself")
	}
}

func metricsPage(t *testing.T, s *Server) string {
	t.Helper()
	return string(do(t, http.MethodGet, s.URL+"/metrics", "").body)
}

func TestHandoffMembers(t *testing.T) {
	p := start(t)
	r := post(t, p.URL+"/v1/completions", ask(prompt(1, 100), 1, prefillLeg), "X-Request-Id", "abc")
	var c completionOf
	r.decode(t, &c)
	var h handoff
	if err := json.Unmarshal(c.KVTransferParams, &h); err != nil {
		t.Fatal(err)
	}
	if string(c.KVTransferParams) != string(encodeJSON(h)) {
		t.Errorf("members or their order differ: %s", c.KVTransferParams)
	}
	if !slices.Equal(h.RemoteBlockIDs[0], []int{1, 2, 3, 4}) || h.RemoteNumTokens != 100 || h.RemoteEngineID != p.Engine.ID() {
		t.Errorf("hand-off is %+v", h)
	}
	if !strings.HasPrefix(h.RemoteRequestID, "cmpl-abc-0-") || c.ID != "cmpl-abc" {
		t.Errorf("request ids are %q and %q", h.RemoteRequestID, c.ID)
	}
	if st := p.Engine.State(); st.Blocks.Pinned != 4 || st.Blocks.Used != 4 {
		t.Errorf("blocks are %+v: want 4 pinned", st.Blocks)
	}
}
