package flow

import (
	"fmt"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// TestMostFlowsAreRemembered: clients choose the ids of flows, so not all of them are kept.
func TestMostFlowsAreRemembered(t *testing.T) {
	c := New(Settings{Other: Band{Fairness: LeastAttained}}, OpenGate{}, Options{Clock: epp.SystemClock})
	for i := range mostResting + 10 {
		c.Observe(&epp.Outcome{Decision: &epp.Decision{Origin: epp.Origin{Flow: fmt.Sprint(i)}, Tokens: 40}})
	}
	b := c.band(0)
	if len(b.flows) != mostResting || b.resting.Len() != mostResting || b.flows["9"] != nil || b.flows["10"] == nil {
		t.Errorf("%d flows are remembered, and %d rest", len(b.flows), b.resting.Len())
	}
}
