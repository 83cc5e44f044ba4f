package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/transfer"
)

const third = term / 3 // the time between two heartbeats of a hand-off

// leaseClock records when an engine's leases expire: two thirds of a lease after each heartbeat.
type leaseClock struct {
	mu      sync.Mutex
	began   time.Time
	expires map[string]time.Time
	beats   []string // with their times since began
}

func newLeaseClock(w *world) *leaseClock {
	l := &leaseClock{began: time.Now(), expires: make(map[string]time.Time)}
	w.self.onNotify(func(_ context.Context, to transfer.Peer, message string) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		now := time.Now()
		l.beats = append(l.beats, fmt.Sprintf("%s %s %s", now.Sub(l.began), to, message))
		for id := range strings.SplitSeq(strings.TrimPrefix(message, "HB:"), ",") {
			if until := now.Add(term * 2 / 3); until.After(l.expires[id]) {
				l.expires[id] = until
			}
		}
		return nil
	})
	return l
}

func (l *leaseClock) until(id string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expires[id].Sub(l.began)
}

func (l *leaseClock) heartbeats() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.beats)
}

func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.engine("e", "10.0.0.1")
		b := w.registry()
		connect(t, b, p)
		l := newLeaseClock(w)
		finished := time.Now()
		h := b.Hold(p.handoff(t, "r"), finished)
		want := []string{}
		if got := h.Until().Sub(finished); got != term || !h.Safe().IsZero() {
			t.Errorf("until %s at first, safe until %s", got, h.Safe())
		}
		time.Sleep(third - time.Nanosecond)
		for beat := time.Duration(1); beat < 10; beat++ { // three leases
			if len(l.heartbeats()) != len(want) {
				t.Fatalf("heard %q before it is time for %d", l.heartbeats(), beat)
			}
			time.Sleep(2 * time.Nanosecond)
			want = append(want, fmt.Sprintf("%s e-0 HB:r", beat*third))
			if !slices.Equal(l.heartbeats(), want) {
				t.Fatalf("got %q, want %q", l.heartbeats(), want)
			}
			if got := h.Until().Sub(finished); got != beat*third+term*2/3 || got > l.until("r") {
				t.Errorf("after beat %d until %s, the engine says %s", beat, got, l.until("r"))
			}
			if got := h.Safe().Sub(finished); got != beat*third+term/2 {
				t.Errorf("after beat %d safe until %s", beat, got)
			}
			time.Sleep(third - 2*time.Nanosecond)
		}
		h.End()
		h.End()
		time.Sleep(3 * term)
		if len(l.heartbeats()) != len(want) {
			t.Errorf("heard %q after the end", l.heartbeats())
		}
		if c := b.Counts(); c != (Counts{Connects: 1, Beats: 9, Engines: 1}) || w.dialled() != 1 {
			t.Errorf("%+v, asked %d times", c, w.dialled())
		}
		if err := h.Release(t.Context()); err != nil {
			t.Error(err)
		}
		b.Close()
	})
}

// Each hold is renewed at its own times.
func TestHoldTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.engine("e", "10.0.0.1")
		b := w.registry()
		connect(t, b, p)
		l := newLeaseClock(w)
		b.Hold(p.handoff(t, "a"), time.Now())
		time.Sleep(third / 2)
		b.Hold(p.handoff(t, "b"), time.Now())
		b.Hold(p.handoff(t, "c"), time.Now().Add(-third)) // at once
		time.Sleep(2 * third)
		synctest.Wait()
		want := []string{"5s e-0 HB:c", "10s e-0 HB:a", "15s e-0 HB:c,b", "20s e-0 HB:a", "25s e-0 HB:c,b"}
		if got := l.heartbeats(); !slices.Equal(got, want) {
			t.Errorf("heard %q", got)
		}
		b.Close()
	})
}

// One heartbeat names all holds of an engine, however many there are.
func TestHoldMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.engine("e", "10.0.0.1", 2, 2)
		b := w.registry()
		connect(t, b, p)
		l := newLeaseClock(w)
		var holds []*Hold
		for i := range 100 {
			holds = append(holds, b.Hold(p.handoff(t, fmt.Sprint("r", i)), time.Now()))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(third)
		if h := holds[99]; !h.Until().Equal(l.began.Add(term + 99*time.Millisecond)) {
			t.Errorf("a heartbeat that came a little early holds until %s", h.Until())
		}
		time.Sleep(term - third - 200*time.Millisecond)
		synctest.Wait()
		heard := l.heartbeats()
		if len(heard) != 2*4 {
			t.Fatalf("%d messages, want two to each of four ranks: %q", len(heard), heard)
		}
		for _, message := range heard {
			if strings.Count(message, ",") != len(holds)-1 {
				t.Errorf("%q does not name all", message)
			}
		}
		for i, h := range holds {
			if h.Until() != holds[0].Until() || time.Until(h.Until()) < third {
				t.Errorf("%d is held until %s", i, h.Until())
			}
			if i > 0 {
				h.End()
			}
		}
		time.Sleep(third)
		synctest.Wait()
		if last := l.heartbeats(); last[len(last)-1] != fmt.Sprintf("%s e-3 HB:r0", term) {
			t.Errorf("at last %q", last[len(last)-1])
		}
		b.Close()
	})
}

func TestHeartbeatsAreSplit(t *testing.T) {
	var holds []*Hold
	for i := range 3000 {
		holds = append(holds, &Hold{id: fmt.Sprintf("%0*d", 1+i%100, i)})
	}
	holds = append(holds, &Hold{id: strings.Repeat("x", dialect.MaxNoticeID)})
	var named []string
	messages := New(Config{Noticer: vllm, Lease: term}).heartbeats(holds)
	for _, m := range messages {
		ids, ok := strings.CutPrefix(string(m), "HB:")
		if !ok || len(m) > transfer.MaxMessage {
			t.Errorf("a message of %d bytes: %.20q", len(m), m)
		}
		named = append(named, strings.Split(ids, ",")...)
	}
	if len(messages) != 3 {
		t.Errorf("%d messages", len(messages))
	}
	for i, h := range holds {
		if i >= len(named) || named[i] != h.id {
			t.Fatalf("%d is not named in its turn", i)
		}
	}
	if len(named) != len(holds) {
		t.Errorf("%d named", len(named))
	}
}

// A hand-off may be older than its hold, and the registry may connect to its engine late.
func TestHoldLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.engine("e", "10.0.0.1")
		p.asked = make(chan int)
		b := w.registry()
		l := newLeaseClock(w)
		b.Hold(p.handoff(t, "old"), time.Now().Add(-term/2))
		time.Sleep(time.Second)
		if len(l.heartbeats()) != 0 {
			t.Fatalf("heard %q", l.heartbeats())
		}
		<-p.asked
		synctest.Wait()
		if got := l.heartbeats(); len(got) != 1 || got[0] != "1s e-0 HB:old" {
			t.Errorf("heard %q", got)
		}
		b.Hold(p.handoff(t, "older"), time.Now().Add(-term+1))
		dead := b.Hold(p.handoff(t, "dead"), time.Now().Add(-term))
		synctest.Wait()
		if got := l.heartbeats(); len(got) != 2 || got[1] != "1s e-0 HB:older" {
			t.Errorf("heard %q", got)
		}
		if !dead.Until().Equal(time.Now()) {
			t.Errorf("what has run out is held until %s", dead.Until())
		}
		b.Close()
	})
}

// An engine to which the registry connects only after some tries is notified then, if there is still time.
func TestHoldIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.engine("e", "10.0.0.1")
		w.put("10.0.0.1:5600", nil)
		b := w.registry()
		l := newLeaseClock(w)
		h := b.Hold(p.handoff(t, "r"), time.Now())
		time.Sleep(third + time.Second)
		w.put("10.0.0.1:5600", p.talk)
		if h.Until().Sub(l.began) != term {
			t.Errorf("until %s", h.Until())
		}
		time.Sleep(third)
		synctest.Wait()
		if got := l.heartbeats(); len(got) != 1 || got[0] != "20s e-0 HB:r" {
			t.Errorf("heard %q", got)
		}
		if h.Until().Sub(l.began) != 2*third+term*2/3 {
			t.Errorf("until %s", h.Until())
		}
		if c := b.Counts(); c != (Counts{Connects: 1, FailedConnects: 2, Beats: 1, FailedBeats: 1, Engines: 1}) {
			t.Errorf("%+v", c)
		}
		b.Close()
	})
}

// A hold that was not renewed in time ends, even if the engine comes back: its blocks may belong to another request.
func TestHoldRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.engine("e", "10.0.0.1")
		b := w.registry()
		connect(t, b, p)
		l := newLeaseClock(w)
		h := b.Hold(p.handoff(t, "r"), time.Now())
		w.self.onNotify(func(context.Context, transfer.Peer, string) error { return transfer.ErrBusy })
		time.Sleep(term)
		synctest.Wait()
		w.self.onNotify(nil)
		time.Sleep(3 * term)
		p.only(t)
		if c := b.Counts(); h.Until().Sub(l.began) != term || c.FailedBeats != 2 || c.Beats != 0 {
			t.Errorf("until %s, %+v", h.Until(), c)
		}
		b.Close()
	})
}

// A heartbeat that took longer than the lease had left promises nothing.
func TestHeartbeatArrivesTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.engine("e", "10.0.0.1")
		b := w.registry()
		connect(t, b, p)
		w.self.onNotify(func(context.Context, transfer.Peer, string) error {
			<-time.After(2 * time.Second)
			return nil
		})
		late := b.Hold(p.handoff(t, "late"), time.Now().Add(time.Second-term))
		soon := b.Hold(p.handoff(t, "soon"), time.Now().Add(3*time.Second-term))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := time.Until(late.Until()); got != -time.Second || !late.Safe().IsZero() {
			t.Errorf("the late one is held for %s, safe until %s", got, late.Safe())
		}
		if got := time.Until(soon.Until()); got != term*2/3-2*time.Second {
			t.Errorf("the other is held for %s", got)
		}
		b.Close()
	})
}

func TestHoldMeetsErrors(t *testing.T) {
	for name, c := range map[string]struct {
		err      error
		after    time.Duration // until it is renewed again
		connects uint64
	}{
		"busy":         {transfer.ErrBusy, third, 1},
		"gone":         {transfer.ErrGone, third, 2},
		"unknown":      {transfer.ErrUnknownPeer, 0, 2},
		"restarted":    {transfer.ErrRestarted, 0, 2},
		"anything":     {errors.New("cannot"), third, 1},
		"out of time":  {context.DeadlineExceeded, third, 1},
		"closed, once": {transfer.ErrClosed, third, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p := w.engine("e", "10.0.0.1", 2, 1)
				b := w.registry()
				connect(t, b, p)
				began, fails := time.Now(), true
				w.self.onNotify(func(_ context.Context, to transfer.Peer, _ string) error {
					if to == "e-1" && fails {
						fails = false
						return c.err
					}
					return nil
				})
				h := b.Hold(p.handoff(t, "r"), began)
				time.Sleep(third + c.after)
				synctest.Wait()
				if got := h.Until().Sub(began); got != third+c.after+term*2/3 {
					t.Errorf("until %s", got)
				}
				if n := b.Counts(); n.Connects != c.connects || n.Beats != 1 || n.FailedBeats != min(uint64(c.after), 1) {
					t.Errorf("%+v", n)
				}
				if gone := w.self.forgottenPeers() != "[]"; gone != errors.Is(c.err, transfer.ErrGone) {
					t.Errorf("forgotten peers %s", w.self.forgottenPeers())
				}
				if p.got(1); len(p.got(1)) != 0 {
					t.Error("more to come")
				}
				b.Close()
			})
		})
	}
}

// A peer that hangs delays its own engine's heartbeats only.
func TestHangingPeerDelaysOnlyItsOwnHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		sick, well := w.engine("sick", "10.0.0.1"), w.engine("well", "10.0.0.2")
		b := w.registry()
		connect(t, b, sick)
		connect(t, b, well)
		w.self.onNotify(func(ctx context.Context, to transfer.Peer, _ string) error {
			if to == "sick-0" {
				<-ctx.Done()
			}
			return ctx.Err()
		})
		b.Hold(sick.handoff(t, "r1"), time.Now())
		h := b.Hold(well.handoff(t, "r2"), time.Now())
		began := time.Now()
		time.Sleep(3 * term)
		synctest.Wait()
		well.only(t, slices.Repeat([]string{"HB:r2"}, 9)...)
		sick.only(t)
		if got := h.Until().Sub(began); got != 3*term+term*2/3 {
			t.Errorf("until %s", got)
		}
		b.Close()
	})
}

// The engines' names changed with a restart that kept the id, and the old ones are not kept.
func TestChangedNamesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.engine("e", "10.0.0.1", 2, 1)
		b := w.registry()
		connect(t, b, p)
		p.ranks[1] = w.agent("other")
		w.self.Notifier.Forget("e-1")
		if err := b.Hold(p.handoff(t, "r"), time.Now()).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.only(t, release(t, "r"))
		synctest.Wait()
		if w.self.forgottenPeers() != "[e-1]" {
			t.Errorf("forgotten peers %s", w.self.forgottenPeers())
		}
		b.Close()
	})
}
