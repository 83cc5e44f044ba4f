package rolling

import (
	"fmt"
	"testing"
)

// TestNameServerFails: while the name server fails, requests are answered by the pickers that Envoy knows. A picker that takes the
// place of another one meanwhile is found when the name server works again.
func TestNameServerFails(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it")
	}
	for _, how := range []nameFault{serverFailure, noAnswer} {
		t.Run(string(how), func(t *testing.T) {
			f := newRollingFleet(t)
			f.awaitPickers(t, rollingPairs)
			l := f.press(t, 2, 0)
			l.await(t, 8)
			f.names.fail(how)
			f.Eventually(t, "questions in vain", func() (string, bool) {
				n := f.names.inVain()
				return fmt.Sprint(n), n >= 2*rollingPairs // those of each proxy, and again
			})
			l.await(t, 24)

			old := f.Pickers[1]
			f.Pickers[1] = f.startReplica(t, 1, f.newHost())
			f.names.set(f.pickerAddrs()...)
			old.MustStop(t)
			l.await(t, 24)
			f.names.fail(noNameFault)
			f.awaitPickers(t, rollingPairs)
			l.await(t, 8)
			l.end()
			l.mustHaveServed(t, string(how), 0)
			f.mustBeWhole(t)
		})
	}
}
