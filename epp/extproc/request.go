package extproc

import (
	"fmt"
	"math/rand/v2"
	"time"

	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
)

// request is the state of the direction from the client.
type request struct {
	state    requestState
	head     head
	reader   *read.Reader // nil before the headers and after the pick: an answer may run for hours, and its prompt is not kept
	buffered int64        // bytes of the body that count towards the server's buffered bytes
	subset   *epp.Subset
	rename   *pd.Rename // the model's name that the client is shown; nil: the engine's
}

type requestState uint8

const (
	requestExpected requestState = iota
	requestReading               // headers have arrived, the end has not
	requestEnded                 // the end has arrived
)

// ending is the kind of frame that ended a request.
type ending uint8

const (
	endHeaders ending = iota
	endBody
	endTrailers
)

func (st *stream) requestHeaders(f *procv3.ProcessingRequest, h *procv3.HttpHeaders) (done bool, err error) {
	r := &st.request
	if r.state != requestExpected {
		return st.violation("request-order", "request headers came twice")
	}
	r.state = requestReading
	r.head = readHead(h.GetHeaders(), st.s.deps.Scheduler.Reads())
	st.outcome.Request, st.outcome.API = r.head.RequestID, r.head.api
	if st.filter == filterAcct {
		return st.takeOver(h)
	}
	st.keepSubset(f)
	if !st.s.cfg.PDHeader {
		r.head.Mode = nil
	}
	r.reader = st.s.readers.Get().(*read.Reader)
	limit := st.s.cfg.BodyLimit
	r.reader.Reset(r.head.Head, limit, st.s.deps.Scheduler.Needs())
	switch {
	case h.GetEndOfStream():
		return st.decide(endHeaders, time.Now())
	case r.head.length > limit:
		return st.refuseUnread(pd.Refuse(pd.TooLarge, "The request body is larger than %d bytes.", limit), st.began)
	case !st.s.buffered.Fits(r.head.length):
		return st.refuseUnread(buffersFull(), st.began)
	}
	st.startWait(waitBody, st.began)
	return false, nil
}

func (st *stream) requestBody(f *procv3.ProcessingRequest, b *procv3.HttpBody) (done bool, err error) {
	if st.request.state != requestReading || st.filter == filterAcct {
		return st.violation("request-order", "a part of the request's body came where none can be")
	}
	now := time.Now()
	part := b.GetBody()
	st.noteFrame(now, len(part))
	st.keepSubset(f)
	if len(part) > 0 {
		if !st.buffer(int64(len(part))) {
			return st.refuseUnread(buffersFull(), now)
		}
		if err := st.request.reader.Write(part); err != nil {
			return st.refuseUnread(pd.AsRefusal(err), now)
		}
	}
	if b.GetEndOfStream() {
		return st.decide(endBody, now)
	}
	return false, nil
}

// buffer counts a part of this request's body until releaseReader. It reports false if that would exceed the server's limit.
func (st *stream) buffer(n int64) bool {
	if !st.s.buffered.Take(n) {
		return false
	}
	st.request.buffered += n
	return true
}

func buffersFull() *pd.Refusal {
	return pd.Refuse(pd.Busy, "As many request bodies are being read as there is memory for. Try again later.")
}

// requestTrailers decides a request that ends with trailers. A picker of a pair refuses it if its answer needs several parts:
// the second filter keeps those that come while it asks its own server, and Envoy 1.40 sends them again when this filter lets the
// trailers pass (envoyproxy/envoy#45470).
func (st *stream) requestTrailers(f *procv3.ProcessingRequest) (done bool, err error) {
	if st.request.state != requestReading {
		return st.violation("request-order", "request trailers came where none can be")
	}
	if st.filter == filterAcct {
		st.request.state = requestEnded
		return st.send(requestTrailersPass)
	}
	st.keepSubset(f)
	if st.filter == filterPicker && st.request.buffered > maxFrame {
		return st.refuseUnread(pd.Refuse(pd.BadRequest, "The request has trailers after a long body, which the gateway could garble. Send it without trailers."), time.Now())
	}
	return st.decide(endTrailers, time.Now())
}

// keepSubset keeps the gateway's subset hint, which may come with any frame of the request. Envoy sends it with every frame; it is
// read once.
func (st *stream) keepSubset(f *procv3.ProcessingRequest) {
	if st.s.cfg.Subset && st.request.subset == nil {
		st.request.subset = subsetOf(f)
	}
}

// decide answers a complete request. last is when its last byte arrived.
func (st *stream) decide(how ending, last time.Time) (done bool, err error) {
	st.request.state = requestEnded
	span := st.s.tracing.pick(st.grpc.Context(), &st.request.head, st.began)
	defer span.finish()
	r, d, err := st.pick(last)
	switch {
	case !st.claim(): // the deadline has answered
		if d != nil && d.Reservation != nil {
			d.Reservation.End()
		}
		span.refused(r, st.deadline.refusal)
		return true, nil
	case err != nil && st.grpc.Context().Err() != nil: // the client left during the pick: there is no decision to report
		return true, nil
	case err != nil:
		why := pd.AsRefusal(err)
		span.refused(r, why)
		return st.refuse(why, last)
	}
	st.reservation, st.outcome.Decision = d.Reservation, d
	took := time.Since(last)
	st.s.metrics.answered(d.Verdict, took)
	span.picked(r, d, took)
	return st.answer(how, d, took, span)
}

// pick asks the scheduler for a decision on a complete request.
func (st *stream) pick(last time.Time) (r *epp.Request, d *epp.Decision, err error) {
	if st.response.state == responseExpected {
		st.startWait(waitDecision, last)
	}
	if await := st.s.deps.Await; await != nil {
		if err := await(st.grpc.Context()); err != nil {
			return nil, nil, err
		}
	}
	if r, err = st.request.reader.Close(st.s.policy()); err != nil {
		return nil, nil, err
	}
	if err = r.RequireModel(); err != nil {
		return r, nil, err
	}
	if st.request.subset != nil {
		r.Subset = st.request.subset // no other goroutine has the request yet
	}
	if d, err = st.s.deps.Scheduler.Pick(st.grpc.Context(), r); err != nil {
		return r, nil, err
	}
	st.s.metrics.rewritten(r)
	if r.Asked != "" && st.request.head.generates() { // other answers do not name the model
		st.request.rename = &pd.Rename{Asked: r.Asked, Answers: r.Model}
	}
	return r, d, nil
}

// answer sends the headers that change, then the body with the name of the model that answers.
func (st *stream) answer(how ending, d *epp.Decision, took time.Duration, span span) (done bool, err error) {
	if st.request.head.generates() {
		plan := &st.outcome.Plan
		*plan = d.Plan()
		plan.ID, plan.EPP, plan.Report = planID(rand.Uint64()), took, st.readsTrailers()
	}
	if st.grpc.Context().Err() != nil { // the client left during the pick: no accountant will come
		st.reported = true
		return true, nil
	}
	st.reported = st.filter == filterOne
	st.leaveReservation()
	body := st.request.reader.Segments()
	if done, err = st.send(st.headersAnswer(d, span)); done || err != nil {
		return true, err
	}
	if how != endHeaders {
		if done, err = st.sendBody(true, body, how == endBody); done || err != nil {
			return true, err
		}
	}
	if how == endTrailers {
		if done, err = st.send(requestTrailersPass); done || err != nil {
			return true, err
		}
	}
	st.releaseReader()
	if st.filter == filterOne {
		st.evictable()
	}
	return st.doneAfterRequest(), nil
}

// refuseUnread refuses a request that has not arrived completely.
func (st *stream) refuseUnread(why *pd.Refusal, last time.Time) (bool, error) {
	if st.claim() {
		st.noteUnpicked(why)
	}
	return st.refuse(why, last)
}

// noteUnpicked makes the span of a request that is refused before the pick.
func (st *stream) noteUnpicked(why *pd.Refusal) {
	span := st.s.tracing.pick(st.grpc.Context(), &st.request.head, st.began)
	span.refused(nil, why)
	span.finish()
}

// refuse answers a request with an error. last is when its last byte arrived.
func (st *stream) refuse(why *pd.Refusal, last time.Time) (bool, error) {
	st.request.state = requestEnded
	if !st.claim() {
		return true, nil
	}
	took := time.Since(last)
	st.s.metrics.answered(pd.Refused, took)
	if why.Cause != nil {
		reason := string(why.Result().Reason)
		st.s.warnings.warn(reason, "a request could not be served", "reason", reason, "cause", why.Cause)
	}
	if st.response.state != responseExpected {
		// An endpoint has begun to answer, and a part of its answer may have reached the client.
		return true, status.Error(codes.Aborted, fmt.Sprintf("the request is refused (%s), but its answer has begun", why.Reason))
	}
	st.noteRefusal(why)
	_, err := st.send(immediateAnswer(why, &st.request.head, took))
	return true, err
}

// releaseReader returns the reader to the pool and releases the body that it has buffered.
func (st *stream) releaseReader() {
	st.s.buffered.Release(st.request.buffered)
	st.request.buffered = 0
	if st.request.reader != nil {
		st.request.reader.Reset(read.Head{}, 0, epp.PromptSpec{})
		st.s.readers.Put(st.request.reader)
		st.request.reader, st.request.head.Headers = nil, nil
	}
}
