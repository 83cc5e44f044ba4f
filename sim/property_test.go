package sim_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// TestNothingIsLost runs random requests on a pair, with clients that leave at random moments, several choices, batches,
// hand-offs that are not read or are damaged, and KV that goes stale. In the end every block is free, under either policy.
func TestNothingIsLost(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := simtest.NewNetwork()
				small := func(c *sim.Config) {
					c.KV.Blocks, c.MaxModelLen, c.Schedule.MaxSequences = 40, 600, 4
					c.Schedule.MaxBatchedTokens = 128
					if seed%2 == 1 {
						c.KV.LoadFailure = sim.RecomputeLoad
					}
				}
				p, d := s.Start(t, small), s.Start(t, small)
				r := rand.New(rand.NewPCG(seed, 7))
				var wg sync.WaitGroup
				for range 120 {
					c := randomCase(r)
					wg.Go(func() { c.run(t.Context(), p, d) })
					simtest.Elapse(t, time.Duration(r.IntN(30))*time.Millisecond)
				}
				wg.Wait()
				simtest.Elapse(t, time.Minute) // the leases of what was not read
				synctest.Wait()
				for name, e := range map[string]*simtest.Engine{"prefill": p, "decode": d} {
					checkEmpty(t, name, e)
				}
			})
		})
	}
}

// checkEmpty checks that an engine has run requests, and holds nothing.
func checkEmpty(t *testing.T, name string, e *simtest.Engine) {
	t.Helper()
	leases, live, running, waiting, ok := e.Leftovers()
	if !ok {
		t.Errorf("%s died: %v", name, e.Err())
		return
	}
	st := e.State()
	if !simtest.Idle(st) || leases != 0 {
		t.Errorf("%s: %d blocks used, %d pinned, %d leases", name, st.Blocks.Used, st.Blocks.Pinned, leases)
	}
	if live != 0 || running != 0 || waiting != 0 {
		t.Errorf("%s: %d sequences live, %d running, %d waiting", name, live, running, waiting)
	}
	if st.Requests == 0 {
		t.Errorf("%s: it had no requests", name)
	}
}

// randomRequest is one request of TestNothingIsLost, with its faults.
type randomRequest struct {
	ids        []int
	max, n     int
	remote     bool
	batch      bool
	stale      bool
	damage     string        // of the hand-off; "" for none, "drop" if decode never hears of it
	leavesIn   time.Duration // after its start; 0: it stays
	pauseAfter time.Duration // between the legs
}

// survivable are the damages that no engine dies of.
var survivable = []string{"", "", "", "", "drop", "far-blocks", "wrong-engine", "wrong-request", "missing-cached", "string-blocks", "foreign", "flag-false"}

func randomCase(r *rand.Rand) randomRequest {
	c := randomRequest{
		ids: simtest.Prompt(r.IntN(5), 1+r.IntN(400)), max: 1 + r.IntN(60), n: 1 + r.IntN(2),
		remote: r.IntN(3) > 0, batch: r.IntN(8) == 0, stale: r.IntN(10) == 0,
		damage: survivable[r.IntN(len(survivable))], pauseAfter: time.Duration(r.IntN(50)) * time.Millisecond,
	}
	if r.IntN(3) == 0 {
		c.leavesIn = time.Duration(1 + r.IntN(400)*int(time.Millisecond))
	}
	return c
}

func (c randomRequest) run(ctx context.Context, p, d *simtest.Engine) {
	if c.leavesIn > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.leavesIn)
		defer cancel()
	}
	body := simtest.Greedy(c.ids, c.max, nil)
	body["n"], body["temperature"] = c.n, 1
	if c.remote {
		leg := simtest.Greedy(c.ids, 1, simtest.PrefillLeg)
		if c.batch {
			leg["prompt"] = [][]int{c.ids, c.ids}
		}
		if c.stale && p.Faults.Add(fault.Fault{Leg: fault.LegPrefill, Fault: fault.Stale, Count: 1}) != nil {
			return
		}
		answer := p.Complete(ctx, leg)
		var h *sim.Handoff
		if json.Unmarshal(answer.KVTransferParams, &h) != nil || h == nil || c.damage == "drop" || simtest.Sleep(ctx, c.pauseAfter) != nil {
			return
		}
		if c.damage == "" {
			body["kv_transfer_params"] = h
		} else {
			body["kv_transfer_params"] = fault.Damage(c.damage, pyjson.Encode(h))
		}
	}
	d.Complete(ctx, body)
}
