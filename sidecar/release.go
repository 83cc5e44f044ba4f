package sidecar

import (
	"context"
	"fmt"
	"net/http"

	"github.com/tandem-serving/tandem/pd/dialect"
)

// The ways a hand-off is given back.
const (
	wayCancel = "cancel" // decode gets the leg, and loses it: it tells prefill
	wayNone   = "none"   // it was taken up, or nobody could be told
)

// held is a hand-off to give back, with what the engine wants to see of its request: credentials above all.
type held struct {
	id     string
	offer  dialect.Offer
	header http.Header
}

func (x *exchange) held() held { return held{x.id, x.hand.offer, legHeader(x.r.Header, x.id)} }

// releaseHand gives back a hand-off that decode knows nothing of, by sending a decode leg and cancelling it. It returns
// at once; the release goes on after the request.
func (x *exchange) releaseHand(req *request) {
	x.releaseWay = wayCancel
	h, ctx, url := x.held(), context.WithoutCancel(x.ctx), x.s.engine+x.r.URL.RequestURI()
	l, err := x.s.dialect.Release(req.Request, h.offer)
	x.s.life.background.Go(func() {
		if err != nil {
			x.s.released(h.id, false, fmt.Errorf("editing the release: %w", err))
			return
		}
		g, err := startLeg(ctx, x.s.local, url, h.header.Clone(), l)
		if err != nil {
			x.s.released(h.id, false, err)
			return
		}
		g.stream = true
		x.s.abandon(g, h)
	})
}

// releaseLeg gives back the hand-off of a decode leg that is under way.
func (x *exchange) releaseLeg(g *leg) {
	x.releaseWay = wayCancel
	h := x.held()
	x.s.life.background.Go(func() { x.s.abandon(g, h) })
}

// abandon ends a leg and sees to it that the engine gives the hand-off back, also when it refused or lost the leg.
func (s *Server) abandon(g *leg, h held) {
	if status, delivered := g.abandon(); !delivered || keepsHold(status) {
		s.forget(h)
		return
	}
	s.released(h.id, true, nil)
}

// keepsHold reports whether a decode leg that was answered with status may have left the hand-off held: a front end that
// refuses it need not have noted it, and a failed transfer tells nobody. One that is not admitted is let go.
func keepsHold(status int) bool {
	return status >= 400 && status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests
}

// forgetHand gives back a hand-off that must not be read any more, or that decode's front end refused: by a request that
// the engine refuses after it has taken note of the hand-off.
func (x *exchange) forgetHand() {
	x.releaseWay = wayCancel
	h := x.held()
	x.s.life.background.Go(func() { x.s.forget(h) })
}

// forget sends the request that makes the engine give the hand-off back without reading it.
func (s *Server) forget(h held) {
	f, ok := s.dialect.(dialect.Forgetter)
	if !ok {
		s.released(h.id, false, nil)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	path, b := f.Forget(h.offer)
	h.header["Content-Type"] = []string{"application/json"}
	req, err := newHeldLeg(ctx, s.engine+path, h.header, dialect.Leg{Segments: [][]byte{b}, Length: int64(len(b))})
	if err != nil {
		s.released(h.id, false, err)
		return
	}
	resp, err := s.local.RoundTrip(req)
	if err != nil {
		s.released(h.id, false, err)
		return
	}
	resp.Body.Close()
	// Any other refusal came before the engine took note of the hand-off.
	s.released(h.id, resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusBadRequest, nil)
}

func isClientError(status int) bool { return status >= 400 && status < 500 }

// released counts a release. One that did not work leaves blocks stranded until the lease ends.
func (s *Server) released(id string, ok bool, err error) {
	if ok {
		s.metrics.releases.WithLabelValues(wayCancel, "ok").Inc()
		return
	}
	s.metrics.releases.WithLabelValues(wayCancel, "failed").Inc()
	s.metrics.stranded.Inc()
	s.quiet.warn("hand-off not released: the prefill engine holds its blocks until the lease ends", "request_id", id, "error", err)
}
