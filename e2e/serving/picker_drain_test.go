package serving

import (
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
)

// TestPickerDrains ends one of two pickers by SIGTERM under load: it ends cleanly and in time, no answer is cut, and no
// request fails.
func TestPickerDrains(t *testing.T) {
	for _, l := range harness.Layouts() {
		t.Run(l.String(), func(t *testing.T) {
			f := harness.NewFleet(t, 1, 1)
			f.StartPicker(t, "--drain-timeout=20s")
			f.StartPicker(t)
			f.StartFront(t, l)
			var done atomic.Bool
			var running sync.WaitGroup
			var served atomic.Int64
			half := make(chan struct{})
			var clients []harness.Call
			for i := range 4 {
				q := f.TokensCall(harness.Threshold/2+i%2*2*harness.Threshold, i < 2)
				q.Tokens = 30
				clients = append(clients, q)
			}
			want := f.Wants(t, clients)
			for i, q := range clients {
				running.Go(func() {
					for !done.Load() {
						got, err := q.Send(t.Context(), f.Front.Addr, f.Model)
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
			if err := f.Pickers[0].Stop(); err != nil {
				t.Error(err)
			}
			for before := served.Load(); served.Load() < before+20 && !t.Failed(); {
				harness.MustSend(t, f.TokensCall(harness.Threshold/2, false), f.Front.Addr, f.Model)
			}
			done.Store(true)
			running.Wait()
			f.Pickers = f.Pickers[1:]
			f.MustRest(t)
		})
	}
}
