package up_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/stack"
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

// testDeadEngine kills the decode engine during an answer, and then the prefill engine.
func testDeadEngine(t *testing.T, dir string) {
	logs := t.TempDir()
	r := start(t, dir, "--prefill=1", "--decode=1", "--log-dir="+logs, "--log-level=debug")
	if !strings.Contains(r.page, "\nThe output of all programs is in "+logs+", one file each.\n") {
		t.Errorf("the folder of logs is missing in\n%s", r.page)
	}
	body := `{"model":"tiny","prompt":"go on","max_tokens":4000,"stream":true}`
	resp, err := http.Post("http://"+r.addresses(t)["http"]+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	r.killEngine(t, "decode")
	// docs/failures.md: after the first byte, the stream ends with an error event.
	if rest, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(rest), `{"error":{`) {
		t.Errorf("the answer goes on with %q, %v", rest, err)
	}
	r.mustSay(t, "decode-0 ended: killed by SIGKILL; starting it again\n")
	r.mustSay(t, "decode-0 is ready again after ")
	r.killEngine(t, "prefill")
	r.mustSay(t, "prefill-0 ended: killed by SIGKILL; starting it again\n")
	r.mustSay(t, "prefill-0 is ready again after ")
	// The picker knows once it has read the engine's page again.
	late, again := time.After(20*time.Second), time.NewTicker(20*time.Millisecond)
	defer again.Stop()
	for got := ""; !strings.HasPrefix(got, "remote;reason=forced"); {
		select {
		case <-again.C:
			got = forced(t, r.addresses(t)["http"], "")
		case <-late:
			t.Fatalf("the engine that was started again gets no prompt: decision %q", got)
		}
	}
	for _, program := range []string{"prefill-0", "decode-0", "decode-0 sidecar", "epp"} {
		if log, err := os.ReadFile(filepath.Join(logs, stack.LogFile(program))); err != nil || !strings.Contains(string(log), `{"ready":`) {
			t.Errorf("log of %s: %v\n%s", program, err, log)
		}
	}
	r.interrupt(t)
	if left, err := os.ReadDir(logs); len(left) == 0 || err != nil {
		t.Errorf("the logs are gone: %v", err)
	}
}

// killEngine kills the engine of a role.
func (r *running) killEngine(t *testing.T, role string) {
	t.Helper()
	for _, pid := range children(t, r.cmd.Process.Pid)["sim"] {
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(args), "--role="+role) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("there is no %s engine", role)
}

// mustSay reads the next line of the output.
func (r *running) mustSay(t *testing.T, want string) {
	t.Helper()
	if line, err := r.out.ReadString('\n'); err != nil || !strings.HasPrefix(line, want) {
		t.Fatalf("said %q, %v, want %q", line, err, want)
	}
}

// testDeadEnvoy kills Envoy, which is not started again.
func testDeadEnvoy(t *testing.T, dir string) {
	r := start(t, dir, "--prefill=1", "--decode=1")
	pids := children(t, r.cmd.Process.Pid)
	if len(pids["sidecar"]) != 1 || len(pids["sim"]) != 2 || len(pids["epp"]) != 1 || len(pids["envoy"]) != 1 {
		t.Fatalf("children %v", pids)
	}
	keepers := children(t, pids["sidecar"][0])
	if len(keepers["keeper"]) != 1 {
		t.Errorf("children of the sidecar: %v", keepers)
	}
	if err := syscall.Kill(pids["envoy"][0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	code, said := r.end(t)
	if code != 1 || !strings.HasPrefix(said, "up: running the stack: envoy ended: killed by SIGKILL") {
		t.Errorf("exit %d: %s", code, said)
	}
	mustBeGone(t, pids)
	mustBeGone(t, keepers)
	_, logs, _ := strings.Cut(strings.TrimSpace(said), "The logs of all programs are in ")
	if _, err := os.Stat(filepath.Join(logs, "envoy.log")); err != nil || !strings.HasPrefix(logs, r.files) {
		t.Errorf("the logs of a failed stack: %v\n%s", err, said)
	}
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
