package handoff

import (
	"syscall"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// Ranks have engines of their own, and share what is known of prefill pods and the releases under way.
func TestForRank(t *testing.T) {
	first := newLegs(t, "http://127.0.0.1:8200")
	second := first.ForRank(transport.Engine{Transport: first.Decode.Transport, URL: "http://127.0.0.1:8201"}, 8201)
	if first.Decode.URL == second.Decode.URL || first.Port == second.Port || first.localEngine.address == second.localEngine.address {
		t.Errorf("both have the engine %+v", second.Decode)
	}
	dead := pd.Target{Host: "10.0.0.1", Port: 8000}
	for range downAfter {
		first.down.tried(dead, dialError(syscall.ECONNREFUSED))
	}
	if !second.down.has(dead) {
		t.Error("only one rank knows that a prefill pod is down")
	}
	end := make(chan struct{})
	second.background(func() { <-end })
	if n := first.Releasing(); n != 1 {
		t.Errorf("%d hand-offs are being released, want the other rank's one", n)
	}
	close(end)
	first.Wait()
	if n := second.Releasing(); n != 0 {
		t.Errorf("after Wait %d hand-offs are being released", n)
	}
}
