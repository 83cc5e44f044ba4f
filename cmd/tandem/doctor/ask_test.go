package doctor

import (
	"net/http"
	"sync/atomic"
	"testing"
)

// An engine may close an idle connection just when a question goes out, which says nothing of the engine.
func TestAskedAgain(t *testing.T) {
	var asked atomic.Int32
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if _, marked := r.Header["Idempotency-Key"]; marked {
			t.Error("a header of net/http's was sent")
		}
		if asked.Add(1) == 2 {
			panic(http.ErrAbortHandler)
		}
	})
	direct := newDirect()
	defer direct.http.CloseIdleConnections()
	for range 2 {
		if a, err := (asker{client: direct.http}).ask(t.Context(), http.MethodPost, "http://"+server, nil, "{}"); err != nil || a.status != http.StatusOK {
			t.Fatalf("%+v, %v", a, err)
		}
	}
	if n := asked.Load(); n != 3 {
		t.Errorf("asked %d times, want 3", n)
	}
}
