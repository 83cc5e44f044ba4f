package relay

import (
	"io"
	"log/slog"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

// eventwise returns one event with each read, as tokens come.
type eventwise struct {
	event []byte
	left  int // events, before the one that ends the stream
}

func (e *eventwise) Read(p []byte) (int, error) {
	switch e.left--; {
	case e.left >= 0:
		return copy(p, e.event), nil
	case e.left == -1:
		return copy(p, doneEvent), nil
	}
	return 0, io.EOF
}

func (*eventwise) Close() error { return nil }

// nowhere is a client that costs nothing.
type nowhere struct{ header http.Header }

func (n nowhere) Header() http.Header       { return n.header }
func (nowhere) WriteHeader(int)             {}
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) Flush()                      {}

// BenchmarkEvents measures what the relay itself costs for an event of a stream, of which nothing is rewritten: not the calls of the
// kernel, which a proxy has too. "all" also observes the pauses between tokens, looks in each event for the mark of a request that the engine
// has aborted, and looks for the count of cached tokens, which is in none of them. cpu-ns/event is the figure with a limit, 400.
func BenchmarkEvents(b *testing.B) {
	const events = 1000
	event := []byte(`data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,"model":"big-7b",` +
		`"choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}` + "\n\n")
	mark := body.NewMark(`"finish_reason":"abort"`, 'b')
	itl := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "itl", Buckets: prometheus.ExponentialBuckets(0.001, 1.5, 20)}, []string{"verdict"})
	for name, set := range map[string]func(*Client){
		"bare": func(*Client) {},
		"all": func(c *Client) {
			c.ITL = NewByVerdict(itl)
			c.Aborted = mark.In
			c.CorrectCached(0)
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			began := processorTime(b)
			n := 0
			for b.Loop() {
				n++
				c := &Client{Exchange: unhindered{}, Context: b.Context(), Writer: nowhere{http.Header{}}, API: pd.APICompletions, Log: slog.New(slog.DiscardHandler),
					Report: Report{Decision: pd.Result{Verdict: pd.Remote}, Usage: body.NoUsage, Clock: pd.StartPhaseClock(time.Now())}}
				set(c)
				err := c.RelayFresh(&http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: &eventwise{event, events}})
				if err != nil || c.End != pd.EndDone || !c.Streamed {
					b.Fatal(err, c.End, c.Failure)
				}
			}
			b.ReportMetric(float64((processorTime(b)-began).Nanoseconds())/float64(n)/events, "cpu-ns/event")
		})
	}
}

// processorTime returns how long the process has computed. Unlike the time that passes, it does not depend on what else the machine does.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
