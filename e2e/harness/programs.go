package harness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/e2e/programs"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/stack"
)

// Root is the checkout, relative to the folder of a test package.
const Root = "../.."

// BinDir holds the programs of this repository while the tests of a package run.
var BinDir string

// Run builds the programs, runs the tests of a package, and returns the exit status: that of the tests, or 1 if goroutines
// leak.
func Run(m *testing.M) int {
	dir, err := programs.Build(programs.All()...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	BinDir = dir
	code := m.Run()
	Client.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// Program is a running program of this repository.
type Program struct{ *stack.Process }

// Start runs a program. It ends with the test, which logs its last lines if it fails.
func Start(t *testing.T, what stack.Program) Program {
	t.Helper()
	what.Grace, what.Lines = Patience, 2000
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
	return Program{p}
}

// Addr returns an address of the program's ready line.
func (p Program) Addr(purpose string) string {
	a, err := p.Address(purpose)
	if err != nil {
		panic(err)
	}
	return a
}

// MustStop ends the program as an operator does, and fails if it does not end cleanly.
func (p Program) MustStop(t *testing.T) {
	t.Helper()
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// Freeze stops the program (SIGSTOP) and returns when none of its threads runs any more.
func (p Program) Freeze(t *testing.T) {
	t.Helper()
	freeze(t, p.PID())
}

// MustResume continues a frozen program.
func (p Program) MustResume(t *testing.T) {
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
	ctx := Within(t)
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

// FreePorts returns the first of n loopback ports that follow one another, for programs that cannot take any free one. They lie below those
// that the system gives to connections, and are reserved for this process.
func FreePorts(t *testing.T, n int) int {
	t.Helper()
	const low, high = 12_000, 32_000
	for range 100 {
		first, free := low+rand.IntN(high-low), 0
		for ; free < n; free++ {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first+free)))
			if err != nil {
				break
			}
			l.Close()
			if realengine.Reserve(first+free) != nil {
				break
			}
		}
		if free == n {
			return first
		}
	}
	t.Fatalf("no %d free ports follow one another", n)
	return 0
}

// StartSidecar runs a sidecar in front of the engine at decode, on free loopback ports.
func StartSidecar(t *testing.T, decode string, flags ...string) Program {
	t.Helper()
	return StartSidecarIn(t, nil, decode, flags...)
}

// StartSidecarIn is StartSidecar with environment variables.
func StartSidecarIn(t *testing.T, env []string, decode string, flags ...string) Program {
	t.Helper()
	what, err := stack.Sidecar(BinDir, decode, append([]string{"--log-level=debug"}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	what.Env = env
	return Start(t, what)
}

// Output runs a program of this repository and returns its stdout.
func Output(name string, args ...string) (string, error) { return OutputOf("", name, args...) }

// OutputOf is Output with a stdin.
func OutputOf(stdin, name string, args ...string) (string, error) {
	c := exec.Command(filepath.Join(BinDir, name), args...)
	c.Stdin = strings.NewReader(stdin)
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}
