package handoff

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

// errDied is why the answer of an engine is not used that has answered with an error because it is ending.
var errDied = errors.New("the engine answers with an error of its own, and is ending")

// errLeft is the cause of a leg that was cancelled because another engine has gone on.
var errLeft = errors.New("another engine has gone on with the stream")

// runDecode sends the decode leg and relays its answer. With reason "" the answer is under way or complete. Another reason
// says that nothing has gone to the client and the request should be prefilled locally. The error is final.
func (x *Exchange) runDecode(req *intake.Request) (reason pd.Reason, err error) {
	if x.Context.Err() != nil {
		x.releaseUnsent()
		return "", x.contextError()
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
	l = x.mayGoOn(req, l)
	x.Buffer.Leg = l.Segments
	header := x.legHeader()
	ctx, span := x.legs.tracing.leg(x.Context, spanDecode, header, attribute.String("server.address", x.legs.Host),
		attribute.Int("server.port", x.legs.Port))
	status := 0
	defer func() {
		if reason != "" {
			x.endLegSpan(span, status, x.Failure)
			return
		}
		x.endLegSpan(span, status, err)
	}()
	sent := time.Now()
	g, err := x.legs.startLeg(ctx, x.handoff.of, x.request.URL.RequestURI(), header, l)
	if err != nil {
		x.releaseUnsent()
		return "", fmt.Errorf("making the decode leg: %w", err)
	}
	g.stream = req.Stream()
	v := x.legs.watchLocal(l.Length, g.cancel)
	g.vigil = v
	x.beginsLeg(v, func() { g.cancel(errLeft) })
	defer v.over(false)
	from := x.watchSource(g)
	defer from.over(false)
	x.state = decoding
	x.Clock.Enter(pd.PhaseFirst, sent)
	inflight := x.legs.Metrics.Inflight.WithLabelValues("decode")
	inflight.Inc()
	defer inflight.Dec()
	if !g.stream {
		defer time.AfterFunc(readTime, func() { from.vigil.over(false) }).Stop()
	}
	resp, cause, err := x.awaitHeaders(g)
	if resp != nil {
		status = resp.StatusCode
		v.reads(resp)
		v.moves(x.anew != nil)
	}
	x.legs.Metrics.leg("decode", status, time.Since(sent))
	x.record.leg("decode", x.legs.localEngine.address, sent, time.Now(), status, err)
	if resp == nil {
		return x.noAnswer(g, cause, err)
	}
	defer resp.Body.Close()
	defer g.cancel(nil)
	// From here on the engine has the leg: ending it with its client is safe.
	defer context.AfterFunc(x.Context, func() { g.cancel(errClientLeft) })()
	return x.takeAnswer(g, resp, from)
}

// readTime is for how long the prefill pod matters to a decode leg that is no stream: such an answer tells nothing until all is
// generated, and the KV cache has probably been read.
const readTime = 5 * time.Second

// tooLate notes a hand-off that is too old to be trusted, and has been released unread.
func (x *Exchange) tooLate() pd.Reason {
	x.legs.warnings.Warn("hand-off too old", "request_id", x.ID, "age", x.handoff.age, "limit", x.handoff.of.(dialect.Leased).Trust())
	x.legs.Metrics.Retries.WithLabelValues("decode", "late").Inc()
	x.legs.Metrics.Links.Unread(x.target, linkLate)
	return pd.HandoffLate
}

// The causes of a decode leg that gave no answer that can be relayed; metric labels.
const (
	causeFailed  = "failed"  // the engine refused, broke off or answered with an error
	causeTimeout = "timeout" // a deadline of ours passed
	causeHung    = "hung"    // one of the engines answers nothing any more
	causeGone    = "gone"    // the prefill engine has ended before it has sent the KV cache
)

// failure names the cause of a leg's end with an error.
func (g *leg) failure(err error) (cause string, _ error) {
	switch cause := context.Cause(g.ctx); cause {
	case errHung:
		return causeHung, cause
	case errGone:
		return causeGone, cause
	}
	return causeFailed, err
}

// awaitHeaders waits for the answer's headers. Without an answer, cause and err say why. With cause "" the client left, or
// the drain deadline passed: the leg is still running, and err is final.
//
// A whole (not streamed) answer has its headers last, so silence says nothing about it. It is taken for lost only if the
// prefill pod does not answer any more either: that is what a transfer waits for without end.
func (x *Exchange) awaitHeaders(g *leg) (resp *http.Response, cause string, err error) {
	silence := time.NewTicker(x.legs.FirstEvent)
	defer silence.Stop()
	for {
		select {
		case r := <-g.result:
			if r.err != nil {
				cause, err := g.failure(r.err)
				return nil, cause, err
			}
			return r.resp, "", nil
		case <-x.Context.Done():
			return nil, "", x.contextError()
		case <-silence.C:
			if err := x.askPrefill(); err != nil && x.Context.Err() == nil {
				g.drop()
				return nil, causeTimeout, fmt.Errorf("%w, and the prefill pod is gone: %w", errSilent, err)
			}
		}
	}
}

// askPrefill fails if the prefill pod that has the KV cache does not answer, or is not healthy.
func (x *Exchange) askPrefill() error {
	ctx, cancel := context.WithTimeout(x.Context, transport.ProbeTimeout)
	defer cancel()
	return x.legs.Prefill(x.handoff.target).Healthy(ctx)
}

// noAnswer decides what follows a decode leg that gave no headers. Its arguments are results of awaitHeaders.
func (x *Exchange) noAnswer(g *leg, cause string, err error) (pd.Reason, error) {
	if cause == "" {
		x.releaseLeg(g)
		return "", err
	}
	g.cancel(nil)
	x.releaseInDoubt()
	return x.redoWithout(cause, err), nil
}

// redoWithout notes that decode could not use the hand-off, which has been released.
func (x *Exchange) redoWithout(cause string, err error) pd.Reason {
	x.Failure = err
	x.noteLeg()
	x.record.legFailed(err)
	x.legs.localEngine.doubt()
	x.legs.Metrics.Retries.WithLabelValues("decode", cause).Inc()
	x.legs.Metrics.Links.Unread(x.target, cause)
	x.legs.warnings.Warn("decode leg failed", "request_id", x.ID, "cause", cause, "error", err)
	return pd.TransferFailed
}

// takeAnswer looks at a decode answer before anything of it goes to the client. from watches the prefill pod.
func (x *Exchange) takeAnswer(g *leg, resp *http.Response, from source) (pd.Reason, error) {
	x.handoff.answered = true
	x.noteLeg()
	if cached, ok := x.handoff.cached(); ok {
		x.CorrectCached(cached)
	}
	x.handoff.age = g.age(x.handoff.finished)
	x.legs.Metrics.HandoffAge.Observe(x.handoff.age.Seconds())
	x.rename(resp)
	switch code := resp.StatusCode; {
	case code == http.StatusServiceUnavailable, isClientError(code): // 503: the redo would not be admitted either
		if x.handoff.pins(code) {
			x.releaseUnread()
		}
		if err := x.readRefusal(resp); err != nil {
			return x.redoWithout(causeFailed, err), nil
		}
		return "", x.RelayFresh(resp)
	case code >= http.StatusInternalServerError:
		if x.handoff.pins(code) {
			x.releaseUnread()
		}
		return x.redoWithout(causeFailed, fmt.Errorf("decode answered %s", resp.Status)), nil
	case x.handoff.late(x.handoff.finished.Add(x.handoff.age)):
		// The leg was written later than planned: this process, or its engine's socket, stood still in between.
		x.releaseInDoubt()
		return x.tooLate(), nil
	case !relay.IsEventStream(resp.Header), relay.Encoded(resp.Header): // the relay cannot read an encoded stream
		return x.takeWhole(g, resp, from)
	}
	return x.takeStream(g, resp, from)
}

// takeWhole waits for the first byte: until it has come, the engine may break off and the request be redone.
func (x *Exchange) takeWhole(g *leg, resp *http.Response, from source) (pd.Reason, error) {
	a := relay.NewAnswer(resp.Body)
	defer a.Free()
	_, err := a.Peek()
	from.over(true)
	if err == nil || err == io.EOF {
		x.handoff.hold.End()
		x.legs.Metrics.Links.Read(x.target, x.handoff.blocks(), 0)
		return "", x.Relay(resp, a)
	}
	if x.Context.Err() == nil {
		x.releaseInDoubt()
		return x.redoWithout(g.failure(err)), nil
	}
	return "", x.interruptedDecode()
}

// interruptedDecode returns the error of a request whose client left, or which was cut, after decode had taken the leg. Decode
// cancels the request, and notifies prefill if its protocol says so; otherwise the hand-off is released.
func (x *Exchange) interruptedDecode() error {
	if _, ok := x.handoff.of.(dialect.Releaser); ok {
		x.legs.released(x.release(wayCancel), true, nil)
	} else {
		x.releaseInDoubt()
	}
	return x.contextError()
}

// takeStream waits for the first event: the engine sends the status before the transfer begins, and a failed one shows here.
func (x *Exchange) takeStream(g *leg, resp *http.Response, from source) (pd.Reason, error) {
	a := relay.NewAnswer(resp.Body)
	defer a.Free()
	silence := time.AfterFunc(x.legs.FirstEvent, func() { g.cancel(errSilent) })
	err := a.PeekEvent(x.opens(), nil)
	from.over(err == nil)
	late := !silence.Stop() // also when the event came just as the leg was cancelled
	switch {
	case err == nil && !late:
		g.vigil.moves(false)
		x.handoff.hold.End()
		x.legs.Metrics.Links.Read(x.target, x.handoff.blocks(), time.Since(g.sent))
		return "", x.Relay(resp, a)
	case x.Context.Err() != nil:
		return "", x.interruptedDecode()
	}
	x.releaseInDoubt()
	if late {
		return x.redoWithout(causeTimeout, errSilent), nil
	}
	return x.redoWithout(g.failure(err)), nil
}

// age returns how old a hand-off was when the leg was written, or how old it is now if the leg may not have been written.
func (g *leg) age(finished time.Time) time.Duration {
	select {
	case <-g.wrote:
		return g.wroteAt.Sub(finished)
	default:
		return time.Since(finished)
	}
}
