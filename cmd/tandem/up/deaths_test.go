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

// connect connects to all ports on the page.
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

// mustEnd fails unless the servers close the connections.
func mustEnd(t *testing.T, conns []net.Conn) {
	t.Helper()
	for _, c := range conns {
		if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v is still open", c.RemoteAddr())
		}
	}
}

// testKilled kills only the parent.
func testKilled(t *testing.T, dir string) {
	r := start(t, dir, "--prefill=1", "--decode=1")
	conns, pids := r.connect(t), children(t, r.cmd.Process.Pid)
	r.signal(t, syscall.SIGKILL)
	r.end(t)
	mustEnd(t, conns)
	mustBeGone(t, pids) // servers close idle connections too
}

// mustBeGone fails unless processes end. Their ports may belong to other programs a moment later, so it does not check
// ports.
func mustBeGone(t *testing.T, pids map[string][]int) {
	t.Helper()
	late, look := time.After(20*time.Second), time.NewTicker(20*time.Millisecond)
	defer look.Stop()
	for program, list := range pids {
		for _, pid := range list {
			for lives(pid) {
				select {
				case <-look.C:
				case <-late:
					t.Fatalf("%s still runs as process %d", program, pid)
				}
			}
		}
	}
}

// lives reports whether a process runs; one that has ended but was not waited for does not.
func lives(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, found := strings.Cut(string(stat), ") ")
	return err == nil && found && state[0] != 'Z' && state[0] != 'X'
}

// testDeadChild kills only a sidecar.
func testDeadChild(t *testing.T, dir string) {
	r := start(t, dir, "--prefill=1", "--decode=1")
	pids := children(t, r.cmd.Process.Pid)
	if len(pids["sidecar"]) != 1 || len(pids["sim"]) != 2 || len(pids["epp"]) != 1 {
		t.Fatalf("children %v", pids)
	}
	keepers := children(t, pids["sidecar"][0])
	if len(keepers["keeper"]) != 1 {
		t.Errorf("children of the sidecar: %v", keepers)
	}
	if err := syscall.Kill(pids["sidecar"][0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	code, said := r.end(t)
	if code != 1 || !strings.HasPrefix(said, "up: running the stack: decode-0 sidecar ended: signal: killed") {
		t.Errorf("exit %d: %s", code, said)
	}
	mustBeGone(t, pids)
	mustBeGone(t, keepers)
}

// children returns the processes that a process has started, by the name of their program.
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
