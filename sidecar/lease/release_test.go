package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

func TestReleaseBeforeTheConnection(t *testing.T) {
	w := newWorld(t)
	p := w.engine("e", "10.0.0.1")
	h := w.registry().Hold(p.handoff(t, "r"), time.Now())
	if err := h.Release(within(t)); err != nil {
		t.Fatal(err)
	}
	p.only(t, release(t, "r"))
}

func TestReleaseDuringTheConnection(t *testing.T) {
	w := newWorld(t)
	p := w.engine("e", "10.0.0.1")
	p.asked = make(chan int)
	h := w.registry().Hold(p.handoff(t, "r"), time.Now())
	released := make(chan error)
	go func() { released <- h.Release(within(t)) }()
	select {
	case err := <-released:
		t.Fatalf("released before the engine is known: %v", err)
	case <-p.asked:
	}
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	p.only(t, release(t, "r"))
}

func TestReleaseAfterTheConnection(t *testing.T) {
	w := newWorld(t)
	p := w.engine("e", "10.0.0.1")
	b := w.registry()
	connect(t, b, p)
	for i := range 10 {
		id := fmt.Sprint("r", i)
		h := b.Hold(p.handoff(t, id), time.Now())
		if i%2 == 1 {
			h.End() // decode took it over, and failed
		}
		if err := h.Release(within(t)); err != nil {
			t.Fatal(err)
		}
		p.only(t, release(t, id))
	}
	if w.dialled() != 1 || b.Counts() != (Counts{Connects: 1, Engines: 1}) {
		t.Errorf("asked %d times, %+v", w.dialled(), b.Counts())
	}
}

// Whatever comes together, an engine hears once of a hand-off.
func TestReleaseOnce(t *testing.T) {
	w := newWorld(t)
	p := w.engine("e", "10.0.0.1")
	h := w.registry().Hold(p.handoff(t, "r"), time.Now())
	errs := make(chan error, 20)
	for range cap(errs) {
		go func() { errs <- h.Release(within(t)) }()
	}
	good := 0
	for range cap(errs) {
		if err := <-errs; err == nil {
			good++
		} else if !errors.Is(err, ErrReleased) || errors.Is(err, ErrNoWay) {
			t.Error(err)
		}
	}
	if good != 1 {
		t.Errorf("%d releases did something", good)
	}
	p.only(t, release(t, "r"))
}

func TestReleaseNotifiesEveryRank(t *testing.T) {
	w := newWorld(t)
	p := w.engine("e", "10.0.0.1", 2, 2)
	p.asked = make(chan int, 10)
	b := w.registry()
	if err := b.Hold(p.handoff(t, "r"), time.Now()).Release(within(t)); err != nil {
		t.Fatal(err)
	}
	p.only(t, release(t, "r"))
	close(p.asked)
	for rank := range 4 {
		if got, ok := <-p.asked; !ok || got != rank {
			t.Errorf("asked about rank %d, want %d", got, rank)
		}
	}
	if _, more := <-p.asked; more {
		t.Error("a rank was asked twice")
	}
}

// The notifier's process was restarted, and knows no peers.
func TestReleaseAfterTheNotifierForgot(t *testing.T) {
	for lost := range 4 {
		w := newWorld(t)
		p := w.engine("e", "10.0.0.1", 2, 2)
		b := w.registry()
		connect(t, b, p)
		for rank := lost; rank < 4; rank++ {
			w.self.Notifier.Forget(transfer.Peer(fmt.Sprintf("e-%d", rank)))
		}
		if err := b.Hold(p.handoff(t, "r"), time.Now()).Release(within(t)); err != nil {
			t.Fatal(err)
		}
		p.only(t, release(t, "r"))
		if c := b.Counts(); c.Connects != 2 || w.self.forgottenPeers() != "[]" {
			t.Errorf("%+v, forgotten peers %s", c, w.self.forgottenPeers())
		}
	}
}

// A restarted engine is another engine: it has none of the blocks of the old one.
func TestReleaseAfterARestart(t *testing.T) {
	w := newWorld(t)
	old := w.engine("old", "10.0.0.1")
	b := w.registry()
	connect(t, b, old)
	if err := old.ranks[0].Close(); err != nil {
		t.Fatal(err)
	}
	fresh := w.engine("new", "10.0.0.1")
	wantUnsure(t, b.Hold(old.handoff(t, "r1"), time.Now()).Release(within(t))) // the notifier reports only that it is unreachable
	wantErr(t, b.Hold(old.handoff(t, "r2"), time.Now()).Release(within(t)), ErrNoWay)
	if err := b.Hold(fresh.handoff(t, "r3"), time.Now()).Release(within(t)); err != nil {
		t.Fatal(err)
	}
	fresh.only(t, release(t, "r3"))
}

func TestReleaseAfterARestartUnderTheSameName(t *testing.T) {
	w := newWorld(t)
	old := w.engine("old", "10.0.0.1")
	b := w.registry()
	connect(t, b, old)
	fresh := w.engine("new", "10.0.0.1")
	fresh.ranks[0] = w.agent("old-0")
	err := b.Hold(old.handoff(t, "r"), time.Now()).Release(within(t))
	wantErr(t, err, ErrNoWay)
	wantErr(t, err, transfer.ErrRestarted)
	fresh.only(t)
	h := old.handoff(t, "r2")
	h.EngineID = "unheard of"
	wantErr(t, b.Hold(h, time.Now()).Release(within(t)), transfer.ErrRestarted)
}

func TestReleaseMeetsErrors(t *testing.T) {
	other := errors.New("cannot")
	for name, c := range map[string]struct {
		err     error
		at      int // the rank that fails
		noWay   bool
		dropped bool
	}{
		"busy":          {transfer.ErrBusy, 0, true, false},
		"busy later":    {transfer.ErrBusy, 1, false, false},
		"invalid":       {transfer.ErrInvalid, 0, true, false},
		"gone":          {transfer.ErrGone, 0, false, true},
		"gone later":    {transfer.ErrGone, 1, false, true},
		"closed":        {transfer.ErrClosed, 0, false, false},
		"anything else": {other, 0, false, false},
		"unknown":       {transfer.ErrUnknownPeer, 0, true, true}, // again and again
		"unknown later": {transfer.ErrUnknownPeer, 1, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := w.engine("e", "10.0.0.1", 2, 1)
			b := w.registry()
			connect(t, b, p)
			h := b.Hold(p.handoff(t, "r"), time.Now())
			w.self.onNotify(func(_ context.Context, to transfer.Peer, _ string) error {
				if strings.HasSuffix(string(to), fmt.Sprint("-", c.at)) {
					return fmt.Errorf("notifying: %w", c.err)
				}
				return nil
			})
			err := h.Release(within(t))
			wantErr(t, err, c.err)
			if errors.Is(err, ErrNoWay) != c.noWay {
				t.Errorf("got %v", err)
			}
			for rank := range 2 {
				if got := p.got(rank); (len(got) == 1) != (rank < c.at) || len(got) > 1 {
					t.Errorf("rank %d got %q", rank, got)
				}
			}
			connects := uint64(1)
			if errors.Is(c.err, transfer.ErrUnknownPeer) {
				connects++ // and no more
			}
			if n := b.Counts(); n.Connects != connects {
				t.Errorf("%+v", n)
			}
			w.self.onNotify(nil)
			next := b.Hold(p.handoff(t, "r2"), time.Now()).Release(within(t))
			if errors.Is(next, ErrNoWay) != c.dropped || next != nil && !c.dropped {
				t.Errorf("and then %v", next)
			}
		})
	}
}

// A peer that is forgotten while a message is sent to it may have got the message.
func TestReleaseIsForgottenInTheMiddle(t *testing.T) {
	w := newWorld(t)
	p := w.engine("e", "10.0.0.1", 2, 1)
	b := w.registry()
	connect(t, b, p)
	one, other := b.Hold(p.handoff(t, "r1"), time.Now()), b.Hold(p.handoff(t, "r2"), time.Now())
	under, gone := make(chan struct{}), make(chan struct{})
	w.self.onNotify(func(_ context.Context, to transfer.Peer, message string) error {
		if strings.HasPrefix(message, "r2") {
			return transfer.ErrGone
		}
		if to == "e-0" {
			if err := w.self.Notifier.Notify(t.Context(), to, []byte(message)); err != nil {
				t.Error(err)
			}
			close(under)
			<-gone
			return transfer.ErrUnknownPeer // as TCP has it
		}
		return nil
	})
	released := make(chan error)
	go func() { released <- one.Release(within(t)) }()
	<-under
	wantUnsure(t, other.Release(within(t)))
	close(gone)
	wantUnsure(t, <-released)
	if got := p.got(0); len(got) != 1 {
		t.Errorf("rank 0 got %q", got)
	}
}

// The same, when the registry can connect again at once: a message that may have arrived is not sent again.
func TestReleaseIsForgottenWhileReconnecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.engine("e", "10.0.0.1", 2, 1)
		b := w.registry()
		connect(t, b, p)
		under, gone := make(chan struct{}), make(chan struct{})
		w.self.onNotify(func(_ context.Context, to transfer.Peer, message string) error {
			if to != "e-0" || message != "r1:1" {
				return nil
			}
			if err := w.self.Notifier.Notify(t.Context(), to, []byte(message)); err != nil {
				t.Error(err)
			}
			close(under)
			<-gone
			return transfer.ErrUnknownPeer
		})
		released := make(chan error)
		h := b.Hold(p.handoff(t, "r1"), time.Now())
		go func() { released <- h.Release(t.Context()) }()
		<-under
		p.ranks[1] = w.agent("other")
		w.self.Notifier.Forget("e-1")
		if err := b.Hold(p.handoff(t, "r2"), time.Now()).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		close(gone)
		wantUnsure(t, <-released)
		if got := fmt.Sprint(p.got(0)); got != "[r1:1 r2:1]" {
			t.Errorf("rank 0 got %s", got)
		}
		b.Close()
	})
}

// When many releases find the notifier's peers unknown, the registry connects to the engine once.
func TestConcurrentReleasesReconnectOnce(t *testing.T) {
	w := newWorld(t)
	p := w.engine("e", "10.0.0.1")
	b := w.registry()
	connect(t, b, p)
	first, second := b.Hold(p.handoff(t, "r1"), time.Now()), b.Hold(p.handoff(t, "r2"), time.Now())
	under, gone := make(chan struct{}), make(chan struct{})
	var once sync.Map
	w.self.onNotify(func(_ context.Context, _ transfer.Peer, message string) error {
		if _, again := once.LoadOrStore(message, true); again {
			return nil
		}
		if message == "r2:1" {
			close(under)
			<-gone
		}
		return transfer.ErrUnknownPeer
	})
	released := make(chan error)
	go func() { released <- second.Release(within(t)) }()
	<-under
	if err := first.Release(within(t)); err != nil {
		t.Fatal(err)
	}
	close(gone)
	if err := <-released; err != nil {
		t.Fatal(err)
	}
	p.only(t, "r1:1", "r2:1")
	if c := b.Counts(); c.Connects != 2 {
		t.Errorf("%+v", c)
	}
}

// A peer that hangs costs a sixth of the lease.
func TestReleaseHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.engine("e", "10.0.0.1")
		b := w.registry(func(c *Config) { c.Lease = 6 * time.Second })
		connect(t, b, p)
		w.self.onNotify(func(ctx context.Context, _ transfer.Peer, _ string) error {
			<-ctx.Done()
			return ctx.Err()
		})
		began := time.Now()
		err := b.Hold(p.handoff(t, "r"), began).Release(t.Context())
		wantUnsure(t, err)
		wantErr(t, err, context.DeadlineExceeded)
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %s", took)
		}
	})
}

func TestReleaseIsCutShort(t *testing.T) {
	w := newWorld(t)
	p := w.engine("e", "10.0.0.1")
	p.asked = make(chan int)
	h := w.registry().Hold(p.handoff(t, "r"), time.Now())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := h.Release(ctx)
	wantErr(t, err, ErrNoWay)
	wantErr(t, err, context.Canceled)
	<-p.asked
	p.only(t)
}
