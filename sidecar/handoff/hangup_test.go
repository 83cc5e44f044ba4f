package handoff

import "testing"

// A late hangup must not touch a connection that another leg may use by now.
func TestHangupAfterItsLeg(t *testing.T) {
	cancelled := 0
	h := &hangup{cancel: func() { cancelled++ }}
	h.done()
	h.schedule()
	h.hangUp()
	if h.timer != nil {
		t.Error("a finished leg was hung up on")
	}
	if cancelled == 0 {
		t.Error("a finished leg's context was not ended")
	}
}
