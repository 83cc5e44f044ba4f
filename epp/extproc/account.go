package extproc

import (
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// This file keeps the account of a request: it moves the reservation from the picker's stream to the accountant's, and ends it,
// with the outcome, when the stream ends.

// takeOver begins the accountant's stream: it takes the reservation of the picker's stream and passes the request unchanged.
func (st *stream) takeOver(ends bool) (done bool, err error) {
	st.reported = true
	if plan, err := pd.ParsePlan(st.request.head.plan); err == nil {
		st.outcome.Plan = plan
		if d, ok := st.s.deps.Ledger.Take(plan.ID); ok {
			st.reservation, st.outcome.Decision = d.Reservation, d
		}
	}
	if st.reservation == nil {
		st.reservation = st.s.reserveAgain(&st.request.head)
	}
	if ends {
		st.request.state = requestEnded
	}
	if done, err = st.send(requestHeadersPass); done || err != nil {
		return true, err
	}
	return st.doneAfterRequest(), nil
}

// reserveAgain makes a reservation for a request that another replica picked for, or this one before a restart: one request each
// for the endpoint it goes to and the prefill endpoint that is tried first. The part of the prompt that is left to compute is not
// known. The result is nil if the endpoint is unknown.
func (s *Server) reserveAgain(h *head) *epp.Reservation {
	decode, _ := s.find(first(h.destination))
	if decode == nil {
		return nil
	}
	one := epp.InFlight{Requests: 1}
	claims := []epp.Claim{{Stage: epp.StageDecode, Endpoint: decode, Add: one, Keep: one}}
	if prefill, _ := s.find(first(h.prefill)); prefill != nil {
		claims = append(claims, epp.Claim{Stage: epp.StagePrefill, Endpoint: prefill, Add: one})
	}
	return epp.ReserveAnyway(claims...)
}

func first(list string) string {
	one, _, _ := strings.Cut(list, ",")
	return strings.TrimSpace(one)
}

// leaveReservation leaves the reservation with the ledger for the accountant, whose stream may come as soon as the answer is sent.
// If that stream never comes, the ledger ends the reservation.
func (st *stream) leaveReservation() {
	if st.filter == filterPicker && st.outcome.Plan.ID != "" && st.reservation != nil {
		st.s.deps.Ledger.Hold(st.outcome.Plan.ID, st.outcome.Decision)
		st.reservation = nil
	}
}

// doneAfterRequest reports whether the stream is done when its request is answered. A picker's stream is; others wait for the end
// of the answer. Where the gateway sends the answer's body, the stream cannot end before it: frames on their way from the gateway
// would be lost.
func (st *stream) doneAfterRequest() (done bool) {
	if !st.modes.noResponseBody() {
		return false
	}
	if st.filter == filterPicker {
		return true
	}
	st.dismissed.Store(!st.s.addIdle(st))
	return st.dismissed.Load()
}

// dismiss ends the stream while its handler waits for frames of the answer. A frame that is being answered at that moment gets no
// answer, which Envoy takes for one that changes nothing.
func (st *stream) dismiss() {
	st.dismissed.Store(true)
	finish(st.grpc)
}

// close ends the request, whatever ended the stream. It runs once, at the end of the handler.
func (st *stream) close() {
	st.s.removeIdle(st)
	st.mu.Lock()
	st.deadline.stop()
	timedOut := st.deadline.refusal
	st.mu.Unlock()
	st.releaseReader()
	if st.reservation != nil {
		st.reservation.End()
	}
	if timedOut != nil {
		st.noteRefusal(timedOut)
	}
	if st.reported && !st.dismissed.Load() {
		st.reportOutcome()
	}
	st.s.metrics.streams[st.filter].Dec()
}

// reportOutcome counts the outcome and passes it to the observers.
func (st *stream) reportOutcome() {
	o := &st.outcome
	o.Duration = time.Since(st.began)
	if st.request.head.generates() {
		st.s.metrics.request(o)
	}
	for _, observer := range st.s.deps.Observers {
		observer.Observe(o)
	}
}

// noteRefusal sets the outcome of a request that this server answers itself.
func (st *stream) noteRefusal(r *pd.Refusal) {
	d := r.Result()
	st.reported = true
	st.outcome.Happened, st.outcome.Status, st.outcome.Immediate = &d, r.Status(), true
}
