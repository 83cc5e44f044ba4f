package sim

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRelease shows what releases a hand-off that is not read, and what does not.
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
		{"too long a prompt", func(b map[string]any) { b["prompt"] = prompt(1, 5000) }, 400, true},
		{"wrong type", func(b map[string]any) { b["max_tokens"] = "many" }, 400, false},
		{"stream_options without stream", func(b map[string]any) { b["stream_options"] = map[string]any{"include_usage": true} }, 400, false},
		{"negative token", func(b map[string]any) { b["prompt"] = []int{-1} }, 400, false},
		{"max_tokens 0", func(b map[string]any) { b["max_tokens"] = 0 }, 400, false},
		{"decode leg of one token", func(b map[string]any) { b["max_tokens"] = 1 }, 200, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, d := start(t), start(t)
			body := ask(prompt(1, 100), 6, prefill(t, p, prompt(1, 100)))
			c.change(body)
			if r := post(t, d.URL+"/v1/completions", body); r.status != c.status {
				t.Fatalf("status %d, want %d: %s", r.status, c.status, r.body)
			}
			if !c.released {
				// A release would be sent before the next hand-off is read, and over the same connection.
				other := prompt(2, 100)
				complete(t, d, ask(other, 1, prefill(t, p, other)))
				st := settle(t, p, "the release of the other hand-off", func(st State) bool { return st.Released == 1 })
				if st.Blocks.Pinned != 4 {
					t.Errorf("blocks are %+v, want the first hand-off still pinned", st.Blocks)
				}
				return
			}
			st := settle(t, p, "the release", idle)
			if st.Released != 1 || st.Expired != 0 {
				t.Errorf("state %+v, want one release", st)
			}
		})
	}
}

func TestAdmissionRefusalReleases(t *testing.T) {
	p, d := start(t), start(t, func(c *Config) { c.Schedule.MaxQueuedRequests = 1; c.TimeScale = 1e6 })
	occupy(t, d)
	if r := post(t, d.URL+"/v1/completions", ask(prompt(1, 100), 6, prefill(t, p, prompt(1, 100)))); r.status != http.StatusServiceUnavailable {
		t.Fatalf("status %d", r.status)
	}
	settle(t, p, "the release", idle)
}

func TestIncompleteParamsOfARefusedRequestKill(t *testing.T) {
	d := start(t)
	body := ask(prompt(1, 100), 6, map[string]any{"do_remote_prefill": true})
	body["model"] = "nope"
	if r := post(t, d.URL+"/v1/completions", body); r.status != http.StatusNotFound {
		t.Fatalf("status %d, want the refusal before the death", r.status)
	}
	if d.Wait() == nil {
		t.Error("the engine lives")
	}
}

// TestAbort: a client that leaves, in any state, leaves nothing behind on either side.
func TestAbort(t *testing.T) {
	ids := prompt(1, 100)
	t.Run("prefill leg before its answer", func(t *testing.T) {
		p := start(t, func(c *Config) { c.TimeScale = 1e6 })
		leave(t, p, ask(ids, 1, prefillLeg), func(st State) bool { return st.Blocks.Used > 0 })
		settle(t, p, "the end", idle)
	})
	t.Run("decode leg waiting for blocks", func(t *testing.T) {
		p := start(t)
		d := start(t, func(c *Config) { c.TimeScale = 1e6; c.Schedule.MaxSequences = 1 })
		occupy(t, d)
		requests := d.Engine.State().Requests
		leave(t, d, ask(ids, 6, prefill(t, p, ids)), func(st State) bool { return st.Requests > requests })
		st := settle(t, p, "the release", idle)
		if st.Expired != 0 {
			t.Error("the lease had to run out")
		}
	})
	t.Run("decode leg while generating", func(t *testing.T) {
		p := start(t)
		d := start(t, func(c *Config) {
			c.Model, c.TimeScale = model(t, "tiny"), 1e3 // seconds per step
			c.Model.HandshakeMs, c.Model.LinkLatencyMs = 0, 0
		})
		leave(t, d, ask(ids, 4000-100, prefill(t, p, ids)), func(st State) bool { return st.KVBytesRead > 0 })
		settle(t, p, "the release", idle)
		settle(t, d, "the end", idle)
	})
}

// leave sends a request, and goes away as soon as the engine is in a state.
func leave(t *testing.T, s *Server, body any, when func(State) bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan error, 1)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/completions", strings.NewReader(string(encodeJSON(body))))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	go func() {
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		gone <- err
	}()
	settle(t, s, "the request", when)
	cancel()
	if err := <-gone; err == nil {
		t.Error("the request was answered before its client could leave")
	}
}

func TestLeaseRunsOut(t *testing.T) {
	p, d := start(t, func(c *Config) { c.KV.Lease = 20 * time.Millisecond }), start(t)
	ids := prompt(1, 100)
	want := complete(t, d, ask(ids, 6, nil)).tokens()
	do(t, http.MethodPost, d.URL+"/reset_prefix_cache", "")
	h := prefill(t, p, ids)
	if st := settle(t, p, "the end of the lease", idle); st.Expired != 1 {
		t.Errorf("state %+v, want one lease expired", st)
	}
	// Too late, but the blocks were not reused: right by luck, and counted.
	if got := complete(t, d, ask(ids, 6, h)).tokens(); !slices.Equal(got, want) {
		t.Errorf("tokens %v, want %v", got, want)
	}
	if st := settle(t, p, "the late notification", func(st State) bool { return st.StaleReads == 1 }); st.Released != 0 {
		t.Errorf("state %+v", st)
	}
	page := metricsPage(t, p)
	for _, line := range []string{
		`vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="tiny"} 1.0`,
		`vllm:nixl_num_notifications_after_expiry_total{engine="0",model_name="tiny"} 1.0`,
	} {
		if !strings.Contains(page, line) {
			t.Errorf("metrics lack %s", line)
		}
	}
}

// TestStaleKV: blocks that were reused give other tokens, with a 200, and poison the prefix cache of the reader.
func TestStaleKV(t *testing.T) {
	p, d, plain := start(t), start(t), start(t)
	ids := prompt(1, 100)
	want := complete(t, plain, ask(ids, 6, nil)).tokens()
	if err := p.Engine.AddFault(Fault{Leg: legPrefill, Fault: faultStale, Count: 1}); err != nil {
		t.Fatal(err)
	}
	if got := complete(t, d, ask(ids, 6, prefill(t, p, ids))).tokens(); slices.Equal(got, want) {
		t.Error("stale KV gave the right tokens")
	}
	if st := d.Engine.State(); st.ForeignReads != 1 {
		t.Errorf("decode state %+v, want one foreign read", st)
	}
	settle(t, p, "the stale read", func(st State) bool { return st.StaleReads == 1 })
	again := complete(t, d, ask(ids, 6, nil))
	if slices.Equal(again.tokens(), want) || again.Usage.PromptTokensDetails.CachedTokens != 96 {
		t.Errorf("a later request gave %v with %d tokens cached: want the poisoned blocks", again.tokens(), again.Usage.PromptTokensDetails.CachedTokens)
	}
	do(t, http.MethodPost, d.URL+"/reset_prefix_cache", "")
	if got := complete(t, d, ask(ids, 6, nil)).tokens(); !slices.Equal(got, want) {
		t.Errorf("tokens %v after the reset, want %v", got, want)
	}
}

// TestCachedTokens: decode reports prefill's number of cached tokens.
func TestCachedTokens(t *testing.T) {
	ids := prompt(1, 100)
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
			p, d := start(t, func(cfg *Config) { cfg.KV.OmitPrefillCachedTokens = c.older }), start(t)
			if c.warmP {
				complete(t, p, ask(ids, 1, nil))
			}
			if c.warmD {
				complete(t, d, ask(ids, 1, nil))
			}
			h := prefill(t, p, ids)
			if _, ok := h["remote_prefill_cached_tokens"]; ok == c.older {
				t.Errorf("hand-off is %v", h)
			}
			got := complete(t, d, ask(ids, 3, h))
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

// TestBatchOnDecode: one hand-off for two prompts is right for the first and wrong for the second.
func TestBatchOnDecode(t *testing.T) {
	p, d, plain := start(t), start(t), start(t)
	a, b := prompt(1, 100), prompt(2, 100)
	body := ask(nil, 6, prefill(t, p, a))
	body["prompt"] = [][]int{a, b}
	got := complete(t, d, body)
	if want := complete(t, plain, ask(a, 6, nil)).tokens(); !slices.Equal(got.Choices[0].TokenIDs, want) {
		t.Errorf("first prompt gave %v, want %v", got.Choices[0].TokenIDs, want)
	}
	if want := complete(t, plain, ask(b, 6, nil)).tokens(); slices.Equal(got.Choices[1].TokenIDs, want) {
		t.Error("second prompt gave the right tokens from the first one's KV")
	}
	settle(t, p, "both notifications", func(st State) bool { return st.Released == 1 && st.Blocks.Used == 0 })
}

// TestPrefillRestart: old hand-offs fail once, new ones work at once, and nothing remains poisoned.
func TestPrefillRestart(t *testing.T) {
	for _, policy := range []LoadFailurePolicy{FailLoad, RecomputeLoad} {
		t.Run(string(policy), func(t *testing.T) {
			ids := prompt(1, 100)
			first := start(t)
			d := start(t, func(c *Config) { c.KV.LoadFailure = policy })
			want := complete(t, d, ask(ids, 6, prefill(t, first, ids))).tokens()
			do(t, http.MethodPost, d.URL+"/reset_prefix_cache", "")
			old := prefill(t, first, prompt(2, 100))
			first.Close()
			second := start(t, func(c *Config) { c.Transfer.SideChannel = first.SideChannel })
			r := post(t, d.URL+"/v1/completions", ask(prompt(2, 100), 6, old))
			if ok := r.status == http.StatusOK; ok != (policy == RecomputeLoad) {
				t.Errorf("status %d: %s", r.status, r.body)
			}
			if got := complete(t, d, ask(ids, 6, prefill(t, second, ids))).tokens(); !slices.Equal(got, want) {
				t.Errorf("tokens %v, want %v", got, want)
			}
		})
	}
}

// TestSIGTERMEndsStreams: Close ends running answers with the engine's last event, and closes the port.
func TestCloseEndsStreams(t *testing.T) {
	s := start(t, func(c *Config) { c.TimeScale = 1e6 })
	body := ask(prompt(1, 10), 100, nil)
	body["stream"] = true
	answered := make(chan reply, 1)
	go func() { answered <- post(t, s.URL+"/v1/completions", body) }()
	settle(t, s, "the request", func(st State) bool { return st.Blocks.Used > 0 })
	s.Close()
	want := "data: " + errEngineDead.event() + "\n\ndata: [DONE]\n\n"
	if r := <-answered; r.status != http.StatusOK || string(r.body) != want {
		t.Errorf("status %d, body %q, want %q", r.status, r.body, want)
	}
	if _, err := try(t, http.MethodGet, s.URL+"/health", ""); err == nil {
		t.Error("the port is still open")
	}
	if err := s.Wait(); err != nil {
		t.Errorf("closing is no death: %v", err)
	}
}
