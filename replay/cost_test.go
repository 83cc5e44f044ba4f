package replay

import (
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/replay/engine"
)

// costOptions are those of a run in which cost-pd-decider decides.
func costOptions(t testing.TB, pool string) Options {
	t.Helper()
	o := options(t, 2048, pool)
	text, rest, ok := strings.Cut(strings.ReplaceAll(string(config.Default()), "prefix-based-pd-decider", "cost-pd-decider"), "    parameters:\n      # In tokens.")
	_, rest, found := strings.Cut(rest, "nonCachedTokens: 2048\n")
	if !ok || !found {
		t.Fatal("the built-in configuration has another form")
	}
	var err error
	if o.Config, err = config.Parse([]byte(text+rest), plugin.Table); err != nil {
		t.Fatal(err)
	}
	return o
}

func remoteShare(r *Result) float64 { return r.Summary(SLO{}).RemoteShare }

// steady is requests of 4,000 tokens that come evenly, for some minutes.
func steady() *Trace {
	trace := &Trace{BlockTokens: 512}
	for i := range 1200 {
		trace.Requests = append(trace.Requests, Request{Due: time.Duration(i) * time.Second / 6, Input: 4000, Output: 100})
	}
	return trace
}

// TestCostLearns: where the decision goes by measured cost, what the outcomes tell of the network decides.
func TestCostLearns(t *testing.T) {
	fast := replayed(t, costOptions(t, "3P+3D"), steady())
	if share := remoteShare(fast); share < 0.2 {
		t.Errorf("over a fast network %.0f %% of the requests are remote", 100*share)
	}
	for i := range fast.Records {
		if r := &fast.Records[i]; !r.Refused && r.Reason != pd.LowerCost {
			t.Fatalf("request %d: reason %s", i, r.Reason)
		}
	}
	o := costOptions(t, "3P+3D")
	o.Link = Link{Bandwidth: 1e9, Latency: 50 * time.Millisecond} // a prompt's KV cache takes 1.3 s
	if slow := replayed(t, o, steady()); remoteShare(slow) > remoteShare(fast)/3 {
		t.Errorf("over a slow network %.0f %% are remote, over a fast one %.0f %%", 100*remoteShare(slow), 100*remoteShare(fast))
	}
}

// TestCostAvoidsASlowPair: of two prefill engines behind links of different speed, the slow one's requests become local.
func TestCostAvoidsASlowPair(t *testing.T) {
	o := costOptions(t, "2P+2D")
	o.Pairs = []Pair{{From: "prefill-1", To: "*", Link: Link{Bandwidth: 0.1e9, Latency: 100 * time.Millisecond}}}
	r := replayed(t, o, steady())
	by := map[string]int{}
	for i := range r.Records {
		if r.Records[i].Remote {
			by[r.Records[i].Prefill]++
		}
	}
	if by["prefill-1"]*2 > by["prefill-0"] {
		t.Errorf("the engine behind the slow link got %d prompts, the other %d", by["prefill-1"], by["prefill-0"])
	}
}

// TestCostBehindTokens: SGLang's legs overlap, so that hand-offs begin with the first leg.
func TestCostBehindTokens(t *testing.T) {
	o := costOptions(t, "3P+3D")
	o.Engine = engine.SGLang()
	o.Engine.KVTokens = o.Hardware.KVTokens
	r := replayed(t, o, steady())
	if share := remoteShare(r); share < 0.2 {
		t.Errorf("%.0f %% of the requests are remote", 100*share)
	}
}
