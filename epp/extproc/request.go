package extproc

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/read"
	"github.com/tandem-serving/tandem/pd"
)

// request is the state of the direction from the client.
type request struct {
	state  requestState
	head   head
	reader *read.Reader // nil before the headers and after the answer: an answer may run for hours, its prompt is not kept
	held   int64        // bytes of the body that are counted as held
	subset *epp.Subset
	rename *pd.Rename // the model's name that the client gets to see; nil: the engine's
}

type requestState uint8

const (
	requestExpected requestState = iota
	requestReading               // headers came, the end did not
	requestEnded                 // the end came
)

// end is what ended a request.
type end uint8

const (
	endHeaders end = iota
	endBody
	endTrailers
)

func (st *stream) requestHeaders(f *procv3.ProcessingRequest, h *procv3.HttpHeaders) (done bool, err error) {
	r := &st.request
	if r.state != requestExpected {
		return st.violation("request-order", "request headers came twice")
	}
	r.state = requestReading
	r.head = readHead(h.GetHeaders())
	st.outcome.Request, st.outcome.API = r.head.RequestID, r.head.api
	if st.filter == filterAcct {
		return st.takeOver(h.GetEndOfStream())
	}
	st.hint(f)
	if !st.s.cfg.PDHeader {
		r.head.Mode = nil
	}
	r.reader = st.s.readers.Get().(*read.Reader)
	limit := st.s.cfg.BodyLimit
	r.reader.Reset(r.head.Head, limit, st.s.deps.Scheduler.Blocks())
	switch {
	case h.GetEndOfStream():
		return st.decide(endHeaders, time.Now())
	case r.head.length > limit:
		return st.turnAway(pd.Refuse(pd.TooLarge, "The request body is larger than %d bytes.", limit), st.began)
	case !st.s.held.Fits(r.head.length):
		return st.turnAway(heldTooMuch(), st.began)
	}
	st.await(waitBody, st.began)
	return false, nil
}

func (st *stream) requestBody(f *procv3.ProcessingRequest, b *procv3.HttpBody) (done bool, err error) {
	if st.request.state != requestReading || st.filter == filterAcct {
		return st.violation("request-order", "a part of the request's body came where none can be")
	}
	now := time.Now()
	part := b.GetBody()
	st.came(now, len(part))
	st.hint(f)
	if len(part) > 0 {
		if !st.hold(int64(len(part))) {
			return st.turnAway(heldTooMuch(), now)
		}
		if err := st.request.reader.Write(part); err != nil {
			return st.turnAway(pd.AsRefusal(err), now)
		}
	}
	if b.GetEndOfStream() {
		return st.decide(endBody, now)
	}
	return false, nil
}

// hold counts a part of this request's body, until dropReader. It reports false if it must not be held.
func (st *stream) hold(n int64) bool {
	if !st.s.held.Take(n) {
		return false
	}
	st.request.held += n
	return true
}

func heldTooMuch() *pd.Refusal {
	return pd.Refuse(pd.Busy, "As many request bodies are being read as there is memory for. Try again later.")
}

func (st *stream) requestTrailers(f *procv3.ProcessingRequest) (done bool, err error) {
	if st.request.state != requestReading {
		return st.violation("request-order", "request trailers came where none can be")
	}
	if st.filter == filterAcct {
		st.request.state = requestEnded
		return st.send(requestTrailersPass)
	}
	st.hint(f)
	return st.decide(endTrailers, time.Now())
}

// hint keeps the gateway's subset hint, which may come with any frame of the request: Envoy sends it with every one, and it
// is read once.
func (st *stream) hint(f *procv3.ProcessingRequest) {
	if st.s.cfg.Subset && st.request.subset == nil {
		st.request.subset = subsetOf(f)
	}
}

// decide answers a request that is complete; last is when the last byte of it came.
func (st *stream) decide(how end, last time.Time) (done bool, err error) {
	st.request.state = requestEnded
	span := st.s.tracing.pick(st.grpc.Context(), &st.request.head, st.began)
	defer span.finish()
	r, d, err := st.pick(last)
	switch {
	case !st.claim(): // the timer has answered
		if d != nil && d.Reservation != nil {
			d.Reservation.End()
		}
		span.refused(r, st.deadline.overdue)
		return true, nil
	case err != nil:
		why := pd.AsRefusal(err)
		span.refused(r, why)
		return st.refuse(why, last)
	}
	st.reservation = d.Reservation
	took := time.Since(last)
	st.s.metrics.answered(d.Verdict, took)
	span.picked(r, d, took)
	return st.answer(how, d, took, span)
}

// pick has the scheduler decide on a request that came in whole.
func (st *stream) pick(last time.Time) (r *epp.Request, d *epp.Decision, err error) {
	if r, err = st.request.reader.Close(st.s.policy()); err != nil {
		return nil, nil, err
	}
	if st.request.subset != nil {
		r.Subset = st.request.subset // the request is a moment old, and nobody else's yet
	}
	if st.response.state == responseExpected {
		st.await(waitDecision, last)
	}
	if d, err = st.s.deps.Scheduler.Pick(r); err != nil {
		return r, nil, err
	}
	st.s.metrics.rewritten(r)
	if r.Asked != "" {
		st.request.rename = &pd.Rename{Asked: r.Asked, Answers: r.Model}
	}
	return r, d, nil
}

// answer sends a complete request on its way: the headers that change, then the body, with the model that answers.
func (st *stream) answer(how end, d *epp.Decision, took time.Duration, span span) (done bool, err error) {
	if st.request.head.generates() {
		st.outcome.Plan = pd.Plan{Verdict: d.Verdict, ID: planID(rand.Uint64()), Reason: d.Reason, Strict: d.Strict, EPP: took,
			Report: st.reports()}
	}
	if st.grpc.Context().Err() != nil { // the client left while we chose: no accountant will come
		st.decided = true
		return true, nil
	}
	st.decided = st.filter == filterOne
	st.leave()
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
	st.dropReader()
	return st.rests(), nil
}

// leave leaves the reservation to the accountant, whose stream may come as soon as the answer has gone out. If that fails,
// nobody takes it over, and the ledger ends it.
func (st *stream) leave() {
	if st.filter == filterPicker && st.outcome.Plan.ID != "" && st.reservation != nil {
		st.s.deps.Ledger.Hold(st.outcome.Plan.ID, st.reservation)
		st.reservation = nil
	}
}

// reports tells whether trailers of the answer will be read, by this stream or by the accountant's. A duplex body always
// comes with its trailers.
func (st *stream) reports() bool {
	return st.filter == filterPicker || st.s.cfg.Trailers || st.modes.known && !st.modes.bodiless()
}

// rests tells whether the stream is done when its request is answered. A picker's is; others wait for the answer's end.
// Where the answer's body comes this way, the stream cannot end before it: what is under way from the gateway would be lost.
func (st *stream) rests() (done bool) {
	if !st.modes.bodiless() {
		return false
	}
	if st.filter == filterPicker {
		return true
	}
	st.dismissed.Store(!st.s.rest(st))
	return st.dismissed.Load()
}

// headersAnswer has the headers that change: those of the decision and of the body, and those a client must not send.
func (st *stream) headersAnswer(d *epp.Decision, span span) *procv3.ProcessingResponse {
	chosen := d.Decode
	if st.s.cfg.SingleEndpoint {
		chosen = chosen[:1]
	}
	destination := destinations(chosen)
	m := &procv3.HeaderMutation{SetHeaders: make([]*corev3.HeaderValueOption, 0, 4)}
	set(m, epp.HeaderDestination, destination)
	if st.outcome.Plan.ID != "" {
		if len(d.Prefill) > 0 {
			set(m, pd.HeaderPrefill, destinations(d.Prefill))
		}
		set(m, pd.HeaderPlan, st.outcome.Plan.String())
		if st.s.cfg.Auth != nil {
			set(m, pd.HeaderAuth, st.s.cfg.Auth())
		}
	}
	if st.request.rename != nil {
		set(m, pd.HeaderModel, st.request.rename.String())
	}
	if r := &st.request; r.head.length > 0 && r.reader.Rewritten() {
		// Envoy drops the length where bodies come this way, unless it is told to keep it.
		set(m, "content-length", strconv.FormatInt(size(r.reader.Segments()), 10))
	}
	for name, value := range st.s.tracing.inject(span) {
		set(m, name, value)
	}
	for _, name := range st.request.head.internal {
		if !sets(m, name) {
			m.RemoveHeaders = append(m.RemoveHeaders, name)
		}
	}
	return requestHeadersAnswer(m, destination, st.s.cfg.ClearRouteCache)
}

func size(segments [][]byte) (n int64) {
	for _, s := range segments {
		n += int64(len(s))
	}
	return n
}

// turnAway refuses a request that has not come in whole.
func (st *stream) turnAway(why *pd.Refusal, last time.Time) (bool, error) {
	if st.claim() {
		st.noteUnpicked(why)
	}
	return st.refuse(why, last)
}

// noteUnpicked makes the span of a request that is refused before there is anything to pick for.
func (st *stream) noteUnpicked(why *pd.Refusal) {
	span := st.s.tracing.pick(st.grpc.Context(), &st.request.head, st.began)
	span.refused(nil, why)
	span.finish()
}

// refuse answers a request from here; last is when the last byte of it came.
func (st *stream) refuse(why *pd.Refusal, last time.Time) (bool, error) {
	st.request.state = requestEnded
	if !st.claim() {
		return true, nil
	}
	took := time.Since(last)
	st.s.metrics.answered(pd.Refused, took)
	if why.Cause != nil {
		reason := string(why.Result().Reason)
		st.s.quiet.warn(reason, "a request could not be served", "reason", reason, "cause", why.Cause)
	}
	if st.response.state != responseExpected {
		// Somebody has answered already, with something of which a part may have reached the client.
		return true, status.Error(codes.Aborted, fmt.Sprintf("the request is refused (%s), but its answer has begun", why.Reason))
	}
	st.refused(why)
	_, err := st.send(immediateAnswer(why, st.request.head.api, took))
	return true, err
}

// dropReader gives the reader back, with the body it holds.
func (st *stream) dropReader() {
	st.s.held.Release(st.request.held)
	st.request.held = 0
	if st.request.reader != nil {
		st.request.reader.Reset(read.Head{}, 0, epp.BlockSpec{})
		st.s.readers.Put(st.request.reader)
		st.request.reader = nil
	}
}
