package sim_test

import (
	"encoding/json"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// TestHandshakeIsPaidOnce: the first hand-off of each pair is delayed, with those that arrive meanwhile, and no other is.
func TestHandshakeIsPaidOnce(t *testing.T) {
	const cost = 3 * time.Second
	synctest.Test(t, func(t *testing.T) {
		s := simtest.NewNetwork()
		quick := func(c *sim.Config) { c.TimeScale, c.KV.HandshakeTime = 0, cost }
		p, d, other := s.Start(t, quick), s.Start(t, quick), s.Start(t, quick)
		seed := 0
		leg := func(from, to *simtest.Engine) time.Duration {
			seed++
			ids := simtest.Prompt(seed, 100)
			h := from.Complete(t.Context(), simtest.Greedy(ids, 1, simtest.PrefillLeg)).KVTransferParams
			read := to.State().KVBytesRead
			defer func() {
				if to.State().KVBytesRead == read {
					t.Error("nothing was handed over")
				}
			}()
			return simtest.Measure(func() { to.Complete(t.Context(), simtest.Greedy(ids, 4, h)) })
		}
		for i, step := range []struct {
			from, to *simtest.Engine
			want     time.Duration
		}{{p, d, cost}, {p, d, 0}, {p, other, cost}, {d, other, cost}, {p, d, 0}, {d, other, 0}} {
			if got := leg(step.from, step.to); got != step.want {
				t.Errorf("leg %d took %v, want %v", i, got, step.want)
			}
		}
		p.Close()
		if got := leg(s.Start(t, quick), d); got != cost {
			t.Errorf("the first hand-off after a restart took %v", got)
		}
	})
}

// TestHandshakeDelaysNoOtherRequest: running answers go on, and hand-offs of the same pair share one handshake.
func TestHandshakeDelaysNoOtherRequest(t *testing.T) {
	const cost = 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		s := simtest.NewNetwork()
		p, d := s.Start(t), s.Start(t, func(c *sim.Config) { c.KV.HandshakeTime = cost })
		hands := make([]json.RawMessage, 3)
		for i := range hands {
			hands[i] = p.Complete(t.Context(), simtest.Greedy(simtest.Prompt(i, 100), 1, simtest.PrefillLeg)).KVTransferParams
		}
		begun := time.Now()
		var legs sync.WaitGroup
		for i, h := range hands {
			legs.Go(func() {
				simtest.Elapse(t, time.Duration(i)*time.Second)
				d.Complete(t.Context(), simtest.Greedy(simtest.Prompt(i, 100), 1, h))
				if got := time.Since(begun); got < cost || got > cost+time.Second {
					t.Errorf("hand-off %d was decoded after %v", i, got)
				}
			})
		}
		if got := simtest.Measure(func() { d.Complete(t.Context(), simtest.Greedy(simtest.Prompt(9, 100), 50, nil)) }); got > cost/2 {
			t.Errorf("50 tokens beside it took %v", got)
		}
		if got := time.Since(begun); got >= cost {
			t.Errorf("another request waited for the handshake, until %v", got)
		}
		legs.Wait()
		if st := p.State(); st.Blocks.Used != 0 || st.Expired != 0 {
			t.Errorf("prefill state %+v", st)
		}
	})
}
