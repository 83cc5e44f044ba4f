package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/cmd/internal/boot"
	"github.com/tandem-serving/tandem/cmd/internal/boottest"
	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/keeper"
)

func TestMain(m *testing.M) {
	boottest.Main(m, map[string]func(){"keeper": func() { boot.Main(run) }, "sidecar": beSidecar})
}

func TestScripts(t *testing.T) { boottest.Scripts(t) }

// patience is how long a test waits for something without a time limit of its own.
const patience = time.Minute

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// start starts the program as the sidecar does.
func start(t *testing.T, change ...func(*keeper.Config)) *keeper.Keeper {
	t.Helper()
	t.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise the race detector delays its end beyond the limit
	c := keeper.Config{Path: "keeper", Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Pause: time.Millisecond}
	for _, f := range change {
		f(&c)
	}
	k := keeper.Start(c)
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

// with adds arguments for the program.
func with(args ...string) func(*keeper.Config) {
	return func(c *keeper.Config) { c.Args = args }
}

// await waits until the state of the process satisfies ok.
func await(t *testing.T, k *keeper.Keeper, ok func(keeper.State) bool) keeper.State {
	t.Helper()
	ctx := within(t)
	for {
		s, changed := k.State()
		if ok(s) {
			return s
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("the process stays %+v", s)
		}
	}
}

// tell makes the keeper load an engine and notify it. The notification has to come from the agent named in the state.
func tell(t *testing.T, k *keeper.Keeper, engine transfer.Notifier, metadata []byte, message string) {
	t.Helper()
	s := await(t, k, keeper.State.Up)
	peer, err := k.Load(within(t), metadata)
	if err == nil {
		err = k.Notify(within(t), peer, []byte(message))
	}
	if err != nil {
		t.Fatal(err)
	}
	select {
	case n := <-engine.Notifications():
		if string(n.Message) != message || !strings.HasSuffix(s.About, ", as "+string(n.From)) {
			t.Errorf("got %q from %q, want %q from %q", n.Message, n.From, message, s.About)
		}
	case <-within(t).Done():
		t.Fatal("no notification arrived")
	}
}

// TestMissingLibraryIsReported: an error of the keeper reaches the log of the sidecar.
func TestMissingLibraryIsReported(t *testing.T) {
	k := start(t, with("--library="+filepath.Join(t.TempDir(), "libnixl_capi.so")))
	s := await(t, k, func(s keeper.State) bool { return s.Err != nil })
	// Without the tag it is not built in; with the tag there is no library to open.
	if text := s.Err.Error(); !strings.HasPrefix(text, "starting a NIXL agent: ") || !strings.HasSuffix(text, " (exit status 4)") {
		t.Errorf("got %q", text)
	}
}

func TestStartWithin(t *testing.T) {
	hangs := make(chan struct{})
	defer close(hangs)
	_, err := startWithin(time.Millisecond, func() (agent, error) { <-hangs; return agent{}, nil })
	if err == nil || !strings.Contains(err.Error(), "did not start within 1ms") {
		t.Errorf("got %v", err)
	}
	want := errors.New("no such library")
	if _, err := startWithin(patience, func() (agent, error) { return agent{}, want }); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
}

// beSidecar is a program that starts a keeper and does nothing more.
func beSidecar() {
	keeper.Start(keeper.Config{Path: "keeper", Args: os.Args[1:], Log: slog.New(slog.NewJSONHandler(os.Stdout, nil))})
	select {}
}
