package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/sim/transport"
)

// The tests of this file run in synctest bubbles, on the clock of the bubble, with engines that meet in memory: what they
// say about time is exact.

// site is a place where engines meet in memory.
type site struct {
	network *transport.MemNetwork

	mu      sync.Mutex
	engines []*transport.Mem // by port
}

func newSite() *site { return &site{network: transport.NewMemNetwork()} }

// engine starts an engine that has no sockets.
func (s *site) engine(t *testing.T, change ...func(*Config)) *Engine {
	t.Helper()
	s.mu.Lock()
	port := len(s.engines)
	id := fmt.Sprintf("engine-%d", port)
	mem, err := transport.NewMem(s.network, id)
	if err != nil {
		t.Fatal(err)
	}
	s.engines = append(s.engines, mem)
	s.mu.Unlock()
	cfg := Config{TimeScale: 1, Transfer: TransferConfig{SideChannel: fmt.Sprintf("memory:%d", port), EngineID: id, Transport: mem, Fetch: s.fetch}}
	for _, f := range change {
		f(&cfg)
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func (s *site) fetch(_ context.Context, address string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var port int
	if _, err := fmt.Sscanf(address, "memory:%d", &port); err != nil || port >= len(s.engines) {
		return nil, errors.New("no such engine")
	}
	return s.engines[port].Metadata(), nil
}

// serve has an engine answer one request without a socket.
func serve(ctx context.Context, e *Engine, body any) completionOf {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", strings.NewReader(string(encodeJSON(body))))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	e.Handler().ServeHTTP(w, r)
	var c completionOf
	if json.Unmarshal(w.Body.Bytes(), &c) != nil {
		return completionOf{}
	}
	return c
}

// pass lets the time of the bubble go by.
func pass(t *testing.T, d time.Duration) {
	if err := sleep(t.Context(), d); err != nil {
		t.Error(err)
	}
}

// took is the time of the bubble that f needs.
func took(f func()) time.Duration {
	begun := time.Now()
	f()
	return time.Since(begun)
}

func TestLeaseLastsThirtySeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newSite().engine(t)
		serve(t.Context(), p, ask(prompt(1, 100), 1, prefillLeg))
		pass(t, 30*time.Second-time.Millisecond)
		if st := p.State(); st.Blocks.Pinned != 4 || st.Expired != 0 {
			t.Errorf("before the end of the lease: %+v", st)
		}
		pass(t, 2*time.Millisecond)
		synctest.Wait()
		if st := p.State(); st.Blocks.Used != 0 || st.Expired != 1 {
			t.Errorf("after the end of the lease: %+v", st)
		}
	})
}

// TestHeartbeats: a decode leg that queues for twice the lease finds its KV; without a tp_size, no engine knows which agent to tell.
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
				s := newSite()
				p, d := s.engine(t), s.engine(t, func(c *Config) { c.Schedule.MaxSequences = 1; c.TimeScale = 10 })
				var h map[string]any
				answer := serve(t.Context(), p, ask(prompt(1, 100), 1, prefillLeg))
				if err := json.Unmarshal(answer.KVTransferParams, &h); err != nil {
					t.Fatal(err)
				}
				c.damage(h)
				var wg sync.WaitGroup
				wg.Go(func() { serve(t.Context(), d, ask(prompt(9, 10), 3000, nil)) }) // at 20 ms a token
				synctest.Wait()
				queued := took(func() { serve(t.Context(), d, ask(prompt(1, 100), 2, h)) })
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

// TestPrefillDelaysDecode: a prefill chunk in a step makes running answers wait for it, and the token budget bounds that.
func TestPrefillDelaysDecode(t *testing.T) {
	longestStep := func(budget int) (longest time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			e := newSite().engine(t, func(c *Config) { c.Schedule.MaxBatchedTokens = budget })
			seq := decodeSequence(e, prompt(1, 10), 60)
			if err := e.submit([]*sequence{seq}); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				pass(t, 50*time.Millisecond)
				serve(t.Context(), e, ask(prompt(2, 4000), 1, nil))
			})
			for last := time.Now(); ; last = time.Now() {
				out, err := seq.out.next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				longest = max(longest, time.Since(last))
				if out.finish != "" {
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

func decodeSequence(e *Engine, ids []int, n int) *sequence {
	q := &generateRequest{prompts: [][]int{ids}, n: 1, maxTokens: &n}
	return q.sequences(e, n, func(int) string { return "test" })[0]
}

// TestTransferTakesItsTime: the first contact pays the handshake, and every transfer the link.
func TestTransferTakesItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite()
		llama := func(c *Config) {
			c.Model = model(t, "llama-3.1-8b-h100")
			c.MaxModelLen = 8192
			c.ServedModelName = "tiny"
		}
		p, d := s.engine(t, llama), s.engine(t, llama)
		leg := func(seed int) time.Duration {
			ids := prompt(seed, 8000)
			h := serve(t.Context(), p, ask(ids, 1, prefillLeg)).KVTransferParams
			return took(func() { serve(t.Context(), d, ask(ids, 1, h)) })
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

// TestUnreachablePeer: five seconds, then the error.
func TestUnreachablePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newSite().engine(t)
		h := map[string]any{"do_remote_prefill": true, "remote_block_ids": [][]int{{1, 2, 3, 4}}, "remote_engine_id": "x",
			"remote_request_id": "y", "remote_host": "memory", "remote_port": 77}
		var c completionOf
		if d := took(func() { c = serve(t.Context(), d, ask(prompt(1, 100), 1, h)) }); d != 5*time.Second {
			t.Errorf("it took %v", d)
		}
		if c.Error == nil || c.Error.Message != errInternal.Message {
			t.Errorf("answer %+v", c)
		}
	})
}

// TestFullPoolQueues: what does not fit waits, in order, and is answered when blocks are free; a pool that is too small
// for what runs preempts, and the answers remain right.
func TestFullPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite()
		small := s.engine(t, func(c *Config) { c.KV.Blocks = 17; c.MaxModelLen = 512 })
		large := s.engine(t)
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				body := ask(prompt(i, 100), 100, nil) // 7 blocks each in the end, of 16
				got, want := serve(t.Context(), small, body), serve(t.Context(), large, body)
				if fmt.Sprint(got.tokens()) != fmt.Sprint(want.tokens()) {
					t.Errorf("request %d: %v, want %v", i, got.tokens(), want.tokens())
				}
			})
		}
		wg.Wait()
		if st := small.State(); st.Blocks.Used != 0 {
			t.Errorf("state %+v", st)
		}
		if !strings.Contains(string(small.metrics.page()), "vllm:num_preemptions_total{") || small.metrics.values[preemptions][""] == 0 {
			t.Error("nothing was preempted, which the test is about")
		}
	})
}
