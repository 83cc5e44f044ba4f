package dialect_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
)

// tier is a prefill pod whose metrics page is asked for.
type tier struct {
	page  string
	err   error
	asked int
}

func (p *tier) ask(_ context.Context, _ pd.Target, path string) ([]byte, error) {
	p.asked++
	if path != "/metrics" {
		return nil, errors.New("no such page")
	}
	return []byte(p.page), p.err
}

func offloading(t *testing.T, p *tier) dialect.Dialect {
	t.Helper()
	d, ok := dialect.New("offloading", dialect.Options{Ask: p.ask, P2PPort: 5710})
	if !ok {
		t.Fatal("no dialect offloading")
	}
	return d
}

const withTier = "vllm:kv_offload_tiering_read_bytes_total 0\n"

func TestOffloadingLegs(t *testing.T) {
	var none pd.Rank
	for rank, want := range map[pd.Rank]struct{ port, header string }{none: {"5710", ""}, pd.RankOf(0): {"5710", "0"}, pd.RankOf(3): {"5713", "3"}} {
		a, err := memberAttempt(t, offloading(t, &tier{page: withTier}), pd.APIChat, `{"messages":[],"kv_transfer_params":"evil"}`)
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

// An engine without the connector answers a leg as one with it does, and decode then waits for half a minute.
func TestOffloadingWithoutTier(t *testing.T) {
	for name, c := range map[string]struct {
		pod  tier
		fits bool
	}{
		"with the connector":      {tier{page: withTier}, true},
		"another connector":       {tier{page: "vllm:nixl_xfer_time_seconds_count 0\n"}, false},
		"no page":                 {tier{err: errors.New("404")}, true},
		"empty, not of an engine": {tier{}, false},
	} {
		if _, err := memberAttempt(t, offloading(t, &c.pod), pd.APIChat, `{"messages":[]}`); (err == nil) != c.fits {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The page is asked for once in a while, and not for each request.
func TestOffloadingAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &tier{page: withTier}
		d := offloading(t, p)
		for i, want := range []int{1, 1, 2} {
			if i == 2 {
				time.Sleep(time.Minute)
			}
			if _, err := memberAttempt(t, d, pd.APIChat, `{"messages":[]}`); err != nil || p.asked != want {
				t.Fatalf("attempt %d: asked %d times, %v", i, p.asked, err)
			}
		}
	})
}

// Decode counts what it has fetched as cached. Prefill's count is right.
func TestOffloadingUsage(t *testing.T) {
	a, err := memberAttempt(t, offloading(t, &tier{page: withTier}), pd.APICompletions, `{"prompt":"x"}`)
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
