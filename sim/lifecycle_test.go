package sim_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// TestRelease lists which refusals release a hand-off, and which do not.
func TestRelease(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   func(body map[string]any)
		status   int
		released bool
	}{
		{"unknown model", func(b map[string]any) { b["model"] = "nope" }, 404, true},
		{"bad temperature", func(b map[string]any) { b["temperature"] = -3 }, 400, true},
		{"min_tokens above max_tokens", func(b map[string]any) { b["min_tokens"] = 9 }, 400, true},
		{"too long a prompt", func(b map[string]any) { b["prompt"] = simtest.Prompt(1, 5000) }, 400, true},
		{"wrong type", func(b map[string]any) { b["max_tokens"] = "many" }, 400, false},
		{"stream_options without stream", func(b map[string]any) { b["stream_options"] = map[string]any{"include_usage": true} }, 400, false},
		{"negative token", func(b map[string]any) { b["prompt"] = []int{-1} }, 400, false},
		{"max_tokens 0", func(b map[string]any) { b["max_tokens"] = 0 }, 400, false},
		{"decode leg of one token", func(b map[string]any) { b["max_tokens"] = 1 }, 200, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, d := simtest.Start(t), simtest.Start(t)
			body := simtest.Greedy(simtest.Prompt(1, 100), 6, simtest.Prefill(t, p, simtest.Prompt(1, 100)))
			c.change(body)
			if r := simtest.Post(t, d.URL+"/v1/completions", body); r.Status != c.status {
				t.Fatalf("status %d, want %d: %s", r.Status, c.status, r.Body)
			}
			if !c.released {
				// A release would be sent before the next hand-off is read, and over the same connection.
				other := simtest.Prompt(2, 100)
				simtest.Complete(t, d, simtest.Greedy(other, 1, simtest.Prefill(t, p, other)))
				st := simtest.WaitForState(t, p, "the release of the other hand-off", func(st sim.State) bool { return st.Released == 1 })
				if st.Blocks.Pinned != 4 {
					t.Errorf("blocks are %+v, want the first hand-off still pinned", st.Blocks)
				}
				return
			}
			st := simtest.WaitForState(t, p, "the release", simtest.Idle)
			if st.Released != 1 || st.Expired != 0 {
				t.Errorf("state %+v, want one release", st)
			}
		})
	}
}

func TestAdmissionRefusalReleases(t *testing.T) {
	p, d := simtest.Start(t), simtest.Start(t, func(c *sim.Config) { c.Schedule.MaxQueuedRequests = 1; c.TimeScale = 1e6 })
	simtest.Occupy(t, d)
	if r := simtest.Post(t, d.URL+"/v1/completions", simtest.Greedy(simtest.Prompt(1, 100), 6, simtest.Prefill(t, p, simtest.Prompt(1, 100)))); r.Status != http.StatusServiceUnavailable {
		t.Fatalf("status %d", r.Status)
	}
	simtest.WaitForState(t, p, "the release", simtest.Idle)
}

func TestIncompleteParamsOfARefusedRequestKill(t *testing.T) {
	d := simtest.Start(t)
	body := simtest.Greedy(simtest.Prompt(1, 100), 6, map[string]any{"do_remote_prefill": true})
	body["model"] = "nope"
	if r := simtest.Post(t, d.URL+"/v1/completions", body); r.Status != http.StatusNotFound {
		t.Fatalf("status %d, want the refusal before the death", r.Status)
	}
	if d.Wait() == nil {
		t.Error("the engine lives")
	}
}

// TestAbort: after a client has left, in any state, no block stays in use on either side.
func TestAbort(t *testing.T) {
	ids := simtest.Prompt(1, 100)
	t.Run("prefill leg before its answer", func(t *testing.T) {
		p := simtest.Start(t, func(c *sim.Config) { c.TimeScale = 1e6 })
		simtest.Leave(t, p, simtest.Greedy(ids, 1, simtest.PrefillLeg), func(st sim.State) bool { return st.Blocks.Used > 0 })
		simtest.WaitForState(t, p, "the end", simtest.Idle)
	})
	t.Run("decode leg waiting for blocks", func(t *testing.T) {
		p := simtest.Start(t)
		d := simtest.Start(t, func(c *sim.Config) { c.TimeScale = 1e6; c.Schedule.MaxSequences = 1 })
		simtest.Occupy(t, d)
		requests := d.Engine.State().Requests
		simtest.Leave(t, d, simtest.Greedy(ids, 6, simtest.Prefill(t, p, ids)), func(st sim.State) bool { return st.Requests > requests })
		st := simtest.WaitForState(t, p, "the release", simtest.Idle)
		if st.Expired != 0 {
			t.Error("the lease had to run out")
		}
	})
	t.Run("decode leg while generating", func(t *testing.T) {
		p := simtest.Start(t)
		d := simtest.Start(t, func(c *sim.Config) {
			c.Model, c.TimeScale = simtest.Model(t, "tiny"), 1e3 // seconds per step
			c.Model.HandshakeMs, c.Model.LinkLatencyMs = 0, 0
		})
		simtest.Leave(t, d, simtest.Greedy(ids, 4000-100, simtest.Prefill(t, p, ids)), func(st sim.State) bool { return st.KVBytesRead > 0 })
		simtest.WaitForState(t, p, "the release", simtest.Idle)
		simtest.WaitForState(t, d, "the end", simtest.Idle)
	})
}

func TestLeaseRunsOut(t *testing.T) {
	p, d := simtest.Start(t, func(c *sim.Config) { c.KV.Lease = 20 * time.Millisecond }), simtest.Start(t)
	ids := simtest.Prompt(1, 100)
	want := simtest.Complete(t, d, simtest.Greedy(ids, 6, nil)).Tokens()
	simtest.Do(t, http.MethodPost, d.URL+"/reset_prefix_cache", "")
	h := simtest.Prefill(t, p, ids)
	if st := simtest.WaitForState(t, p, "the end of the lease", simtest.Idle); st.Expired != 1 {
		t.Errorf("state %+v, want one lease expired", st)
	}
	// The lease has expired, but the blocks were not reused: the tokens are right by chance, and the read is counted.
	if got := simtest.Complete(t, d, simtest.Greedy(ids, 6, h)).Tokens(); !slices.Equal(got, want) {
		t.Errorf("tokens %v, want %v", got, want)
	}
	if st := simtest.WaitForState(t, p, "the late notification", func(st sim.State) bool { return st.StaleReads == 1 }); st.Released != 0 {
		t.Errorf("state %+v", st)
	}
	page := simtest.MetricsPage(t, p)
	for _, line := range []string{
		`vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="tiny"} 1.0`,
		`vllm:nixl_num_notifications_after_expiry_total{engine="0",model_name="tiny"} 1.0`,
	} {
		if !strings.Contains(page, line) {
			t.Errorf("metrics lack %s", line)
		}
	}
}

// TestStaleKV: reused blocks give other tokens, with status 200, and later requests find them in the prefix cache.
func TestStaleKV(t *testing.T) {
	p, d, plain := simtest.Start(t), simtest.Start(t), simtest.Start(t)
	ids := simtest.Prompt(1, 100)
	want := simtest.Complete(t, plain, simtest.Greedy(ids, 6, nil)).Tokens()
	if err := p.Faults.Add(fault.Fault{Leg: fault.LegPrefill, Fault: fault.Stale, Count: 1}); err != nil {
		t.Fatal(err)
	}
	if got := simtest.Complete(t, d, simtest.Greedy(ids, 6, simtest.Prefill(t, p, ids))).Tokens(); slices.Equal(got, want) {
		t.Error("stale KV gave the right tokens")
	}
	if st := d.Engine.State(); st.ForeignReads != 1 {
		t.Errorf("decode state %+v, want one foreign read", st)
	}
	simtest.WaitForState(t, p, "the stale read", func(st sim.State) bool { return st.StaleReads == 1 })
	again := simtest.Complete(t, d, simtest.Greedy(ids, 6, nil))
	if slices.Equal(again.Tokens(), want) || again.Usage.PromptTokensDetails.CachedTokens != 96 {
		t.Errorf("a later request gave %v with %d tokens cached: want the poisoned blocks", again.Tokens(), again.Usage.PromptTokensDetails.CachedTokens)
	}
	simtest.Do(t, http.MethodPost, d.URL+"/reset_prefix_cache", "")
	if got := simtest.Complete(t, d, simtest.Greedy(ids, 6, nil)).Tokens(); !slices.Equal(got, want) {
		t.Errorf("tokens %v after the reset, want %v", got, want)
	}
}

// TestCachedTokens: decode reports prefill's number of cached tokens.
func TestCachedTokens(t *testing.T) {
	ids := simtest.Prompt(1, 100)
	for _, c := range []struct {
		name         string
		warmP, warmD bool
		older        bool
		want         int
	}{
		{"both cold", false, false, false, 0},
		{"prefill warm", true, false, false, 96},
		{"decode warm", false, true, false, 0},
		{"older prefill engine", false, false, true, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, d := simtest.Start(t, func(cfg *sim.Config) { cfg.KV.OmitPrefillCachedTokens = c.older }), simtest.Start(t)
			if c.warmP {
				simtest.Complete(t, p, simtest.Greedy(ids, 1, nil))
			}
			if c.warmD {
				simtest.Complete(t, d, simtest.Greedy(ids, 1, nil))
			}
			h := simtest.Prefill(t, p, ids)
			if _, ok := h["remote_prefill_cached_tokens"]; ok == c.older {
				t.Errorf("hand-off is %v", h)
			}
			got := simtest.Complete(t, d, simtest.Greedy(ids, 3, h))
			if n := got.Usage.PromptTokensDetails.CachedTokens; n != c.want {
				t.Errorf("decode reports %d cached tokens, want %d", n, c.want)
			}
			moved := int64(4)
			if c.warmD {
				moved = 1 // the last, partial block is always pulled
			}
			if st := d.Engine.State(); st.KVBytesRead != moved*32*512 {
				t.Errorf("decode read %d bytes, want %d blocks", st.KVBytesRead, moved)
			}
		})
	}
}

// TestBatchOnDecode: of two prompts with one hand-off, the first gets the right tokens and the second gets wrong ones.
func TestBatchOnDecode(t *testing.T) {
	p, d, plain := simtest.Start(t), simtest.Start(t), simtest.Start(t)
	a, b := simtest.Prompt(1, 100), simtest.Prompt(2, 100)
	body := simtest.Greedy(nil, 6, simtest.Prefill(t, p, a))
	body["prompt"] = [][]int{a, b}
	got := simtest.Complete(t, d, body)
	if want := simtest.Complete(t, plain, simtest.Greedy(a, 6, nil)).Tokens(); !slices.Equal(got.Choices[0].TokenIDs, want) {
		t.Errorf("first prompt gave %v, want %v", got.Choices[0].TokenIDs, want)
	}
	if want := simtest.Complete(t, plain, simtest.Greedy(b, 6, nil)).Tokens(); slices.Equal(got.Choices[1].TokenIDs, want) {
		t.Error("second prompt gave the right tokens from the first one's KV")
	}
	simtest.WaitForState(t, p, "both notifications", func(st sim.State) bool { return st.Released == 1 && st.Blocks.Used == 0 })
}

// TestPrefillRestart: after a restart, old hand-offs fail once, new ones work at once, and the tokens are right.
func TestPrefillRestart(t *testing.T) {
	for _, policy := range []sim.LoadFailurePolicy{sim.FailLoad, sim.RecomputeLoad} {
		t.Run(string(policy), func(t *testing.T) {
			ids := simtest.Prompt(1, 100)
			ports, err := realengine.FreePorts(t.Context(), 1) // another one might be a client's before the second engine listens there
			if err != nil {
				t.Fatal(err)
			}
			at := func(c *sim.Config) { c.Transfer.SideChannel = fmt.Sprintf("127.0.0.1:%d", ports[0]) }
			first := simtest.Start(t, at)
			d := simtest.Start(t, func(c *sim.Config) { c.KV.LoadFailure = policy })
			want := simtest.Complete(t, d, simtest.Greedy(ids, 6, simtest.Prefill(t, first, ids))).Tokens()
			simtest.Do(t, http.MethodPost, d.URL+"/reset_prefix_cache", "")
			old := simtest.Prefill(t, first, simtest.Prompt(2, 100))
			first.Close()
			second := simtest.Start(t, at)
			r := simtest.Post(t, d.URL+"/v1/completions", simtest.Greedy(simtest.Prompt(2, 100), 6, old))
			if ok := r.Status == http.StatusOK; ok != (policy == sim.RecomputeLoad) {
				t.Errorf("status %d: %s", r.Status, r.Body)
			}
			if got := simtest.Complete(t, d, simtest.Greedy(ids, 6, simtest.Prefill(t, second, ids))).Tokens(); !slices.Equal(got, want) {
				t.Errorf("tokens %v, want %v", got, want)
			}
		})
	}
}

// TestCloseEndsStreams: Close ends running answers with the engine's last event, and closes the port.
func TestCloseEndsStreams(t *testing.T) {
	s := simtest.Start(t, func(c *sim.Config) { c.TimeScale = 1e6 })
	body := simtest.Greedy(simtest.Prompt(1, 10), 100, nil)
	body["stream"] = true
	answered := make(chan simtest.Reply, 1)
	go func() { answered <- simtest.Post(t, s.URL+"/v1/completions", body) }()
	simtest.WaitForState(t, s, "the request", func(st sim.State) bool { return st.Blocks.Used > 0 })
	s.Close()
	want := `data: {"error": {"message": "` + simtest.EngineDead + `", "type": "InternalServerError", "param": null, "code": 500}}` + "\n\ndata: [DONE]\n\n"
	if r := <-answered; r.Status != http.StatusOK || string(r.Body) != want {
		t.Errorf("status %d, body %q, want %q", r.Status, r.Body, want)
	}
	if _, err := simtest.Try(t, http.MethodGet, s.URL+"/health", ""); err == nil {
		t.Error("the port is still open")
	}
	if err := s.Wait(); err != nil {
		t.Errorf("closing is no death: %v", err)
	}
}
