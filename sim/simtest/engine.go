package simtest

import (
	"context"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/server"
)

// Timeout bounds every wait of a test. No wait is expected to take a noticeable part of it.
const Timeout = 20 * time.Second

// Start runs an engine with its ports for the length of the test.
func Start(t *testing.T, change ...func(*sim.Config)) *server.Server {
	t.Helper()
	var cfg sim.Config
	for _, f := range change {
		f(&cfg)
	}
	s, err := server.Start(cfg)
	return started(t, s, err)
}

// started closes a server at the end of the test, and fails the test if it has not started.
func started[S interface{ Close() }](t *testing.T, s S, err error) S {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// WaitForState waits for a state of the engine, and fails the test if it does not come. what names it in the failure.
func WaitForState(t *testing.T, s *server.Server, what string, ok func(sim.State) bool) sim.State {
	t.Helper()
	return waitFor(t, s.Engine, what, ok)
}

// waitFor is WaitForState for engines of every kind.
func waitFor[S any](t *testing.T, e interface {
	WaitState(context.Context, func(S) bool) (S, error)
}, what string, ok func(S) bool) S {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	st, err := e.WaitState(ctx, ok)
	if err != nil {
		t.Fatalf("%s did not happen: %v: %+v", what, err, st)
	}
	return st
}

// Idle reports whether no block is in use.
func Idle(st sim.State) bool { return st.Blocks.Used == 0 && st.Blocks.Pinned == 0 }

// Model returns a built-in model.
func Model(t *testing.T, name string) model.Model {
	t.Helper()
	m, err := model.Named(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
