package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/batch"
	"github.com/tandem-serving/tandem/batch/blob"
	"github.com/tandem-serving/tandem/batch/store"
	"github.com/tandem-serving/tandem/batch/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const endpoint = "/v1/completions"

// patience bounds every wait of a test, also on a machine that does much else.
const patience = 5 * time.Minute

// bench is a store, an upstream, and what workers need.
type bench struct {
	t     *testing.T
	store *store.Store
	blobs *blob.Dir
	to    upstream.Config

	mu   sync.Mutex
	seen []seen
}

// seen is a request that reached the upstream.
type seen struct {
	line   string // its prompt
	header http.Header
}

// newBench starts an upstream. answer gets the prompt of each request.
func newBench(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, prompt string)) *bench {
	t.Helper()
	dir := t.TempDir()
	s, err := store.OpenSQLite(t.Context(), filepath.Join(dir, "batch.db"))
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := blob.Open(filepath.Join(dir, "files"))
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, store: s, blobs: blobs}
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Prompt string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.URL.Path != endpoint {
			t.Errorf("the upstream got %s: %v", r.URL.Path, err)
		}
		b.mu.Lock()
		b.seen = append(b.seen, seen{body.Prompt, r.Header.Clone()})
		b.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		answer(w, r, body.Prompt)
	}))
	t.Cleanup(func() {
		engine.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	at, err := url.Parse(engine.URL + "/v1")
	if err != nil {
		t.Fatal(err)
	}
	b.to = upstream.Config{URL: at, Key: "secret", Objective: "batch", Timeout: patience, InFlight: 16, FirstPause: time.Millisecond}
	return b
}

// echo answers with the prompt.
func echo(w http.ResponseWriter, _ *http.Request, prompt string) {
	fmt.Fprintf(w, "{\n\"text\":%q}", prompt)
}

// requests returns what reached the upstream.
func (b *bench) requests() []seen {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]seen(nil), b.seen...)
}

// running is a worker that runs.
type running struct {
	*Worker
	cancel context.CancelFunc // has it drain
	ended  chan struct{}
}

// stop has the worker drain, and waits for its end.
func (r running) stop() {
	r.cancel()
	<-r.ended
}

func (b *bench) newWorker() *Worker {
	reg := prometheus.NewRegistry()
	to := upstream.New(b.to, upstream.Telemetry{Metrics: reg, Tracer: noop.Tracer{}, Propagator: propagation.NewCompositeTextMapPropagator()})
	b.t.Cleanup(to.Close)
	return New(Config{MaxLines: 10_000, Drain: patience, Retention: time.Hour}, b.store, b.blobs, to, Telemetry{Log: slog.New(slog.NewTextHandler(b.t.Output(), nil)), Metrics: reg})
}

// work runs a worker until the end of the test, or until it is stopped.
func (b *bench) work() running {
	b.t.Helper()
	return b.run(b.newWorker())
}

// run runs a worker that is made.
func (b *bench) run(w *Worker) running {
	ctx, cancel := context.WithCancel(context.Background())
	r := running{w, cancel, make(chan struct{})}
	go func() {
		defer close(r.ended)
		w.Run(ctx)
	}()
	b.t.Cleanup(r.stop)
	return r
}

// line returns a line of an input file.
func line(id, prompt string) string {
	return fmt.Sprintf(`{"custom_id":%q,"method":"POST","url":%q,"body":{"model":"m","prompt":%q}}`+"\n", id, endpoint, prompt)
}

// lines returns n lines, whose ids and prompts are their numbers.
func lines(n int) string {
	var text strings.Builder
	for i := range n {
		text.WriteString(line(fmt.Sprint(i), fmt.Sprint(i)))
	}
	return text.String()
}

// create stores a batch of an input file with a window.
func (b *bench) create(content string, window time.Duration) string {
	b.t.Helper()
	w, err := b.blobs.Create(b.t.Context())
	if err == nil {
		_, err = io.WriteString(w, content)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	part, err := w.Commit()
	f := batch.File{ID: batch.NewID("file-"), Tenant: "tenant", Purpose: batch.PurposeInput, Name: "in.jsonl", Bytes: part.Bytes}
	if err == nil {
		err = b.store.AddFile(b.t.Context(), f, batch.Amounts{}, part)
	}
	made := batch.Batch{ID: batch.NewID("batch_"), Tenant: "tenant", Endpoint: endpoint, InputFile: f.ID}
	made.Times.Created = time.Now().UnixMilli()
	made.Times.Expires = made.Times.Created + window.Milliseconds()
	if err == nil {
		err = b.store.AddBatch(b.t.Context(), made, batch.Amounts{})
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return made.ID
}

// wait waits until a batch is as it should be.
func (b *bench) wait(id string, ok func(batch.Batch) bool) batch.Batch {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		got, err := b.store.Batch(ctx, "tenant", id)
		if err != nil {
			b.t.Fatalf("waiting for batch %s: %v", id, err)
		}
		if ok(got) {
			return got
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			b.t.Fatalf("the batch stays %+v", got)
		}
	}
}

func ended(b batch.Batch) bool { return b.Status.Ended() }

// outcome is a line of an output or error file.
type outcome struct {
	ID       string
	CustomID string `json:"custom_id"`
	Response *struct {
		StatusCode int    `json:"status_code"`
		RequestID  string `json:"request_id"`
		Body       struct{ Text string }
	}
	Error *struct{ Code, Message string }
}

// read reads a file of a batch; "" has no lines.
func (b *bench) read(file string) (all []outcome) {
	b.t.Helper()
	if file == "" {
		return nil
	}
	parts, err := b.store.Parts(b.t.Context(), file)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, part := range parts {
		r, err := b.blobs.Open(b.t.Context(), part.Blob, 0)
		if err != nil {
			b.t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil || int64(len(text)) != part.Bytes {
			b.t.Fatalf("%d of %d bytes: %v", len(text), part.Bytes, err)
		}
		for l := range bytes.Lines(text) {
			var o outcome
			if err := json.Unmarshal(l, &o); err != nil {
				b.t.Fatalf("%s: %v", l, err)
			}
			all = append(all, o)
		}
	}
	return all
}

// mustHaveAll fails unless each of n lines is in one of the files of a batch once.
func (b *bench) mustHaveAll(got batch.Batch, n int) {
	b.t.Helper()
	times := map[string]int{}
	for _, o := range append(b.read(got.OutputFile), b.read(got.ErrorFile)...) {
		times[o.CustomID]++
	}
	for i := range n {
		if id := fmt.Sprint(i); times[id] != 1 {
			b.t.Errorf("line %s has %d results", id, times[id])
		}
	}
	if len(times) != n {
		b.t.Errorf("%d lines have results, want %d", len(times), n)
	}
}
