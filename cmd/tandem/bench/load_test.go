package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

func mustContain(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in\n%.600s", part, text)
		}
	}
}

func TestRequests(t *testing.T) {
	for name, s := range map[string]shape{
		"1 kB":           {size: kB},
		"odd":            {size: 1003},
		"4 MB":           {size: 4 * mB},
		"escaped":        {size: 32 * kB, escaped: true},
		"chunked":        {size: 32 * kB, chunked: true},
		"remote":         {size: kB, prefill: "10.0.0.1:8000"},
		"asked":          {size: kB, mode: "force"},
		"escaped, chunk": {size: 512 * kB, escaped: true, chunked: true},
	} {
		t.Run(name, func(t *testing.T) {
			wire := bufio.NewReader(bytes.NewReader(s.request()))
			request, err := http.ReadRequest(wire)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(request.Body)
			if err != nil || len(body) != s.size {
				t.Errorf("%d bytes, want %d; %v", len(body), s.size, err)
			}
			if wire.Buffered() != 0 || (request.ContentLength == -1) != s.chunked {
				t.Errorf("%d bytes are left, content length %d", wire.Buffered(), request.ContentLength)
			}
			var completion struct {
				Model, Prompt string
				MaxTokens     int `json:"max_tokens"`
			}
			if err := json.Unmarshal(body, &completion); err != nil || completion.Model != "bench" || completion.MaxTokens != 8 {
				t.Errorf("%+.60v: %v", completion, err)
			}
			if escapes := strings.Count(completion.Prompt, "\n") + strings.Count(completion.Prompt,
				`"`); s.escaped != (escapes > s.size/50) {
				t.Errorf("%d characters were escaped", escapes)
			}
			if got := request.Header.Get(pd.HeaderMode) + request.Header.Get("x-prefiller-host-port"); got != s.mode+s.prefill {
				t.Errorf("headers say %q", got)
			}
		})
	}
}

// lane is an exchanger that a test controls.
type lane struct {
	do     func(n int) error
	done   int
	closed atomic.Bool
}

func (l *lane) exchange(context.Context) error { l.done++; return l.do(l.done) }
func (l *lane) close()                         { l.closed.Store(true) }

func TestClosed(t *testing.T) {
	ok := func(int) error { return nil }
	lanes := []*lane{{do: ok}, {do: ok}}
	done, err := closed(t.Context(), []exchanger{lanes[0], lanes[1]}, time.Millisecond)
	if want := lanes[0].done + lanes[1].done; err != nil || done != want || lanes[0].closed.Load() {
		t.Errorf("%d done of %d, closed %v: %v", done, want, lanes[0].closed.Load(), err)
	}
	// An error ends the load before the time is up.
	broken := errors.New("broken")
	lanes[1].do = func(int) error { return broken }
	if _, err := closed(t.Context(), []exchanger{lanes[0], lanes[1]}, time.Hour); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

// An interrupt ends exchanges that hang.
func TestInterrupted(t *testing.T) {
	for name, load := range map[string]func(context.Context, []exchanger) error{
		"closed": func(ctx context.Context, lanes []exchanger) error {
			_, err := closed(ctx, lanes, time.Hour)
			return err
		},
		"paced": func(ctx context.Context, lanes []exchanger) error {
			_, err := paced(ctx, lanes, 1000, time.Hour)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			hanging := make(chan struct{})
			e, stop, err := startEngine(t.Context(), smallBuffer, func(*bufio.Writer) error { cancel(); <-hanging; return io.EOF })
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			defer close(hanging)
			lanes, err := lanesTo(ctx, e.addr(), 1, shape{size: kB}.request())
			if err != nil {
				t.Fatal(err)
			}
			defer closeAll(lanes)
			if err := load(ctx, lanes); !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A server that stops for a while delays all exchanges that were due in that time, not only the running one.
func TestPacedCountsFromWhenItWasDue(t *testing.T) {
	const stall = 30 * time.Millisecond
	only := &lane{do: func(n int) error {
		if n == 1 {
			<-time.After(stall)
		}
		return nil
	}}
	took, err := paced(t.Context(), []exchanger{only}, 1000, 20*time.Millisecond)
	if err != nil || len(took) != 20 || only.done != 20 {
		t.Fatalf("%d of %d done: %v", only.done, len(took), err)
	}
	for i, d := range took {
		if due := time.Duration(i) * time.Millisecond; d < stall-due {
			t.Errorf("%d was due after %v and took only %v", i, due, d)
		}
	}
}

func TestPacedError(t *testing.T) {
	broken := errors.New("broken")
	only := &lane{do: func(int) error { return broken }}
	if _, err := paced(t.Context(), []exchanger{only}, 1000, time.Hour); !errors.Is(err, broken) || err.Error() != "broken" {
		t.Errorf("error %v", err)
	}
}
