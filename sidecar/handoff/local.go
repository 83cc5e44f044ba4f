package handoff

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/relay"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// StreamLocal passes a call to the local engine while its body arrives: nothing is buffered. Members that clients may not
// send are overwritten on the way. A call that was planned remote must be one that cannot be split. Errors are for Fail.
func (x *Exchange) StreamLocal() error {
	if x.Route.Verdict == pd.Remote {
		return x.unsplittable(x.streamLocal)
	}
	return x.streamLocal()
}

func (x *Exchange) streamLocal() error {
	if err := x.alone(); err != nil {
		return err
	}
	if x.request.ContentLength > x.legs.Intake.BodyLimit {
		return x.legs.Intake.TooLarge()
	}
	source := x.legs.Intake.Guard(x.request.Body)
	defer source.Free()
	req, err := transport.NewLeg(x.Context, x.legs.Decode.URL+x.request.URL.RequestURI(), x.localHeader(), x.request.ContentLength, source.Again)
	if err != nil {
		return fmt.Errorf("making the local leg: %w", err)
	}
	return x.sendLocal(req, source)
}

// Local passes a buffered call to the local engine. A call that was planned remote must be one that cannot be split. Errors are for
// Fail.
func (x *Exchange) Local(req *intake.Request) error {
	x.mayAskAnew(req)
	return x.orAnew(x.local(req))
}

func (x *Exchange) local(req *intake.Request) error {
	if x.Route.Verdict == pd.Remote {
		return x.unsplittable(func() error { return x.encodedLocal(req) })
	}
	return x.encodedLocal(req)
}

// encodedLocal runs encoder legs if the route asks for them, and sends the request to the local engine.
func (x *Exchange) encodedLocal(req *intake.Request) error {
	req, err := x.withEncodings(req)
	if err != nil {
		return err
	}
	return x.bufferedLocal(req)
}

// bufferedLocal sends a buffered request to the local engine.
func (x *Exchange) bufferedLocal(req *intake.Request) error {
	if err := x.alone(); err != nil {
		return err
	}
	l := request.Payload{Segments: req.Body.Segments(), Length: req.Body.Len()}
	if !req.AsIs {
		var err error
		if l, err = x.localPayload(req); err != nil {
			return fmt.Errorf("editing the local leg: %w", err)
		}
	}
	if !req.AsIs {
		l = x.mayGoOn(req, l)
	}
	x.Buffer.Leg = l.Segments
	r, err := transport.NewBufferedLeg(x.Context, x.legs.Decode.URL+x.request.URL.RequestURI(), x.localHeader(), l.Segments, l.Length)
	if err != nil {
		return fmt.Errorf("making the local leg: %w", err)
	}
	return x.sendLocal(r, nil)
}

// localHeader makes the headers of a leg without a hand-off.
func (x *Exchange) localHeader() http.Header {
	h := x.legHeader()
	if d, ok := x.legs.Dialect.(dialect.LocalRanker); ok && x.Route.Plan != nil {
		d.SetLocalRank(x.Route.Plan.DecodeRank, h)
	}
	return h
}

// sendLocal sends a leg to the local engine and relays its answer.
func (x *Exchange) sendLocal(req *http.Request, source *intake.GuardedBody) (err error) {
	ctx, span := x.legs.tracing.leg(req.Context(), spanDecode, req.Header)
	status := 0
	defer func() { x.endLegSpan(span, status, err) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x.state = decoding
	sent := time.Now()
	x.Clock.Enter(pd.PhaseFirst, sent)
	inflight := x.legs.Metrics.Inflight.WithLabelValues("decode")
	inflight.Inc()
	defer inflight.Dec()
	v := x.legs.watchLocal(req.ContentLength, cancel)
	x.beginsLeg(v, func() { cancel(errLeft) })
	defer v.over(false)
	hung := ctx.Err() != nil // the engine gets nothing
	resp, err := x.legs.Decode.Transport.RoundTrip(req.WithContext(ctx))
	if err != nil {
		if context.Cause(ctx) == errHung {
			err = errHung
		}
		x.legs.Metrics.leg("local", 0, time.Since(sent))
		x.record.leg("local", x.legs.localEngine.address, sent, time.Now(), 0, err)
		if !hung && !refusedConnection(err) {
			x.noteLeg()
		}
		return x.localFailure(source, err)
	}
	v.reads(resp)
	x.noteLeg()
	defer resp.Body.Close()
	source.Answered()
	x.legs.Metrics.leg("local", resp.StatusCode, time.Since(sent))
	x.record.leg("local", x.legs.localEngine.address, sent, time.Now(), resp.StatusCode, nil)
	status = resp.StatusCode
	x.rename(resp)
	x.RetryElsewhere = status >= http.StatusInternalServerError && !relay.NotAdmitted(status) && x.dying(0)
	if x.RetryElsewhere {
		if answered, end := x.askAnew(errDied); answered {
			return end
		}
	}
	if x.anew != nil {
		return x.relayHeld(resp, v)
	}
	v.begins()
	return x.RelayFresh(resp)
}

const (
	// abortMoment is how long after it has aborted its requests an engine that is told to stop may still call itself healthy:
	// vLLM 0.32.0 took up to 100 ms.
	abortMoment = 500 * time.Millisecond
	// probePause is the time between two probes of the engine's health.
	probePause = 50 * time.Millisecond
)

// dying reports whether an engine that has answered with an error of its own is ending, or ends within moment. vLLM answers
// 500 to all its requests when its core dies, and when it is told to stop: another decode pod can serve them.
func (x *Exchange) dying(moment time.Duration) bool {
	ctx, cancel := context.WithTimeout(x.Context, transport.ProbeTimeout+moment)
	defer cancel()
	again := time.NewTicker(probePause)
	defer again.Stop()
	for over := time.Now().Add(moment); ; {
		err := x.legs.Decode.Healthy(ctx)
		if ctx.Err() != nil { // the client has left, or the engine is slow to answer, which does not mean that it is ending
			return false
		}
		if err != nil {
			x.legs.localEngine.doubt()
			x.legs.warnings.Warn("engine is dying", "request_id", x.ID, "error", err)
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

// localFailure says why the local engine gave no answer.
func (x *Exchange) localFailure(source *intake.GuardedBody, err error) error {
	if readErr := source.Failure(); readErr != nil {
		if refusal := x.legs.Intake.RefusalOf(readErr); refusal != nil {
			return refusal
		}
		return x.IntakeError(x.Body.Failure(readErr))
	}
	if x.Context.Err() != nil {
		return x.contextError()
	}
	x.legs.localEngine.doubt()
	return transport.Unreachable(err)
}
