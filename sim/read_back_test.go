package sim_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/simtest"
)

func bidirectional(c *sim.Config) { c.KV.Bidirectional = true }

// lend has an engine hand over the first tokens of a prompt that it has, and returns the parameters of a prefill leg that reads them.
func lend(t *testing.T, from *server.Server, ids []int, tokens int) map[string]any {
	t.Helper()
	body := simtest.Greedy(ids, 1, simtest.PrefillLeg)
	body["truncate_prompt_tokens"], body["truncation_side"] = tokens, "right"
	params := members(t, simtest.Complete(t, from, body).KVTransferParams)
	params["do_remote_prefill"], params["do_remote_decode"] = false, true
	return params
}

// members returns the parameters of a hand-off.
func members(t *testing.T, params json.RawMessage) (m map[string]any) {
	t.Helper()
	if err := json.Unmarshal(params, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestReadBack: a prefill engine reads the beginning of a prompt that another engine has, computes the rest, and hands over all of it.
func TestReadBack(t *testing.T) {
	for _, has := range []int{96, 500, 640, 650} {
		p, d, plain := simtest.Start(t, bidirectional), simtest.Start(t), simtest.Start(t)
		ids := simtest.Prompt(has, 650)
		want := simtest.Complete(t, plain, simtest.Greedy(ids, 12, nil))
		params := lend(t, d, ids, has)
		simtest.WaitForState(t, d, "the end of the leg", func(st sim.State) bool { return st.Blocks.Pinned > 0 })
		hand := simtest.Complete(t, p, simtest.Greedy(ids, 1, params))
		if cached := fmt.Sprint(members(t, hand.KVTransferParams)["remote_prefill_cached_tokens"]); cached != fmt.Sprint(has) {
			t.Errorf("%d tokens: prefill says %s are cached", has, cached)
		}
		simtest.WaitForState(t, d, "the release of what was read", simtest.Idle)
		got := simtest.Complete(t, d, simtest.Greedy(ids, 12, hand.KVTransferParams))
		if !slices.Equal(got.Tokens(), want.Tokens()) {
			t.Errorf("%d tokens: decode generated %v, a plain engine %v", has, got.Tokens(), want.Tokens())
		}
		for _, st := range []sim.State{simtest.WaitForState(t, p, "the release of the hand-off", simtest.Idle), d.Engine.State()} {
			if st.ForeignReads != 0 || st.Expired+st.StaleReads != 0 || st.Released != 1 {
				t.Errorf("%d tokens: state %+v", has, st)
			}
		}
	}
}

// TestReadBackDeclined: what an engine does not read it computes, or fails by its policy; only of what it has does it tell the other.
func TestReadBackDeclined(t *testing.T) {
	ids := simtest.Prompt(1, 650)
	soon := json.Number("0.001") // of a clock that began with the machine
	for _, c := range []struct {
		name    string
		reader  func(*sim.Config)
		has     int // of the prompt, at prefill
		expiry  any
		status  int
		pinned  int // of decode, afterwards
		cached  string
		expires bool
	}{
		{"not bidirectional", func(*sim.Config) {}, 0, nil, http.StatusOK, 16, "0", false},
		{"few tokens", bidirectional, 480, nil, http.StatusOK, 0, "480", false},
		{"expired", bidirectional, 0, soon, http.StatusInternalServerError, 16, "", true},
		{"expired, recompute", func(c *sim.Config) { bidirectional(c); c.KV.LoadFailure = sim.RecomputeLoad }, 0, soon, http.StatusOK, 16, "0", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, d := simtest.Start(t, c.reader), simtest.Start(t)
			if c.has > 0 {
				simtest.Complete(t, p, simtest.Greedy(ids[:c.has], 1, nil))
			}
			params := lend(t, d, ids, 512)
			params["remote_blocks_expiry_time"] = c.expiry
			answer := simtest.Post(t, p.URL+"/v1/completions", simtest.Greedy(ids, 1, params))
			var hand simtest.Completion
			if answer.Status != c.status {
				t.Fatalf("status %d", answer.Status)
			} else if c.status == http.StatusOK {
				answer.Decode(t, &hand)
				if cached := fmt.Sprint(members(t, hand.KVTransferParams)["remote_prefill_cached_tokens"]); cached != c.cached {
					t.Errorf("prefill says %s tokens are cached, want %s", cached, c.cached)
				}
			}
			simtest.WaitForState(t, d, "what stays pinned", func(st sim.State) bool { return st.Blocks.Pinned == c.pinned })
		})
	}
}

// TestReadBackExpires: what is not read is freed with the lease.
func TestReadBackExpires(t *testing.T) {
	d := simtest.Start(t, func(c *sim.Config) { c.KV.Lease = 50 * time.Millisecond })
	lend(t, d, simtest.Prompt(1, 650), 512)
	if st := simtest.WaitForState(t, d, "the end of the lease", func(st sim.State) bool { return st.Expired == 1 }); st.Blocks.Pinned != 0 {
		t.Errorf("state %+v", st)
	}
}
