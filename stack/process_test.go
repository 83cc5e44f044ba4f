package stack_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/stack"
)

func TestStartAndStop(t *testing.T) {
	p := start(t, played(t, "echo"))
	exchange(t, dial(t, p))
	if got := p.Output(); !slices.Equal(got, []string{"about to be ready"}) {
		t.Errorf("output %q", got)
	}
	if _, err := p.Address("http"); err == nil || !strings.Contains(err.Error(), `"http" of echo: its ready line has echo`) {
		t.Errorf("address that is not there: %v", err)
	}
	for range 2 {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
	if err := p.Wait(); err != nil {
		t.Errorf("it was asked to end, but: %v", err)
	}
}

func TestStartFailures(t *testing.T) {
	soon := func(p stack.Program) stack.Program { p.ReadyTimeout = 50 * time.Millisecond; return p }
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the user left"))
	tests := []struct {
		name    string
		ctx     context.Context
		program stack.Program
		want    []string
	}{
		{"no such program", t.Context(), stack.Program{Name: "prefill", Path: filepath.Join(t.TempDir(), "sim")}, []string{"starting prefill:", "no such file"}},
		{"no name", t.Context(), stack.Program{Path: "./nothing-here"}, []string{"starting ./nothing-here:"}},
		{"ends early", t.Context(), played(t, "early"), []string{"starting early: early ended: exit status 3", "\n\tconfig is wrong"}},
		{"never ready", t.Context(), soon(played(t, "silent")), []string{"starting silent: no ready line on its stdout within 50ms"}},
		{"cancelled", gone, played(t, "silent"), []string{"starting silent: the user left"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p, err := stack.Start(test.ctx, test.program)
			if p != nil {
				t.Error("a process beside the error")
			}
			contains(t, err, test.want...)
		})
	}
}

// TestProbe: Probe is called until the program is ready, has ended, or its time is over.
func TestProbe(t *testing.T) {
	asked := 0
	third := func(context.Context) error {
		if asked++; asked < 3 {
			return errors.New("still loading")
		}
		return nil
	}
	program := played(t, "silent")
	program.Probe = third
	start(t, program)
	if asked != 3 {
		t.Errorf("asked %d times, want 3", asked)
	}
	never := func(context.Context) error { return errors.New("still loading") }
	for name, want := range map[string]string{"silent": "it is not ready after 80ms: still loading", "early": "early ended: exit status 3"} {
		program := played(t, name)
		program.Probe, program.ReadyTimeout = never, 80*time.Millisecond
		if name == "early" {
			program.ReadyTimeout = 0
		}
		p, err := stack.Start(t.Context(), program)
		if p != nil {
			t.Error("a process beside the error")
		}
		contains(t, err, want)
	}
}

func TestStartErrorsCanBeTold(t *testing.T) {
	_, err := stack.Start(t.Context(), stack.Program{Path: filepath.Join(t.TempDir(), "sim")})
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing program: %v", err)
	}
	_, err = stack.Start(t.Context(), played(t, "early"))
	exit, ok := errors.AsType[*stack.ExitError](err)
	if !ok || exit.Name != "early" || exit.Code != 3 {
		t.Errorf("early end: %+v, %v", exit, err)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("TANDEM_PORT", "1")
	t.Setenv("STACK_TEST_KEPT", "yes")
	p := start(t, played(t, "environ"))
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, line := range p.Output() {
		if strings.HasPrefix(line, "TANDEM_") {
			t.Errorf("passed on: %s", line)
		}
	}
	if !slices.Contains(p.Output(), "STACK_TEST_KEPT=yes") {
		t.Error("the rest of the environment is lost")
	}
}

func TestUnaskedEnd(t *testing.T) {
	p := start(t, played(t, "echo"))
	if err := syscall.Kill(p.PID(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	contains(t, p.Wait(), "echo ended: exit status 7", "\n\tdying of SIGUSR1")
	if err := p.Stop(); err != nil {
		t.Errorf("stopping what has ended: %v", err)
	}
}

func TestOutputIsBounded(t *testing.T) {
	program := played(t, "chatty")
	program.Lines = 3
	err := start(t, program).Wait()
	exit, ok := errors.AsType[*stack.ExitError](err)
	if !ok || exit.Code != 0 {
		t.Fatalf("ended with 0, but unasked: %v", err)
	}
	if len(exit.Output) != 3 || exit.Output[0] != "line 99" || !strings.Contains(exit.Output[1], "second") || len(exit.Output[2]) != 4096 {
		t.Errorf("%d lines kept: %.200q", len(exit.Output), exit.Output)
	}
}

func TestStopUnwilling(t *testing.T) {
	t.Run("ignores SIGTERM", func(t *testing.T) {
		program := played(t, "stubborn")
		program.Grace = 20 * time.Millisecond
		p := start(t, program)
		contains(t, p.Stop(), "stopping stubborn: it did not end within 20ms of SIGTERM and was killed")
		contains(t, p.Stop(), "was killed")
		if err := p.Wait(); err != nil {
			t.Errorf("it was asked to end, but: %v", err)
		}
	})
	t.Run("fails while ending", func(t *testing.T) {
		p := start(t, played(t, "sulky"))
		contains(t, p.Stop(), "stopping sulky ended: exit status 1", "\n\tcould not drain")
	})
}

func TestKill(t *testing.T) {
	p := start(t, played(t, "echo"))
	c := dial(t, p)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	default:
		t.Error("Kill has not waited")
	}
	if err := errors.Join(p.Wait(), p.Kill(), p.Stop()); err != nil {
		t.Errorf("it was meant to end, but: %v", err)
	}
	expectEnd(t, c)
}

// expectEnd waits until the process at the other end of a connection has ended.
func expectEnd(t *testing.T, c net.Conn) {
	t.Helper()
	if b, err := io.ReadAll(c); len(b) > 0 {
		t.Errorf("read %q, %v from what should be dead", b, err)
	}
}

func TestPauseAndResume(t *testing.T) {
	p := start(t, played(t, "echo"))
	c := dial(t, p)
	pause := func() {
		t.Helper()
		if err := p.Pause(); err != nil {
			t.Fatal(err)
		}
		var status syscall.WaitStatus // the kernel tells a parent when a child stands still
		if _, err := syscall.Wait4(p.PID(), &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
			t.Fatalf("not paused: %v, %v", status, err)
		}
	}
	pause()
	if err := p.Resume(); err != nil {
		t.Fatal(err)
	}
	exchange(t, c)
	pause()
	if err := p.Stop(); err != nil {
		t.Errorf("stopping a paused program: %v", err)
	}
	contains(t, p.Pause(), "sending stopped (signal) to echo")
}
