package e2e

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// TestPickerDrains ends one of two pickers by SIGTERM under load: it ends cleanly and in time, no answer is cut, and no
// request fails.
func TestPickerDrains(t *testing.T) {
	for _, l := range []layout{{"gateway", "pair"}, {"envoy", "pair"}, {"envoy", "single"}} {
		t.Run(l.String(), func(t *testing.T) {
			f := newFleet(t, 1, 1)
			f.startPicker(t, "--drain-timeout=20s")
			f.startPicker(t)
			f.startFront(t, l)
			var done atomic.Bool
			var running sync.WaitGroup
			var served atomic.Int64
			half := make(chan struct{})
			for i := range 4 {
				q := f.tokensCall(threshold/2+i%2*2*threshold, i < 2)
				q.tokens = 30
				want := f.want(t, q)
				running.Go(func() {
					for !done.Load() {
						got, err := q.send(t.Context(), f.front.addr, f.model)
						if err != nil || got.status != http.StatusOK || !slices.Equal(got.tokens, want) {
							t.Errorf("while a picker drained: %d %v %s", got.status, err, got.body)
							return
						}
						if served.Add(1) == 40 {
							close(half)
						}
					}
				})
			}
			<-half
			if err := f.pickers[0].Stop(); err != nil {
				t.Error(err)
			}
			for before := served.Load(); served.Load() < before+40 && !t.Failed(); {
				mustSend(t, f.tokensCall(threshold/2, false), f.front.addr, f.model)
			}
			done.Store(true)
			running.Wait()
			f.pickers = f.pickers[1:]
			f.mustRest(t)
		})
	}
}
