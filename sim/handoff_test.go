package sim_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/simtest"
)

func TestDecodeContinuesWherePrefillEnded(t *testing.T) {
	p, d, plain := simtest.Start(t), simtest.Start(t), simtest.Start(t)
	for _, n := range []int{1, 20, 31, 32, 33, 64, 96, 100, 3000} {
		ids := simtest.Prompt(n, n)
		want := simtest.Complete(t, plain, simtest.Greedy(ids, 12, nil))
		got := simtest.Complete(t, d, simtest.Greedy(ids, 12, simtest.Prefill(t, p, ids)))
		if !slices.Equal(got.Tokens(), want.Tokens()) {
			t.Errorf("%d prompt tokens: decode generated %v, a plain engine %v", n, got.Tokens(), want.Tokens())
		}
		if got.Usage.PromptTokensDetails.CachedTokens != 0 {
			t.Errorf("%d prompt tokens: decode reports %d cached, prefill had none", n, got.Usage.PromptTokensDetails.CachedTokens)
		}
	}
	simtest.WaitForState(t, p, "the release of every hand-off", simtest.Idle)
	st := simtest.WaitForState(t, d, "the end of every request", simtest.Idle)
	if st.ForeignReads != 0 || st.KVBytesRead == 0 {
		t.Errorf("decode state %+v: want bytes read, and none of them foreign", st)
	}
	if page := simtest.MetricsPage(t, d); !strings.Contains(page, `vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"} 0.0`) {
		t.Error("decode computed prompt tokens itself")
	}
}

func TestHandoffMembers(t *testing.T) {
	p := simtest.Start(t)
	r := simtest.Post(t, p.URL+"/v1/completions", simtest.Greedy(simtest.Prompt(1, 100), 1, simtest.PrefillLeg), "X-Request-Id", "abc")
	var c simtest.Completion
	r.Decode(t, &c)
	var h sim.Handoff
	if err := json.Unmarshal(c.KVTransferParams, &h); err != nil {
		t.Fatal(err)
	}
	if string(c.KVTransferParams) != string(pyjson.Encode(h)) {
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
