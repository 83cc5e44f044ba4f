package extproc

import (
	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// response is the state of the direction to the client. Every frame is answered at once: Envoy gives headers 200 ms.
// A gateway may be told to skip the headers, so bodies and trailers may come without.
type response struct {
	state responseState
}

type responseState uint8

const (
	responseExpected responseState = iota
	responseRunning                // headers or a part of the body came
	responseEnded
)

func (st *stream) responseHeaders(f *procv3.ProcessingRequest, h *procv3.HttpHeaders) (done bool, err error) {
	if st.response.state != responseExpected {
		return st.violation("response-order", "response headers came twice, or after the body")
	}
	st.responseBegins(h.GetEndOfStream())
	if st.filter == filterPicker {
		return st.send(responseHeadersPass)
	}
	said := readReport(h.GetHeaders(), &st.outcome)
	st.outcome.Status = said.status
	var by *epp.Endpoint
	by, st.outcome.Served = st.s.find(servedBy(f))
	if st.reservation != nil {
		if by != nil {
			st.reservation.Move(by)
		}
		st.reservation.Answered()
	}
	return st.send(st.told(said))
}

// told adds to the answer of a generate call what a sidecar that is not ours leaves out: what was planned, since nobody
// knows what happened.
func (st *stream) told(said report) *procv3.ProcessingResponse {
	plan := &st.outcome.Plan
	if plan.ID == "" || said.decided && said.timed {
		return responseHeadersPass
	}
	m := &procv3.HeaderMutation{}
	if !said.decided {
		set(m, pd.HeaderDecision, pd.Decision{Verdict: plan.Verdict, Reason: plan.Reason}.String())
	}
	if !said.timed {
		var phases pd.Phases
		phases.Set(pd.PhaseEPP, plan.EPP)
		set(m, pd.HeaderTiming, string(phases.AppendTiming(nil, pd.PhaseEPP)))
	}
	return responseHeadersAnswer(m)
}

func (st *stream) responseBody(b *procv3.HttpBody) (done bool, err error) {
	if st.response.state == responseEnded || st.modes.bodiless() {
		return st.violation("response-order", "a part of the response's body came where none can be")
	}
	st.responseBegins(b.GetEndOfStream())
	if len(b.GetBody()) == 0 {
		return st.send(newBodyAnswer(false, nil, b.GetEndOfStream()))
	}
	return st.sendBody(false, [][]byte{b.GetBody()}, b.GetEndOfStream())
}

func (st *stream) responseTrailers(t *procv3.HttpTrailers) (done bool, err error) {
	if st.response.state == responseEnded {
		return st.violation("response-order", "response trailers came after the end")
	}
	st.responseBegins(true)
	if st.filter == filterPicker {
		return st.send(responseTrailersPass)
	}
	said := readReport(t.GetTrailers(), &st.outcome)
	if st.request.head.trailers {
		return st.send(responseTrailersPass)
	}
	var remove []string
	if said.timed {
		remove = append(remove, pd.HeaderTiming)
	}
	if said.closed {
		remove = append(remove, pd.HeaderOutcome)
	}
	if remove == nil {
		return st.send(responseTrailersPass)
	}
	return st.send(responseTrailersAnswer(remove))
}

// responseBegins notes that the answer runs. From now on no deadline of the request may answer it.
func (st *stream) responseBegins(ends bool) {
	if st.response.state == responseExpected {
		st.claim()
	}
	st.response.state = responseRunning
	if ends {
		st.response.state = responseEnded
	}
}
