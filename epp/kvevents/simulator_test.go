package kvevents

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp/kvindex"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// asks sends prompts of token ids to an engine, several at once, which have beginnings in common and do not fit in its cache together.
func asks(t *testing.T, s *server.Server, seed uint64) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	var clients sync.WaitGroup
	for c := range uint64(4) {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(seed, c))
			for range 40 {
				prompt := make([]int, 40+random.IntN(600))
				kind, fork := 1+random.IntN(6), random.IntN(300)
				for i := range prompt {
					if prompt[i] = 10 + i%50; i >= fork {
						prompt[i] += 50 * kind
					}
				}
				body, err := json.Marshal(map[string]any{"model": "tiny", "prompt": prompt, "max_tokens": 1 + random.IntN(60), "ignore_eos": true})
				if err != nil {
					t.Error(err)
					return
				}
				resp, err := client.Post(s.URL+"/v1/completions", "application/json", bytes.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				answer, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != http.StatusOK {
					t.Errorf("%s, %v: %s", resp.Status, err, answer)
					return
				}
			}
		})
	}
	clients.Wait()
}

// difference returns how a holder differs from the cache of an engine, and from its host's memory, "" = not at all.
func difference(e *engine, s *server.Server) (diff string) {
	for tier, cached := range map[kvindex.Tier]map[uint64]bool{kvindex.GPU: s.Engine.CachedBlocks(), kvindex.CPU: s.Engine.OffloadedBlocks()} {
		missing := 0
		for name := range cached {
			if !e.Holder.Has(tier, name) {
				missing++
			}
		}
		if missing > 0 || e.Holder.In(tier) != len(cached) {
			diff += fmt.Sprintf("%d blocks of %d are missing in tier %d, and the index has %d; ", missing, len(cached), tier, e.Holder.In(tier))
		}
	}
	return diff
}

// agree waits until holder and engine have the same blocks.
func agree(t *testing.T, e *engine, s *server.Server) {
	t.Helper()
	patience := time.After(simtest.Timeout)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		diff := difference(e, s)
		if diff == "" {
			return
		}
		select {
		case <-tick.C:
		case <-patience:
			t.Fatal(diff)
		}
	}
}

// The index has, block by block, what the simulated engine has in its prefix cache, and in its host's memory, which is larger: after many
// evictions, joined late, and after a restart.
func TestSimulatedEngine(t *testing.T) {
	publish, replay := "127.0.0.1:0", "127.0.0.1:0"
	start := func() *server.Server {
		return simtest.Start(t, func(c *sim.Config) {
			c.KV.Blocks, c.KV.HostBlocks, c.MaxModelLen = 100, 120, 1024
			c.Events = sim.EventsConfig{Publish: publish, Replay: replay, Topic: "kv@here"}
		})
	}
	s := start()
	publish, replay = s.Engine.EventAddresses()
	early, late := newEngine(), newEngine()
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	follow := func(e *engine) {
		following.Go(func() {
			e.Follow(ctx, new(net.Dialer), Source{Events: publish, Replay: replay, Topic: "kv@"}, slog.New(slog.DiscardHandler))
		})
	}
	defer following.Wait()
	defer cancel()
	follow(early)
	asks(t, s, 1)
	agree(t, early, s)
	follow(late)
	agree(t, late, s)
	s.Engine.ResetPrefixCache()
	asks(t, s, 2)
	agree(t, early, s)
	agree(t, late, s)
	if removed, cleared := early.Counts.Removed.Load(), early.Counts.Cleared.Load(); removed < 100 || cleared != 1 {
		t.Errorf("%d blocks were evicted, and the cache was cleared %d times", removed, cleared)
	}

	s.Close()
	s = start()
	asks(t, s, 3)
	agree(t, early, s)
	agree(t, late, s)
	for _, e := range []*engine{early, late} {
		if got := e.counts(); got != "connected=1 lost=0 restarts=1" {
			t.Error(got)
		}
		for r := range reasons {
			if n := e.Counts.Skipped[r].Load(); n > 0 {
				t.Errorf("%d events are skipped as %v", n, r)
			}
		}
	}
}
