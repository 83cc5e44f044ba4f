package lease

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/keeper"
)

// kept is a notifier with a process.
type kept struct {
	transfer.Notifier
	mu sync.Mutex
	up bool
}

func (k *kept) State() (keeper.State, <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.up {
		return keeper.State{About: "a library"}, nil
	}
	return keeper.State{}, nil
}

func (k *kept) set(up bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.up = up
}

func TestReleaseWhileTheNotifierIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.engine("e", "10.0.0.1")
		k := &kept{Notifier: w.self}
		b := w.registry(func(c *Config) { c.Notifier = k })
		tell := func(id string) error { return b.Hold(p.handoff(t, id), time.Now()).Release(t.Context()) }
		wantErr(t, tell("r0"), ErrNoWay)
		if w.dialled() != 0 {
			t.Error("asked in vain")
		}
		// It is not the engine that has failed, so nothing is waited for.
		k.set(true)
		if err := tell("r1"); err != nil {
			t.Fatal(err)
		}
		k.set(false)
		wantErr(t, tell("r2"), ErrNoWay)
		k.set(true)
		if err := tell("r3"); err != nil {
			t.Fatal(err)
		}
		w.self.onNotify(func(context.Context, transfer.Peer, string) error { return keeper.ErrDown }) // under the call
		if err := tell("r4"); !errors.Is(err, keeper.ErrDown) || errors.Is(err, ErrNoWay) {
			t.Errorf("got %v, want an end of the keeper that leaves open what was sent", err)
		}
		w.self.onNotify(nil)
		if err := tell("r5"); err != nil {
			t.Fatal(err)
		}
		p.only(t, release(t, "r1"), release(t, "r3"), release(t, "r5"))
	})
}

// A hand-off that cannot be notified is recognised without asking the engine.
func TestReleaseOfOddHandoffs(t *testing.T) {
	w := newWorld(t)
	p := w.engine("e", "10.0.0.1")
	b := w.registry()
	for name, change := range map[string]func(*dialect.Pin){
		"layout unknown":     func(h *dialect.Pin) { h.Tensor, h.Pipeline = 0, 0 },
		"too many ranks":     func(h *dialect.Pin) { h.Tensor, h.Pipeline = 8, 9 },
		"too many tensors":   func(h *dialect.Pin) { h.Tensor = maxRanks + 1 },
		"no port":            func(h *dialect.Pin) { h.Port = 0 },
		"no host":            func(h *dialect.Pin) { h.Host = "" },
		"an endless host":    func(h *dialect.Pin) { h.Host = strings.Repeat("h", maxText+1) },
		"an endless engine":  func(h *dialect.Pin) { h.EngineID = strings.Repeat("e", maxText+1) },
		"two requests":       func(h *dialect.Pin) { h.RequestID = "r,s" },
		"a request unnamed":  func(h *dialect.Pin) { h.RequestID = "" },
		"like a heartbeat":   func(h *dialect.Pin) { h.RequestID = "HB:r" },
		"no hand-off at all": func(h *dialect.Pin) { *h = dialect.Pin{} },
	} {
		t.Run(name, func(t *testing.T) {
			offer := p.handoff(t, "r")
			change(&offer)
			finished := time.Now()
			h := b.Hold(offer, finished)
			if !h.Until().Equal(finished.Add(term)) {
				t.Errorf("until %s", h.Until())
			}
			h.End()
			err := h.Release(within(t))
			wantErr(t, err, ErrNoWay)
			wantErr(t, err, errUnidentified)
			wantErr(t, h.Release(within(t)), ErrReleased)
		})
	}
	if w.dialled() != 0 || b.Counts() != (Counts{}) {
		t.Errorf("asked %d times, %+v", w.dialled(), b.Counts())
	}
}

func TestNilRegistry(t *testing.T) {
	var b *Registry
	h := b.Hold(dialect.Pin{RequestID: "r"}, time.Now())
	if !h.Until().IsZero() || !h.Safe().IsZero() || h.Ready() {
		t.Errorf("got %+v", h)
	}
	h.End()
	wantErr(t, h.Release(t.Context()), ErrNoWay)
	_, err := b.Connect(t.Context(), "10.0.0.1", 5600)
	wantErr(t, err, ErrNoWay)
	if b.Counts() != (Counts{}) {
		t.Errorf("counts %+v", b.Counts())
	}
	b.Close()
}
