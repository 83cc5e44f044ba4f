package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// stillPool is a pool whose pages are not read again.
type stillPool epp.Snapshot

func (p *stillPool) Snapshot() *epp.Snapshot { return (*epp.Snapshot)(p) }

// pageOf returns the load of an engine with a KV cache of 64,000 tokens that has run one request at once at most.
func pageOf(waiting, running, usage float64) epp.Load {
	return epp.Load{At: time.Now(), Batch: 1, Cache: epp.CacheInfo{BlockTokens: 16, Blocks: 4000},
		Signals: epp.Values{}.With(epp.Waiting, waiting).With(epp.Running, running).With(epp.KVUsage, usage)}
}

// TestBurst sends 64 prompts without a common beginning before any page is read again. They must spread over the prefill
// endpoints, also if one of them looked better than the others when its page was read.
func TestBurst(t *testing.T) {
	const prompts, tokens = 64, 2000
	const guide = "{pluginRef: prefix-cache-scorer, weight: 3}, {pluginRef: queue-scorer, weight: 2}, {pluginRef: kv-cache-utilization-scorer, weight: 2}"
	for _, c := range []struct {
		name, scorers string
		best, others  epp.Load // of the prefill endpoints
		// Where endpoints differ, a burst first makes them equal: the best gets as many prompts more as make up for that.
		least, most int
	}{
		{"all idle", guide, pageOf(0, 0, 0), pageOf(0, 0, 0), 15, 17},
		{"one without a queue", guide, pageOf(0, 1, 0), pageOf(3, 1, 0), 14, 20},
		{"one with a shorter queue", guide, pageOf(7, 1, 0.5), pageOf(9, 1, 0.5), 15, 18},
		{"one with fewer running", "{pluginRef: running-requests-size-scorer}", pageOf(0, 0, 0), pageOf(0, 4, 0), 15, 19},
		{"one with more free KV cache", "{pluginRef: kv-cache-utilization-scorer}", pageOf(0, 0, 0.1), pageOf(0, 0, 0.2), 15, 19},
		{"one that load-aware prefers", "{pluginRef: load-aware-scorer}", pageOf(0, 1, 0), pageOf(2, 1, 0), 15, 18},
	} {
		t.Run(c.name, func(t *testing.T) {
			pool := &stillPool{Version: 1}
			add := func(role string, load epp.Load) {
				i := len(pool.Endpoints)
				e := epp.NewEndpoint("default", fmt.Sprintf("%s-%d", role, i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 8000), "",
					map[string]string{pd.RoleLabel: role})
				e.Slot = i
				pool.Endpoints, pool.Loads = append(pool.Endpoints, e), append(pool.Loads, load)
			}
			add("decode", pageOf(0, 0, 0))
			add("prefill", c.best)
			for range 3 {
				add("prefill", c.others)
			}
			s := schedulerOf(t, pool, c.scorers)
			share := map[string]int{}
			for i := range prompts {
				block := uint64(i + 1) // of no other prompt
				d, err := s.Pick(t.Context(), &epp.Request{API: pd.APIChat, Fit: request.FitSplit,
					Prompt: epp.Prompt{Tokens: tokens, Blocks: []uint64{block}, BlockTokens: s.Needs().Tokens}})
				must(t, err)
				share[d.Endpoints(epp.StagePrefill)[0].Name]++
			}
			for _, e := range pool.Endpoints[1:] {
				if n := share[e.Name]; n < c.least || n > c.most {
					t.Errorf("%s got %d of %d prompts, want %d to %d: %v", e.Name, n, prompts, c.least, c.most, share)
				}
			}
		})
	}
}

// burstConfig is a configuration with scorers for the prefill profile.
const burstConfig = `apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: always-disagg-pd-decider
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}
- type: decode-filter
- type: prefill-filter
- type: approx-prefix-cache-producer
- type: prefix-cache-scorer
- type: queue-scorer
- type: running-requests-size-scorer
- type: kv-cache-utilization-scorer
- type: load-aware-scorer
- type: max-score-picker
schedulingProfiles:
- {name: decode, plugins: [{pluginRef: decode-filter}]}
- {name: prefill, plugins: [{pluginRef: prefill-filter}, %s, {pluginRef: max-score-picker}]}
`

// schedulerOf makes a scheduler over a pool.
func schedulerOf(t *testing.T, pool interface{ Snapshot() *epp.Snapshot }, scorers string) *sched.Scheduler {
	t.Helper()
	parsed, err := config.Parse(fmt.Appendf(nil, burstConfig, scorers), plugin.Table)
	must(t, err)
	built, err := parsed.Build(slog.New(slog.DiscardHandler), &epp.Keep{})
	must(t, err)
	t.Cleanup(func() { must(t, built.Close()) })
	cfg := defaults()
	cfg.Picking.Seed = 1
	pipeline, err := cfg.pipeline(built, nil, nil, nil)
	must(t, err)
	s := sched.New(pool, epp.SystemClock)
	s.Swap(pipeline)
	return s
}
