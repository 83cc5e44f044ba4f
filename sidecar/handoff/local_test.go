package handoff

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// newLegs makes Legs whose local engine is at url.
func newLegs(t *testing.T, url string) *Legs {
	t.Helper()
	d, ok := dialect.New("nixlv2", dialect.Options{})
	if !ok {
		t.Fatal("no dialect nixlv2")
	}
	carrier := &http.Transport{}
	t.Cleanup(carrier.CloseIdleConnections)
	log := slog.New(slog.DiscardHandler)
	return New(Config{
		Dialect: d, Decode: transport.Engine{Transport: carrier, URL: url}, Log: log,
		Intake: intake.New(intake.Config{BodyPause: time.Minute, BodyLimit: 1 << 20, BufferLimit: 2 << 20, Table: request.Base, Log: log}),
		Tracer: noop.NewTracerProvider().Tracer(""), Propagator: propagation.NewCompositeTextMapPropagator(),
		Metrics: Metrics{Legs: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "legs"}, []string{"leg", "code"}),
			Inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "inflight"}, []string{"role"})},
	})
}

// When the answer begins, the sidecar no longer keeps a streamed body for a second try.
func TestAnsweredStreamKeepsNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	arrived, opened := make(chan struct{}), make(chan struct{})
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // a body that is still being sent is kept
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "data: {}\n\n")
		_ = http.NewResponseController(w).Flush()
		close(arrived)
		<-opened
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}))
	defer engine.Close()
	legs := newLegs(t, engine.URL)
	source := legs.Intake.Guard(strings.NewReader("{}"))
	leg, err := transport.NewLeg(ctx, engine.URL+pd.APICompletions.Path(), http.Header{}, 2, source.Again)
	if err != nil {
		t.Fatal(err)
	}
	x := legs.Begin(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", nil), pd.APICompletions, time.Now())
	defer x.Close()
	ended := make(chan error, 1)
	go func() { ended <- x.sendLocal(leg, source) }()
	select {
	case <-arrived:
	case err := <-ended:
		t.Fatalf("it ended before the answer: %v", err)
	}
	close(opened)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := source.Again(); err == nil {
		t.Error("the body is kept for sending it again")
	}
}
