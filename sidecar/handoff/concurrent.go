package handoff

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/relay"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// errLegEnded is the cause of a leg that was cancelled because the other leg of its attempt had failed, or is not needed
// any more.
var errLegEnded = errors.New("the other leg of this attempt has ended")

// errNotConcurrent means a mistake in a dialect, which the contract suite finds.
var errNotConcurrent = errors.New("the dialect is concurrent, and its attempt is not")

// legPair is both legs of one attempt, which run at the same time.
type legPair struct {
	x       *Exchange
	attempt dialect.Attempt
	target  pd.Target
	sent    time.Time

	prefill       chan prefillResult // gets one result
	prefillSpan   trace.Span
	cancelPrefill context.CancelFunc
	prefilled     *prefillResult // nil until it was taken off the channel
	decode        *leg
	released      bool // the release of the hand-off ends the decode leg

	waits     bool          // prefill answers when it has sent the KV cache
	pushes    bool          // prefill sends the KV cache after its answer
	keeps     bool          // decode keeps its blocks until then, if it is cancelled
	gone      chan error    // gets an error if the prefill pod stops answering while decode needs it
	watched   chan struct{} // closed when the watch has ended; nil if it is not watched
	stopWatch context.CancelFunc
}

// prefillResult is how a prefill leg ended.
type prefillResult struct {
	status    int
	of        dialect.Handoff
	err       error
	at        time.Time
	cancelled error // why the leg was cancelled; nil if it was not
}

// runConcurrent runs both legs at once, candidate by candidate. Its results are those of tryCandidates; with reason "" the
// answer is under way or complete.
func (x *Exchange) runConcurrent(req *intake.Request) (pd.Reason, error) {
	x.state = decoding
	return x.tryCandidates(req, (*Exchange).attemptBoth)
}

// attemptBoth is an attempt that sends both legs.
func (x *Exchange) attemptBoth(req *intake.Request, target pd.Target, candidate int) (reason pd.Reason, err error) {
	a, err := x.legs.Dialect.Attempt(x.Context, req.Request, target)
	if err != nil {
		return "", &prefillError{cause: "attempt", reason: pd.PrefillFailed, err: err}
	}
	rendezvous, ok := a.(dialect.Rendezvous)
	if !ok {
		return "", errNotConcurrent
	}
	x.useRanks(a, candidate)
	x.pull(a, req, target)
	x.Decision.Attempts++
	x.Decision.Candidate = candidate
	x.target = target.String()
	x.handoff = pending{of: rendezvous.Handoff(), target: target}
	p := &legPair{x: x, attempt: a, target: target}
	span, err := p.start(req)
	if err != nil {
		return "", err
	}
	defer p.end()
	status := 0
	defer func() {
		if reason != "" {
			x.endLegSpan(span, status, x.Failure)
			return
		}
		x.endLegSpan(span, status, err)
	}()
	inflight := x.legs.Metrics.Inflight.WithLabelValues("decode")
	inflight.Inc()
	defer inflight.Dec()
	v := x.legs.watchLocal(req.Body.Len(), p.decode.cancel)
	defer v.over(false)
	x.beginsLeg(v, func() { p.decode.cancel(errLeft) })
	resp, err := p.awaitHeaders()
	if resp != nil {
		status = resp.StatusCode
		defer resp.Body.Close()
	}
	x.legs.Metrics.leg("decode", status, time.Since(p.sent))
	x.record.leg("decode", x.legs.localEngine.address, p.sent, time.Now(), status, err)
	if err != nil {
		return p.decodeFailed(causeFailed, err)
	}
	v.reads(resp)
	defer context.AfterFunc(x.Context, func() { p.decode.cancel(errClientLeft) })()
	return p.takeAnswer(resp)
}

// start sends both legs.
func (p *legPair) start(req *intake.Request) (trace.Span, error) {
	x := p.x
	l, err := x.handoff.of.Decode()
	if err != nil {
		return nil, fmt.Errorf("editing the decode leg: %w", err)
	}
	l = x.mayGoOn(req, l)
	toPrefill, err := p.attempt.Prefill() // now: the body of the request is dropped when decode has answered, however early
	if err != nil {
		return nil, fmt.Errorf("editing the prefill leg: %w", err)
	}
	x.Buffer.Leg = l.Segments
	p.sent = time.Now()
	x.Clock.Enter(pd.PhasePrefill, p.sent)
	_, p.waits = x.legs.Dialect.(dialect.AfterTransfer)
	if d, ok := x.legs.Dialect.(dialect.Pusher); ok {
		p.pushes, p.keeps = true, d.PushesAfterAnswer()
	}
	p.startPrefill(toPrefill)
	header := x.legHeader()
	ctx, span := x.legs.tracing.leg(x.Context, spanDecode, header, attribute.String("server.address", x.legs.Host),
		attribute.Int("server.port", x.legs.Port))
	if p.decode, err = x.legs.startLeg(ctx, x.handoff.of, x.request.URL.RequestURI(), header, l); err != nil {
		p.stopPrefill()
		return nil, fmt.Errorf("making the decode leg: %w", err)
	}
	p.decode.stream = req.Stream()
	if r, ok := p.attempt.(dialect.Rerouter); ok && (p.waits || p.pushes) {
		p.startWatch(func(ctx context.Context) { p.watchRoute(ctx, r) })
	}
	return span, nil
}

// startPrefill sends the prefill leg, whose result comes through the channel. When the client leaves, the leg ends at once,
// unlike that of a serial protocol: the decode leg ends too, and its engine releases what it was to read. Only if decode waits for the
// KV cache all the same, stopPrefill does so too.
func (p *legPair) startPrefill(leg request.Payload) {
	x := p.x
	ctx := x.Context
	if p.keeps {
		ctx = context.WithoutCancel(ctx)
	}
	ctx, end := context.WithCancelCause(ctx)
	ctx, cancel := context.WithTimeout(ctx, x.legs.PrefillTimeout)
	p.cancelPrefill, p.prefill = func() { end(errLegEnded) }, make(chan prefillResult, 1)
	header := x.legHeader()
	header["Accept-Encoding"] = transport.Identity
	setHeaders(p.attempt, pd.RolePrefill, header)
	ctx, p.prefillSpan = x.legs.tracing.leg(ctx, spanPrefill, header, attribute.Int("tandem.attempt", x.Decision.Attempts),
		attribute.String("server.address", p.target.Host), attribute.Int("server.port", int(p.target.Port)))
	inflight := x.legs.Metrics.Inflight.WithLabelValues("prefill")
	inflight.Inc()
	uri := x.request.URL.RequestURI()
	engine := x.legs.Prefill(p.target)
	v := x.legs.hung.watch(p.target, engine, waitPrefill, leg.Length, end)
	go func() {
		defer end(nil)
		defer cancel()
		status, of, err := x.legs.sendPrefillLeg(ctx, nil, engine, uri, header, p.attempt, leg)
		v.over(status != 0)
		inflight.Dec()
		x.legs.Metrics.leg("prefill", status, time.Since(p.sent))
		r := prefillResult{status: status, of: of, err: err, at: time.Now()}
		if errors.Is(err, context.Canceled) {
			r.cancelled = context.Cause(ctx)
		}
		p.prefill <- r
	}()
}

// pushGrace is how long a prefill leg may go on whose client has left: decode keeps the blocks of its own leg until prefill has sent
// the KV cache, or for minutes.
const pushGrace = 10 * time.Second

// stopPrefill ends the prefill leg, and waits for it.
func (p *legPair) stopPrefill() {
	if p.keeps && p.prefilled == nil && p.x.Context.Err() != nil && !p.x.cutOff() {
		grace := time.NewTimer(pushGrace)
		defer grace.Stop()
		select {
		case r := <-p.prefill:
			_ = p.prefillEnded(r)
		case <-grace.C:
		}
	}
	p.cancelPrefill()
	if p.prefilled == nil {
		_ = p.prefillEnded(<-p.prefill) // it was cancelled, or its hand-off is not needed
	}
}

// end ends what is left of both legs.
func (p *legPair) end() {
	p.endWatch()
	if !p.released {
		p.decode.cancel(errLegEnded)
	}
	p.stopPrefill()
}

// prefillEnded notes the result of the prefill leg. If it returns an error, the decode engine will not get the KV cache. With a
// *finishedError it needs none.
func (p *legPair) prefillEnded(r prefillResult) error {
	p.endWatch()
	p.prefilled = &r
	failure := r.err
	if r.cancelled == errLegEnded || r.cancelled != nil && p.x.Client.End == pd.EndDone {
		failure = nil // not prefill's: its answer is not needed, or decode's leg has failed
	}
	describeLeg(p.prefillSpan, r.status, failure)
	p.prefillSpan.End(trace.WithTimestamp(r.at))
	p.x.record.leg("prefill", p.target.String(), p.sent, r.at, r.status, r.err)
	if r.err == nil && r.of != nil {
		p.x.handoff.of = r.of
		p.x.prefilled()
		if f := finished(r.of); f != nil {
			p.prefilled.err = &finishedError{f}
		}
	}
	return p.prefilled.err
}

// awaitHeaders waits for the headers of decode's answer. A prefill leg that fails meanwhile cancels the decode leg, and its
// error is returned.
func (p *legPair) awaitHeaders() (*http.Response, error) {
	x := p.x
	silence := time.NewTicker(x.legs.FirstEvent)
	defer silence.Stop()
	prefill := p.prefill
	for {
		select {
		case r := <-p.decode.result:
			return r.resp, r.err
		case r := <-prefill:
			prefill = nil
			if err := p.prefillEnded(r); err != nil {
				p.cancelDecode()
				return nil, err
			}
			p.handedOver()
		case err := <-p.gone:
			if prefill != nil || p.pushes { // else it has sent the KV cache
				p.cancelDecode()
				return nil, err
			}
		case <-x.Context.Done():
			p.cancelDecode()
			return nil, x.contextError()
		case <-silence.C:
			if prefill == nil && p.waits {
				continue // it has sent the KV cache, and decode generates
			}
			if err := x.askPrefill(); err != nil && x.Context.Err() == nil {
				p.cancelDecode()
				return nil, fmt.Errorf("%w, and the prefill pod is gone: %w", errSilent, err)
			}
		}
	}
}

// cancelDecode ends the decode leg before its answer was taken, and has both engines abort their legs.
func (p *legPair) cancelDecode() {
	p.released = true
	p.x.releaseLeg(p.decode)
	p.abort()
}

// abort asks both engines to abort their legs, if their protocol has a request for that. It returns at once.
func (p *legPair) abort() {
	a, ok := p.attempt.(dialect.Aborter)
	if !ok {
		return
	}
	legs, r := p.x.legs, p.x.beginRelease(p.x.handoff.of, nil, wayAbort)
	legs.background(func() { legs.abort(r, a, p.target) })
}

// abortAgain is how long after the first request to abort the second one is sent: an engine forgets the first at once, and may read a leg
// later that was sent shortly before it, on another connection. A busy engine's server takes some 100 ms for that.
const abortAgain = 300 * time.Millisecond

// abort asks both engines to abort the legs of an attempt.
func (legs *Legs) abort(r releasing, a dialect.Aborter, target pd.Target) {
	err := legs.sendAborts(r, a, target)
	<-time.After(abortAgain)
	err = errors.Join(legs.sendAborts(r, a, target), err)
	result := "ok"
	if err != nil {
		result = "failed"
		legs.warnings.Warn("legs not aborted: their engines keep their blocks until they time out", "request_id", r.id, "error", err)
	}
	legs.Metrics.Releases.WithLabelValues(wayAbort, result).Inc()
	r.record.release(wayAbort, result, err)
	endRelease(r.span, wayAbort, err)
}

// sendAborts asks each engine to abort its leg.
func (legs *Legs) sendAborts(r releasing, a dialect.Aborter, target pd.Target) error {
	atPrefill := make(chan error, 1) // at the same time: one of the engines may not answer
	go func() { atPrefill <- legs.sendAbort(legs.Prefill(target), r, a, pd.RolePrefill) }()
	err := legs.sendAbort(legs.Decode, r, a, pd.RoleDecode)
	return errors.Join(<-atPrefill, err)
}

// sendAbort asks one engine to abort its leg.
func (legs *Legs) sendAbort(engine transport.Engine, r releasing, a dialect.Aborter, role pd.Role) error {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	path, b := a.Abort(role)
	header := r.header.Clone()
	header["Content-Type"] = []string{"application/json"}
	req, err := transport.NewBufferedLeg(ctx, engine.URL+path, header, [][]byte{b}, int64(len(b)))
	if err != nil {
		return err
	}
	resp, err := engine.Transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("aborting a leg: the %s engine answered %s", role, resp.Status)
	}
	return nil
}

// decodeFailed decides what follows a decode leg that ended before its first event, or was ended because prefill failed.
func (p *legPair) decodeFailed(cause string, err error) (pd.Reason, error) {
	var failure *prefillError
	var refused *ClientError
	var ended *finishedError
	if cause == causeFailed {
		cause, err = p.decode.failure(err)
	}
	switch x := p.x; {
	case x.Context.Err() != nil:
		if p.released {
			return "", x.contextError()
		}
		p.abort()
		return "", x.interruptedDecode()
	case errors.As(err, &ended):
		return "", x.answerFinished(ended.of, p.decode.stream)
	case errors.As(err, &failure), errors.As(err, &refused):
		return "", err
	case p.released:
		return p.redo(causeTimeout, err)
	default:
		if cause == causeFailed {
			switch err := p.prefillFailure(); {
			case errors.As(err, &ended):
				return "", x.answerFinished(ended.of, p.decode.stream)
			case err != nil:
				p.abort() // an engine that has lost its connection may hold its leg all the same
				return "", err
			}
		}
		p.cancelPrefill()
		p.abort()
		x.releaseInDoubt()
		return p.redo(cause, err)
	}
}

// redo decides how a request goes on whose decode leg failed: on the local engine, or, if that computes no prompts or must not compute
// this one, on the next candidate.
func (p *legPair) redo(cause string, err error) (pd.Reason, error) {
	x := p.x
	reason := x.redoWithout(cause, err)
	if whole, unknown := x.legs.whole(x.Context); (unknown != nil || whole) && !x.another() {
		return reason, nil
	}
	x.Failure = nil // unless the next one fails as well
	return "", &prefillError{cause: "transfer", reason: reason, err: err}
}

// prefillGrace is how long to wait for the end of the prefill leg after the decode leg has ended: the prefill leg may have
// failed first, and its failure may arrive later.
const prefillGrace = 100 * time.Millisecond

// prefillFailure returns the failure of the prefill leg, if there is one: it may have caused the failure of decode.
func (p *legPair) prefillFailure() error {
	if p.prefilled != nil {
		return p.prefilled.err
	}
	grace := time.NewTimer(prefillGrace)
	defer grace.Stop()
	select {
	case r := <-p.prefill:
		return p.prefillEnded(r)
	case <-grace.C:
		return nil
	}
}

// takeAnswer looks at decode's answer before anything of it goes to the client.
func (p *legPair) takeAnswer(resp *http.Response) (pd.Reason, error) {
	x := p.x
	x.handoff.answered = true
	x.rename(resp)
	switch code := resp.StatusCode; {
	case code == http.StatusServiceUnavailable, isClientError(code): // 503: the redo would not be admitted either
		if err := x.readRefusal(resp); err != nil {
			return p.decodeFailed(causeFailed, err)
		}
		p.cancelPrefill()
		p.abort()
		if x.handoff.pins(code) {
			x.releaseUnread()
		}
		p.beginAnswer()
		return "", x.RelayFresh(resp)
	case code >= http.StatusInternalServerError:
		return p.decodeFailed(causeFailed, fmt.Errorf("decode answered %s", resp.Status))
	}
	a := relay.NewAnswer(resp.Body)
	defer a.Free()
	cause, err := p.awaitFirst(resp, a)
	if err == nil {
		cause, err = causeFailed, p.awaitLacking()
	}
	if err != nil {
		return p.decodeFailed(cause, err)
	}
	p.beginAnswer()
	x.legs.Metrics.Links.Read(x.target, x.handoff.blocks(), p.pulled(resp))
	defer p.endAnswer()
	return "", x.Relay(resp, a)
}

// readRefusal fails if decode's refusal tells of a failure of its own, or may be that of a reference.
func (x *Exchange) readRefusal(resp *http.Response) error {
	if x.unreferenced != nil && isClientError(resp.StatusCode) {
		return fmt.Errorf("decode answered %s to references in place of images", resp.Status)
	}
	legs := x.legs
	if _, ok := legs.Dialect.(dialect.StatusReader); !ok {
		return nil
	}
	answer, err := transport.ReadCapped(resp, maxPrefillAnswer)
	if err == nil && legs.ownFailure(answer) {
		err = fmt.Errorf("decode answered %s for a failure of its own", resp.Status)
	}
	resp.Body = io.NopCloser(bytes.NewReader(answer))
	return err
}

// pulled returns how long decode took for a stream's first event after prefill had ended; 0 if that is not known.
func (p *legPair) pulled(resp *http.Response) time.Duration {
	if p.prefilled == nil || !relay.IsEventStream(resp.Header) {
		return 0
	}
	return time.Since(p.prefilled.at)
}

// endAnswer ends an attempt whose answer went to the client. If the answer broke off, or went on elsewhere, both engines abort. Otherwise
// prefill's answer comes at about the same time as the end of decode's, and is waited for.
func (p *legPair) endAnswer() {
	if p.x.Client.End != pd.EndDone || p.x.Moved() {
		p.abort()
		return
	}
	_ = p.prefillFailure() // it is too late to matter
}

// awaitFirst waits for the first event of a stream, or the beginning of another answer, as firstOf says. A prefill leg that fails meanwhile
// ends the wait with its error. A stream must not be silent for long once prefill has ended.
func (p *legPair) awaitFirst(resp *http.Response, a *relay.Answer) (cause string, err error) {
	x, first := p.x, make(chan error, 1)
	go func() { first <- firstOf(resp, a, x.legs.aborted) }()
	prefill := p.prefill
	var silence <-chan time.Time // nil: silence has no limit
	limitSilence := func() {
		if relay.IsEventStream(resp.Header) {
			silence = time.After(x.legs.FirstEvent)
		}
	}
	if p.prefilled != nil {
		prefill = nil
		limitSilence()
	}
	for {
		select {
		case err := <-first:
			return causeFailed, err
		case r := <-prefill:
			prefill = nil
			limitSilence()
			if err := p.prefillEnded(r); err != nil {
				select {
				case first := <-first: // the KV had arrived before
					return causeFailed, first
				default:
				}
				p.decode.cancel(errLegEnded)
				<-first
				p.abort()
				p.x.releaseInDoubt()
				p.released = true
				return causeFailed, err
			}
			p.handedOver()
		case err := <-p.gone:
			if prefill == nil && !p.pushes {
				continue // it has sent the KV cache
			}
			select {
			case first := <-first: // the KV cache had arrived before
				return causeFailed, first
			default:
			}
			p.decode.cancel(errLegEnded)
			<-first
			p.abort()
			p.released = true
			return causeFailed, err
		case <-silence:
			p.decode.cancel(errSilent)
			<-first
			return causeTimeout, errSilent
		}
	}
}

// awaitLacking waits for prefill's answer if decode's lacks something that is in it.
func (p *legPair) awaitLacking() error {
	x := p.x
	completer, lacks := x.handoff.of.(dialect.Completer)
	lacks = lacks && completer.Lacks()
	if _, corrects := x.handoff.of.(dialect.UsageCorrector); !lacks && !corrects {
		return nil
	}
	var err error
	if p.prefilled != nil {
		err = p.prefilled.err
	} else {
		select {
		case r := <-p.prefill:
			err = p.prefillEnded(r)
		case err = <-p.gone:
		case <-x.Context.Done():
			err = x.contextError()
		}
	}
	if err != nil {
		p.decode.cancel(errLegEnded)
		p.abort()
		p.released = true
		return err
	}
	if lacks {
		x.CompleteWith(x.handoff.of.(dialect.Completer).Complete)
	}
	return nil
}

// firstOf reads an answer up to the end of its first event. Of an answer that is no stream of events it reads the first byte, or all
// if aborted is not nil, which tells the answers by which engines end an aborted request.
func firstOf(resp *http.Response, a *relay.Answer, aborted func([]byte) bool) error {
	switch stream := relay.IsEventStream(resp.Header); {
	case relay.Encoded(resp.Header):
	case stream:
		return a.PeekEvent(nil, aborted)
	case aborted != nil:
		return a.PeekWhole(resp.ContentLength, aborted)
	}
	if _, err := a.Peek(); err != nil && err != io.EOF { // an answer may be empty
		return err
	}
	return nil
}

// beginAnswer notes that decode's answer now goes to the client: the prefill phase ends here, if it has not ended before.
func (p *legPair) beginAnswer() {
	p.endWatch()
	x, now := p.x, time.Now()
	end := now
	if p.prefilled == nil {
		select {
		case r := <-p.prefill:
			_ = p.prefillEnded(r) // it failed too late to matter
		default:
		}
	}
	if p.prefilled != nil {
		end = p.prefilled.at
	}
	if cached, ok := x.handoff.cached(); ok {
		x.CorrectCached(cached)
		if o, ok := x.ongoing.(interface{ SetCached(tokens int64) }); ok {
			o.SetCached(cached)
		}
	}
	x.Clock.Enter(pd.PhaseFirst, p.sent)
	x.Clock.Overlap(end.Sub(p.sent))
}
