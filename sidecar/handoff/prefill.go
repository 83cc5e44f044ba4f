package handoff

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// maxPrefillAnswer caps a prefill engine's answer (bytes). The largest honest ones repeat a prompt of a million tokens as
// ids (return_token_ids), 7 to 8 bytes each.
const maxPrefillAnswer = 16 << 20

// runSerial runs one leg after the other, and both again with the next candidate if decode could not use the hand-off of a request that
// must be prefilled remotely. Its results are those of tryCandidates.
func (x *Exchange) runSerial(req *intake.Request) (pd.Reason, error) {
	plain := cmp.Or(x.unreferenced, req)
	for {
		x.state = prefilling
		if reason, err := x.tryCandidates(req, (*Exchange).attemptPrefill); err != nil || reason != "" {
			return reason, err
		}
		if f := finished(x.handoff.of); f != nil {
			return "", x.answerFinished(f, req.Stream())
		}
		reason, err := x.runDecode(req)
		if err != nil || reason == "" || !x.another() {
			return reason, err
		}
		x.handoff.hold.End() // its release has begun
		x.hedge, x.Failure = hedge{}, nil
		req, x.unreferenced = plain, nil // an engine that does not find what a reference names may have failed because of it
	}
}

// prefillLeg is the prefill leg of a serial protocol to one candidate, and what has come of it. The exchange makes it; run may be called
// in another goroutine.
type prefillLeg struct {
	target    pd.Target
	name      string // of the target
	candidate int
	engine    transport.Engine
	attempt   dialect.Attempt
	payload   request.Payload
	size      int64 // of the client's body, in bytes
	uri       string
	header    http.Header
	client    context.Context // ends when the client leaves
	ctx       context.Context // of the leg
	end       context.CancelCauseFunc
	hangup    hangup
	span      trace.Span
	sent      time.Time
	lent      *lent // what the engine reads from the local one; nil: nothing

	status int // 0: no answer came
	of     dialect.Handoff
	err    error
	ended  time.Time
}

// newPrefillLeg makes the prefill leg to a candidate, which counts as an attempt from then on. Only if reads is true may its engine read from
// the local one, for which this waits.
func (x *Exchange) newPrefillLeg(req *intake.Request, target pd.Target, candidate int, reads bool) (*prefillLeg, error) {
	a, err := x.legs.Dialect.Attempt(x.Context, req.Request, target)
	if err != nil {
		return nil, &prefillError{cause: "attempt", reason: pd.PrefillFailed, err: err}
	}
	x.useRanks(a, candidate)
	x.pull(a, req, target)
	var l *lent
	if reads {
		l = x.borrow(a, req, target)
	}
	payload, err := a.Prefill()
	if err != nil {
		return nil, fmt.Errorf("editing the prefill leg: %w", err)
	}
	x.Decision.Attempts++
	g := &prefillLeg{lent: l, target: target, name: target.String(), candidate: candidate, engine: x.legs.Prefill(target), attempt: a, payload: payload, size: req.Body.Len(),
		uri: x.request.URL.RequestURI(), header: x.legHeader(), client: x.Context}
	g.header["Accept-Encoding"] = transport.Identity
	setHeaders(a, pd.RolePrefill, g.header)
	ctx, end := context.WithCancelCause(context.WithoutCancel(x.Context))
	g.end, g.hangup.cancel = end, func() { end(nil) }
	g.ctx, g.span = x.legs.tracing.leg(ctx, spanPrefill, g.header, attribute.Int("tandem.attempt", x.Decision.Attempts),
		attribute.String("server.address", target.Host), attribute.Int("server.port", int(target.Port)))
	g.sent = time.Now()
	return g, nil
}

// run sends the leg and reads its answer.
func (g *prefillLeg) run(legs *Legs) {
	defer g.hangup.done()
	defer time.AfterFunc(legs.PrefillTimeout, func() { g.end(context.DeadlineExceeded) }).Stop()
	defer context.AfterFunc(g.client, g.hangup.schedule)()
	inflight := legs.Metrics.Inflight.WithLabelValues("prefill")
	inflight.Inc()
	v := legs.hung.watch(g.target, g.engine, waitPrefill, g.size, g.end)
	g.status, g.of, g.err = legs.sendPrefillLeg(g.ctx, &g.hangup, g.engine, g.uri, g.header, g.attempt, g.payload)
	v.over(g.status != 0)
	inflight.Dec()
	g.ended = time.Now()
	legs.Metrics.leg("prefill", g.status, g.ended.Sub(g.sent))
}

// attemptPrefill is an attempt that sends the prefill leg, and leaves its hand-off in x.handoff.
func (x *Exchange) attemptPrefill(req *intake.Request, target pd.Target, candidate int) (pd.Reason, error) {
	g, err := x.newPrefillLeg(req, target, candidate, true)
	if err != nil {
		return "", err
	}
	x.uses(g)
	x.Clock.Enter(pd.PhasePrefill, g.sent)
	if delay, ok := x.hedgeDelay(req, target); ok {
		g = x.runHedged(req, g, delay)
	} else {
		g.run(x.legs)
	}
	x.uses(g)
	x.legs.hedges.learn(g)
	x.prefillEnded(g)
	if g.err != nil {
		return "", g.err
	}
	x.handoff = x.legs.newHandoff(g.of, g.sent, g.target)
	x.state = handedOff
	x.prefilled()
	x.Clock.Enter(pd.PhaseHandoff, time.Now())
	return "", nil
}

// uses makes a prefill leg the one that the exchange reports.
func (x *Exchange) uses(g *prefillLeg) {
	x.target, x.source, x.Decision.Candidate = g.name, g.engine, g.candidate
}

// prefillEnded notes the end of a prefill leg, and releases its hand-off if it cannot be used.
func (x *Exchange) prefillEnded(g *prefillLeg) {
	x.record.leg("prefill", g.name, g.sent, g.ended, g.status, g.err)
	x.endLegSpan(g.span, g.status, g.err)
	x.returned(g)
	if g.err != nil {
		x.releaseRejected(g.status, g.of, g.err)
	}
}

// releaseRejected handles a failed prefill leg that may have left pinned blocks. A hand-off that is well-formed, and only does
// not fit its prompt, is released; otherwise we cannot tell which engine still holds the KV blocks, and count them as stranded.
func (x *Exchange) releaseRejected(status int, of dialect.Handoff, err error) {
	switch {
	case of != nil:
		x.releaseOf(of, x.legs.hold(of, time.Now()))
	case status == http.StatusOK && x.Context.Err() == nil && !errors.Is(err, dialect.ErrNoHandoff):
		x.legs.Metrics.Stranded.Inc()
	}
}

// sendPrefill makes and sends the prefill leg of an attempt. Its results are those of sendPrefillLeg.
func (legs *Legs) sendPrefill(ctx context.Context, h *hangup, engine transport.Engine, uri string, header http.Header, a dialect.Attempt) (status int, of dialect.Handoff, err error) {
	leg, err := a.Prefill()
	if err != nil {
		return 0, nil, fmt.Errorf("editing the prefill leg: %w", err)
	}
	setHeaders(a, pd.RolePrefill, header)
	return legs.sendPrefillLeg(ctx, h, engine, uri, header, a, leg)
}

// sendPrefillLeg sends the prefill leg of an attempt, on which h may hang up, and reads its answer. status is 0 if none came. A hand-off that comes with
// an error has to be released.
func (legs *Legs) sendPrefillLeg(ctx context.Context, h *hangup, engine transport.Engine, uri string, header http.Header, a dialect.Attempt, leg request.Payload) (status int, of dialect.Handoff, err error) {
	req, err := transport.NewBufferedLeg(h.trace(ctx), engine.URL+uri, header, leg.Segments, leg.Length)
	if err != nil {
		return 0, nil, fmt.Errorf("making the prefill leg: %w", err)
	}
	h.onlyOnce(req)
	resp, err := engine.Transport.RoundTrip(req)
	if err != nil {
		return 0, nil, legs.prefillFailure(ctx, err)
	}
	defer resp.Body.Close()
	answer, err := transport.ReadCapped(resp, maxPrefillAnswer)
	if err != nil {
		return resp.StatusCode, nil, legs.prefillFailure(ctx, err)
	}
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, nil, legs.statusFailure(resp, answer)
	}
	of, err = a.Accept(answer)
	if errors.Is(err, dialect.ErrWrongProtocol) {
		return resp.StatusCode, of, wrongProtocol(err)
	}
	if err != nil {
		return resp.StatusCode, of, &prefillError{cause: "invalid", reason: pd.HandoffInvalid, err: err}
	}
	return resp.StatusCode, of, nil
}

// prefillFailure names the cause of a prefill leg's failure.
func (legs *Legs) prefillFailure(ctx context.Context, err error) error {
	switch {
	case context.Cause(ctx) == errHung:
		return &prefillError{cause: causeHung, reason: pd.PrefillFailed, err: errHung}
	case errors.Is(err, intake.ErrDenied):
		return intake.Denied(err)
	case errors.Is(err, transport.ErrTooLong):
		return &prefillError{cause: "too-large", reason: pd.HandoffInvalid, err: err}
	case isTLS(err):
		return &prefillError{cause: "tls", reason: pd.PrefillFailed, err: err}
	case ctx.Err() != nil, isTimeout(err):
		return &prefillError{cause: "timeout", reason: pd.PrefillFailed, err: err}
	}
	return &prefillError{cause: "connection", reason: pd.PrefillFailed, again: true, err: err}
}

// isTLS reports whether the two sides do not agree on certificates, or on TLS itself: asking again changes nothing.
func isTLS(err error) bool {
	var unverified *tls.CertificateVerificationError
	var plaintext tls.RecordHeaderError
	var alert tls.AlertError
	var remote *net.OpError // an alert of the other side
	return errors.As(err, &unverified) || errors.As(err, &plaintext) || errors.As(err, &alert) ||
		errors.As(err, &remote) && remote.Op == "remote error"
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// statusFailure distinguishes the client's errors from the pod's. 408, 425 and 429 say that another pod may do better.
func (legs *Legs) statusFailure(resp *http.Response, answer []byte) error {
	code := resp.StatusCode
	if isClientError(code) && code != http.StatusRequestTimeout && code != http.StatusTooEarly && code != http.StatusTooManyRequests && !legs.ownFailure(answer) && !legs.refusesRank(answer) {
		return &ClientError{Status: code, header: resp.Header, body: answer}
	}
	again := code == http.StatusBadGateway || code == http.StatusServiceUnavailable || code == http.StatusGatewayTimeout
	return &prefillError{cause: "status", reason: pd.PrefillFailed, again: again, err: fmt.Errorf("prefill answered %s", resp.Status)}
}

// ownFailure reports whether an answer that blames the client tells of the engine's own failure.
func (legs *Legs) ownFailure(answer []byte) bool {
	d, ok := legs.Dialect.(dialect.StatusReader)
	return ok && d.OwnFailure(answer)
}

// refusesRank reports whether an answer says that the engine does not have the rank that it was told.
func (legs *Legs) refusesRank(answer []byte) bool {
	d, ok := legs.Dialect.(dialect.RankRefuser)
	return ok && d.RefusesRank(answer)
}
