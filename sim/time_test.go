package sim_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// The tests of this file run in synctest bubbles, with engines that are connected in memory, so their times are exact.

func TestLeaseLastsThirtySeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := simtest.NewNetwork().Start(t)
		p.Complete(t.Context(), simtest.Greedy(simtest.Prompt(1, 100), 1, simtest.PrefillLeg))
		simtest.Elapse(t, 30*time.Second-time.Millisecond)
		if st := p.State(); st.Blocks.Pinned != 4 || st.Expired != 0 {
			t.Errorf("before the end of the lease: %+v", st)
		}
		simtest.Elapse(t, 2*time.Millisecond)
		synctest.Wait()
		if st := p.State(); st.Blocks.Used != 0 || st.Expired != 1 {
			t.Errorf("after the end of the lease: %+v", st)
		}
	})
}

// TestHeartbeats: a decode leg that queues for twice the lease finds its KV. Without a tp_size the engine sends no heartbeats.
func TestHeartbeats(t *testing.T) {
	for _, c := range []struct {
		name    string
		damage  func(map[string]any)
		expired int64
	}{
		{"heartbeats", func(map[string]any) {}, 0},
		{"no tp_size", drop("tp_size"), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := simtest.NewNetwork()
				p, d := s.Start(t), s.Start(t, func(c *sim.Config) { c.Schedule.MaxSequences = 1; c.TimeScale = 10 })
				var h map[string]any
				answer := p.Complete(t.Context(), simtest.Greedy(simtest.Prompt(1, 100), 1, simtest.PrefillLeg))
				if err := json.Unmarshal(answer.KVTransferParams, &h); err != nil {
					t.Fatal(err)
				}
				c.damage(h)
				var wg sync.WaitGroup
				wg.Go(func() { d.Complete(t.Context(), simtest.Greedy(simtest.Prompt(9, 10), 3000, nil)) }) // at 20 ms a token
				synctest.Wait()
				queued := simtest.Measure(func() { d.Complete(t.Context(), simtest.Greedy(simtest.Prompt(1, 100), 2, h)) })
				wg.Wait()
				if queued < 60*time.Second {
					t.Fatalf("the decode leg waited %v, which proves nothing", queued)
				}
				if st := p.State(); st.Expired != c.expired || st.StaleReads != c.expired {
					t.Errorf("state %+v, want %d leases expired", st, c.expired)
				}
			})
		})
	}
}

// TestPrefillDelaysDecode: running answers wait for a prefill chunk in their step, and the token budget bounds that.
func TestPrefillDelaysDecode(t *testing.T) {
	longestStep := func(budget int) (longest time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			e := simtest.NewNetwork().Start(t, func(c *sim.Config) { c.Schedule.MaxBatchedTokens = budget })
			g, err := e.Submit([]sim.Request{decodeRequest(simtest.Prompt(1, 10), 60)})
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				simtest.Elapse(t, 50*time.Millisecond)
				e.Complete(t.Context(), simtest.Greedy(simtest.Prompt(2, 4000), 1, nil))
			})
			for last := time.Now(); ; last = time.Now() {
				out, err := g.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				longest = max(longest, time.Since(last))
				if out.Finish != "" {
					break
				}
			}
			wg.Wait()
		})
		return longest
	}
	whole, chunked := longestStep(4096), longestStep(512)
	// 4000 tokens at 40,000 tokens/s take 100 ms; 512 of them 12.8.
	if whole < 100*time.Millisecond || chunked > 20*time.Millisecond || chunked < 12*time.Millisecond {
		t.Errorf("the longest step took %v with the whole prompt, %v with chunks", whole, chunked)
	}
}

// decodeRequest asks for n tokens.
func decodeRequest(prompt []int, n int) sim.Request {
	return sim.Request{ID: "test", Prompt: prompt, Sampling: sim.Sampling{MaxTokens: n}}
}

// TestTransferTakesItsTime: the first contact takes the handshake's time, and every transfer the link's.
func TestTransferTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simtest.NewNetwork()
		llama := func(c *sim.Config) {
			c.Model = simtest.Model(t, "llama-3.1-8b-h100")
			c.MaxModelLen = 8192
			c.ServedModelName = "tiny"
		}
		p, d := s.Start(t, llama), s.Start(t, llama)
		leg := func(seed int) time.Duration {
			ids := simtest.Prompt(seed, 8000)
			h := p.Complete(t.Context(), simtest.Greedy(ids, 1, simtest.PrefillLeg)).KVTransferParams
			return simtest.Measure(func() { d.Complete(t.Context(), simtest.Greedy(ids, 1, h)) })
		}
		first, second := leg(1), leg(2)
		// 8000 tokens of 128 KiB at 40 GB/s: 26.2 ms, and one step.
		if second < 26*time.Millisecond || second > 40*time.Millisecond {
			t.Errorf("a transfer of 1 GB and a step took %v", second)
		}
		if handshake := first - second; handshake < 149*time.Millisecond || handshake > 151*time.Millisecond {
			t.Errorf("the first contact took %v more", handshake)
		}
	})
}

// TestUnreachablePeer: a load from an unreachable peer fails after five seconds.
func TestUnreachablePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := simtest.NewNetwork().Start(t)
		h := map[string]any{"do_remote_prefill": true, "remote_block_ids": [][]int{{1, 2, 3, 4}}, "remote_engine_id": "x",
			"remote_request_id": "y", "remote_host": "memory", "remote_port": 77}
		var c simtest.Completion
		if d := simtest.Measure(func() { c = d.Complete(t.Context(), simtest.Greedy(simtest.Prompt(1, 100), 1, h)) }); d != 5*time.Second {
			t.Errorf("it took %v", d)
		}
		if c.Error == nil || c.Error.Message != simtest.InternalError {
			t.Errorf("answer %+v", c)
		}
	})
}

// TestFullPool: requests that do not fit wait, in order, until blocks are free. A pool that is too small for the running
// requests preempts them, and the answers remain right.
func TestFullPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simtest.NewNetwork()
		small := s.Start(t, func(c *sim.Config) { c.KV.Blocks = 17; c.MaxModelLen = 512 })
		large := s.Start(t)
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				body := simtest.Greedy(simtest.Prompt(i, 100), 100, nil) // 7 blocks each in the end, of 16
				got, want := small.Complete(t.Context(), body), large.Complete(t.Context(), body)
				if fmt.Sprint(got.Tokens()) != fmt.Sprint(want.Tokens()) {
					t.Errorf("request %d: %v, want %v", i, got.Tokens(), want.Tokens())
				}
			})
		}
		wg.Wait()
		if st := small.State(); st.Blocks.Used != 0 {
			t.Errorf("state %+v", st)
		}
		page := string(small.MetricsPage())
		if !strings.Contains(page, "vllm:num_preemptions_total{") || strings.Contains(page, `vllm:num_preemptions_total{engine="0",model_name="tiny"} 0.0`) {
			t.Error("nothing was preempted, which the test is about")
		}
	})
}
