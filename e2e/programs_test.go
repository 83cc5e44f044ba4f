package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/stack"
)

// binDir holds the programs of this repository, built once for all tests of this package.
var binDir string

func TestMain(m *testing.M) {
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "tandem-e2e")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	binDir = dir
	build := exec.Command("go", "build", "-o", dir, "./cmd/epp", "./cmd/keeper", "./cmd/sidecar", "./cmd/sim", "./cmd/tandem")
	build.Dir = ".."
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the programs: %v\n%s", err, out)
		return 1
	}
	code := m.Run()
	client.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// program is a running program of this repository.
type program struct{ *stack.Process }

// start runs a program. It ends with the test, which shows its last lines if it fails.
func start(t *testing.T, what stack.Program) program {
	t.Helper()
	what.Grace, what.Lines = patience, 2000
	p, err := stack.Start(context.Background(), what)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", p.Name(), strings.Join(p.Output(), "\n"))
		}
	})
	return program{p}
}

// addr is an address of the program's ready line.
func (p program) addr(purpose string) string {
	a, err := p.Address(purpose)
	if err != nil {
		panic(err)
	}
	return a
}

// stop ends the program as an operator does, and fails if it does not end cleanly.
func (p program) stop(t *testing.T) {
	t.Helper()
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// freeze stops the program and returns when none of its threads runs any more.
func (p program) freeze(t *testing.T) {
	t.Helper()
	freeze(t, p.PID())
}

// resume lets a frozen program go on.
func (p program) resume(t *testing.T) {
	t.Helper()
	if err := p.Resume(); err != nil {
		t.Fatal(err)
	}
}

func freeze(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	ctx := within(t)
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for _, pid := range pids {
		for !frozen(t, pid) {
			select {
			case <-ctx.Done():
				t.Fatalf("process %d does not stop", pid)
			case <-poll.C:
			}
		}
	}
}

func frozen(t *testing.T, pid int) bool {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		t.Fatalf("no threads of process %d are found: %v", pid, err)
	}
	for _, stat := range stats {
		b, err := os.ReadFile(stat)
		if err != nil {
			continue // the thread has ended
		}
		if _, state, ok := strings.Cut(string(b), ") "); !ok || state[0] != 'T' {
			return false
		}
	}
	return true
}

// startSidecar runs a sidecar before the engine at decode, on free loopback ports.
func startSidecar(t *testing.T, decode string, flags ...string) program {
	t.Helper()
	return startSidecarIn(t, nil, decode, flags...)
}

func startSidecarIn(t *testing.T, env []string, decode string, flags ...string) program {
	t.Helper()
	what, err := stack.Sidecar(binDir, decode, append([]string{"--log-level=debug"}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	what.Env = env
	return start(t, what)
}

// startSim runs a simulated engine, or lends a real one if the suite runs on those.
func startSim(t *testing.T, name string, flags ...string) engine {
	t.Helper()
	if engines != nil {
		return engines.lend(t, name)
	}
	p := start(t, stack.Sim(binDir, name, flags...))
	return engine{addr: p.addr("http"), pause: p.freeze, resume: p.resume, kill: func(t *testing.T) {
		t.Helper()
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
	}}
}

// output runs a program of this repository and gives what it printed on stdout.
func output(name string, args ...string) (string, error) { return outputOf("", name, args...) }

// outputOf gives it something to read on stdin.
func outputOf(stdin, name string, args ...string) (string, error) {
	c := exec.Command(filepath.Join(binDir, name), args...)
	c.Stdin = strings.NewReader(stdin)
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}
