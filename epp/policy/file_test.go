package policy_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/policy"
)

const objective = "apiVersion: llm-d.ai/v1alpha2\nkind: InferenceObjective\nmetadata: {name: fast}\nspec: {poolRef: {name: p}, priority: %}\n"

func priority(p string) string { return strings.Replace(objective, "%", p, 1) }

// write replaces a file as editors do: by renaming.
func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// told is a log whose records are events.
type told struct {
	slog.Handler
	lines chan string
}

func (h told) Handle(_ context.Context, r slog.Record) error {
	h.lines <- r.Message
	return nil
}

// wait waits for a channel to deliver.
func wait[T any](t *testing.T, c <-chan T) (got T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	select {
	case got = <-c:
	case <-ctx.Done():
		t.Fatal("waited in vain")
	}
	return got
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	log := told{slog.NewTextHandler(&bytes.Buffer{}, nil), make(chan string, 10)}
	f := policy.File{Path: path, Log: slog.New(log)}
	if _, err := f.Load(); err == nil || !strings.HasPrefix(err.Error(), "reading the policy file: open ") {
		t.Errorf("a file that is not there: %v", err)
	}
	write(t, path, priority("x"))
	if _, err := f.Load(); err == nil || !strings.Contains(err.Error(), path+":\nline 4: InferenceObjective fast: spec.priority: want a whole number") {
		t.Errorf("a broken file: %v", err)
	}
	write(t, path, priority("1"))
	p, err := f.Load()
	if err != nil {
		t.Fatal(err)
	}
	want := func(p *epp.Policy, n int) {
		t.Helper()
		if got, known := p.Priority("fast"); got != n || !known {
			t.Errorf("priority %d %t, want %d", got, known, n)
		}
	}
	want(p, 1)

	ctx, stop := context.WithCancel(t.Context())
	applied := make(chan *epp.Policy, 10)
	var following sync.WaitGroup
	following.Go(func() { f.Follow(ctx, func(p *epp.Policy) { applied <- p }) })
	write(t, path, priority("2"))
	want(wait(t, applied), 2)
	if line := wait(t, log.lines); line != "the policy file is in use" || f.Trouble() != nil {
		t.Errorf("told %q, trouble %v", line, f.Trouble())
	}
	write(t, path, "kind: Nonsense")
	if line := wait(t, log.lines); line != "objectives and rewrites stay as they are" {
		t.Errorf("told %q", line)
	}
	if err := f.Trouble(); err == nil || !strings.Contains(err.Error(), path+" cannot be used:\nline 1: kind: want InferenceObjective or") {
		t.Errorf("trouble %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	wait(t, log.lines)
	if err := f.Trouble(); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("trouble %v", err)
	}
	write(t, path, priority("3"))
	want(wait(t, applied), 3)
	wait(t, log.lines)
	if err := f.Trouble(); err != nil {
		t.Errorf("trouble %v", err)
	}
	stop()
	following.Wait()
	if len(applied) > 0 {
		t.Error("applied what was not good, or twice")
	}
}

func TestFileWithoutALog(t *testing.T) {
	f := policy.File{Path: filepath.Join(t.TempDir(), "policy.yaml")}
	ctx, stop := context.WithCancel(t.Context())
	var following sync.WaitGroup
	applied := make(chan *epp.Policy, 1)
	following.Go(func() { f.Follow(ctx, func(p *epp.Policy) { applied <- p }) })
	write(t, f.Path, priority("1"))
	wait(t, applied)
	stop()
	following.Wait()
}
