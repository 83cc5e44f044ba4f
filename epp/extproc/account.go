package extproc

import (
	"strings"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// takeOver begins the accountant's stream: it takes over the reservation of the picker's stream and lets the request pass.
func (st *stream) takeOver(ends bool) (done bool, err error) {
	st.decided = true
	if plan, err := pd.ParsePlan(st.request.head.plan); err == nil {
		st.outcome.Plan = plan
		st.reservation, _ = st.s.deps.Ledger.Take(plan.ID)
	}
	if st.reservation == nil {
		st.reservation = st.s.chargeAnew(&st.request.head)
	}
	if ends {
		st.request.state = requestEnded
	}
	if done, err = st.send(requestHeadersPass); done || err != nil {
		return true, err
	}
	return st.rests(), nil
}

// chargeAnew charges a request whose reservation is not here, because it was picked by another replica or before a
// restart: one request each for the endpoint it goes to and the prefill endpoint tried first. How much of its prompt is
// left to compute is not known. It gives nil if the endpoint is not known either.
func (s *Server) chargeAnew(h *head) *epp.Reservation {
	decode, _ := s.find(first(h.destination))
	if decode == nil {
		return nil
	}
	prefill, _ := s.find(first(h.prefill))
	one := epp.InFlight{Requests: 1}
	return epp.Insist(epp.Claim{Endpoint: decode, Add: one}, epp.Claim{Endpoint: prefill, Add: one}, false)
}

func first(list string) string {
	one, _, _ := strings.Cut(list, ",")
	return strings.TrimSpace(one)
}
