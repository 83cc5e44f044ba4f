package relay

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// unhindered is a request that nothing happens to.
type unhindered struct{}

func (unhindered) Committed()              {}
func (unhindered) Interrupted() error      { return context.Canceled }
func (unhindered) CheckWhole([]byte) error { return nil }

// The headers of a local stream do not wait for its first event, so its prefill must be told in the trailers.
func TestLocalStreamTellsItsPrefillInTrailers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const recv, prefill, decode = 2 * time.Millisecond, 300 * time.Millisecond, 40 * time.Millisecond
		body, engine := io.Pipe()
		go func() {
			<-time.After(prefill)
			_, _ = engine.Write([]byte("data: {}\n\n"))
			<-time.After(decode)
			_, _ = engine.Write([]byte("data: [DONE]\n\n"))
			_ = engine.Close()
		}()
		client := httptest.NewRecorder()
		c := &Client{Exchange: unhindered{}, Context: t.Context(), Writer: client, API: pd.APICompletions, TE: []string{"trailers"},
			Log: slog.New(slog.DiscardHandler)}
		c.Clock = pd.StartPhaseClock(time.Now())
		c.Clock.Enter(pd.PhaseFirst, time.Now().Add(recv))
		err := c.RelayFresh(&http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: body})
		if err != nil {
			t.Fatal(err)
		}
		answer := client.Result()
		if got, want := answer.Header.Get(pd.HeaderTiming), "recv;dur=2"; got != want {
			t.Errorf("headers: %q, want %q", got, want)
		}
		if got, want := answer.Trailer.Get(pd.HeaderTiming), "first;dur=298, decode;dur=40"; got != want {
			t.Errorf("trailers: %q, want %q", got, want)
		}
	})
}
