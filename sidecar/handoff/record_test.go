package handoff

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// The record of a request for several choices has the legs of all in the order in which they were sent, up to a limit.
func TestRecordOfChoices(t *testing.T) {
	began := time.Now()
	whole := newRecord("r", began)
	for i := range 5 {
		one := newRecord("r", began)
		one.of = whole
		for k := range 4 {
			at := began.Add(time.Duration(10*k+i) * time.Millisecond)
			one.leg("prefill", "10.0.0.1:8000", at, at, 200, nil)
		}
		one.release(wayAbort, "ok", errors.New("x"))
		whole.addLegs(one)
	}
	var at []float64
	for _, l := range whole.legs {
		at = append(at, l.At)
	}
	if len(at) != maxRecordedLegs || !slices.IsSorted(at) || whole.legsLeft != 4 || len(whole.releases) != 5 {
		t.Errorf("legs at %v, %d left out, %d releases", at, whole.legsLeft, len(whole.releases))
	}
}
