package sim

import (
	"encoding/json"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestHandshakeIsPaidOnce: the first hand-off of each pair waits for it, with all that come meanwhile, and no others do.
func TestHandshakeIsPaidOnce(t *testing.T) {
	const cost = 3 * time.Second
	synctest.Test(t, func(t *testing.T) {
		s := newSite()
		quick := func(c *Config) { c.TimeScale, c.KV.HandshakeTime = 0, cost }
		p, d, other := s.engine(t, quick), s.engine(t, quick), s.engine(t, quick)
		seed := 0
		leg := func(from, to *Engine) time.Duration {
			seed++
			ids := prompt(seed, 100)
			h := serve(t.Context(), from, ask(ids, 1, prefillLeg)).KVTransferParams
			read := to.State().KVBytesRead
			defer func() {
				if to.State().KVBytesRead == read {
					t.Error("nothing was handed over")
				}
			}()
			return took(func() { serve(t.Context(), to, ask(ids, 4, h)) })
		}
		for i, step := range []struct {
			from, to *Engine
			want     time.Duration
		}{{p, d, cost}, {p, d, 0}, {p, other, cost}, {d, other, cost}, {p, d, 0}, {d, other, 0}} {
			if got := leg(step.from, step.to); got != step.want {
				t.Errorf("leg %d took %v, want %v", i, got, step.want)
			}
		}
		p.Close()
		if got := leg(s.engine(t, quick), d); got != cost {
			t.Errorf("the first hand-off after a restart took %v", got)
		}
	})
}

// TestHandshakeHoldsUpNobodyElse: a running answer goes on, and hand-offs of the same pair wait for one handshake together.
func TestHandshakeHoldsUpNobodyElse(t *testing.T) {
	const cost = 10 * time.Second
	synctest.Test(t, func(t *testing.T) {
		s := newSite()
		p, d := s.engine(t), s.engine(t, func(c *Config) { c.KV.HandshakeTime = cost })
		hands := make([]json.RawMessage, 3)
		for i := range hands {
			hands[i] = serve(t.Context(), p, ask(prompt(i, 100), 1, prefillLeg)).KVTransferParams
		}
		begun := time.Now()
		var legs sync.WaitGroup
		for i, h := range hands {
			legs.Go(func() {
				pass(t, time.Duration(i)*time.Second)
				serve(t.Context(), d, ask(prompt(i, 100), 1, h))
				if got := time.Since(begun); got < cost || got > cost+time.Second {
					t.Errorf("hand-off %d was decoded after %v", i, got)
				}
			})
		}
		if got := took(func() { serve(t.Context(), d, ask(prompt(9, 100), 50, nil)) }); got > cost/2 {
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
