package sidecar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/lease"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// The ways a hand-off is released.
const (
	wayNIXL   = "nixl"   // the sidecar notifies the prefill engine
	wayCancel = "cancel" // the decode engine gets the leg, loses it, and tells the prefill engine
	wayAbort  = "abort"  // both engines are told to abort the legs
	wayNone   = "none"   // decode read it, or no engine could be told
)

// releasing is a hand-off that is being released, with what the engine wants to see of its request: credentials above all.
type releasing struct {
	id     string
	of     dialect.Handoff
	hold   *lease.Hold
	header http.Header
	span   trace.Span // of the release
}

// release begins the release of the hand-off, by the way that will be tried first.
func (x *exchange) release(way string) releasing {
	return x.beginRelease(x.handoff.of, x.handoff.hold, way)
}

func (x *exchange) beginRelease(of dialect.Handoff, hold *lease.Hold, way string) releasing {
	x.releaseWay = way
	_, span := x.s.tracing.tracer.Start(x.ctx, spanRelease, clientSpan)
	return releasing{x.ID, of, hold, transport.LegHeader(x.r.Header, x.ID), span}
}

// firstWay is wayNIXL for a hand-off whose engine can be notified, else wayCancel.
func firstWay(hold *lease.Hold) string {
	if hold.Ready() {
		return wayNIXL
	}
	return wayCancel
}

// pinned reports whether an engine keeps anything for a hand-off that decode does not read.
func pinned(of dialect.Handoff) bool {
	_, releases := of.(dialect.Releaser)
	_, forgets := of.(dialect.Forgetter)
	return releases || forgets
}

// releaseUnsent releases a hand-off that decode has not heard of: by a notice, or by sending a decode leg and cancelling
// it. It returns at once; the release goes on after the request.
func (x *exchange) releaseUnsent() {
	if !pinned(x.handoff.of) {
		return
	}
	r, ctx, url := x.release(firstWay(x.handoff.hold)), context.WithoutCancel(x.ctx), x.s.engine+x.r.URL.RequestURI()
	releaser, discards := r.of.(dialect.Releaser)
	var l request.Payload
	var err error
	if discards {
		l, err = releaser.Discard() // now: the request's body may be dropped when the exchange ends
	}
	x.s.life.release(func() {
		if x.s.notify(r) {
			return
		}
		if !discards {
			x.s.releaseUnread(r)
			return
		}
		if err != nil {
			x.s.released(r, false, fmt.Errorf("editing the release: %w", err))
			return
		}
		g, err := startLeg(ctx, r.of, x.s.local, url, r.header.Clone(), l)
		if err != nil {
			x.s.released(r, false, err)
			return
		}
		g.stream = true
		x.s.abandon(g, r)
	})
}

// releaseLeg releases the hand-off of a decode leg that is under way, and ends the leg.
func (x *exchange) releaseLeg(g *leg) {
	if !pinned(x.handoff.of) {
		g.drop()
		return
	}
	r := x.release(wayCancel)
	x.s.life.release(func() { x.s.abandon(g, r) })
}

// abandon ends a leg and makes sure that the hand-off is released, also when the engine refused or lost the leg.
func (s *Server) abandon(g *leg, r releasing) {
	releaser, ok := r.of.(dialect.Releaser)
	switch status, delivered := g.abandon(); {
	case !delivered:
		s.releaseInDoubt(r)
	case ok && releaser.Pins(status):
		s.releaseUnread(r)
	default:
		s.released(r, true, nil)
	}
}

// releaseUnread releases a hand-off that decode does not read: it was never asked to, refused, or failed.
func (x *exchange) releaseUnread() { x.releaseOf(x.handoff.of, x.handoff.hold) }

func (x *exchange) releaseOf(of dialect.Handoff, hold *lease.Hold) {
	if !pinned(of) {
		return
	}
	r := x.beginRelease(of, hold, firstWay(hold))
	x.s.life.release(func() { x.s.releaseUnread(r) })
}

// releaseInDoubt releases a hand-off that decode may still be reading, as far as we can tell.
func (x *exchange) releaseInDoubt() {
	if !pinned(x.handoff.of) {
		return
	}
	r := x.release(wayCancel)
	x.s.life.release(func() { x.s.releaseInDoubt(r) })
}

// releaseUnread releases what decode does not read.
func (s *Server) releaseUnread(r releasing) {
	if s.notify(r) {
		return
	}
	ok, err := s.forget(r)
	s.released(r, ok, err)
}

// releaseInDoubt releases what decode may be reading: prefill must hear of it from decode alone, unless decode is gone.
func (s *Server) releaseInDoubt(r releasing) {
	ok, err := s.forget(r)
	if !ok && errors.Is(err, syscall.ECONNREFUSED) && s.notify(r) {
		return
	}
	s.released(r, ok, err)
}

// notify notifies the prefill engine. False says that another way has to be tried.
func (s *Server) notify(r releasing) bool {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	err := r.hold.Release(ctx)
	switch {
	case err == nil:
		s.metrics.releases.WithLabelValues(wayNIXL, "ok").Inc()
		endRelease(r.span, wayNIXL, nil)
	case errors.Is(err, lease.ErrNoWay), errors.Is(err, lease.ErrReleased): // the latter: it was tried before
	default:
		// Notifying an engine twice costs a line in its log; not notifying it, its blocks until the lease ends.
		s.metrics.releases.WithLabelValues(wayNIXL, "unsure").Inc()
		s.warnings.Warn("the prefill engine may have been told to let a hand-off go, and is told again by way of decode", "request_id", r.id, "error", err)
	}
	return err == nil
}

// errUnforgettable is for engines whose protocol has no such request.
var errUnforgettable = errors.New("the protocol has no way to make decode give a hand-off back")

// forget makes the decode engine release the hand-off without reading it. It tries until decode has answered, its port is
// closed, or it does not answer in time.
func (s *Server) forget(r releasing) (ok bool, err error) {
	f, can := r.of.(dialect.Forgetter)
	if !can {
		return false, errUnforgettable
	}
	tries, pause := f.Tries()
	for try := range tries {
		if try > 0 {
			time.Sleep(pause << (try - 1))
		}
		ok, err = s.sendForget(r, f)
		if err == nil || errors.Is(err, syscall.ECONNREFUSED) || isTimeout(err) {
			break
		}
	}
	return ok, err
}

func (s *Server) sendForget(r releasing, f dialect.Forgetter) (ok bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	path, b := f.Forget()
	r.header["Content-Type"] = []string{"application/json"}
	req, err := transport.NewBufferedLeg(ctx, s.engine+path, r.header, [][]byte{b}, int64(len(b)))
	if err != nil {
		return false, err
	}
	resp, err := s.local.RoundTrip(req)
	if err != nil {
		return false, err
	}
	resp.Body.Close()
	return f.Forgotten(resp.StatusCode), nil
}

func isClientError(status int) bool { return status >= 400 && status < 500 }

// released counts a release by way of decode. One that did not work leaves blocks stranded until the lease ends.
func (s *Server) released(r releasing, ok bool, err error) {
	result := "ok"
	if !ok {
		result = "failed"
		s.metrics.stranded.Inc()
		s.warnings.Warn("hand-off not released: the prefill engine holds its blocks until the lease ends", "request_id", r.id, "error", err)
		err = cmp.Or(err, errUnreleased)
	}
	s.metrics.releases.WithLabelValues(wayCancel, result).Inc()
	endRelease(r.span, wayCancel, err)
}

// errUnreleased is said of a decode engine that answered anything else than it should.
var errUnreleased = errors.New("decode did not take note of the hand-off")
