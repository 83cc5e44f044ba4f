package handler

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/pd"
)

// drifting is a pair whose decider goes by drift plus penalty, and which has learnt the usual times.
func drifting(t *testing.T) (*pair, *byDrift) {
	p := newPair(t)
	p.learn(usual, usual, 5*time.Millisecond)
	return p, &byDrift{TTFTMs: 2000, TPOTMs: 50, TransferWeight: 1, model: p.decider.model}
}

func (p *pair) wantDrift(d *byDrift, verdict pd.Verdict, what string, tokens int) {
	p.t.Helper()
	a := &epp.Alternatives{Round: &epp.Round{Request: &epp.Request{}}, Tokens: tokens, Local: []epp.Candidate{p.decode}, Remote: []epp.Candidate{p.prefill}, Links: []epp.Link{{}}}
	r := d.Decide(a)
	if r.Verdict != verdict || r.Reason != pd.LowerCost || len(r.Costs) != 2 || r.Costs[0].Endpoint != p.decode.Endpoint || r.Costs[1].Endpoint != p.prefill.Endpoint {
		p.t.Errorf("%s: %+v, want %s", what, r, verdict)
	}
}

func TestDriftByQueues(t *testing.T) {
	p, d := drifting(t)
	p.wantDrift(d, pd.Local, "nothing waits, so the transfer decides", 4000)
	p.decode.InFlight.Tokens = 40_000
	p.wantDrift(d, pd.Remote, "prompts wait at decode", 4000)
	p.prefill.InFlight.Tokens = 80_000
	p.wantDrift(d, pd.Local, "more prompts wait at prefill", 4000)
	d.TransferWeight, p.prefill.InFlight.Tokens = 1000, 0
	p.wantDrift(d, pd.Local, "transfers weigh more than queues", 4000)

	p, d = drifting(t)
	p.busy(10, 0)
	p.wantDrift(d, pd.Local, "answers of unknown length", 4000)
	for range 3 {
		d.Observe(outcome(time.Millisecond, time.Millisecond))
	}
	if got := d.length.value(); got != 101 {
		t.Errorf("answers have %v tokens, want 101", got)
	}
	p.wantDrift(d, pd.Local, "answers that are nearly done", 500)
	d.length.add(101 + 1000*latest)
	p.wantDrift(d, pd.Remote, "long answers", 4000)
}

// outcome is a remote request whose first token took so long, and each further one.
func outcome(first, further time.Duration) *epp.Outcome {
	o := &epp.Outcome{Decision: &epp.Decision{}, Phases: &pd.Phases{}, Result: &pd.AnswerSummary{End: pd.EndDone, Completion: 101}}
	o.Phases.Set(pd.PhasePrefill, first/2)
	o.Phases.Set(pd.PhaseHandoff, first/4)
	o.Phases.Set(pd.PhaseFirst, first/4)
	o.Phases.Set(pd.PhaseDecode, 100*further)
	return o
}

// TestDriftByDeficits: answers whose tokens come late make remote prefill better, first tokens that come late what is faster for these.
func TestDriftByDeficits(t *testing.T) {
	p, d := drifting(t)
	p.busy(40, 5000)
	p.wantDrift(d, pd.Local, "nothing waits, and nothing was late", 4000)
	for range 10 {
		d.Observe(outcome(time.Second, 100*time.Millisecond))
	}
	if late, slow := d.late.value(), d.slow.value(); late != 0 || slow != 10 {
		t.Errorf("deficits %v and %v, want 0 and 10", late, slow)
	}
	p.wantDrift(d, pd.Remote, "further tokens took twice as long as wanted", 4000)
	for range 20 {
		d.Observe(outcome(4*time.Second, 25*time.Millisecond))
	}
	if late, slow := d.late.value(), d.slow.value(); late != 20 || slow != 0 {
		t.Errorf("deficits %v and %v, want 20 and 0", late, slow)
	}
	p.wantDrift(d, pd.Local, "first tokens took twice as long as wanted, and are faster without a transfer", 4000)
	for range 1000 {
		d.Observe(outcome(time.Hour, 0))
	}
	if got := d.late.value(); got != mostDeficit {
		t.Errorf("deficit %v, want %v at most", got, float64(mostDeficit))
	}
	broken := outcome(time.Hour, time.Hour)
	broken.Result.End = pd.EndAborted
	for _, o := range []*epp.Outcome{broken, {Phases: &pd.Phases{}}, {Decision: &epp.Decision{}}} {
		if d.Observe(o); d.slow.value() != 0 {
			t.Errorf("%+v was counted", o)
		}
	}
}

func TestDriftWithoutPrefill(t *testing.T) {
	_, d := drifting(t)
	p := newPair(t)
	a := &epp.Alternatives{Round: &epp.Round{Request: &epp.Request{}}, Tokens: 4000, Local: []epp.Candidate{p.decode}}
	if r := d.Decide(a); r.Verdict != pd.Remote || !r.Reason.Explains(r.Verdict) {
		t.Errorf("%+v: want that what is configured for such pools counts", r)
	}
	a.Local = nil
	if r := d.Decide(a); r.Verdict != pd.Local {
		t.Errorf("%+v without endpoints", r)
	}
}

func BenchmarkDecideByDrift(b *testing.B) {
	p := newPair(&testing.T{})
	p.learn(usual, usual, 5*time.Millisecond)
	d := &byDrift{TTFTMs: 2000, TPOTMs: 50, TransferWeight: 1, model: latency.NewModel(epp.SystemClock)}
	a := &epp.Alternatives{Round: &epp.Round{Request: &epp.Request{}}, Tokens: 4000, Local: []epp.Candidate{p.decode}, Remote: []epp.Candidate{p.prefill}, Links: []epp.Link{{}}}
	b.ReportAllocs()
	for b.Loop() {
		d.Decide(a)
	}
}
