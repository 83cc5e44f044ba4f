package sim_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/simtest"
	"github.com/tandem-serving/tandem/sim/transport"
	"github.com/tandem-serving/tandem/transfer"
)

// TestThirdAgentReleases: an agent that is neither engine can release a hand-off at the address that the hand-off names.
func TestThirdAgentReleases(t *testing.T) {
	p := simtest.Start(t)
	h := simtest.Prefill(t, p, simtest.Prompt(1, 100))
	agent, err := transport.NewTCP(transport.TCPConfig{Name: "sidecar"})
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Close()
	metadata, err := sim.AskSideChannel(t.Context(), sim.JoinAddress(h["remote_host"].(string), h["remote_port"].(json.Number).String()))
	if err != nil {
		t.Fatal(err)
	}
	peer, err := agent.Load(t.Context(), metadata)
	if err != nil {
		t.Fatal(err)
	}
	if string(peer) != h["remote_engine_id"] {
		t.Errorf("the agent at the address is %s, the hand-off names %s", peer, h["remote_engine_id"])
	}
	release := []byte(h["remote_request_id"].(string) + ":1")
	if err := agent.Notify(t.Context(), peer, release); err != nil {
		t.Fatal(err)
	}
	if st := simtest.WaitForState(t, p, "the release", simtest.Idle); st.Released != 1 || st.Expired != 0 {
		t.Errorf("state %+v", st)
	}
	if err := agent.Notify(t.Context(), peer, release); err != nil {
		t.Fatal(err)
	}
	// A second release finds no lease. It is counted as the real engine counts it, but no lease has expired.
	if st := p.Engine.State(); st.StaleReads != 0 || st.Released != 1 {
		t.Errorf("state %+v", st)
	}
}

// TestThirdAgentHolds: heartbeats hold a lease of 30 s for a minute, and it expires two thirds of a lease after the last one.
func TestThirdAgentHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simtest.NewNetwork()
		p := s.Start(t)
		agent, err := transport.NewMem(s.MemNetwork, "sidecar")
		if err != nil {
			t.Fatal(err)
		}
		defer agent.Close()
		var h sim.Handoff
		if err := json.Unmarshal(p.Complete(t.Context(), simtest.Greedy(simtest.Prompt(1, 100), 1, simtest.PrefillLeg)).KVTransferParams, &h); err != nil {
			t.Fatal(err)
		}
		peer, err := agent.Load(t.Context(), p.Transport.Metadata())
		if err != nil {
			t.Fatal(err)
		}
		for range 15 {
			simtest.Elapse(t, 4*time.Second)
			if err := agent.Notify(t.Context(), peer, []byte("HB:unknown,"+h.RemoteRequestID)); err != nil {
				t.Fatal(err)
			}
		}
		simtest.Elapse(t, 20*time.Second-time.Millisecond)
		if st := p.State(); st.Blocks.Pinned != 4 {
			t.Errorf("held for a minute: %+v", st)
		}
		simtest.Elapse(t, 2*time.Millisecond)
		synctest.Wait()
		if st := p.State(); st.Expired != 1 {
			t.Errorf("no longer held: %+v", st)
		}
	})
}

// TestReaders: a release for two readers takes effect with the second notification.
func TestReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := simtest.NewNetwork().Start(t)
		var h sim.Handoff
		if err := json.Unmarshal(p.Complete(t.Context(), simtest.Greedy(simtest.Prompt(1, 100), 1, simtest.PrefillLeg)).KVTransferParams, &h); err != nil {
			t.Fatal(err)
		}
		for i, pinned := range []int{4, 0} {
			p.Deliver(h.RemoteRequestID + ":2")
			if st := p.State(); st.Blocks.Pinned != pinned {
				t.Errorf("%d blocks pinned after notification %d", st.Blocks.Pinned, i+1)
			}
		}
	})
}

// hungTransport is the transport of a stopped peer: reads wait until goOn is closed.
type hungTransport struct {
	transfer.Transport
	goOn chan struct{}
}

func (h *hungTransport) Read(ctx context.Context, from transfer.Peer, spans []transfer.Span, into [][]byte, notify []byte) error {
	select {
	case <-h.goOn:
		return h.Transport.Read(ctx, from, spans, into, notify)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestHungPeer: loads have no deadline. Other requests are served meanwhile, the blocks of a client that leaves stay with the
// transfer, and all blocks are free once the peer goes on.
func TestHungPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simtest.NewNetwork()
		p := s.Start(t)
		hung := &hungTransport{goOn: make(chan struct{})}
		d := s.Start(t, func(c *sim.Config) {
			hung.Transport = c.Transfer.Transport
			c.Transfer.Transport = hung
		})
		h := p.Complete(t.Context(), simtest.Greedy(simtest.Prompt(1, 100), 1, simtest.PrefillLeg)).KVTransferParams
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { d.Complete(ctx, simtest.Greedy(simtest.Prompt(1, 100), 4, h)) })
		simtest.Elapse(t, 20*time.Minute)
		if other := d.Complete(t.Context(), simtest.Greedy(simtest.Prompt(2, 100), 4, nil)); len(other.Tokens()) != 4 {
			t.Errorf("another request got %+v", other)
		}
		if st := p.State(); st.Expired != 0 {
			t.Errorf("prefill state %+v: heartbeats stopped", st)
		}
		cancel()
		wg.Wait()
		if st := d.State(); st.Blocks.Used != 4 {
			t.Errorf("%d blocks used: bytes may still land in 4", st.Blocks.Used)
		}
		close(hung.goOn)
		synctest.Wait()
		if p, d := p.State(), d.State(); p.Blocks.Used != 0 || d.Blocks.Used != 0 {
			t.Errorf("prefill %+v, decode %+v", p, d)
		}
	})
}

// TestUsedTwice: if a hand-off is read twice before its blocks are reused, the second read has the right KV by chance, and is
// counted.
func TestUsedTwice(t *testing.T) {
	p, d, other := simtest.Start(t), simtest.Start(t), simtest.Start(t)
	ids := simtest.Prompt(1, 100)
	h := simtest.Prefill(t, p, ids)
	first, second := simtest.Complete(t, d, simtest.Greedy(ids, 6, h)), simtest.Complete(t, other, simtest.Greedy(ids, 6, h))
	if !slices.Equal(first.Tokens(), second.Tokens()) {
		t.Errorf("tokens %v and %v", first.Tokens(), second.Tokens())
	}
	if page := simtest.MetricsPage(t, p); !strings.Contains(page, `vllm:nixl_num_notifications_after_expiry_total{engine="0",model_name="tiny"} 1.0`) {
		t.Error("the second notification is not counted")
	}
}

// TestLostTransport: an engine ends when its transport is closed.
func TestLostTransport(t *testing.T) {
	s := simtest.NewNetwork()
	e := s.Start(t)
	if err := e.Transport.Close(); err != nil {
		t.Fatal(err)
	}
	<-e.Done()
	if !errors.Is(e.Err(), transfer.ErrClosed) {
		t.Errorf("the engine ended with %v", e.Err())
	}
}

// TestOtherModel: KV of another model counts as foreign, even for the same prompt.
func TestOtherModel(t *testing.T) {
	p := simtest.Start(t, func(c *sim.Config) {
		c.Model, c.ServedModelName = simtest.Model(t, "tiny"), "tiny"
		c.Model.Name = "other"
	})
	d := simtest.Start(t)
	ids := simtest.Prompt(1, 100)
	want := simtest.Complete(t, d, simtest.Greedy(ids, 6, nil)).Tokens()
	simtest.Do(t, http.MethodPost, d.URL+"/reset_prefix_cache", "")
	if got := simtest.Complete(t, d, simtest.Greedy(ids, 6, simtest.Prefill(t, p, ids))).Tokens(); slices.Equal(got, want) {
		t.Error("another model's KV gave the right tokens")
	}
	if st := d.Engine.State(); st.ForeignReads != 1 {
		t.Errorf("state %+v", st)
	}
}

// TestLongPrefill: the hand-off of a prefill of several tokens includes the generated tokens, and omits the number of cached
// ones.
func TestLongPrefill(t *testing.T) {
	p, d, plain := simtest.Start(t), simtest.Start(t), simtest.Start(t)
	ids := simtest.Prompt(1, 100)
	c := simtest.Complete(t, p, simtest.Greedy(ids, 4, simtest.PrefillLeg))
	var h sim.Handoff
	if err := json.Unmarshal(c.KVTransferParams, &h); err != nil {
		t.Fatal(err)
	}
	if h.RemoteNumTokens != 103 || h.RemotePrefillCachedTokens != nil {
		t.Errorf("hand-off %s", c.KVTransferParams)
	}
	got, want := simtest.Complete(t, d, simtest.Greedy(ids, 6, h)), simtest.Complete(t, plain, simtest.Greedy(ids, 6, nil))
	if !slices.Equal(got.Tokens(), want.Tokens()) || got.Usage.PromptTokensDetails.CachedTokens != 100 {
		t.Errorf("tokens %v, want %v; %d cached", got.Tokens(), want.Tokens(), got.Usage.PromptTokensDetails.CachedTokens)
	}
}

// TestPrefillStops: if the first token ends the answer, there is a hand-off, and decode stops at that token as well.
func TestPrefillStops(t *testing.T) {
	p, d := simtest.Start(t), simtest.Start(t)
	body := simtest.Greedy(simtest.Prompt(1, 100), 1, nil)
	body["stop_token_ids"] = simtest.Complete(t, d, body).Tokens()
	simtest.Do(t, http.MethodPost, d.URL+"/reset_prefix_cache", "")
	body["kv_transfer_params"] = simtest.PrefillLeg
	c := simtest.Complete(t, p, body)
	body["kv_transfer_params"], body["max_tokens"] = c.KVTransferParams, 9
	got := simtest.Complete(t, d, body)
	for _, choice := range []string{c.Choices[0].FinishReason, got.Choices[0].FinishReason} {
		if choice != "stop" {
			t.Errorf("finish reason %q", choice)
		}
	}
	if len(got.Tokens()) != 1 {
		t.Errorf("decode generated %v", got.Tokens())
	}
}
