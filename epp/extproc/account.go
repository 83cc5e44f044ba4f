package extproc

import (
	"cmp"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// This file keeps the account of a request: it moves the reservation from the picker's stream to the accountant's, and ends it,
// with the outcome, when the stream ends.

// takeOver begins the accountant's stream: it takes the reservation of the picker's stream and passes the request unchanged.
func (st *stream) takeOver(h *procv3.HttpHeaders) (done bool, err error) {
	st.reported = true
	if plan, err := pd.ParsePlan(st.request.head.plan); err == nil {
		st.outcome.Plan = plan
		if d, ok := st.s.deps.Ledger.Take(plan.ID); ok {
			st.reservation, st.outcome.Decision = d.Reservation, d
		}
	}
	if st.reservation == nil {
		st.reservation = st.s.reserveAgain(h.GetHeaders())
	}
	if h.GetEndOfStream() {
		st.request.state = requestEnded
	}
	if done, err = st.send(st.withoutPlan(h.GetHeaders())); done || err != nil {
		return true, err
	}
	st.evictable()
	return st.doneAfterRequest(), nil
}

// withoutPlan returns the answer to a request's headers. It removes the plan, which the picker's stream has left for this one,
// unless Tandem's sidecar is to get it.
func (st *stream) withoutPlan(m *corev3.HeaderMap) *procv3.ProcessingResponse {
	if st.request.head.plan == "" || st.s.peerAt(headerOf(m, epp.HeaderDestination)) == epp.PeerTandem {
		return requestHeadersPass
	}
	return requestHeadersPassWithout(pd.HeaderPlan)
}

// peerAt returns what takes a request at all of these addresses.
func (s *Server) peerAt(list string) epp.Peer {
	var endpoints []*epp.Endpoint
	for address := range strings.SplitSeq(list, ",") {
		e, _ := s.find(strings.TrimSpace(address))
		if e == nil && !s.cfg.AllTakePlans {
			return epp.PeerUnknown
		}
		endpoints = append(endpoints, e)
	}
	return s.peerOf(endpoints)
}

// reserveAgain makes a reservation for a request that another replica picked for, or this one before a restart: one request for
// each stage of the configuration in use, charged to the endpoint that the headers name first for it. How much is left to compute
// is not known, so no tokens are charged. Stages whose endpoint is unknown are not charged; without the first one, none is.
func (s *Server) reserveAgain(m *corev3.HeaderMap) *epp.Reservation {
	one := epp.InFlight{Requests: 1}
	var claims []epp.Claim
	stages := s.deps.Scheduler.Stages()
	for i := range stages {
		row, header := &stages[i], epp.HeaderDestination
		switch {
		case i > 0:
			header = row.Header
		case row.Port != 0:
			header = pd.HeaderRank
		}
		e, _ := s.find(first(headerOf(m, header)))
		switch {
		case e == nil && i == 0:
			return nil
		case e == nil:
			continue
		}
		claim := epp.Claim{Endpoint: e, Add: one}
		if row.Generates {
			claim.Keep = one
		}
		claims = append(claims, claim)
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
	st.over = true
	ended := cmp.Or(st.deadline.refusal, st.evicted)
	st.mu.Unlock()
	st.releaseReader()
	if st.reservation != nil {
		st.reservation.End()
	}
	if ended != nil {
		st.noteRefusal(ended)
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

// evictable lets the request be ended early while the stream waits for its answer.
func (st *stream) evictable() {
	if st.reservation != nil && st.request.head.generates() {
		st.reservation.OnEvict(st.evict)
	}
}

// evict ends the request early, from another goroutine. If its answer has begun, the gateway breaks it off.
func (st *stream) evict(why *pd.Refusal) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.over {
		return
	}
	st.evicted = why
	// Sending fails only if the stream has ended.
	_ = st.grpc.Send(immediateAnswer(why, &st.request.head, 0))
	finish(st.grpc)
}

// noteRefusal sets the outcome of a request that this server answers itself.
func (st *stream) noteRefusal(r *pd.Refusal) {
	d := r.Result()
	st.reported = true
	st.outcome.Happened, st.outcome.Status, st.outcome.Immediate = &d, r.Status(), true
}
