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
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/lease"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// The ways a hand-off is given back.
const (
	wayNIXL   = "nixl"   // prefill is told by the sidecar itself
	wayCancel = "cancel" // decode gets the leg, and loses it: it tells prefill
	wayNone   = "none"   // it was taken up, or nobody could be told
)

// held is a hand-off to give back, with what the engine wants to see of its request: credentials above all.
type held struct {
	id     string
	offer  dialect.Offer
	hold   *lease.Hold
	header http.Header
	span   trace.Span // of the release
}

// held begins the release of the hand-off, by the way that will be tried first.
func (x *exchange) held(way string) held { return x.heldOffer(x.hand.offer, x.hand.hold, way) }

func (x *exchange) heldOffer(o dialect.Offer, hold *lease.Hold, way string) held {
	x.releaseWay = way
	_, span := x.s.tracing.tracer.Start(x.ctx, spanRelease, clientSpan)
	return held{x.id, o, hold, transport.LegHeader(x.r.Header, x.id), span}
}

// direct is wayNIXL for a hand-off whose engine can be told, else wayCancel.
func direct(hold *lease.Hold) string {
	if hold.Ready() {
		return wayNIXL
	}
	return wayCancel
}

// releaseHand gives back a hand-off that decode knows nothing of: directly, or by sending a decode leg and cancelling it.
// It returns at once; the release goes on after the request.
func (x *exchange) releaseHand(req *intake.Request) {
	h, ctx, url := x.held(direct(x.hand.hold)), context.WithoutCancel(x.ctx), x.s.engine+x.r.URL.RequestURI()
	l, err := x.s.dialect.Release(req.Request, h.offer)
	x.s.life.release(func() {
		if x.s.tell(h) {
			return
		}
		if err != nil {
			x.s.released(h, false, fmt.Errorf("editing the release: %w", err))
			return
		}
		g, err := startLeg(ctx, x.s.local, url, h.header.Clone(), l)
		if err != nil {
			x.s.released(h, false, err)
			return
		}
		g.stream = true
		x.s.abandon(g, h)
	})
}

// releaseLeg gives back the hand-off of a decode leg that is under way.
func (x *exchange) releaseLeg(g *leg) {
	h := x.held(wayCancel)
	x.s.life.release(func() { x.s.abandon(g, h) })
}

// abandon ends a leg and sees to it that the hand-off is given back, also when the engine refused or lost the leg.
func (s *Server) abandon(g *leg, h held) {
	switch status, delivered := g.abandon(); {
	case !delivered:
		s.giveUp(h)
	case keepsHold(status):
		s.giveBack(h)
	default:
		s.released(h, true, nil)
	}
}

// keepsHold reports whether a decode leg that was answered with status may have left the hand-off held: a front end that
// refuses it need not have noted it, and a failed transfer tells nobody. One that is not admitted is let go; vLLM says so
// with 503 alone, and who says 429 is something before it.
func keepsHold(status int) bool { return status >= 400 && status != http.StatusServiceUnavailable }

// giveHandBack gives back a hand-off that decode does not read: it was never asked to, refused, or failed.
func (x *exchange) giveHandBack() { x.giveOfferBack(x.hand.offer, x.hand.hold) }

func (x *exchange) giveOfferBack(o dialect.Offer, hold *lease.Hold) {
	h := x.heldOffer(o, hold, direct(hold))
	x.s.life.release(func() { x.s.giveBack(h) })
}

// giveHandUp gives back a hand-off that decode may still be reading, as far as anybody knows.
func (x *exchange) giveHandUp() {
	h := x.held(wayCancel)
	x.s.life.release(func() { x.s.giveUp(h) })
}

// giveBack gives back what decode does not read.
func (s *Server) giveBack(h held) {
	if s.tell(h) {
		return
	}
	ok, err := s.insist(h)
	s.released(h, ok, err)
}

// giveUp gives back what decode may be reading: prefill must hear of it from decode alone, unless there is no decode any
// more.
func (s *Server) giveUp(h held) {
	ok, err := s.insist(h)
	if !ok && errors.Is(err, syscall.ECONNREFUSED) && s.tell(h) {
		return
	}
	s.released(h, ok, err)
}

// forgetTries and forgetPause are how often forget is tried, and the first pause, which doubles: the connections of an engine
// that dies break a little before its port is closed. One that heard of it the first time tells prefill twice, which costs a
// line in a log.
const (
	forgetTries = 4
	forgetPause = 25 * time.Millisecond
)

// insist is forget, until decode has answered, its port is closed, or it keeps us waiting.
func (s *Server) insist(h held) (ok bool, err error) {
	for try := range forgetTries {
		if try > 0 {
			time.Sleep(forgetPause << (try - 1))
		}
		ok, err = s.forget(h)
		if err == nil || errors.Is(err, errUnforgettable) || errors.Is(err, syscall.ECONNREFUSED) || isTimeout(err) {
			break
		}
	}
	return ok, err
}

// tell gives a hand-off back directly. False says that another way has to be tried.
func (s *Server) tell(h held) bool {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	err := h.hold.Release(ctx)
	switch {
	case err == nil:
		s.metrics.releases.WithLabelValues(wayNIXL, "ok").Inc()
		endRelease(h.span, wayNIXL, nil)
	case errors.Is(err, lease.ErrNoWay), errors.Is(err, lease.ErrReleased): // the latter: it was tried before
	default:
		// To be told twice costs an engine a line in its log; not to be told, its blocks until the lease ends.
		s.metrics.releases.WithLabelValues(wayNIXL, "unsure").Inc()
		s.warnings.Warn("the prefill engine may have been told to let a hand-off go, and is told again by way of decode", "request_id", h.id, "error", err)
	}
	return err == nil
}

// errUnforgettable is for engines whose protocol has no such request.
var errUnforgettable = errors.New("the protocol has no way to make decode give a hand-off back")

// forget sends the request that makes the decode engine give the hand-off back without reading it: the engine refuses it
// after it has taken note of the hand-off.
func (s *Server) forget(h held) (ok bool, err error) {
	f, can := s.dialect.(dialect.Forgetter)
	if !can {
		return false, errUnforgettable
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	path, b := f.Forget(h.offer)
	h.header["Content-Type"] = []string{"application/json"}
	req, err := transport.NewBufferedLeg(ctx, s.engine+path, h.header, [][]byte{b}, int64(len(b)))
	if err != nil {
		return false, err
	}
	resp, err := s.local.RoundTrip(req)
	if err != nil {
		return false, err
	}
	resp.Body.Close()
	// Any other refusal came before the engine took note of the hand-off.
	return resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusBadRequest, nil
}

func isClientError(status int) bool { return status >= 400 && status < 500 }

// released counts a release by way of decode. One that did not work leaves blocks stranded until the lease ends.
func (s *Server) released(h held, ok bool, err error) {
	result := "ok"
	if !ok {
		result = "failed"
		s.metrics.stranded.Inc()
		s.warnings.Warn("hand-off not released: the prefill engine holds its blocks until the lease ends", "request_id", h.id, "error", err)
		err = cmp.Or(err, errUnreleased)
	}
	s.metrics.releases.WithLabelValues(wayCancel, result).Inc()
	endRelease(h.span, wayCancel, err)
}

// errUnreleased is said of a decode engine that answered anything else than it should.
var errUnreleased = errors.New("decode did not take note of the hand-off")

// late tells whether decode must not be asked any more, at a time, to read the hand-off: its blocks may hold another prompt
// by then. Heartbeats make it later.
func (x *exchange) late(at time.Time) bool {
	limit := x.hand.finished.Add(x.s.cfg.ageLimit())
	if safe := x.hand.hold.Safe(); safe.After(limit) {
		limit = safe
	}
	return at.After(limit)
}
