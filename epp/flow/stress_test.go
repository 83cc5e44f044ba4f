package flow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
	"github.com/tandem-serving/tandem/pd/request"
)

// TestUnderLoad runs clients of all kinds at once over a pool with few slots, under every policy. The pool never has more
// requests than slots, every request ends, and nothing is left over.
func TestUnderLoad(t *testing.T) {
	for fairness := flow.GlobalStrict; fairness <= flow.LeastAttained; fairness++ {
		for ordering := flow.FCFS; ordering <= flow.SLODeadline; ordering++ {
			inBubble(t, fmt.Sprint(fairness, ordering), func(t *testing.T) {
				band := flow.Band{Fairness: fairness, Ordering: ordering}
				underLoad(t, flow.Settings{All: flow.Limits{Requests: 60}, Flow: flow.Limits{Requests: 30}, TTL: 200 * time.Millisecond,
					Other: band, Negative: band})
			})
		}
	}
}

func underLoad(t *testing.T, s flow.Settings) {
	const clients, each, decodes, prefills = 64, 40, 12, 4
	gate := &slots{first: decodes, prefill: prefills}
	c := flow.New(s, gate, flow.Options{Clock: epp.SystemClock})
	var passed, refused atomic.Int64
	var running sync.WaitGroup
	for i := range clients {
		running.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for n := range each {
				one := local(fmt.Sprint(n), r.IntN(4)-2, fmt.Sprint(i%7))
				one.Headers.(http.Header).Set(epp.HeaderTTFT, fmt.Sprint(r.IntN(3000)))
				split := 0
				if r.IntN(2) == 0 {
					one.Fit, split = request.FitSplit, 1
				}
				ctx, leave := context.WithTimeout(t.Context(), time.Duration(1+r.IntN(300))*time.Millisecond)
				pass, err := c.Admit(ctx, one)
				leave()
				if err != nil {
					refused.Add(1)
					continue
				}
				passed.Add(1)
				gate.add(-1, -split)
				if gate.overdrawn() {
					t.Error("more requests than slots")
				}
				c.Settled(one, pass)
				<-time.After(time.Duration(r.IntN(20)) * time.Millisecond)
				gate.add(1, split)
				c.SnapshotChanged()
			}
		})
	}
	if running.Wait(); passed.Load()+refused.Load() != clients*each || passed.Load() < each || refused.Load() == 0 {
		t.Errorf("%d passed and %d were refused of %d", passed.Load(), refused.Load(), clients*each)
	}
	synctest.Wait()
	if v := c.View(); v.Requests != 0 || v.Bytes != 0 || v.Pending != [2]int64{} || len(v.Bands) > 0 {
		t.Errorf("left over: %+v", v)
	}
	if gate.first != decodes || gate.prefill != prefills {
		t.Errorf("%d and %d slots are free at the end", gate.first, gate.prefill)
	}
}

func (s *slots) overdrawn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first < 0 || s.prefill < 0
}
