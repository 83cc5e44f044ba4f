package capture

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// BenchmarkPick is what a request costs that is picked for and answered: without a capture, and with one whose lines are written.
// cpu is that of both the request's goroutine and the writer's. dropped/op is the part of the requests that the capture lacks.
func BenchmarkPick(b *testing.B) {
	for _, tokens := range []int{1024, 16384} {
		for _, on := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d tokens/capture=%v", tokens, on), func(b *testing.B) {
				r := start(b, func(o *Options) { o.MaxBytes, o.Files = 1<<30, 1 })
				s := r.sched
				if !on {
					s = r.plain
				}
				q := asked(tokens)
				b.ReportAllocs()
				for b.Loop() {
					d, err := s.Pick(b.Context(), q)
					must(b, err)
					d.Reservation.End()
					if on {
						r.recorder.Observe(&epp.Outcome{API: pd.APIChat, Status: 200, Decision: d, Duration: time.Second})
					}
				}
				lost := 0
				for _, n := range r.dropped() {
					lost += n
				}
				b.ReportMetric(float64(lost)/float64(b.N), "dropped/op")
			})
		}
	}
}

// BenchmarkLine is the writer's work for one request: the hashes and the text.
func BenchmarkLine(b *testing.B) {
	for _, tokens := range []int{1024, 16384} {
		b.Run(fmt.Sprintf("%d tokens", tokens), func(b *testing.B) {
			r, err := New(Options{Path: filepath.Join(b.TempDir(), "capture.jsonl"), MaxBytes: 1 << 30, Files: 1, Key: NewKey(),
				Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
			must(b, err)
			one := r.record(asked(tokens))
			one.refusal = pd.Refuse(pd.Saturated, "")
			w := r.writer
			b.ReportAllocs()
			size := 0
			for b.Loop() {
				w.write(w.line(one, nil, time.Time{}))
				size = w.text.Len()
				w.text.Reset()
			}
			b.ReportMetric(float64(size), "bytes/line")
		})
	}
}
