package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/relay"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// errSilent is the cause of a leg that was cancelled because its first event did not come.
var errSilent = errors.New("decode sent no event before the deadline")

// runDecode sends the decode leg and relays its answer. With reason "" the answer is under way or complete. Another reason
// says that nothing has gone to the client and the request should be prefilled locally. The error is final.
func (x *exchange) runDecode(req *intake.Request) (reason pd.Reason, err error) {
	if x.ctx.Err() != nil {
		return "", x.leaveHandedOff()
	}
	if now := time.Now(); x.handoff.late(now) {
		x.handoff.age = now.Sub(x.handoff.finished)
		x.releaseUnread()
		return x.tooLate(), nil
	}
	l, err := x.handoff.of.Decode()
	if err != nil {
		x.releaseUnsent()
		return "", fmt.Errorf("editing the decode leg: %w", err)
	}
	x.buf.Leg = l.Segments
	header := transport.LegHeader(x.r.Header, x.ID)
	ctx, span := x.s.tracing.leg(x.ctx, spanDecode, header, attribute.String("server.address", x.s.cfg.Engine.Host),
		attribute.Int("server.port", x.s.cfg.Engine.Port))
	status := 0
	defer func() {
		if reason != "" {
			x.endLeg(span, status, x.Failure)
			return
		}
		x.endLeg(span, status, err)
	}()
	sent := time.Now()
	g, err := startLeg(ctx, x.handoff.of, x.s.local, x.s.engine+x.r.URL.RequestURI(), header, l)
	if err != nil {
		x.releaseUnsent()
		return "", fmt.Errorf("making the decode leg: %w", err)
	}
	g.stream = req.Stream()
	x.state = decoding
	x.Clock.Enter(pd.PhaseFirst, sent)
	inflight := x.s.metrics.inflight.WithLabelValues(room, "decode")
	inflight.Inc()
	defer inflight.Dec()
	resp, trouble, err := x.awaitHeaders(g)
	if resp != nil {
		status = resp.StatusCode
	}
	x.s.metrics.leg("decode", status, time.Since(sent))
	if resp == nil {
		return x.noAnswer(g, trouble, err)
	}
	defer resp.Body.Close()
	defer g.cancel(nil)
	// From here on the engine has the leg: ending it with its client is safe.
	defer context.AfterFunc(x.ctx, func() { g.cancel(errGone) })()
	return x.takeAnswer(g, resp)
}

// leaveHandedOff ends a request whose client left, or which was cut, between the legs.
func (x *exchange) leaveHandedOff() error {
	if x.state.on(x.interrupted()).has(releaseHandoff) {
		x.releaseUnsent()
	}
	return x.gone()
}

// tooLate notes a hand-off that is too old to be trusted, and has been given back unread.
func (x *exchange) tooLate() pd.Reason {
	x.s.warnings.Warn("hand-off too old", "request_id", x.ID, "age", x.handoff.age, "limit", x.handoff.of.(dialect.Leased).Trust())
	x.s.metrics.retries.WithLabelValues("decode", "late").Inc()
	return pd.HandoffLate
}

// awaitHeaders waits for the answer's headers. Without an answer, trouble and err say why; a leg that was not taken is
// still running then only if the client left or the drain cut it.
//
// A whole (not streamed) answer has its headers last, so silence says nothing about it. It is taken for lost only if the
// prefill pod does not answer any more either: that is what a transfer waits for without end.
func (x *exchange) awaitHeaders(g *leg) (*http.Response, trouble, error) {
	silence := time.NewTicker(x.s.cfg.Engine.FirstEvent)
	defer silence.Stop()
	for {
		select {
		case r := <-g.result:
			if r.err != nil {
				return nil, failed, r.err
			}
			return r.resp, 0, nil
		case <-x.ctx.Done():
			return nil, x.interrupted(), x.gone()
		case <-silence.C:
			if err := x.askPrefill(); err != nil && x.ctx.Err() == nil {
				g.drop()
				return nil, timedOut, fmt.Errorf("%w, and the prefill pod is gone: %w", errSilent, err)
			}
		}
	}
}

// askPrefill asks the pod that holds the KV cache whether it lives.
func (x *exchange) askPrefill() error {
	ctx, cancel := context.WithTimeout(x.ctx, transport.ProbeTimeout)
	defer cancel()
	return x.s.prefillEngine(x.handoff.target).Healthy(ctx)
}

// noAnswer decides on a decode leg that gave no headers.
func (x *exchange) noAnswer(g *leg, t trouble, err error) (pd.Reason, error) {
	switch act := x.state.on(t); {
	case act.has(redo):
		g.cancel(nil)
		x.releaseInDoubt()
		return x.redoWithout(t, err), nil
	case act.has(releaseHandoff):
		x.releaseLeg(g)
	}
	return "", err
}

// redoWithout notes that decode could not use the hand-off, which has been given back.
func (x *exchange) redoWithout(t trouble, err error) pd.Reason {
	cause := "failed"
	if t == timedOut {
		cause = "timeout"
	}
	x.Failure = err
	x.s.beside.doubt()
	x.s.metrics.retries.WithLabelValues("decode", cause).Inc()
	x.s.warnings.Warn("decode leg failed", "request_id", x.ID, "cause", cause, "error", err)
	return pd.TransferFailed
}

// takeAnswer looks at a decode answer before anything of it goes to the client.
func (x *exchange) takeAnswer(g *leg, resp *http.Response) (pd.Reason, error) {
	x.handoff.taken = true
	if cached, ok := x.handoff.cached(); ok {
		x.CorrectCached(cached)
	}
	x.handoff.age = g.age(x.handoff.finished)
	x.s.metrics.handoffAge.Observe(x.handoff.age.Seconds())
	x.rename(resp)
	switch code := resp.StatusCode; {
	case code == http.StatusServiceUnavailable, isClientError(code): // 503: the redo would not be admitted either
		if x.handoff.pins(code) {
			x.releaseUnread()
		}
		return "", x.RelayFresh(resp)
	case code >= http.StatusInternalServerError:
		if x.handoff.pins(code) {
			x.releaseUnread()
		}
		return x.redoWithout(failed, fmt.Errorf("decode answered %s", resp.Status)), nil
	case x.handoff.late(x.handoff.finished.Add(x.handoff.age)):
		// The leg was written later than planned: this process, or its engine's socket, stood still in between.
		x.releaseInDoubt()
		return x.tooLate(), nil
	case !relay.IsEventStream(resp.Header), relay.Encoded(resp.Header): // the relay cannot read an encoded stream
		return x.takeWhole(resp)
	}
	return x.takeStream(g, resp)
}

// takeWhole waits for the first byte: until it has come, the engine may break off and the request be redone.
func (x *exchange) takeWhole(resp *http.Response) (pd.Reason, error) {
	a := relay.NewAnswer(resp.Body)
	defer a.Free()
	if _, err := a.Peek(); err == nil || err == io.EOF {
		x.handoff.hold.End()
		return "", x.Relay(resp, a)
	} else if x.ctx.Err() == nil {
		x.releaseInDoubt()
		return x.redoWithout(failed, err), nil
	}
	return "", x.taken()
}

// taken ends a request whose client left, or which was cut, when the engine had the leg: it loses it, and tells prefill.
func (x *exchange) taken() error {
	if pinned(x.handoff.of) {
		x.s.released(x.release(wayCancel), true, nil)
	}
	return x.gone()
}

// takeStream waits for the first event, which is where a failed transfer shows: the status was sent before it began.
func (x *exchange) takeStream(g *leg, resp *http.Response) (pd.Reason, error) {
	a := relay.NewAnswer(resp.Body)
	defer a.Free()
	silence := time.AfterFunc(x.s.cfg.Engine.FirstEvent, func() { g.cancel(errSilent) })
	err := a.PeekEvent()
	late := !silence.Stop() // also when the event came just as the leg was cancelled
	switch {
	case err == nil && !late:
		x.handoff.hold.End()
		return "", x.Relay(resp, a)
	case x.ctx.Err() != nil:
		return "", x.taken()
	}
	x.releaseInDoubt()
	if late {
		return x.redoWithout(timedOut, errSilent), nil
	}
	return x.redoWithout(failed, err), nil
}

// age is how old a hand-off was when the leg was written, or now if that is not known.
func (g *leg) age(finished time.Time) time.Duration {
	select {
	case <-g.wrote:
		return g.wroteAt.Sub(finished)
	default:
		return time.Since(finished)
	}
}
