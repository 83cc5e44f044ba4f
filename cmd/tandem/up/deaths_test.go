package up_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// connect connects to everything that the page names.
func (r *running) connect(t *testing.T) (conns []net.Conn) {
	t.Helper()
	for _, port := range r.ports(t) {
		c, err := net.Dial("tcp", port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		conns = append(conns, c)
	}
	return conns
}

// mustEnd fails unless those on the other side go away.
func mustEnd(t *testing.T, conns []net.Conn) {
	t.Helper()
	for _, c := range conns {
		if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v lives on", c.RemoteAddr())
		}
	}
}

// testKilled ends only the parent, by force.
func testKilled(t *testing.T, dir string) {
	r := start(t, dir, "--prefill=1", "--decode=1")
	conns := r.connect(t)
	r.signal(t, syscall.SIGKILL)
	r.end(t)
	mustEnd(t, conns)
	mustRefuse(t, r.ports(t)) // servers end silent connections too
}

// testDeadChild ends only a sidecar, by force.
func testDeadChild(t *testing.T, dir string) {
	r := start(t, dir, "--prefill=1", "--decode=1")
	pids := children(t, r.cmd.Process.Pid)
	if len(pids["sidecar"]) != 1 || len(pids["sim"]) != 2 || len(pids["epp"]) != 1 {
		t.Fatalf("children %v", pids)
	}
	if err := syscall.Kill(pids["sidecar"][0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	code, said := r.end(t)
	if code != 1 || !strings.HasPrefix(said, "up: running the stack: decode-0 sidecar ended: signal: killed") {
		t.Errorf("exit %d: %s", code, said)
	}
	mustRefuse(t, r.ports(t))
}

// children are the processes that a process has started, by the name of their program.
func children(t *testing.T, pid int) map[string][]int {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]int{}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, word := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			name, err := os.ReadFile("/proc/" + word + "/comm")
			if err != nil {
				t.Fatal(err)
			}
			program := strings.TrimSpace(string(name))
			found[program] = append(found[program], child)
		}
	}
	return found
}
