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
			var clients []call
			for i := range 4 {
				q := f.tokensCall(threshold/2+i%2*2*threshold, i < 2)
				q.tokens = 30
				clients = append(clients, q)
			}
			want := f.wants(t, clients)
			for i, q := range clients {
				running.Go(func() {
					for !done.Load() {
						got, err := q.send(t.Context(), f.front.addr, f.model)
						if err != nil || got.Status != http.StatusOK || !slices.Equal(got.Tokens, want[i]) {
							t.Errorf("while a picker drained: %d %v %s", got.Status, err, got.Body)
							return
						}
						if served.Add(1) == 20 {
							close(half)
						}
					}
				})
			}
			<-half
			if err := f.pickers[0].Stop(); err != nil {
				t.Error(err)
			}
			for before := served.Load(); served.Load() < before+20 && !t.Failed(); {
				mustSend(t, f.tokensCall(threshold/2, false), f.front.addr, f.model)
			}
			done.Store(true)
			running.Wait()
			f.pickers = f.pickers[1:]
			f.mustRest(t)
		})
	}
}
