package container

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestEnter(t *testing.T) {
	Require(t)
	if parent := os.Getppid(); parent != 1 {
		t.Errorf("the tests' parent is process %d, not the first", parent)
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, 0, len(interfaces))
	for _, i := range interfaces {
		names = append(names, i.Name)
		if i.Flags&net.FlagUp == 0 {
			t.Errorf("interface %s is down", i.Name)
		}
	}
	if slices.Sort(names); !slices.Equal(names, []string{"lo", bridge}) {
		t.Errorf("the network has interfaces %v", names)
	}
	if value, ok := os.LookupEnv(roleVariable); ok {
		t.Errorf("children would see %s=%s", roleVariable, value)
	}
}

// TestOrphans: what loses its parent is reaped.
func TestOrphans(t *testing.T) {
	Require(t)
	out, err := exec.Command("sh", "-c", "true & echo $!").Output()
	if err != nil {
		t.Fatal(err)
	}
	orphan, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	gone := func() bool { return errors.Is(syscall.Kill(orphan, 0), syscall.ESRCH) }
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !gone(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("process %d is never reaped", orphan)
		}
	}
}

// entered is this test binary from its start, which enters namespaces of its own and is a program of the tests in there.
func entered(t *testing.T, program string) *exec.Cmd {
	t.Helper()
	Require(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), enteredVariable+"="+program)
	return cmd
}

func TestEnterPassesOnTheStatus(t *testing.T) {
	for program, want := range map[string]int{"exit": 7, "die": 137} {
		cmd := entered(t, program)
		if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != want {
			t.Errorf("%s: %v, want %d\n%s", program, err, want, out)
		}
	}
}

func TestEnterPassesOnSignals(t *testing.T) {
	cmd := entered(t, "terminate")
	out := startEntered(t, cmd)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("it ended with %v, not as the program that got SIGTERM", err)
	}
}

// TestEnterDies: what runs in namespaces ends with who made them, which the end of its output shows.
func TestEnterDies(t *testing.T) {
	cmd := entered(t, "terminate")
	out := startEntered(t, cmd)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v", err)
	}
}

// startEntered waits until the program says that it is ready. The rest of its output ends when the last process has that
// could write to it.
func startEntered(t *testing.T, cmd *exec.Cmd) io.Reader {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = read.Close() })
	cmd.Stdout = write
	if err := errors.Join(cmd.Start(), write.Close(), read.SetReadDeadline(time.Now().Add(patience))); err != nil {
		t.Fatal(err)
	}
	buffered := bufio.NewReader(read)
	if line, err := buffered.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("it says %q: %v", line, err)
	}
	return buffered
}

// judge is a test that notes its verdict.
type judge struct {
	testing.TB
	verdict string
}

func (j *judge) Helper()               {}
func (j *judge) Fatalf(string, ...any) { j.verdict = "failed" }
func (j *judge) Skipf(string, ...any)  { j.verdict = "skipped" }

func TestRequire(t *testing.T) {
	before := outside
	defer func() { outside = before }()
	for _, c := range []struct{ outside, ci, want string }{
		{"", "true", ""}, {"not root", "true", "failed"}, {"not root", "", "skipped"}, {"not root", "false", "skipped"},
	} {
		t.Setenv("CI", c.ci)
		outside = c.outside
		j := &judge{TB: t}
		if Require(j); j.verdict != c.want {
			t.Errorf("with CI=%s and %q a test is %q, want %q", c.ci, c.outside, j.verdict, c.want)
		}
	}
}
