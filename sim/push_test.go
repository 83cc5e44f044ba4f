package sim_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/simtest"
)

func pushing(c *sim.Config) { c.KV.Push = true }

// The legs of one X-Request-Id find each other, in any order, and the tokens are those of a plain engine.
func TestPush(t *testing.T) {
	p, d, plain := simtest.Start(t, pushing), simtest.Start(t, pushing), simtest.Start(t)
	for _, n := range []int{1, 31, 32, 33, 100, 3000} {
		ids := simtest.Prompt(n, n)
		want := simtest.Complete(t, plain, simtest.Greedy(ids, 12, nil))
		var hand, got simtest.Completion
		simtest.Post(t, p.URL+"/v1/completions", simtest.Greedy(ids, 1, simtest.PrefillLeg), "X-Request-Id", "one").Decode(t, &hand)
		simtest.Post(t, d.URL+"/v1/completions", simtest.Greedy(ids, 12, hand.KVTransferParams), "X-Request-Id", "one").Decode(t, &got)
		if !slices.Equal(got.Tokens(), want.Tokens()) {
			t.Errorf("%d prompt tokens: decode generated %v, a plain engine %v", n, got.Tokens(), want.Tokens())
		}
	}
	given := simtest.WaitForState(t, p, "the release of every hand-off", simtest.Idle)
	read := simtest.WaitForState(t, d, "the end of every request", simtest.Idle)
	if read.ForeignReads != 0 || read.KVBytesRead == 0 || given.Released != 6 || given.Expired+given.StaleReads != 0 {
		t.Errorf("prefill state %+v, decode state %+v", given, read)
	}
}

// Of legs with other ids prefill knows nothing: decode waits, and keeps the blocks when its client has left.
func TestPushOfAnotherRequest(t *testing.T) {
	p, d := simtest.Start(t, pushing), simtest.Start(t, pushing)
	ids := simtest.Prompt(1, 100)
	hand := simtest.Prefill(t, p, ids)
	waits := func(st sim.State) bool { return st.Blocks.Used == 4 }
	simtest.Leave(t, d, simtest.Greedy(ids, 4, hand), waits)
	simtest.Complete(t, d, simtest.Greedy(simtest.Prompt(2, 100), 4, nil)) // other requests go on
	simtest.WaitForState(t, d, "the end of the other request", waits)
	if st := p.Engine.State(); st.Blocks.Pinned != 4 || st.Released != 0 {
		t.Errorf("prefill state %+v", st)
	}
}

// A decode leg without the members that a registration needs ends the engine.
func TestPushIncomplete(t *testing.T) {
	for _, name := range []string{"remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size"} {
		p, d := simtest.Start(t, pushing), simtest.Start(t, pushing)
		ids := simtest.Prompt(1, 100)
		hand := simtest.Prefill(t, p, ids)
		delete(hand, name)
		simtest.Post(t, d.URL+"/v1/completions", simtest.Greedy(ids, 4, hand))
		if d.Engine.Err() == nil {
			t.Errorf("decode survives a hand-off without %s", name)
		}
	}
}

// What decode does not ask for ends with the lease.
func TestPushExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := simtest.NewNetwork().Start(t, pushing)
		p.Complete(t.Context(), simtest.Greedy(simtest.Prompt(1, 100), 1, simtest.PrefillLeg))
		simtest.Elapse(t, 31*time.Second)
		if st := p.State(); st.Expired != 1 || st.Blocks.Pinned != 0 {
			t.Errorf("prefill state %+v", st)
		}
	})
}
