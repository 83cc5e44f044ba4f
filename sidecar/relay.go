package sidecar

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// relay sends an engine's answer to the client. From its first byte on the request is never redone.
func (x *exchange) relay(resp *http.Response, a *answer) error {
	if !isEventStream(resp.Header) || encoded(resp.Header) {
		return x.relayWhole(resp, a)
	}
	if a.first == nil { // a local stream: its headers do not wait for its first event
		x.sendHeaders(resp, true)
		x.flush()
	}
	return x.relayStream(resp, a)
}

// relayFresh relays an answer of which nothing has been read.
func (x *exchange) relayFresh(resp *http.Response) error {
	a := newAnswer(resp.Body)
	defer a.free()
	return x.relay(resp, a)
}

// sendHeaders sends status and headers, with the decision and the phases that are known by now. From here on the request
// is never redone.
func (x *exchange) sendHeaders(resp *http.Response, stream bool) {
	x.buf.Drop()
	h := x.w.Header()
	transport.AnswerHeader(h, resp.Header)
	h.Set("X-Request-Id", x.id)
	h.Set(keyDecision, x.decision.String())
	x.setTiming(*x.clock.Phases())
	if x.elsewhere || tellsToRetry(resp.StatusCode) {
		h.Set(pd.HeaderRetry, "1")
	}
	if full(resp.StatusCode) && h.Get("Retry-After") == "" { // vLLM does not say it
		h.Set("Retry-After", (&pd.Refusal{Reason: pd.Saturated}).RetryAfter())
	}
	if stream {
		h.Del("Content-Length") // its usage may be corrected, an error may end it, trailers may follow
	}
	if stream && x.reports() {
		h.Add("Trailer", keyTiming)
		h.Add("Trailer", keyOutcome)
	}
	x.status, x.state, x.told = resp.StatusCode, streaming, x.clock.Phase()
	x.w.WriteHeader(resp.StatusCode)
}

// tellsToRetry tells the statuses with which an engine has done nothing: another decode pod may try.
func tellsToRetry(status int) bool {
	return status == http.StatusBadGateway || status == http.StatusServiceUnavailable
}

// full tells the statuses of an engine that has as many requests as it takes.
func full(status int) bool {
	return status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests
}

// reports says whether somebody reads a report after the answer: the picker, or a client that takes trailers.
func (x *exchange) reports() bool {
	if x.route.Plan != nil && x.route.Plan.Report {
		return true
	}
	for _, te := range x.r.Header["Te"] {
		if strings.Contains(te, "trailers") {
			return true
		}
	}
	return false
}

// corrects says whether decode's count of cached tokens must be replaced, and by what.
func (x *exchange) corrects() (cached int64, ok bool) {
	if x.decision.Verdict != pd.Remote {
		return 0, false
	}
	return x.handoff.cached()
}

func (x *exchange) flush() {
	if err := http.NewResponseController(x.w).Flush(); err != nil {
		x.s.log.Debug("flushing an answer", "request_id", x.id, "error", err)
	}
}

// relayStream passes events on as they come, whole events only: so an error event can follow at any time.
func (x *exchange) relayStream(resp *http.Response, a *answer) error {
	p := &eventPipe{x: x, events: body.Events{Limit: maxEvent}}
	if a.first != nil {
		x.clock.Enter(pd.PhaseDecode, time.Now())
		x.sendHeaders(resp, true)
		if err := p.pass(a.first); err != nil {
			return x.brokenPipe(resp, err)
		}
		a.first = nil
	}
	for {
		chunk, err := a.peek()
		if err != nil {
			return x.endEvents(resp, p, err)
		}
		x.clock.Enter(pd.PhaseDecode, time.Now())
		if err := p.pass(chunk); err != nil {
			return x.brokenPipe(resp, err)
		}
		a.skip()
	}
}

// maxEvent caps one event of a stream (bytes). The largest honest ones repeat a long prompt, as prefill's answers may.
const maxEvent = maxPrefillAnswer

// eventPipe passes events on and notes what they say.
type eventPipe struct {
	x      *exchange
	events body.Events
	usage  body.UsageReader
	done   bool // the stream said [DONE]
	failed bool // the stream said error
}

// pass writes the events that end in chunk, at once. The error is that of writing.
func (p *eventPipe) pass(chunk []byte) error {
	if err := p.events.Feed(chunk, p.event); err != nil {
		return err
	}
	p.x.flush()
	return nil
}

func (p *eventPipe) event(e body.Event) error {
	switch {
	case e.Done():
		p.done = true
	case e.Error():
		p.failed = true
	}
	raw := e.Raw
	if u, ok := p.usage.Event(e.Data); ok {
		p.x.usage = p.x.usage.Merge(u)
		if cached, ok := p.x.corrects(); ok {
			raw = correctEvent(e, cached)
			p.x.usage.Cached = cached
		}
	}
	_, err := p.x.w.Write(raw)
	return err
}

// brokenPipe ends an answer whose client does not take it any more, or whose engine sends what is no event stream.
func (x *exchange) brokenPipe(resp *http.Response, err error) error {
	x.failure = err
	if errors.Is(err, body.ErrTooLarge) {
		x.endError(pd.Refuse(pd.InternalError, "The decode engine sent an event that is too large."))
		x.sendTrailers(resp)
	}
	return nil
}

// endsWithDone are the APIs whose streams are whole only with [DONE].
func endsWithDone(api pd.API) bool { return api == pd.APIChat || api == pd.APICompletions }

// endEvents ends a stream as its engine, its client or the shutdown has ended it.
func (x *exchange) endEvents(resp *http.Response, p *eventPipe, err error) error {
	switch {
	case x.ctx.Err() != nil && !x.state.on(x.interrupted()).has(endStream):
		x.failure = errGone
		return nil
	case x.ctx.Err() != nil:
		x.endError(draining())
	case !p.done && (err != io.EOF || endsWithDone(x.api) && resp.StatusCode == http.StatusOK):
		x.failure = err
		if !p.failed {
			broken := pd.Refuse(pd.InternalError, "The decode engine broke off this answer.")
			broken.Cause = err
			x.endError(broken)
		}
	default:
		if _, err := x.w.Write(p.events.Pending()); err != nil {
			return x.brokenPipe(resp, err)
		}
		x.end = pd.EndDone
	}
	if p.failed {
		x.end = pd.EndError
	}
	x.sendTrailers(resp)
	return nil
}

// endError ends a stream with an error event in the API's shape.
func (x *exchange) endError(r *pd.Refusal) {
	x.failure, x.end = r, pd.EndError
	if _, err := x.w.Write(r.Event(x.api)); err != nil {
		x.s.log.Debug("ending a stream", "request_id", x.id, "error", err)
	}
	x.flush()
}

// sendTrailers closes the report with the phases that the headers came too early for, and passes the engine's own trailers
// on.
func (x *exchange) sendTrailers(resp *http.Response) {
	h := x.w.Header()
	for name, values := range resp.Trailer {
		if !transport.Reserved(name) {
			h[http.TrailerPrefix+name] = values
		}
	}
	if !x.reports() {
		return
	}
	all := x.clock.Stop(time.Now())
	var rest pd.Phases
	for ph := x.told; int(ph) < pd.PhaseCount; ph++ {
		if took, ok := all.Get(ph); ok {
			rest.Set(ph, took)
		}
	}
	h.Set(keyTiming, string(rest.AppendTiming(nil, pd.PhaseEPP)))
	h.Set(keyOutcome, x.outcome().String())
}

func (x *exchange) outcome() pd.AnswerSummary {
	return pd.AnswerSummary{End: x.end, Prompt: x.usage.Prompt, Cached: x.usage.Cached, Completion: x.usage.Completion}
}

// relayWhole passes an answer on that is no event stream. Its headers wait for its first byte, so that they can tell the
// time to it, and so that an answer that breaks off before it can be refused. It is held only if something must be said or
// corrected that stands at its end.
func (x *exchange) relayWhole(resp *http.Response, a *answer) error {
	if _, err := a.peek(); err != nil && err != io.EOF {
		return x.lostBeforeFirst(err)
	}
	x.clock.Enter(pd.PhaseDecode, time.Now())
	_, corrects := x.corrects()
	if resp.StatusCode == http.StatusOK && (x.reports() || corrects) && !encoded(resp.Header) && resp.ContentLength <= maxHeldAnswer {
		return x.relayHeld(resp, a)
	}
	x.sendHeaders(resp, false)
	var usage body.UsageReader
	usage.Reset()
	if err := x.copyAnswer(a, &usage); err != nil {
		x.failure = err
		panic(http.ErrAbortHandler) // half an answer must not look whole
	}
	if u, ok := usage.Usage(); ok {
		x.usage = u
	}
	x.end = pd.EndDone
	if resp.StatusCode >= http.StatusBadRequest {
		x.end = pd.EndError
	}
	x.sendTrailers(resp)
	return nil
}

// lostBeforeFirst is for an answer of which only headers came.
func (x *exchange) lostBeforeFirst(err error) error {
	if x.ctx.Err() != nil {
		return x.gone()
	}
	refusal := pd.Refuse(pd.NoEndpoint, "The decode engine of this pod broke off before its answer. Try again; another pod will answer.")
	refusal.Cause = err
	return refusal
}

// copyAnswer copies to the client as the engine sends. Usage is read along only for a trace.
func (x *exchange) copyAnswer(a *answer, usage *body.UsageReader) error {
	read := x.span.IsRecording()
	for {
		chunk, err := a.peek()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if read {
			_, err := usage.Write(chunk)
			read = err == nil
		}
		if _, err := x.w.Write(chunk); err != nil {
			return err
		}
		a.skip()
		x.flush()
	}
}

// maxHeldAnswer is the size up to which a whole answer is held back to read or correct what stands at its end (bytes).
const maxHeldAnswer = 8 << 20

var errAborted = errors.New("the engine was stopped before it had finished this answer")

// unfinished reports whether an engine that is being stopped cut an answer short.
func (s *Server) unfinished(answer []byte) bool {
	u, ok := s.dialect.(dialect.Unfinisher)
	return ok && u.Unfinished(answer)
}

// relayHeld reads an answer to its end before it is passed on.
func (x *exchange) relayHeld(resp *http.Response, a *answer) error {
	whole, err := io.ReadAll(io.LimitReader(a, maxHeldAnswer+1))
	if err != nil {
		return x.lostBeforeFirst(err)
	}
	if resp.StatusCode == http.StatusOK && x.s.unfinished(whole) && x.dying(abortMoment) {
		return x.lostBeforeFirst(errAborted)
	}
	rest := len(whole) > maxHeldAnswer // correcting it changes its length
	var usage body.UsageReader
	if u, ok := usage.Event(whole); ok {
		x.usage = u
		if cached, ok := x.corrects(); ok {
			whole = correctUsage(whole, !rest, cached)
			x.usage.Cached = cached
		}
	}
	if !rest {
		resp.Header.Set("Content-Length", strconv.Itoa(len(whole)))
		x.end = pd.EndDone
		if x.reports() {
			x.clock.Stop(time.Now())
			x.w.Header().Set(keyOutcome, x.outcome().String())
		}
	}
	x.sendHeaders(resp, false)
	if _, err := x.w.Write(whole); err != nil {
		x.failure, x.end = err, pd.EndAborted
		return nil
	}
	if rest {
		if _, err := io.Copy(x.w, a); err != nil {
			panic(http.ErrAbortHandler) // half an answer must not look whole
		}
		x.end = pd.EndDone
	}
	return nil
}

// relayBytes sends an engine's refusal that is held as bytes.
func (x *exchange) relayBytes(status int, header http.Header, b []byte) {
	header.Set("Content-Length", strconv.Itoa(len(b)))
	x.sendHeaders(&http.Response{StatusCode: status, Header: header}, false)
	x.end = pd.EndError
	if _, err := x.w.Write(b); err != nil {
		x.failure, x.end = err, pd.EndAborted
	}
}
