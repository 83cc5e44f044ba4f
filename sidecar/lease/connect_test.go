package lease

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// Side channels that are none cost one try, and then nothing for a while.
func TestDeadSideChannels(t *testing.T) {
	for name, c := range map[string]struct {
		handle func(net.Conn)
		err    error
		takes  time.Duration
	}{
		"refused":     {nil, errRefused, 0},
		"silent":      {func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, context.DeadlineExceeded, connectTime},
		"deaf":        {func(c net.Conn) { _, _ = c.Write(routerGreeting) }, context.DeadlineExceeded, connectTime},
		"hangs up":    {func(net.Conn) {}, io.ErrClosedPipe, 0},
		"speaks HTTP": {says("HTTP/1.1 400 Bad Request\r\n\r\n" + strings.Repeat(" ", 64)), zmtp.ErrProtocol, 0},
		"garbage":     {answers(routerReady + "\x01\x00" + frameOf("garbage")), nil, 0},
		"nothing":     {answers(routerReady + "\x01\x00\x00\x00"), nil, 0},
		"no agent":    {answers(answerOf("e", nil)), nil, 0},
		"bad agent":   {answers(answerOf("e", []byte("nixlSerDes|"))), transfer.ErrInvalid, 0},
		"another":     {answers(answerOf("f", []byte("x"))), transfer.ErrRestarted, 0},
		"too long":    {answers(routerReady + "\x01\x00" + "\x02\xff\xff\xff\xff\xff\xff\xff\xff"), zmtp.ErrProtocol, 0},
		"endless":     {endless, zmtp.ErrProtocol, 0},
		"dripping":    {dripping, context.DeadlineExceeded, connectTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				p := w.engine("e", "10.0.0.1")
				w.put("10.0.0.1:5600", c.handle)
				b := w.registry()
				tell := func() error { return b.Hold(p.handoff(t, "r"), time.Now()).Release(t.Context()) }
				began := time.Now()
				err := tell()
				wantErr(t, err, ErrNoWay)
				if c.err != nil {
					wantErr(t, err, c.err)
				}
				if took := time.Since(began); took != c.takes {
					t.Errorf("took %s", took)
				}
				for range 100 {
					wantErr(t, tell(), ErrNoWay)
				}
				if w.dialled() != 1 || time.Since(began) != c.takes {
					t.Errorf("asked %d times within %s", w.dialled(), time.Since(began))
				}
				p.only(t)
				w.put("10.0.0.1:5600", p.talk)
				time.Sleep(firstPause)
				if err := tell(); err != nil {
					t.Error(err)
				}
				p.only(t, release(t, "r"))
				b.Close()
			})
		})
	}
}

// says returns a side channel that does not listen first.
func says(text string) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, 64)); err == nil {
			_, _ = io.WriteString(c, text)
		}
	}
}

// answers is one that says the same, whatever it is asked.
func answers(text string) func(net.Conn) {
	return func(c net.Conn) {
		if _, _, err := listen(c); err == nil {
			_, _ = io.WriteString(c, text)
		}
	}
}

func endless(c net.Conn) {
	_, _, err := listen(c)
	for err == nil {
		_, err = io.WriteString(c, frameOf(strings.Repeat("x", 1000)))
	}
}

func dripping(c net.Conn) {
	_, _, err := listen(c)
	for err == nil {
		_, err = io.WriteString(c, "\x01\x00")
		<-time.After(time.Second)
	}
}

func TestPausesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		p := w.engine("e", "10.0.0.1")
		w.put("10.0.0.1:5600", nil)
		b := w.registry()
		began, asked := time.Now(), []int{}
		for range 200 { // seconds
			before := w.dialled()
			wantErr(t, b.Hold(p.handoff(t, "r"), time.Now()).Release(t.Context()), ErrNoWay)
			if w.dialled() > before {
				asked = append(asked, int(time.Since(began)/time.Second))
			}
			time.Sleep(time.Second)
		}
		if got := fmt.Sprint(asked); got != "[0 1 3 7 15 31 63 123 183]" {
			t.Errorf("asked after %s seconds", got)
		}

		// Holds that begin meanwhile do not ask the engine again either.
		h := b.Hold(p.handoff(t, "r"), time.Now())
		time.Sleep(2 * term)
		synctest.Wait()
		if c := b.Counts(); c.FailedBeats != 0 || len(h.engine.holds) != 0 {
			t.Errorf("%+v, %d held", c, len(h.engine.holds))
		}
		b.Close()
	})
}

// A thousand engines at once: each is asked once, not all at a time, and each hears of its own hand-offs.
func TestThousandEngines(t *testing.T) {
	w := newWorld(t)
	b := w.registry()
	var engines []*prefill
	for i := range 1000 {
		engines = append(engines, w.engine(fmt.Sprint("e", i), fmt.Sprintf("10.0.%d.%d", i/256, i%256)))
	}
	var telling sync.WaitGroup
	for _, p := range engines {
		for _, id := range []string{"r1", "r2"} {
			h := b.Hold(p.handoff(t, p.id+id), time.Now())
			telling.Go(func() {
				if err := h.Release(within(t)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	telling.Wait()
	for _, p := range engines {
		got := p.got(0)
		if len(got) != 2 || got[0] == got[1] || !strings.HasPrefix(got[0], p.id+"r") || !strings.HasPrefix(got[1], p.id+"r") {
			t.Errorf("%s got %q", p.id, got)
		}
	}
	if c := b.Counts(); c.Connects != 1000 || c.Engines != 1000 || w.dialled() != 1000 || w.mostOpen() > connectsAtOnce {
		t.Errorf("%+v, asked %d times, %d at once", c, w.dialled(), w.mostOpen())
	}
}

// Unreachable engines delay the others only until they are known to be unreachable.
func TestManyDeadEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		b := w.registry()
		for i := range 4 * connectsAtOnce {
			p := w.engine(fmt.Sprint("dead", i), fmt.Sprint("10.0.0.", i))
			w.put(address(p.host, p.port), func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
			b.Hold(p.handoff(t, "r"), time.Now()).End()
		}
		p := w.engine("alive", "10.0.1.1")
		synctest.Wait()
		began := time.Now()
		if err := b.Hold(p.handoff(t, "r"), began).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 4*connectTime || w.mostOpen() != connectsAtOnce {
			t.Errorf("took %s, %d at once", took, w.mostOpen())
		}
		b.Close()
	})
}

func TestEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		b := w.registry(func(c *Config) { c.Engines = 2 })
		var p [4]*prefill
		for i := range p {
			p[i] = w.engine(fmt.Sprint("e", i), fmt.Sprint("10.0.0.", i))
		}
		first := b.Hold(p[0].handoff(t, "r0"), time.Now())
		time.Sleep(time.Nanosecond)
		held := b.Hold(p[1].handoff(t, "r1"), time.Now())
		synctest.Wait()

		full := b.Hold(p[2].handoff(t, "r2"), time.Now())
		wantErr(t, full.Release(t.Context()), errFull)

		first.End()
		time.Sleep(time.Nanosecond)
		if err := b.Hold(p[2].handoff(t, "r2"), time.Now()).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if w.self.forgottenPeers() != "[e0-0]" || b.Counts().Engines != 2 {
			t.Errorf("forgotten peers %s, %+v", w.self.forgottenPeers(), b.Counts())
		}
		if err := first.Release(t.Context()); err != nil { // the registry connects again, and drops the third
			t.Fatal(err)
		}
		synctest.Wait()
		if w.self.forgottenPeers() != "[e0-0 e2-0]" || b.Counts().Engines != 2 {
			t.Errorf("forgotten peers %s, %+v", w.self.forgottenPeers(), b.Counts())
		}
		p[0].only(t, release(t, "r0"))
		time.Sleep(third)
		synctest.Wait()
		p[1].only(t, "HB:r1")
		held.End()
		b.Close()
	})
}

// The engine that was used last is forgotten last, and one that is being notified is not forgotten.
func TestEvictionSparesTheUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		b := w.registry(func(c *Config) { c.Engines = 2 })
		var p [4]*prefill
		for i := range p {
			p[i] = w.engine(fmt.Sprint("e", i), fmt.Sprint("10.0.0.", i))
		}
		for _, i := range []int{0, 1, 0, 2} {
			connect(t, b, p[i])
			time.Sleep(time.Nanosecond)
		}
		synctest.Wait()
		if w.self.forgottenPeers() != "[e1-0]" {
			t.Errorf("forgotten peers %s", w.self.forgottenPeers())
		}
		under, end := make(chan struct{}), make(chan struct{})
		w.self.onNotify(func(context.Context, transfer.Peer, string) error {
			under <- struct{}{}
			<-end
			return nil
		})
		released := make(chan error)
		for _, i := range []int{0, 2} {
			go func() { released <- b.Hold(p[i].handoff(t, "r"), time.Now()).Release(t.Context()) }()
			<-under
		}
		wantErr(t, b.Hold(p[3].handoff(t, "r"), time.Now()).Release(t.Context()), errFull)
		close(end)
		for range 2 {
			if err := <-released; err != nil {
				t.Error(err)
			}
		}
		b.Close()
	})
}

// Two engines, of which one says that it is reached as the other is: neither takes the other's peer away.
func TestSharedPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		b := w.registry(func(c *Config) { c.Engines = 2 })
		good, other := w.engine("good", "10.0.0.1"), w.engine("other", "10.0.0.3")
		thief := &prefill{id: "thief", host: "10.0.0.2", port: 5600, tensor: 1, pipeline: 1, ranks: good.ranks}
		w.put("10.0.0.2:5600", thief.talk)
		connect(t, b, thief)
		time.Sleep(time.Nanosecond)
		connect(t, b, good)
		time.Sleep(time.Nanosecond)
		connect(t, b, other) // instead of the thief
		synctest.Wait()
		if w.self.forgottenPeers() != "[]" || b.Counts().Engines != 2 {
			t.Errorf("forgotten peers %s", w.self.forgottenPeers())
		}
		if err := b.Hold(good.handoff(t, "r"), time.Now()).Release(t.Context()); err != nil || b.Counts().Connects != 3 {
			t.Errorf("%v, %+v", err, b.Counts())
		}
		b.Close()
	})
}

func TestConnect(t *testing.T) {
	w := newWorld(t)
	p := w.engine("e", "10.0.0.1")
	b := w.registry()
	id, err := b.Connect(within(t), p.host, p.port)
	if err != nil || id != "e" {
		t.Fatal(id, err)
	}
	asked := w.dialled()
	if err := b.Hold(p.handoff(t, "r"), time.Now()).Release(within(t)); err != nil || w.dialled() != asked {
		t.Errorf("asked again, %v", err)
	}
	p.only(t, release(t, "r"))

	if id, err := b.Connect(within(t), "10.0.0.9", 5600); id != "" || !errors.Is(err, ErrNoWay) || !errors.Is(err, errRefused) {
		t.Errorf("connected to %q, %v", id, err)
	}
	w.put("10.0.0.8:5600", answers(answerOf(strings.Repeat("e", maxText+1), []byte("x"))))
	_, err = b.Connect(within(t), "10.0.0.8", 5600)
	wantErr(t, err, errUnidentified)

	// One of several ranks is asked for no rank that it may not have.
	wide := w.engine("wide", "10.0.0.2", 2, 1)
	wide.asked = make(chan int, 10)
	if id, err := b.Connect(within(t), wide.host, wide.port); err != nil || id != "wide" {
		t.Fatal(id, err)
	}
	for len(wide.asked) > 0 {
		if rank := <-wide.asked; rank != 0 {
			t.Errorf("asked for rank %d", rank)
		}
	}
	if err := b.Hold(wide.handoff(t, "r"), time.Now()).Release(within(t)); err != nil {
		t.Error(err)
	}
	wide.only(t, release(t, "r"))
}
