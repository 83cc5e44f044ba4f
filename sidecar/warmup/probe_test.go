package warmup

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A prefill engine that was unhealthy was restarted: its pair is cold.
func TestProbeNoticesRestarts(t *testing.T) {
	stays, restarts := startEngine(t), startEngine(t)
	r := newRig(t, listed(t, stays.addr, restarts.addr))
	r.step(t)
	if !r.warm(stays.addr) || !r.warm(restarts.addr) {
		t.Fatal("the pairs are not warm")
	}
	restarts.setSick(true)
	r.expire()
	r.round(within(t))
	if r.warm(restarts.addr) || !r.warm(stays.addr) {
		t.Error("the pair with the sick engine is warm, or the other is not")
	}
}

// sideChannels answers for one engine.
type sideChannels struct {
	id    string // "" = nothing listens there
	asked int
}

// Connect implements SideChannels.
func (s *sideChannels) Connect(_ context.Context, host string, port int) (string, error) {
	s.asked++
	if host != "10.0.0.1" || port != 5600 {
		return "", errors.New("another side channel was asked for")
	}
	if s.id == "" {
		return "", errors.New("connection refused")
	}
	return s.id, nil
}

// Side channels are asked before there is a hand-off, once for each host; an engine that replaces another at its address makes
// the pair cold.
func TestSideChannels(t *testing.T) {
	channel := &sideChannels{id: "e-1"}
	r := newRig(t, listed(t, "10.0.0.1:8000", "10.0.0.1:8001")) // two ports of one host
	r.SideChannels, r.SideChannelPort = channel, 5600
	handOff := r.HandOff
	r.HandOff = nil
	round := func(asked int, engine string) {
		t.Helper()
		r.expire()
		r.round(within(t))
		if channel.asked != asked {
			t.Errorf("side channels were asked %d times, want %d", channel.asked, asked)
		}
		for target, p := range r.pairs {
			if p.engine != engine {
				t.Errorf("%s is engine %q, want %q", target, p.engine, engine)
			}
		}
	}
	round(1, "e-1")
	round(2, "e-1")
	if r.round(within(t)); channel.asked != 2 {
		t.Error("a side channel was asked again at once")
	}
	r.HandOff = handOff
	r.step(t)
	channel.id = ""
	round(3, "e-1") // no answer says nothing new
	if got := r.log.lines("level=WARN"); got != 1 {
		t.Errorf("%d warnings: %s", got, &r.log)
	}
	for _, p := range r.pairs {
		p.warm = true
	}
	channel.id = "e-2"
	round(4, "e-2")
	for target, p := range r.pairs {
		if p.warm {
			t.Errorf("the pair with the new engine at %s is warm", target)
		}
	}
}

// Many side channels that do not answer delay neither a drain nor each other.
func TestForEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		running, most, done := 0, 0, 0
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		forEach(ctx, make([]int, 100), func(int) {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			time.Sleep(2 * time.Second)
			mu.Lock()
			defer mu.Unlock()
			running--
			done++
		})
		if most != maxProbes || done != 3*maxProbes || running != 0 {
			t.Errorf("%d at once, %d done, %d running", most, done, running)
		}
	})
}
