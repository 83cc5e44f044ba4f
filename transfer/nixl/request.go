//go:build nixl && cgo && linux

package nixl

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
	"unsafe"
)

const (
	// spin is how long a request is polled without a pause: most of 64 KiB end within that time.
	spin = 100 * time.Microsecond
	// The pauses between polls double, up to one that delays a large read by less than its duration.
	minPause = 50 * time.Microsecond
	maxPause = time.Millisecond
)

// request is one transfer into a slot. Its caller and its goroutine leave it at different times; the second one finishes it.
type request struct {
	t    *Transport
	peer *peer
	slot *slot
	part part
	// done receives the outcome if the caller still waits.
	done    chan error
	outcome error // from the library; set before the goroutine leaves
	parted  atomic.Bool
}

// begin starts to read the next part, once a slot and a place at the peer are free.
func (t *Transport) begin(ctx context.Context, p *peer, c *cutter, stall *time.Timer) (*request, error) {
	if err := t.acquire(ctx, p.places, stall.C); err != nil {
		return nil, err
	}
	if err := t.acquire(ctx, t.bounce.inUse, nil); err != nil {
		<-p.places
		return nil, err
	}
	return t.launch(ctx, p, c)
}

// beginNow starts to read the next part if a place is free; else it returns nil. A caller that holds places must not wait
// for more, or two callers could deadlock.
func (t *Transport) beginNow(ctx context.Context, p *peer, c *cutter) (*request, error) {
	if !try(p.places) {
		return nil, nil
	}
	if !try(t.bounce.inUse) {
		<-p.places
		return nil, nil
	}
	return t.launch(ctx, p, c)
}

// launch reads the next part in the place that its caller has taken, and releases the place on failure.
func (t *Transport) launch(ctx context.Context, p *peer, c *cutter) (*request, error) {
	s, err := t.take(ctx, p)
	if err != nil {
		<-t.bounce.inUse
		<-p.places
		return nil, err
	}
	r := &request{t: t, peer: p, slot: s, part: c.cut(s), done: make(chan error, 1)}
	go r.run()
	return r, nil
}

// take takes a slot, and the right to call the library.
func (t *Transport) take(ctx context.Context, p *peer) (*slot, error) {
	s, err := t.bounce.take(ctx)
	if err != nil {
		return nil, err
	}
	if err := t.enter(p); err != nil {
		t.bounce.put(s, false)
		return nil, err
	}
	return s, nil
}

// run follows a request to its end, whether or not a caller waits for it.
func (r *request) run() {
	t := r.t
	defer t.inside.Done()
	handle, err := t.agent.lib.read(t.agent.agent, r.peer.agent, uintptr(r.slot.extent().address), r.slot.pieces)
	if errors.Is(err, errPending) {
		err = r.watch(handle)
	}
	r.outcome = err
	result := t.contractError(r.peer, err)
	if r.parted.CompareAndSwap(false, true) {
		r.done <- result
	} else {
		t.bounce.quarantine(-1)
		r.finish()
	}
	if handle != nil {
		// A handle that cannot be released leaks in the library, without further consequences.
		_ = t.agent.lib.end(t.agent.agent, handle)
	}
	t.leave(r.peer)
	<-r.peer.places
}

// watch polls until the request has ended; errPending if it does not.
func (r *request) watch(handle unsafe.Pointer) error {
	t := r.t
	err := t.agent.lib.wait(t.agent.agent, handle, spin)
	if !errors.Is(err, errPending) {
		return err
	}
	end, tick := time.NewTimer(t.stall+t.quarantine), time.NewTimer(minPause)
	defer end.Stop()
	defer tick.Stop()
	closing := t.closing
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		select {
		case <-tick.C:
		case <-closing:
			closing = nil
			end.Reset(closeGrace)
		case <-end.C:
			t.lose(r.peer)
			return errPending
		}
		if err := t.agent.lib.wait(t.agent.agent, handle, 0); !errors.Is(err, errPending) {
			return err
		}
		tick.Reset(pause)
	}
}

// leave is called when the caller leaves.
func (r *request) leave() {
	if r.parted.CompareAndSwap(false, true) {
		r.t.bounce.quarantine(1)
	} else {
		r.finish()
	}
	<-r.t.bounce.inUse
}

// finish decides what happens to the memory. A request that was released while it was running, or whose metadata was removed
// meanwhile, has been seen to continue writing.
func (r *request) finish() {
	var c *CallError
	forgotten := errors.As(r.outcome, &c) && c.Call == "get_xfer_status" && c.Status == StatusNotFound
	if forgotten || errors.Is(r.outcome, errPending) {
		r.t.bounce.giveUp(r.slot)
		return
	}
	r.t.bounce.put(r.slot, r.outcome != nil)
}

// grow adds a slot to the idle ones. The library knows it until the agent ends.
func (t *Transport) grow(ctx context.Context) error {
	mem, err := mapAnonymous(slotSize)
	if err != nil {
		t.bounce.shrink()
		return err
	}
	s := &slot{mem: mem, pieces: make([]piece, 0, slotSize/(64<<10))}
	var taken atomic.Bool // by the library's goroutine, or released
	err = t.agent.do(ctx, func() error {
		if !taken.CompareAndSwap(false, true) {
			return nil
		}
		err := t.enroll(s.extent())
		if err != nil {
			return t.bounce.discard(s, err)
		}
		t.bounce.put(s, false)
		return nil
	})
	if err != nil && taken.CompareAndSwap(false, true) {
		return t.bounce.discard(s, err)
	}
	return err
}
