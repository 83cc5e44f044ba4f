package sidecar

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/relay"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// streamLocal passes a request to the engine beside, while it comes: nothing is held. What clients may not send is
// overwritten on the way.
func (x *exchange) streamLocal() error {
	if x.r.ContentLength > x.s.cfg.Trust.BodyLimit {
		return x.s.intake.TooLarge()
	}
	source := x.s.intake.Guard(x.r.Body)
	defer source.Free()
	req, err := transport.NewLeg(x.ctx, x.s.engine+x.r.URL.RequestURI(), transport.LegHeader(x.r.Header, x.ID), x.r.ContentLength, source.Again)
	if err != nil {
		return fmt.Errorf("making the local leg: %w", err)
	}
	return x.sendLocal(req, source)
}

// heldLocal sends a request that was held.
func (x *exchange) heldLocal(req *intake.Request) error {
	l := request.Payload{Segments: req.Body.Segments(), Length: req.Body.Len()}
	if !req.AsIs {
		var err error
		if l, err = req.Local(); err != nil {
			return fmt.Errorf("editing the local leg: %w", err)
		}
	}
	x.buf.Leg = l.Segments
	r, err := transport.NewBufferedLeg(x.ctx, x.s.engine+x.r.URL.RequestURI(), transport.LegHeader(x.r.Header, x.ID), l.Segments, l.Length)
	if err != nil {
		return fmt.Errorf("making the local leg: %w", err)
	}
	return x.sendLocal(r, nil)
}

// sendLocal sends a leg to the engine beside and relays its answer.
func (x *exchange) sendLocal(req *http.Request, source *intake.GuardedBody) (err error) {
	ctx, span := x.s.tracing.leg(req.Context(), spanDecode, req.Header)
	status := 0
	defer func() { x.endLeg(span, status, err) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	x.state = decoding
	sent := time.Now()
	x.Clock.Enter(pd.PhaseFirst, sent)
	inflight := x.s.metrics.inflight.WithLabelValues(room, "decode")
	inflight.Inc()
	defer inflight.Dec()
	resp, err := x.s.local.RoundTrip(req.WithContext(ctx))
	if err != nil {
		x.s.metrics.leg("local", 0, time.Since(sent))
		return x.localFailure(source, err)
	}
	defer resp.Body.Close()
	source.Answered()
	x.s.metrics.leg("local", resp.StatusCode, time.Since(sent))
	status = resp.StatusCode
	x.rename(resp)
	x.RetryElsewhere = status >= http.StatusInternalServerError && !relay.NotAdmitted(status) && x.dying(0)
	return x.RelayFresh(resp)
}

// dying tells whether an engine that has answered with an error of its own is at its end, or comes to it in a moment. vLLM
// answers 500 to all that it runs when its core dies, and when it is told to stop: another decode pod can do what this one
// has left.
func (x *exchange) dying(moment time.Duration) bool {
	ctx, cancel := context.WithTimeout(x.ctx, transport.ProbeTimeout+moment)
	defer cancel()
	again := time.NewTicker(probePause)
	defer again.Stop()
	for over := time.Now().Add(moment); ; {
		err := x.s.decodeEngine().Healthy(ctx)
		if ctx.Err() != nil { // the client has left, or the engine is slow to answer: that is no death
			return false
		}
		if err != nil {
			x.s.beside.doubt()
			x.s.warnings.Warn("engine is dying", "request_id", x.ID, "error", err)
			return true
		}
		if time.Now().After(over) {
			return false
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return false
		}
	}
}

// localFailure says why the engine beside gave no answer.
func (x *exchange) localFailure(source *intake.GuardedBody, err error) error {
	if readErr := source.Failure(); readErr != nil {
		if refusal := x.s.intake.RefusalOf(readErr); refusal != nil {
			return refusal
		}
		return x.intakeError(x.body.Failure(readErr))
	}
	if x.ctx.Err() != nil {
		return x.gone()
	}
	x.s.beside.doubt()
	return transport.Unreachable(err)
}
