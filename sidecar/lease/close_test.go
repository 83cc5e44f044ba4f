package lease

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

func TestCloseInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		b := w.registry()
		hung, idle, late := w.engine("hung", "10.0.0.1"), w.engine("idle", "10.0.0.2"), w.engine("late", "10.0.0.3")
		for _, p := range []*prefill{hung, idle} {
			connect(t, b, p)
		}
		w.put("10.0.0.3:5600", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
		var calls atomic.Int32
		w.self.onNotify(func(ctx context.Context, to transfer.Peer, _ string) error {
			if to == "hung-0" {
				calls.Add(1)
				defer calls.Add(-1)
				<-ctx.Done()
			}
			return ctx.Err()
		})
		holds := []*Hold{b.Hold(hung.handoff(t, "r1"), time.Now()), b.Hold(idle.handoff(t, "r2"), time.Now().Add(third/2))}
		time.Sleep(third) // the beat to the first hangs now, the second has a timer, and the third is asked
		for i := range 2 * connectsAtOnce {
			late.id = fmt.Sprint("late", i)
			holds = append(holds, b.Hold(late.handoff(t, "r3"), time.Now()))
		}
		released := make(chan error)
		go func() { released <- b.Hold(late.handoff(t, "r4"), time.Now()).Release(t.Context()) }()
		synctest.Wait()
		if calls.Load() != 1 || w.openNow() != connectsAtOnce {
			t.Fatalf("%d calls and %d connections are under way", calls.Load(), w.openNow())
		}

		began := time.Now()
		b.Close()
		if calls.Load() != 0 || w.openNow() != 0 {
			t.Errorf("%d calls and %d connections are left", calls.Load(), w.openNow())
		}
		b.Close()
		if took := time.Since(began); took != 0 {
			t.Errorf("took %s", took)
		}
		wantErr(t, <-released, ErrNoWay)
		for _, h := range holds {
			h.End()
			wantErr(t, h.Release(t.Context()), errClosed)
		}
		h := b.Hold(idle.handoff(t, "r5"), time.Now())
		if h.Until().Sub(began) != term {
			t.Errorf("until %s", h.Until())
		}
		h.End()
		wantErr(t, h.Release(t.Context()), ErrNoWay)
		_, err := b.Connect(t.Context(), "10.0.0.2", 5600)
		wantErr(t, err, errClosed)
		time.Sleep(term)
		for _, p := range []*prefill{hung, idle, late} {
			p.only(t)
		}
	})
}

// Everything at once, for the race detector: each release is sent once, and nothing is left running.
func TestEverythingAtOnce(t *testing.T) {
	w := newWorld(t)
	b := w.registry(func(c *Config) { c.Engines, c.Lease = 12, 300*time.Millisecond })
	var engines []*prefill
	for i := range 16 {
		engines = append(engines, w.engine(fmt.Sprint("e", i), fmt.Sprint("10.0.0.", i), 1+i%2, 1))
	}
	ctx := within(t)
	var working sync.WaitGroup
	var names, good atomic.Int64
	type outcome struct {
		err   error
		ranks int
	}
	outcomes := new(sync.Map) // by notice
	for i, p := range engines {
		for range 2 {
			working.Go(func() {
				for n := range 50 {
					id := fmt.Sprint("r", names.Add(1))
					h := b.Hold(p.handoff(t, id), time.Now().Add(-100*time.Millisecond))
					if n%10 == 0 {
						w.self.Notifier.Forget(transfer.Peer(fmt.Sprintf("e%d-0", (i+n)%16)))
					}
					_ = h.Until()
					if n%3 == 0 {
						h.End()
					}
					err := h.Release(ctx)
					outcomes.Store(release(t, id), outcome{err, len(p.ranks)})
					if err == nil {
						good.Add(1)
					}
				}
			})
		}
	}
	working.Wait()
	b.Close()

	heard := make(map[string]int)
	for _, p := range engines {
		for rank := range p.ranks {
			messages := slices.DeleteFunc(p.got(rank), isBeat)
			slices.Sort(messages)
			for i, message := range messages {
				heard[message]++
				if i > 0 && message == messages[i-1] {
					t.Errorf("rank %d of %s heard %q twice", rank, p.id, message)
				}
			}
		}
	}
	outcomes.Range(func(message, value any) bool {
		o, n := value.(outcome), heard[message.(string)]
		if o.err == nil && n != o.ranks || errors.Is(o.err, ErrNoWay) && n != 0 {
			t.Errorf("%d of %d ranks heard %q, and it was said: %v", n, o.ranks, message, o.err)
		}
		return true
	})
	if good.Load() == 0 {
		t.Error("nothing was released")
	}
}

func isBeat(message string) bool { return strings.HasPrefix(message, "HB:") }
