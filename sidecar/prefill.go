package sidecar

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// maxPrefillAnswer caps a prefill engine's answer (bytes). The largest honest ones repeat a prompt of a million tokens as
// ids (return_token_ids), 7 to 8 bytes each.
const maxPrefillAnswer = 16 << 20

// prefillError is why one prefill leg gave no hand-off.
type prefillError struct {
	cause  string // metric label
	reason pd.Reason
	again  bool // the same candidate may do better in a moment
	err    error
}

func (e *prefillError) Error() string { return fmt.Sprintf("%s: %v", e.cause, e.err) }
func (e *prefillError) Unwrap() error { return e.err }

// clientError is a prefill engine's answer that blames the client: no other engine would say anything else.
type clientError struct {
	status int
	header http.Header
	body   []byte
}

func (e *clientError) Error() string {
	return fmt.Sprintf("prefill refused the request with %d", e.status)
}

// runPrefill tries the candidates in order. With reason "" the hand-off is in x.handoff. Another reason says why there is
// none and the request should be prefilled locally. The error is final.
func (x *exchange) runPrefill(req *intake.Request) (pd.Reason, error) {
	x.state = prefilling
	last := &prefillError{reason: pd.PrefillFailed}
	for i, target := range x.route.Targets {
		for try := 0; ; try++ {
			if err := x.reachBeside(); err != nil {
				return "", err
			}
			err := x.attempt(req, target, x.route.Candidate(i))
			var refused *clientError
			switch {
			case err == nil:
				// Also for a client that has left meanwhile: the hand-off must be released.
				x.state = handedOff
				x.Clock.Enter(pd.PhaseHandoff, time.Now())
				return "", nil
			case x.ctx.Err() != nil:
				return "", x.gone()
			case errors.As(err, &refused):
				return x.refusedByPrefill(req, refused)
			case !errors.As(err, &last):
				return "", err
			}
			again := last.again && try < x.s.cfg.Prefill.MaxRetries
			x.noteRetry(last, target)
			if !again {
				break
			}
			if err := x.pause(x.s.cfg.Prefill.RetryBackoff); err != nil {
				return "", err
			}
		}
	}
	x.Failure = last
	return last.reason, nil
}

func (x *exchange) noteRetry(e *prefillError, target pd.Target) {
	x.s.metrics.retries.WithLabelValues("prefill", e.cause).Inc()
	x.s.warnings.Warn("prefill leg failed", "request_id", x.ID, "target", target.String(), "cause", e.cause, "error", e.err)
}

// refusedByPrefill hands the engine's word on, unless our own priming may have caused it.
func (x *exchange) refusedByPrefill(req *intake.Request, refused *clientError) (pd.Reason, error) {
	if req.ForcedTool() {
		return pd.PrefillFailed, nil
	}
	x.decide(pd.Refused, pd.BadRequest)
	x.Failure = refused
	x.SendBytes(refused.status, refused.header, refused.body)
	return "", errAnswered
}

// attempt sends one prefill leg and takes its hand-off.
func (x *exchange) attempt(req *intake.Request, target pd.Target, candidate int) error {
	a, err := x.s.dialect.Attempt(x.ctx, req.Request, target)
	if err != nil {
		return &prefillError{cause: "attempt", reason: pd.PrefillFailed, err: err}
	}
	x.Decision.Attempts++
	x.Decision.Candidate = candidate
	x.target = target.String()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), x.s.cfg.Prefill.Timeout)
	h := &hangup{cancel: cancel}
	defer h.done()
	defer context.AfterFunc(x.ctx, h.soon)()
	header := transport.LegHeader(x.r.Header, x.ID)
	header["Accept-Encoding"] = transport.Identity
	ctx, span := x.s.tracing.leg(ctx, spanPrefill, header, attribute.Int("tandem.attempt", x.Decision.Attempts),
		attribute.String("server.address", target.Host), attribute.Int("server.port", int(target.Port)))
	sent := time.Now()
	x.Clock.Enter(pd.PhasePrefill, sent)
	inflight := x.s.metrics.inflight.WithLabelValues(room, "prefill")
	inflight.Inc()
	status, of, err := x.s.sendPrefill(h.trace(ctx), target, x.r.URL.RequestURI(), header, a)
	inflight.Dec()
	x.s.metrics.leg("prefill", status, time.Since(sent))
	x.endLeg(span, status, err)
	if err != nil {
		x.releaseRejected(status, of, err)
		return err
	}
	x.handoff = x.s.newHandoff(of, sent, target)
	return nil
}

// releaseRejected deals with a prefill that has finished without a hand-off that decode may read. One that is well-formed,
// and only does not fit its prompt, is released; otherwise we cannot tell which engine still holds the KV blocks.
func (x *exchange) releaseRejected(status int, of dialect.Handoff, err error) {
	switch {
	case of != nil:
		x.releaseOf(of, x.s.hold(of, time.Now()))
	case status == http.StatusOK && x.ctx.Err() == nil && !errors.Is(err, dialect.ErrNoHandoff):
		x.s.metrics.stranded.Inc()
	}
}

// prefillURL is the base of a prefill engine's URLs.
func (s *Server) prefillURL(t pd.Target) string {
	return transport.Scheme(s.cfg.Prefill.TLS) + t.String()
}

// sendPrefill sends the prefill leg of an attempt and reads its answer. status is 0 if none came. A hand-off that comes with
// an error has to be released.
func (s *Server) sendPrefill(ctx context.Context, target pd.Target, uri string, header http.Header, a dialect.Attempt) (status int, of dialect.Handoff, err error) {
	leg, err := a.Prefill()
	if err != nil {
		return 0, nil, fmt.Errorf("editing the prefill leg: %w", err)
	}
	req, err := transport.NewBufferedLeg(ctx, s.prefillURL(target)+uri, header, leg.Segments, leg.Length)
	if err != nil {
		return 0, nil, fmt.Errorf("making the prefill leg: %w", err)
	}
	resp, err := s.prefill.RoundTrip(req)
	if err != nil {
		return 0, nil, s.prefillFailure(ctx, err)
	}
	defer resp.Body.Close()
	answer, err := readCapped(resp, maxPrefillAnswer)
	if err != nil {
		return resp.StatusCode, nil, s.prefillFailure(ctx, err)
	}
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, nil, statusFailure(resp, answer)
	}
	of, err = a.Accept(answer)
	if err != nil {
		return resp.StatusCode, of, &prefillError{cause: "invalid", reason: pd.HandoffInvalid, err: err}
	}
	return resp.StatusCode, of, nil
}

var errAnswerTooLarge = fmt.Errorf("answer is longer than %d bytes", maxPrefillAnswer)

// readCapped reads an answer of at most limit bytes.
func readCapped(resp *http.Response, limit int64) ([]byte, error) {
	if resp.ContentLength > limit {
		return nil, errAnswerTooLarge
	}
	if n := resp.ContentLength; n >= 0 {
		b := make([]byte, n)
		_, err := io.ReadFull(resp.Body, b)
		return b, err
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err == nil && int64(len(b)) > limit {
		return nil, errAnswerTooLarge
	}
	return b, err
}

// prefillFailure names what broke a prefill leg.
func (s *Server) prefillFailure(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, intake.ErrDenied):
		return intake.Denied()
	case errors.Is(err, errAnswerTooLarge):
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

// statusFailure tells a client's fault from a pod's. 408, 425 and 429 say that another pod may do better.
func statusFailure(resp *http.Response, answer []byte) error {
	code := resp.StatusCode
	if code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooEarly && code != http.StatusTooManyRequests {
		return &clientError{status: code, header: resp.Header, body: answer}
	}
	again := code == http.StatusBadGateway || code == http.StatusServiceUnavailable || code == http.StatusGatewayTimeout
	return &prefillError{cause: "status", reason: pd.PrefillFailed, again: again, err: fmt.Errorf("prefill answered %s", resp.Status)}
}

// pause waits between two tries.
func (x *exchange) pause(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-x.ctx.Done():
		return x.gone()
	}
}
