package extproc

import (
	"bytes"
	"mime"
	"strings"

	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// response is the state of the direction to the client. Every frame is answered at once: Envoy gives headers 200 ms.
// A gateway may be told to skip the headers, so bodies and trailers may come without.
type response struct {
	state  responseState
	rename *body.Renamer // gives the client's name of the model back; nil: the body passes as it is
	parts  [][]byte      // scratch
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
	m := st.told(said)
	if !h.GetEndOfStream() && st.renames(said) {
		if m == nil {
			m = &procv3.HeaderMutation{}
		}
		m.RemoveHeaders = append(m.RemoveHeaders, "content-length") // names have lengths of their own
	}
	if m == nil {
		return st.send(responseHeadersPass)
	}
	return st.send(responseHeadersAnswer(m))
}

// renames begins to give the client's name of the model back, if the answer's body comes this way and can be read. A sidecar
// of ours has done it then, which costs no more than looking.
func (st *stream) renames(said report) bool {
	names := st.request.rename
	if names == nil || st.modes.bodiless() {
		return false
	}
	if coding := valueOf(said.coding); coding != "" && coding != "identity" {
		return false
	}
	media, _, err := mime.ParseMediaType(valueOf(said.media))
	events := media == "text/event-stream"
	if err != nil || !events && media != "application/json" && !strings.HasSuffix(media, "+json") {
		return false
	}
	st.response.rename = body.NewRenamer(names.Answers, names.Asked, events)
	return true
}

// told adds to the answer of a generate call what a sidecar that is not ours leaves out: what was planned, since nobody
// knows what happened. It gives nil if nothing is left out.
func (st *stream) told(said report) *procv3.HeaderMutation {
	plan := &st.outcome.Plan
	if plan.ID == "" || said.decided && said.timed {
		return nil
	}
	m := &procv3.HeaderMutation{}
	if !said.decided {
		set(m, pd.HeaderDecision, pd.Result{Verdict: plan.Verdict, Reason: plan.Reason}.String())
	}
	if !said.timed {
		var phases pd.Phases
		phases.Set(pd.PhaseEPP, plan.EPP)
		set(m, pd.HeaderTiming, string(phases.AppendTiming(nil, pd.PhaseEPP)))
	}
	return m
}

func (st *stream) responseBody(b *procv3.HttpBody) (done bool, err error) {
	if st.response.state == responseEnded || st.modes.bodiless() {
		return st.violation("response-order", "a part of the response's body came where none can be")
	}
	st.responseBegins(b.GetEndOfStream())
	if st.response.rename != nil {
		return st.renamedBody(b)
	}
	if len(b.GetBody()) == 0 {
		return st.send(newBodyAnswer(false, nil, b.GetEndOfStream()))
	}
	return st.sendBody(false, [][]byte{b.GetBody()}, b.GetEndOfStream())
}

// renamedBody passes a part of the answer's body on, but for what may be the beginning of the model's name. It goes in one
// piece: a part that has many events would else become three messages for each of them.
func (st *stream) renamedBody(b *procv3.HttpBody) (done bool, err error) {
	r := &st.response
	r.parts = r.rename.Feed(r.parts[:0], b.GetBody())
	if b.GetEndOfStream() {
		r.parts = append(r.parts, r.rename.Close())
	}
	whole := bytes.Join(r.parts, nil)
	r.parts = r.parts[:0]
	if len(whole) > 0 {
		r.parts = append(r.parts, whole)
	}
	return st.sendBody(false, r.parts, b.GetEndOfStream())
}

func (st *stream) responseTrailers(t *procv3.HttpTrailers) (done bool, err error) {
	if st.response.state == responseEnded {
		return st.violation("response-order", "response trailers came after the end")
	}
	st.responseBegins(true)
	if st.filter == filterPicker {
		return st.send(responseTrailersPass)
	}
	if r := &st.response; r.rename != nil {
		if held := r.rename.Close(); len(held) > 0 { // of a body that broke off
			if done, err = st.sendBody(false, [][]byte{held}, false); done || err != nil {
				return true, err
			}
		}
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
