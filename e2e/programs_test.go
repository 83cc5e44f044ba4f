package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
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
	build := exec.Command("go", "build", "-o", dir, "./cmd/sidecar", "./cmd/sim")
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
type program struct {
	cmd    *exec.Cmd
	ready  map[string]string
	stderr *lockedBuffer
	ended  chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs a program and waits for its ready line. It ends with the test.
func start(t *testing.T, name string, args ...string) *program {
	t.Helper()
	return startIn(t, nil, name, args...)
}

// startIn is start with more environment.
func startIn(t *testing.T, env []string, name string, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(filepath.Join(binDir, name), args...), stderr: &lockedBuffer{}, ended: make(chan struct{})}
	p.cmd.Stderr = p.stderr
	p.cmd.Env = append(os.Environ(), env...)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	var ready struct{ Addresses map[string]string }
	if err == nil {
		err = json.Unmarshal(line, &ready)
	}
	go func() { defer close(p.ended); _ = p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGCONT)
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("%s said:\n%s", name, p.stderr)
		}
	})
	if err != nil {
		t.Fatalf("%s was not ready: %v\n%s", name, err, p.stderr)
	}
	p.ready = ready.Addresses
	return p
}

func (p *program) addr(name string) string { return p.ready[name] }

func (p *program) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// freeze stops the program and returns when none of its threads runs any more.
func (p *program) freeze(t *testing.T) { freeze(t, p.cmd.Process.Pid) }

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

// wait waits for the end and gives the exit code.
func (p *program) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.ended:
	case <-within(t).Done():
		t.Fatalf("the program does not end:\n%s", p.stderr)
	}
	return p.cmd.ProcessState.ExitCode()
}

// startSidecar runs a sidecar before the engine at decode, on free loopback ports.
func startSidecar(t *testing.T, decode string, flags ...string) *program {
	t.Helper()
	return startSidecarIn(t, nil, decode, flags...)
}

func startSidecarIn(t *testing.T, env []string, decode string, flags ...string) *program {
	t.Helper()
	host, port, _ := strings.Cut(decode, ":")
	return startIn(t, env, "sidecar", append([]string{"--host=127.0.0.1", "--port=0", "--metrics-port=0", "--admin-address=127.0.0.1:0",
		"--model-server-host=" + host, "--model-server-port=" + port, "--prefill-allow=127.0.0.0/8", "--log-level=debug"}, flags...)...)
}
