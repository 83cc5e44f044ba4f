package demo

import (
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/report"
	"github.com/tandem-serving/tandem/pd"
)

// data converts the evidence to the data of a report, with the checks.
func (e *evidence) data() *report.Data {
	d := &report.Data{Title: "Tandem demo", Started: e.started, Stack: e.stack, Load: e.load, Why: e.why(), Checks: e.judge(), KVMoved: e.pulled.bytes}
	if e.compared != nil {
		d.Comparison = &e.compared.data
	}
	for i := range e.exchanges {
		d.Requests = append(d.Requests, e.exchanges[i].request(i+1, e.started))
	}
	return d
}

func (x *exchange) request(number int, started time.Time) report.Request {
	r := report.Request{Number: number, Class: x.class.name, API: x.class.api.String(), Stream: x.class.stream,
		Prompt: x.reference.promptTokens, Start: inMillis(x.start.Sub(started)), Phases: map[string]float64{}, KVBytes: x.kvBytes()}
	if x.failure != nil {
		r.Failure = x.failure.Error()
		return r
	}
	a := &x.answer
	r.Decision, r.Reason, r.Attempts = a.decision.Verdict.String(), string(a.decision.Reason), a.decision.Attempts
	r.DecodePod, r.PrefillPod = x.traced.decode, x.traced.prefill
	r.Cached, r.Completion = int(max(0, a.outcome.Cached)), a.completion
	r.TTFT, r.Total = inMillis(a.first), inMillis(a.took)
	for _, gap := range a.gaps {
		r.ITL = append(r.ITL, inMillis(gap))
	}
	for ph := range pd.PhaseOverlap + 1 { // the last
		if d, ok := a.phases.Get(ph); ok {
			r.Phases[ph.String()] = inMillis(d)
		}
	}
	return r
}

// kvBytes returns the bytes pulled for a request. They are known only for requests that ran alone, because the engines count
// all requests together.
func (x *exchange) kvBytes() int64 {
	switch {
	case x.alone != nil:
		return x.alone.bytes
	case x.isRemote():
		return -1
	}
	return 0
}

// inMillis returns d in milliseconds, with the precision of Server-Timing, which is microseconds.
func inMillis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// whys is the number of decisions that are shown with their numbers.
const whys = 3

// why returns the picker's explanation of the first request of each reason, the most interesting ones first. It leaves out
// requests whose decision differed from the explanation, because other requests came in between.
func (e *evidence) why() (all []report.Why) {
	for _, reason := range []pd.Reason{pd.BelowThreshold, pd.Uncached, pd.ShortPrompt, pd.Forced, pd.Bypassed} {
		i := slices.IndexFunc(e.exchanges, func(x exchange) bool {
			return x.failure == nil && x.answer.decision.Reason == reason && x.foretold != nil && x.foretold.Reason == reason
		})
		if i < 0 || len(all) == whys {
			continue
		}
		x := &e.exchanges[i]
		all = append(all, report.Why{Question: fmt.Sprintf("Why was request %d (%s) %s?", i+1, x.class.name, x.answer.decision.Verdict),
			Request: i + 1, Explanation: x.foretold})
	}
	return all
}
