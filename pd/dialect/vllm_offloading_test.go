package dialect_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
)

func offloading(t *testing.T) dialect.Dialect {
	t.Helper()
	d, ok := dialect.New("offloading", dialect.Options{P2PPort: 5710})
	if !ok {
		t.Fatal("no dialect offloading")
	}
	return d
}

func TestOffloadingLegs(t *testing.T) {
	var none pd.Rank
	for rank, want := range map[pd.Rank]struct{ port, header string }{none: {"5710", ""}, pd.RankOf(0): {"5710", "0"}, pd.RankOf(3): {"5713", "3"}} {
		a, err := memberAttempt(t, offloading(t), pd.APIChat, `{"messages":[],"kv_transfer_params":"evil"}`)
		if err != nil {
			t.Fatal(err)
		}
		a.(dialect.Ranked).UseRanks(rank, pd.RankOf(7))
		header := http.Header{}
		a.(dialect.HeaderSetter).SetHeader(pd.RoleDecode, header)
		a.(dialect.HeaderSetter).SetHeader(pd.RolePrefill, header)
		if got := header.Get("X-Data-Parallel-Rank"); got != want.header {
			t.Errorf("rank %v: the header is %q", rank, got)
		}
		l, err := a.Prefill()
		prefill := text(t, l, err)
		l, err = a.(dialect.Rendezvous).Handoff().Decode()
		decode := text(t, l, err)
		_, id, _ := strings.Cut(prefill, `"kv_request_id":"`)
		id, _, _ = strings.Cut(id, `"`)
		if id == "" || !strings.Contains(prefill, `"kv_transfer_params":{"remote_decoder":{"kv_request_id":"`+id+`"}}`) || !strings.Contains(prefill, `"max_tokens":1`) {
			t.Errorf("prefill leg %s", prefill)
		}
		if !strings.Contains(decode, `"kv_transfer_params":{"remote_prefiller":{"kv_request_id":"`+id+`","remote_host":"10.0.0.7","remote_port":`+want.port+`}}`) {
			t.Errorf("decode leg %s", decode)
		}
	}
}

// Decode counts what it has fetched as cached. Prefill's count is right.
func TestOffloadingUsage(t *testing.T) {
	a, err := memberAttempt(t, offloading(t), pd.APICompletions, `{"prompt":"x"}`)
	if err != nil {
		t.Fatal(err)
	}
	before := a.(dialect.Rendezvous).Handoff()
	h, err := a.Accept([]byte(`{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":64}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := h.(dialect.UsageCorrector).Cached(); n != 64 || !ok {
		t.Errorf("%d, %v", n, ok)
	}
	if _, ok := before.(dialect.UsageCorrector).Cached(); ok {
		t.Error("the hand-off of decode's leg has changed")
	}
}
