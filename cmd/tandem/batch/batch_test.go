package batch

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
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/tandem-serving/tandem/batch/api"
	"github.com/tandem-serving/tandem/batch/blob"
	"github.com/tandem-serving/tandem/batch/store"
	"github.com/tandem-serving/tandem/batch/upstream"
	"github.com/tandem-serving/tandem/batch/worker"
	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
)

func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"batch": func() { boot.Main(Run) }})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }

// serve runs the real API and a worker, whose upstream answers each prompt, and refuses those that begin with "bad".
func serve(t *testing.T) (address string) {
	t.Helper()
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body) // the worker may have gone
		w.Header().Set("Content-Type", "application/json")
		if bytes.Contains(text, []byte(`"bad`)) {
			w.WriteHeader(http.StatusBadRequest)
		}
		fmt.Fprint(w, `{"choices":[]}`)
	}))
	t.Cleanup(engine.Close)
	at, err := url.Parse(engine.URL)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s, err := store.OpenSQLite(t.Context(), filepath.Join(dir, "batch.db"))
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := blob.Open(filepath.Join(dir, "files"))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	metrics := prometheus.NewRegistry()
	to := upstream.New(upstream.Config{URL: at, Timeout: time.Minute, InFlight: 8}, upstream.Telemetry{Metrics: metrics, Tracer: noop.Tracer{}, Propagator: propagation.NewCompositeTextMapPropagator()})
	w := worker.New(worker.Config{MaxLines: 1000, Drain: time.Minute}, s, blobs, to, worker.Telemetry{Log: log, Metrics: metrics})
	server := httptest.NewServer(api.New(api.Config{MaxFile: 1 << 20, Changed: w.Wake}, s, blobs, log).Handler())
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	t.Cleanup(func() {
		server.Close()
		stop()
		running.Wait()
		to.Close()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return server.URL
}

// run runs the command.
func tandem(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	err = Run(t.Context(), boot.IO{Name: "tandem batch", Stdout: &out, Stderr: &errs}, args)
	return out.String(), errs.String(), err
}

// input writes an input file with a line for each prompt.
func input(t *testing.T, prompts ...string) string {
	t.Helper()
	var text strings.Builder
	for i, prompt := range prompts {
		fmt.Fprintf(&text, `{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":%q}}`+"\n", i, prompt)
	}
	name := filepath.Join(t.TempDir(), "requests.jsonl")
	if err := os.WriteFile(name, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestWholeWay(t *testing.T) {
	at := "--url=" + serve(t)
	id, stderr, err := tandem(t, "submit", input(t, "a", "b", "c"), at, "--metadata=team=x", "--window=2h")
	if id = strings.TrimSpace(id); err != nil || stderr != "" || !strings.HasPrefix(id, "batch_") {
		t.Fatalf("submit printed %q and %q, %v", id, stderr, err)
	}
	out, stderr, err := tandem(t, "watch", id, at, "--interval=10ms")
	if err != nil || out != id+" completed: 3 of 3 lines answered, 0 failed\n" || !strings.HasSuffix(stderr, "completed ["+strings.Repeat("#", barWidth)+"] 100.0 % 3 of 3 lines\n") || strings.Contains(stderr, "\r") {
		t.Fatalf("watch printed %q and %q, %v", out, stderr, err)
	}
	out, _, err = tandem(t, "watch", id, at, "--json")
	var shown struct{ Metadata map[string]string }
	if jsonErr := json.Unmarshal([]byte(out), &shown); err != nil || jsonErr != nil || shown.Metadata["team"] != "x" {
		t.Errorf("watch printed %q, %v", out, err)
	}
	out, _, err = tandem(t, "list", at)
	if lines := strings.Split(out, "\n"); err != nil || len(lines) != 3 || strings.Join(strings.Fields(lines[1])[:5], " ") != id+" completed 3 3 0" || !strings.Contains(lines[1], "/v1/completions") {
		t.Errorf("list printed %q, %v", out, err)
	}
	dir := t.TempDir()
	to := filepath.Join(dir, "answers")
	if out, _, err = tandem(t, "fetch", id, at, "--output="+to); err != nil || out != "" {
		t.Errorf("fetch printed %q, %v", out, err)
	}
	if text, err := os.ReadFile(to); err != nil || strings.Count(string(text), "\n") != 3 {
		t.Errorf("the output file is %q, %v", text, err)
	}
	if _, _, err = tandem(t, "fetch", id, at, "--output="+to); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("a file was written over: %v", err)
	}
	if out, _, err = tandem(t, "fetch", id, at, "--output=-"); err != nil || strings.Count(out, `"custom_id"`) != 3 {
		t.Errorf("fetch printed %q, %v", out, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%d files are left, %v", len(left), err)
	}
	if _, _, err = tandem(t, "cancel", id, at); err == nil || !strings.Contains(err.Error(), "(409): The batch has the status completed") {
		t.Errorf("cancel: %v", err)
	}
}

// What is wrong with a batch, or was with some of its lines, is an error.
func TestVerdicts(t *testing.T) {
	at := "--url=" + serve(t)
	dir := t.TempDir()
	t.Chdir(dir)
	out, stderr, err := tandem(t, "submit", input(t, "a", "bad"), at, "--watch", "--interval=10ms")
	if err == nil || !strings.Contains(err.Error(), "1 of 2 lines of batch") || !strings.Contains(out, "completed: 1 of 2 lines answered, 1 failed") {
		t.Fatalf("printed %q and %q, %v", out, stderr, err)
	}
	id, _, _ := strings.Cut(out, " ")
	if _, _, err = tandem(t, "fetch", id, at); err == nil {
		t.Error("no error, though a line has failed")
	}
	for _, name := range []string{id + "_output.jsonl", id + "_error.jsonl"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || strings.Count(string(text), "\n") != 1 {
			t.Errorf("%s is %q, %v", name, text, err)
		}
	}
	wrong := filepath.Join(dir, "wrong.jsonl")
	if err := os.WriteFile(wrong, []byte(`{"custom_id":"1","method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"a"}}`+"\nnot JSON\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err = tandem(t, "submit", wrong, at, "--watch", "--interval=10ms"); err == nil || !strings.Contains(err.Error(), "\n  line 2: ") {
		t.Errorf("a wrong file: %v", err)
	}
	_, _, err = tandem(t, "submit", input(t, "a"), at, "--window=never")
	if err == nil || !strings.Contains(err.Error(), "refused (400): completion_window is") {
		t.Errorf("a wrong window: %v", err)
	}
}

// fake serves a list of answers, one after the other: a status, or the text of a batch.
func fake(t *testing.T, answers ...string) string {
	t.Helper()
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		answer := answers[0]
		if len(answers) > 1 {
			answers = answers[1:]
		}
		if !strings.HasPrefix(answer, "{") {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(server.Close)
	return "--url=" + server.URL
}

// A server that restarts does not end a watch; one that stays away does, and one that was never there at once.
func TestWatchTroubles(t *testing.T) {
	const runs, completed = `{"id":"b","status":"in_progress"}`, `{"id":"b","status":"completed"}`
	for _, c := range []struct {
		name, giveUp   string
		answers        []string
		stderr, failed string
	}{
		{"it comes back", "5m", []string{runs, "away", "away", completed}, "in_progress\nthe server refused (503): 503 Service Unavailable; trying again\ncompleted\n", ""},
		{"it stays away", "0s", []string{runs, "away"}, "in_progress\n", "refused (503)"},
		{"it was never there", "5m", []string{"away"}, "", "refused (503)"},
		{"control characters", "5m", []string{`{"id":"b","status":"failed","errors":{"data":[{"message":"\u001b[2J"}]}}`}, "failed\n", "\n  ?[2J"},
		{"cancelled by another client", "5m", []string{runs, `{"id":"b","status":"cancelled"}`}, "in_progress\ncancelled\n", "is cancelled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, stderr, err := tandem(t, "watch", "b", fake(t, c.answers...), "--interval=1ms", "--give-up="+c.giveUp)
			if stderr != c.stderr || (err == nil) != (c.failed == "") || err != nil && !strings.Contains(err.Error(), c.failed) {
				t.Errorf("printed %q, %v; want %q, %q", stderr, err, c.stderr, c.failed)
			}
		})
	}
}

// An interrupted watch ends, and says that the batch goes on.
func TestWatchInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	err := Run(ctx, boot.IO{Name: "tandem batch", Stdout: io.Discard, Stderr: writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil })},
		[]string{"watch", "b", fake(t, `{"id":"b","status":"in_progress"}`), "--interval=1h"})
	if err == nil || !strings.Contains(err.Error(), "which goes on") {
		t.Errorf("%v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// A file of which a part is missing is not kept.
func TestBrokenDownload(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/content") {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "half")
			return
		}
		fmt.Fprint(w, `{"id":"../b","status":"completed","output_file_id":"f"}`)
	}))
	defer server.Close()
	dir := t.TempDir()
	t.Chdir(dir)
	_, _, err := tandem(t, "fetch", "b", "--url="+server.URL)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%d files are left, %v", len(left), err)
	}
}

func TestProgress(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	at := func(seconds, completed, failed int64, status string) (*object, time.Time) {
		b := &object{Status: status, InProgressAt: start.Unix(), ExpiresAt: start.Unix() + 3600}
		b.Counts.Total, b.Counts.Completed, b.Counts.Failed = 1000, completed, failed
		return b, start.Add(time.Duration(seconds) * time.Second)
	}
	var out bytes.Buffer
	p := &progress{to: &out, terminal: true}
	for _, c := range []struct {
		seconds, completed, failed int64
		status, want               string
	}{
		{0, 0, 0, "in_progress", "in_progress [------------------------]   0.0 % 0 of 1000 lines"},
		{10, 100, 0, "in_progress", "in_progress [##----------------------]  10.0 % 100 of 1000 lines, 10 lines/s, 1m30s left"},
		{60, 399, 1, "in_progress", "in_progress [#########---------------]  40.0 % 400 of 1000 lines, 1 failed, 6.67 lines/s, 1m30s left"},
		{3000, 420, 1, "in_progress", "in_progress [##########--------------]  42.1 % 421 of 1000 lines, 1 failed, 0.00714 lines/s, 22h31m left; the window ends in 10m00s"},
		{3100, 999, 1, "completed", "completed [########################] 100.0 % 1000 of 1000 lines, 1 failed"},
	} {
		out.Reset()
		p.batch(at(c.seconds, c.completed, c.failed, c.status))
		if got := out.String(); got != boot.EraseLine+c.want {
			t.Errorf("after %d s %q, want %q", c.seconds, got, c.want)
		}
	}
	out.Reset()
	p = &progress{to: &out}
	for _, completed := range []int64{0, 10, 99, 100, 150, 990} {
		p.batch(at(completed, completed, 0, "in_progress"))
	}
	if lines := strings.Count(out.String(), "\n"); lines != 3 {
		t.Errorf("without a terminal there are %d lines, want one for the start, a tenth, and nine:\n%s", lines, out.String())
	}
}
