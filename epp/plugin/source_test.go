package plugin

import (
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// has is what an endpoint of these tests has, and does.
type has struct {
	cached, waiting int // tokens, requests
	untrusted, dead bool
	role            pd.Role
}

// TestP2PSource picks sources for a request whose prompt the first endpoint generates from, and the second one computes.
func TestP2PSource(t *testing.T) {
	const costly = "{costModel: {prefillMicrosecondsPerToken: 20, transferMicrosecondsPerToken: 4, transferFixedMs: 15, sourceWaitMs: 350, requeueMs: 500}}"
	for _, tc := range []struct {
		name, parameters string
		local            bool // the first endpoint computes the prompt too
		pods             []has
		want             string // "": none
	}{
		{name: "the one that has most", pods: []has{{cached: 10}, {cached: 64}, {cached: 640}, {cached: 320}}, want: "c"},
		{name: "the decode endpoint", pods: []has{{cached: 640}, {cached: 64}, {cached: 320}}, want: "a"},
		{name: "none has more", pods: []has{{cached: 64}, {cached: 640}, {cached: 640}}},
		{name: "the difference is too small", parameters: "minCachedTokenDelta: 577", pods: []has{{}, {cached: 64}, {cached: 640}}},
		{name: "the difference is just large enough", parameters: "minCachedTokenDelta: 576", pods: []has{{}, {cached: 64}, {cached: 640}}, want: "c"},
		{name: "the first computes", local: true, pods: []has{{cached: 64}, {cached: 640}}, want: "b"},
		{name: "the first computes, and has most", local: true, pods: []has{{cached: 640}, {cached: 64}}},
		{name: "one that refuses connections", pods: []has{{}, {}, {cached: 640, dead: true}, {cached: 320}}, want: "d"},
		{name: "one whose page is too old", pods: []has{{}, {}, {cached: 640, untrusted: true}}},
		{name: "an encoder", pods: []has{{}, {}, {cached: 640, role: pd.RoleEncode}}},
		{name: "another profile computes", parameters: "prefillProfileName: decoding", pods: []has{{cached: 640}, {}, {cached: 320}}},
		{name: "pays", parameters: costly, pods: []has{{}, {}, {cached: 1000}}, want: "c"},
		{name: "costs more than it saves", parameters: costly, pods: []has{{}, {}, {cached: 900}}},
		{name: "a busy source costs more", parameters: costly, pods: []has{{}, {}, {cached: 20_000, waiting: 1}}},
		{name: "a busy source with very much", parameters: costly, pods: []has{{}, {}, {cached: 40_000, waiting: 1}}, want: "c"},
		{name: "an idle source with less", parameters: costly, pods: []has{{}, {}, {cached: 20_000, waiting: 1}, {cached: 10_000}}, want: "d"},
		{name: "a busy endpoint waits once more", parameters: costly, pods: []has{{}, {waiting: 1}, {cached: 30_000}}},
		{name: "a busy endpoint with very much", parameters: costly, pods: []has{{}, {waiting: 1}, {cached: 33_000}}, want: "c"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var pods []epp.Candidate
			for i, p := range tc.pods {
				pods = append(pods, loaded(string(rune('a'+i)), p.waiting, 1, func(c *epp.Candidate) {
					c.Cached, c.Role, c.Load.Unreachable = p.cached, p.role, p.dead
					if p.untrusted {
						c.Trust = 0
					}
				}))
			}
			decode, prefill := epp.DecodeRow("decoding"), epp.PrefillRow("prefilling", 1)
			d := &epp.Decision{Picks: []epp.StagePick{{Row: &decode, Endpoints: []*epp.Endpoint{pods[0].Endpoint}}}}
			if !tc.local {
				d.Picks = append(d.Picks, epp.StagePick{Row: &prefill, Endpoints: []*epp.Endpoint{pods[1].Endpoint}})
			}
			r := round(source(1))
			r.Matches = []epp.Matches{{Matcher: knownCache{}, Whole: 1030}}
			got := ""
			e, tokens := build[epp.SourceFinder](t, "p2p-source-producer", tc.parameters).Source(r, pods, d)
			if e != nil {
				got = e.Name
			}
			for i := range pods {
				if pods[i].Endpoint == e && tokens != pods[i].Cached || e == nil && tokens != 0 {
					t.Errorf("source %q is said to have %d tokens", got, tokens)
				}
			}
			if got != tc.want {
				t.Errorf("source %q, want %q", got, tc.want)
			}
		})
	}
}

// TestP2PSourceShares: endpoints that differ by less than a block share the work, those with a queue get less of it.
func TestP2PSourceShares(t *testing.T) {
	pods := []epp.Candidate{loaded("a", 0, 1), loaded("b", 0, 1), loaded("c", 3, 1), loaded("d", 0, 1)}
	for i, cached := range []int{0, 640, 639, 640 - 64} {
		pods[i].Cached = cached
	}
	decode := epp.DecodeRow("decode")
	d := &epp.Decision{Picks: []epp.StagePick{{Row: &decode, Endpoints: []*epp.Endpoint{pods[0].Endpoint}}}}
	r := round(source(1))
	r.Matches = []epp.Matches{{Matcher: knownCache{}, Whole: 1030}}
	f, times := build[epp.SourceFinder](t, "p2p-source-producer", ""), map[string]int{}
	for range 1000 {
		e, _ := f.Source(r, pods, d)
		times[e.Name]++
	}
	if times["b"] < 750 || times["b"] > 850 || times["c"] != 1000-times["b"] { // 4:1
		t.Errorf("sources %v", times)
	}
}

func TestP2PSourceProblems(t *testing.T) {
	for parameters, want := range map[string]string{
		"minCachedTokenDelta: 0":                                                                              "minCachedTokenDelta: must be at least 1, got 0",
		"costModel: {transferMicrosecondsPerToken: 4}":                                                        "costModel.prefillMicrosecondsPerToken: must be more than 0, got 0",
		"costModel: {prefillMicrosecondsPerToken: 4, transferMicrosecondsPerToken: 4}":                        "costModel.transferMicrosecondsPerToken: must be less than prefillMicrosecondsPerToken, 4: no pull would pay",
		"costModel: {prefillMicrosecondsPerToken: 4}":                                                         "costModel.transferMicrosecondsPerToken: must be more than 0, got 0",
		"costModel: {prefillMicrosecondsPerToken: 4, transferMicrosecondsPerToken: 1, requeueMs: -1}":         "costModel.requeueMs: must not be negative, got -1",
		"costModel: {prefillMicrosecondsPerToken: 4, transferMicrosecondsPerToken: 1, busyQueueThreshold: 0}": "costModel.busyQueueThreshold: must be at least 1, got 0",
	} {
		p, err := decode(t, "p2p-source-producer", parameters)
		if err != nil {
			t.Fatal(err)
		}
		if found := problems(p); len(found) != 1 || found[0] != want {
			t.Errorf("%s: %q, want %q", parameters, found, want)
		}
	}
}

// BenchmarkP2PSource chooses among 100 endpoints, half of which have the prompt.
func BenchmarkP2PSource(b *testing.B) {
	var pods []epp.Candidate
	for i := range 100 {
		pods = append(pods, loaded("pod", i%3, 1, func(c *epp.Candidate) { c.Cached = i % 2 * 640 }))
	}
	decode := epp.DecodeRow("decode")
	d := &epp.Decision{Picks: []epp.StagePick{{Row: &decode, Endpoints: []*epp.Endpoint{pods[0].Endpoint}}}}
	r := round(source(1))
	r.Matches = []epp.Matches{{Matcher: knownCache{}, Whole: 1030}}
	f := build[epp.SourceFinder](b, "p2p-source-producer", "")
	b.ReportAllocs()
	for b.Loop() {
		if e, _ := f.Source(r, pods, d); e == nil {
			b.Fatal("no source")
		}
	}
}
