package extproc

import (
	"bytes"
	"time"

	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// response is the state of the direction to the client. Every frame is answered at once: Envoy waits 200 ms for headers by
// default. A gateway may be configured to skip the headers, so bodies and trailers may come without them.
type response struct {
	state  responseState
	rename *body.Renamer // restores the client's name of the model; nil: the body passes unchanged
	parts  [][]byte      // scratch
	counts *counts       // of the body's tokens; nil: they are not read
	told   bool          // the reporters were asked
}

type responseState uint8

const (
	responseExpected responseState = iota
	responseRunning                // headers or a part of the body have arrived
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
	reported := readReport(h.GetHeaders(), &st.outcome)
	st.outcome.Status, st.outcome.Answered = reported.status, time.Since(st.began)
	var by *epp.Endpoint
	by, st.outcome.Served = st.s.find(servedBy(f))
	if st.reservation != nil {
		if d := st.outcome.Decision; d != nil && d.Picks[0].Row.Port != 0 {
			by = nil // the gateway knows the sidecar, not the rank
		}
		if by != nil {
			st.reservation.Served(by)
		}
		st.reservation.Answered()
	}
	began, _ := st.outcome.TTFT()
	m := st.stamp(st.tellWait(st.missingReport(reported)), epp.Answer{By: by, Reported: reportedBy(f), TTFT: began})
	if !h.GetEndOfStream() && st.startRename(reported) {
		if m == nil {
			m = &procv3.HeaderMutation{}
		}
		m.RemoveHeaders = append(m.RemoveHeaders, "content-length") // the two names may differ in length
	}
	st.startCounts(reported)
	if m == nil {
		return st.send(st.tell(responseHeadersPass, true))
	}
	return st.send(st.tell(responseHeadersAnswer(m), false))
}

// startRename prepares to restore the client's name of the model in the answer's body. It reports false if the gateway does not
// send the body, or this package cannot read it. If our sidecar has already restored the name, the renamer finds nothing.
func (st *stream) startRename(r report) bool {
	names := st.request.rename
	if names == nil || st.modes.noResponseBody() {
		return false
	}
	events, ok := readable(r)
	if !ok {
		return false
	}
	st.response.rename = body.NewRenamer(names.Answers, names.Asked, events)
	return true
}

// missingReport returns the headers that a generate call's answer lacks because the sidecar is not ours: the plan, since the actual
// result is not known, and the picker's own time. The result is nil if the answer lacks none.
func (st *stream) missingReport(r report) *procv3.HeaderMutation {
	plan := &st.outcome.Plan
	if plan.ID == "" || r.decided && r.timed {
		return nil
	}
	m := &procv3.HeaderMutation{}
	if !r.decided {
		set(m, pd.HeaderDecision, pd.Result{Verdict: plan.Verdict, Reason: plan.Reason}.String())
	}
	if !r.timed {
		var phases pd.Phases
		phases.Set(pd.PhaseEPP, plan.EPP)
		set(m, pd.HeaderTiming, string(phases.AppendTiming(nil, pd.PhaseEPP)))
	}
	return m
}

// tellWait adds how long the request waited for capacity, if it did.
func (st *stream) tellWait(m *procv3.HeaderMutation) *procv3.HeaderMutation {
	d := st.outcome.Decision
	if d == nil || d.Pass.Waited == 0 {
		return m
	}
	if m == nil {
		m = &procv3.HeaderMutation{}
	}
	set(m, pd.HeaderQueue, pd.QueueWait(d.Pass.Waited))
	return m
}

// stamp adds the headers of plugins to the answer. a.By is nil if the gateway does not tell which endpoint served the request.
func (st *stream) stamp(m *procv3.HeaderMutation, a epp.Answer) *procv3.HeaderMutation {
	d := st.outcome.Decision
	if d == nil || d.AnswerPlugins == nil || len(d.AnswerPlugins.Stampers) == 0 {
		return m
	}
	if a.Decision = d; a.By == nil {
		a.By = d.First()[0]
	}
	if m == nil {
		m = &procv3.HeaderMutation{}
	}
	for _, stamper := range d.AnswerPlugins.Stampers {
		stamper.Stamp(&a, func(name, value string) { set(m, name, value) })
	}
	return m
}

func (st *stream) responseBody(b *procv3.HttpBody) (done bool, err error) {
	if st.response.state == responseEnded || st.modes.noResponseBody() {
		return st.violation("response-order", "a part of the response's body came where none can be")
	}
	st.responseBegins(b.GetEndOfStream())
	st.response.counts.write(b.GetBody())
	if st.response.rename != nil {
		return st.renamedBody(b)
	}
	if len(b.GetBody()) == 0 {
		return st.sendBodyPart(false, nil, b.GetEndOfStream())
	}
	return st.sendBody(false, [][]byte{b.GetBody()}, b.GetEndOfStream())
}

// renamedBody passes a part of the answer's body on, without a tail that may be the beginning of the model's name. It sends one
// message: a part with many events would otherwise become three messages for each event.
func (st *stream) renamedBody(b *procv3.HttpBody) (done bool, err error) {
	r := &st.response
	r.parts = r.rename.Feed(r.parts[:0], b.GetBody())
	if b.GetEndOfStream() {
		r.parts = append(r.parts, r.rename.Close())
	}
	joined := bytes.Join(r.parts, nil)
	r.parts = r.parts[:0]
	if len(joined) > 0 {
		r.parts = append(r.parts, joined)
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
		if tail := r.rename.Close(); len(tail) > 0 { // of a body that broke off
			if done, err = st.sendBody(false, [][]byte{tail}, false); done || err != nil {
				return true, err
			}
		}
	}
	reported := readReport(t.GetTrailers(), &st.outcome)
	if st.request.head.trailers {
		return st.send(st.tell(responseTrailersPass, true))
	}
	var remove []string
	if reported.timed {
		remove = append(remove, pd.HeaderTiming)
	}
	if reported.closed {
		remove = append(remove, pd.HeaderOutcome)
	}
	if remove == nil {
		return st.send(st.tell(responseTrailersPass, true))
	}
	return st.send(st.tell(responseTrailersAnswer(remove), false))
}

// responseBegins notes that the answer has begun. From now on no deadline may answer the request.
func (st *stream) responseBegins(ends bool) {
	if st.response.state == responseExpected {
		st.claim()
	}
	st.response.state = responseRunning
	if ends {
		st.response.state = responseEnded
	}
}
