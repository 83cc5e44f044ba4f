package sched_test

import (
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// predicted is a signal of these tests.
var predicted = epp.Declare(epp.Declaration{Name: "predicted", Kind: epp.ComputedSignal, Unit: epp.Seconds})

// perToken predicts, for the endpoints it names, a time for each token of the prompt.
type perToken map[string]float64

func (p perToken) Produce(r *epp.Round, c []epp.Candidate) {
	for i := range c {
		if per, ok := p[c[i].Name]; ok {
			c[i].Compute(predicted, per*float64(r.Request.Prompt.Tokens))
		}
	}
}

// soonest prefers candidates with a low prediction.
type soonest struct{}

func (soonest) Score(_ *epp.Round, c []epp.Candidate, scores []float64) {
	for i := range c {
		if v, ok := c[i].Value(predicted); ok {
			scores[i] = 1 / (1 + v)
		}
	}
}

// TestProducers: what a producer computes for a request reaches scorers of both stages and the explanation. It is not left
// over for the next request.
func TestProducers(t *testing.T) {
	c := disagg()
	producer := perToken{"decode-0": 0.5, "decode-1": 0.25, "prefill-2": 0.125}
	c.Producers = []epp.Producer{producer}
	for i := range c.Profiles {
		c.Profiles[i].Scorers = []epp.NamedScorer{{Name: "soonest", Weight: 1, Scorer: soonest{}}}
	}
	s := scheduler(t, fleet("decode", "decode", "prefill", "prefill"), c)
	d, err := s.Explain(t.Context(), splitRequest(100))
	if err != nil {
		t.Fatal(err)
	}
	if d.Endpoints(epp.StageDecode)[0].Name != "decode-1" || d.Endpoints(epp.StagePrefill)[0].Name != "prefill-2" {
		t.Errorf("decode %v, prefill %v", d.Endpoints(epp.StageDecode), d.Endpoints(epp.StagePrefill))
	}
	for _, stage := range d.Trace.Stages {
		for _, got := range stage.Candidates {
			want := map[string]float64{"default/decode-0": 50, "default/decode-1": 25, "default/prefill-2": 12.5}
			value := got.Signals.Of("predicted").Value
			if per, known := want[got.Endpoint]; known != (value != nil) || known && *value != per {
				t.Errorf("%s stage: %s has %v", stage.Stage, got.Endpoint, value)
			}
		}
	}
	delete(producer, "decode-1")
	if d := mustPick(t, s, splitRequest(100)); d.Endpoints(epp.StageDecode)[0].Name != "decode-0" {
		t.Errorf("the next request goes to %v", d.Endpoints(epp.StageDecode))
	}
}

// TestProducersAllocateNothing compares picks with and without a producer.
func TestProducersAllocateNothing(t *testing.T) {
	allocations := func(producers ...epp.Producer) float64 {
		c := disagg()
		c.Producers = producers
		s, r := scheduler(t, fleet(times(20, "decode")...), c), splitRequest(100)
		pick := func() {
			d, err := s.Pick(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			d.Reservation.End()
		}
		least := testing.AllocsPerRun(1, pick)
		for range 100 { // with the race detector, pools drop some of what they are given
			least = min(least, testing.AllocsPerRun(1, pick))
		}
		return least
	}
	without := allocations()
	if with := allocations(perToken{"decode-0": 1}); with > without {
		t.Errorf("%v allocations, %v without a producer", with, without)
	}
}
