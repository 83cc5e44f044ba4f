package stack_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/tandem-serving/tandem/stack"
)

// startGroup starts echo programs with the given names.
func startGroup(t *testing.T, ctx context.Context, names ...string) (*stack.Group, context.Context, []*stack.Process) {
	t.Helper()
	g, alive := stack.NewGroup(ctx)
	t.Cleanup(func() { g.Stop() })
	var members []*stack.Process
	for _, name := range names {
		program := played(t, "echo")
		program.Name = name
		p, err := g.Start(alive, program)
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, p)
	}
	return g, alive, members
}

func ended(p *stack.Process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

func TestGroupStopsInReverseOrder(t *testing.T) {
	g, alive, members := startGroup(t, t.Context(), "first", "second", "third")
	stopped := make(chan error, 1)
	go func() { stopped <- g.Stop() }()
	for i, p := range members {
		<-p.Done()
		for _, later := range members[i:] {
			if !ended(later) {
				t.Errorf("%s ended before %s", p.Name(), later.Name())
			}
		}
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if alive.Err() == nil {
		t.Error("the context outlives the group")
	}
	_, err := g.Start(t.Context(), played(t, "echo"))
	contains(t, err, "starting echo: the stack has been stopped")
	_, err = g.TempDir()
	contains(t, err, "making a folder: the stack has been stopped")
}

// foreignMember is a member that Start did not start.
type foreignMember struct{ ended chan struct{} }

func (g foreignMember) Name() string { return "foreign" }
func (g foreignMember) Wait() error  { <-g.ended; return errors.New("foreign ended: no work") }
func (g foreignMember) Stop() error  { return errors.New("stopping foreign: it ended: no work") }

func TestGroupReportsAnEndOnce(t *testing.T) {
	g, alive := stack.NewGroup(t.Context())
	ended := foreignMember{make(chan struct{})}
	if err := g.Add(ended); err != nil {
		t.Fatal(err)
	}
	if m, ok := g.Member("foreign"); !ok || m != stack.Member(ended) {
		t.Errorf("found %v", m)
	}
	if m, ok := g.Member("unknown"); ok {
		t.Errorf("found %v", m)
	}
	close(ended.ended)
	<-alive.Done()
	contains(t, context.Cause(alive), "foreign ended: no work")
	if err := g.Stop(); err != nil {
		t.Errorf("reported again: %v", err)
	}
	contains(t, g.Add(ended), "starting foreign: the stack has been stopped", "stopping foreign")
}

func TestGroupRemovesItsFolders(t *testing.T) {
	g, alive := stack.NewGroup(t.Context())
	dir, err := g.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	p, err := g.Start(alive, played(t, "echo"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.Stop(); err != nil || !ended(p) {
		t.Errorf("stopped with %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
}

func TestGroupTellsOfADeath(t *testing.T) {
	g, alive, members := startGroup(t, t.Context(), "prefill", "decode")
	if err := syscall.Kill(members[0].PID(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	<-alive.Done()
	exit, ok := errors.AsType[*stack.ExitError](context.Cause(alive))
	if !ok || exit.Name != "prefill" || exit.Code != 7 {
		t.Errorf("cause: %v", context.Cause(alive))
	}
	if ended(members[1]) {
		t.Error("the others ended with it")
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
	if !ended(members[1]) {
		t.Error("still running after Stop")
	}
}

func TestGroupDoesNotReportIntendedEnds(t *testing.T) {
	g, alive, members := startGroup(t, t.Context(), "prefill", "decode")
	if err := members[0].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
	if exit, ok := errors.AsType[*stack.ExitError](context.Cause(alive)); ok {
		t.Errorf("the group took a Kill for a death: %v", exit)
	}
}

func TestGroupStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	g, _, members := startGroup(t, ctx, "first", "second")
	cancel()
	for _, p := range members {
		if err := p.Wait(); err != nil {
			t.Error(err)
		}
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
}

func TestGroupJoinsErrors(t *testing.T) {
	g, alive := stack.NewGroup(t.Context())
	for range 2 {
		if _, err := g.Start(alive, played(t, "sulky")); err != nil {
			t.Fatal(err)
		}
	}
	err := g.Stop()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || len(joined.Unwrap()) != 2 {
		t.Errorf("want both errors, got: %v", err)
	}
	if again := g.Stop(); again != err {
		t.Errorf("stopped twice: %v", again)
	}
}
