package sidecar

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
)

// streamLocal passes a request to the engine beside, while it comes: nothing is held. What clients may not send is
// overwritten on the way.
func (x *exchange) streamLocal() error {
	if x.r.ContentLength > x.s.cfg.Trust.BodyLimit {
		return tooLarge(x.s.cfg.Trust.BodyLimit)
	}
	source := x.s.guard(x.r.Body)
	defer source.free()
	req, err := newLeg(x.ctx, x.s.engine+x.r.URL.RequestURI(), legHeader(x.r.Header, x.id), x.r.ContentLength, source.again)
	if err != nil {
		return fmt.Errorf("making the local leg: %w", err)
	}
	return x.sendLocal(req, source)
}

// heldLocal sends a request that was held.
func (x *exchange) heldLocal(req *request) error {
	l := dialect.Leg{Segments: req.body.Segments(), Length: req.body.Len()}
	if !req.asIs {
		var err error
		if l, err = req.Local(); err != nil {
			return fmt.Errorf("editing the local leg: %w", err)
		}
	}
	x.holds.leg = l.Segments
	r, err := newHeldLeg(x.ctx, x.s.engine+x.r.URL.RequestURI(), legHeader(x.r.Header, x.id), l)
	if err != nil {
		return fmt.Errorf("making the local leg: %w", err)
	}
	return x.sendLocal(r, nil)
}

// sendLocal sends a leg to the engine beside and relays its answer.
func (x *exchange) sendLocal(req *http.Request, source *guarded) (err error) {
	ctx, span := x.s.tracing.leg(req.Context(), spanDecode, req.Header)
	status := 0
	defer func() { endLeg(span, status, err) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	x.state = decoding
	sent := time.Now()
	x.clock.Enter(pd.PhaseFirst, sent)
	inflight := x.s.metrics.inflight.WithLabelValues(room, "decode")
	inflight.Inc()
	defer inflight.Dec()
	resp, err := x.s.local.RoundTrip(req.WithContext(ctx))
	if err != nil {
		x.s.metrics.leg("local", 0, time.Since(sent))
		return x.localFailure(source, err)
	}
	defer resp.Body.Close()
	source.answered()
	x.s.metrics.leg("local", resp.StatusCode, time.Since(sent))
	status = resp.StatusCode
	x.rename(resp)
	return x.relayFresh(resp)
}

// localFailure says why the engine beside gave no answer.
func (x *exchange) localFailure(source *guarded, err error) error {
	if readErr := source.failure(); readErr != nil {
		if refusal := refusalOf(readErr, x.s.cfg.Trust.BodyLimit); refusal != nil {
			return refusal
		}
		return x.readError(readErr)
	}
	if x.ctx.Err() != nil {
		return x.gone()
	}
	refusal := pd.Refuse(pd.NoEndpoint, "The decode engine of this pod does not answer. Try again; another pod will.")
	refusal.Cause = err
	return refusal
}
