package sglang

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/metrics"
	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// rank is one scheduler of an engine, with its own KV pool. It implements core.Protocol; only its core's loop calls its methods,
// unless they say otherwise.
type rank struct {
	engine    *Engine
	cfg       *Config
	number    int
	core      *core.Engine
	transport transfer.Transport
	memory    *kv.Memory
	listener  net.Listener // where decode engines send their pages; nil unless it prefills
	page      *metrics.Page

	changed bool // some deadline, since the last call of Deadline
	counts  counts

	rendezvous            // of a prefill engine
	routes     routeTable // of a decode engine
	receiving  map[Room]*core.Sequence
}

// counts has what State reports and no metric of the real engine does.
type counts struct {
	foreign, kvBytesRead, kvBytesServed int64
	prompt, hit                         int64 // tokens of prompts, for the hit rate
}

// stage says how far the hand-off of a leg is.
type stage int

const (
	alone         stage = iota // a request without a hand-off, or whose hand-off is over
	bootstrapping              // prefill: waits for the pages of decode
	prefilling                 // prefill: waits for a place in a step, or takes part
	inflight                   // prefill: decode reads the KV
	handshaking                // decode: the prefill engine is being looked up
	preallocating              // decode: waits for pages
	transferring               // decode: has pages, waits for KV
	releasing                  // decode: has failed, and waits until prefill confirms that it does not write to the pages
)

// leg is what an engine knows of a sequence, beside its core.
type leg struct {
	req      *Request
	stage    stage
	since    time.Time // of the stage
	deadline time.Time // of the stage; zero: none

	// Of a prefill leg.
	peer transfer.Peer // decode
	last core.Output   // for after the transfer
	over func()        // ends the watch over decode

	// Of a decode leg.
	endpoint *endpoint
	sent     chan struct{} // closed after prefill was told the pages
	reading  bool          // a transfer writes to the pages
	freed    bool          // they are free as soon as it ends
}

func legOf(s *core.Sequence) *leg { return s.Leg.(*leg) }

// newRank opens what a rank needs and starts it.
func newRank(e *Engine, number int) (*rank, error) {
	r := &rank{engine: e, cfg: &e.cfg, number: number, rendezvous: newRendezvous(), routes: make(routeTable),
		receiving: make(map[Room]*core.Sequence), page: newPage(&e.cfg, number)}
	host, _, _ := net.SplitHostPort(e.cfg.Bootstrap) // Config has been checked
	var err error
	if r.transport, err = e.cfg.open(host, NewRID()); err != nil {
		return nil, fmt.Errorf("opening the transfer transport: %w", err)
	}
	if r.memory, err = kv.NewMemory(&e.cfg.Model, e.cfg.pages()+1, e.cfg.PageSize, r.transport); err == nil {
		err = r.memory.Register(r.transport)
	}
	if err == nil && e.cfg.Mode == Prefill {
		r.listener, err = e.cfg.Network.Listen(net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	r.core = core.New(e.cfg.core(), r.transport, r.memory)
	var work []func(context.Context)
	switch e.cfg.Mode {
	case Prefill:
		work = append(work, r.serve)
	case Decode:
		work = append(work, r.heartbeat)
	}
	r.core.Start(r, func() {
		if err := r.close(); err != nil {
			e.cfg.Logger.Error("closing the transfer transport", "error", err)
		}
	}, work...)
	return r, nil
}

// close closes what the rank has opened.
func (r *rank) close() error {
	var errs []error
	if r.listener != nil {
		if err := r.listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, r.transport.Close())
	if r.memory != nil {
		errs = append(errs, r.memory.Free())
	}
	return errors.Join(errs...)
}

// serve answers the messages of decode engines until ctx ends. It runs outside of the loop.
func (r *rank) serve(ctx context.Context) {
	if err := zmtp.Serve(ctx, r.listener, r.answer); err != nil {
		r.cfg.Logger.Error("serving decode engines", "error", err)
	}
}

// Queued implements core.Protocol.
func (r *rank) Queued(s *core.Sequence) {
	l := legOf(s)
	if cause := r.fatal(l); cause != nil {
		r.core.Die(cause)
		return
	}
	switch {
	case r.cfg.Mode == Plain:
		r.core.Wait(s)
	case l.req.Rendezvous.Room == nil:
		r.fail(s, noRoom(l.req.RID))
	case r.cfg.Mode == Prefill:
		r.bootstrap(s)
	default:
		r.receive(s)
	}
}

// fatal returns what a request kills the scheduler of, or nil. The real scheduler checks none of this.
func (r *rank) fatal(l *leg) error {
	p, at := l.req.Prompt, l.req.Rendezvous
	if i := slices.IndexFunc(p, func(id int) bool { return id < 0 || id >= r.cfg.Model.Vocabulary }); i >= 0 {
		return fmt.Errorf("IndexError: token id %d is out of the vocabulary", p[i])
	}
	switch {
	case len(p) == 0 && r.cfg.Mode != Decode:
		return errors.New("ValueError: a prompt without tokens")
	case r.cfg.Mode == Plain:
	case at.Broken && r.cfg.Mode == Prefill:
		return errors.New("TypeError: unhashable type: 'list'")
	case at.Broken:
		return errors.New("AttributeError: 'list' object has no attribute 'startswith'")
	case at.Room == nil:
	case r.cfg.Mode == Prefill && at.Room.negative:
		return errors.New("OverflowError: can't convert negative int to unsigned")
	case r.cfg.Mode == Decode && at.Host == "":
		return errors.New("AttributeError: 'NoneType' object has no attribute 'startswith'")
	}
	return nil
}

// enter notes that a leg has got to a stage, which ends at a deadline if that is not zero.
func (r *rank) enter(l *leg, st stage, deadline time.Time) {
	l.stage, l.since, l.deadline, r.changed = st, time.Now(), deadline, true
}

// fail ends a sequence with a failure, and frees its pages.
func (r *rank) fail(s *core.Sequence, f *Failure) {
	r.countFailure(legOf(s).stage)
	r.core.Fail(s, f)
	r.free(s)
}

// free frees the pages of a sequence that has ended, as soon as no transfer writes to them.
func (r *rank) free(s *core.Sequence) {
	l := legOf(s)
	r.enter(l, alone, time.Time{})
	if l.reading {
		l.freed = true
		return
	}
	r.core.Free(s)
}

// Admitted implements core.Protocol.
func (r *rank) Admitted(s *core.Sequence) {
	s.Usage.Cached = s.Hit
	r.counts.prompt += int64(s.Prompt)
	r.counts.hit += int64(s.Hit)
}

// Finished implements core.Protocol.
func (r *rank) Finished(s *core.Sequence, last core.Output) {
	if r.cfg.Mode == Prefill && !r.isFake(s) {
		r.handOver(s, last)
		return
	}
	r.end(s, last)
}

// end delivers the last output of a sequence and frees its pages.
func (r *rank) end(s *core.Sequence, last core.Output) {
	r.countFinished(s)
	r.core.End(s, last)
	r.free(s)
	r.settle(r.load())
}

// isFake reports whether a leg has no other leg.
func (r *rank) isFake(s *core.Sequence) bool { return legOf(s).req.Rendezvous.Host == fakeHost }

// Aborted implements core.Protocol: the client has left. Only decode tells the other engine.
func (r *rank) Aborted(s *core.Sequence) {
	switch l := legOf(s); l.stage {
	case preallocating, transferring:
		r.release(s)
	default:
		r.depart(s)
		r.free(s)
	}
}

// depart takes a leg out of the places where its other leg finds it.
func (r *rank) depart(s *core.Sequence) {
	l := legOf(s)
	switch l.stage {
	case bootstrapping:
		r.leave(s)
	case inflight:
		l.over()
	case handshaking, preallocating, transferring:
		if room := *l.req.Rendezvous.Room; r.receiving[room] == s {
			delete(r.receiving, room)
		}
	}
}

// abort ends a sequence as /abort_request does.
func (r *rank) abort(s *core.Sequence) {
	l := legOf(s)
	switch l.stage {
	case alone, prefilling:
		r.core.Cut(s, core.Output{Token: -1, Finish: FinishAbort, Usage: s.Usage})
		r.free(s)
	default:
		r.lose(s, causeAbort)
	}
}

// FinishAbort is the finish reason of a sequence that /abort_request has ended.
const FinishAbort = "abort"

// lose ends a leg whose hand-off has failed.
func (r *rank) lose(s *core.Sequence, cause string) {
	l := legOf(s)
	f := l.failure(cause)
	switch l.stage {
	case preallocating, transferring:
		r.countFailure(l.stage)
		r.core.Fail(s, f)
		r.release(s)
	default:
		r.depart(s)
		r.fail(s, f)
	}
}

// abortAll ends the sequences whose request ids begin with a prefix.
func (r *rank) abortAll(prefix string) {
	for s := range r.core.Live() {
		if !s.Done && strings.HasPrefix(s.ID, prefix) {
			r.abort(s)
		}
	}
}

// Preempted implements core.Protocol.
func (r *rank) Preempted(*core.Sequence) {}

// Deadline implements core.Protocol.
func (r *rank) Deadline() (next time.Time, ok, changed bool) {
	if !r.changed {
		return next, false, false
	}
	r.changed = false
	for s := range r.core.Live() {
		if at := legOf(s).deadline; !at.IsZero() && (!ok || at.Before(next)) {
			next, ok = at, true
		}
	}
	return next, ok, true
}

// Expired implements core.Protocol.
func (r *rank) Expired(now time.Time) {
	r.changed = true // the timer has fired, and has to be set again
	due := slices.SortedFunc(r.core.Live(), func(a, b *core.Sequence) int { return a.Times.Queued.Compare(b.Times.Queued) })
	for _, s := range due {
		l := legOf(s)
		if l.deadline.IsZero() || l.deadline.After(now) {
			continue
		}
		switch l.stage {
		case bootstrapping:
			r.lose(s, l.timedOut(r.cfg.Times.Bootstrap, "Bootstrapping"))
		case transferring:
			r.routes.forget(r.transport, l)
			r.lose(s, l.timedOut(r.cfg.Times.Waiting, "WaitingForInput"))
		case releasing:
			r.free(s)
		}
	}
}

func (l *leg) timedOut(after time.Duration, state string) string {
	return fmt.Sprintf("Request %s timed out after %.1fs in KVPoll.%s", l.req.Rendezvous.Room, after.Seconds(), state)
}
