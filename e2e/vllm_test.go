//go:build vllm

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRealPair runs the suite on a real vLLM pair, named in the environment:
//
//	TANDEM_VLLM_PREFILL, TANDEM_VLLM_DECODE, TANDEM_VLLM_PLAIN   host:port of three engines with the same weights
//	TANDEM_VLLM_PREFILL_PID       main process of the prefill engine: the cases that stop and kill it need it
//	TANDEM_VLLM_PREFILL_RESTART   command that starts the prefill engine again and prints its new process id as its last word
//	TANDEM_VLLM_LEASE             the engines' kv_lease_duration (default 30s)
//
// It is behind the build tag vllm, because engines take 5 GB and minutes to install: go test -tags vllm ./e2e
func TestRealPair(t *testing.T) {
	addr := os.Getenv("TANDEM_VLLM_PREFILL")
	if addr == "" {
		t.Fatal("TANDEM_VLLM_PREFILL, TANDEM_VLLM_DECODE and TANDEM_VLLM_PLAIN must name a running vLLM pair and a plain engine")
	}
	p := &pair{
		prefill: engine{addr: addr}, decode: engine{addr: os.Getenv("TANDEM_VLLM_DECODE")}, plain: engine{addr: os.Getenv("TANDEM_VLLM_PLAIN")},
		lease: 30 * time.Second, tokenIDs: [2]int{300, 1000},
	}
	var err error
	if p.model, err = decodeModel(p.decode.addr); err != nil {
		t.Fatal(err)
	}
	if v := os.Getenv("TANDEM_VLLM_LEASE"); v != "" {
		if p.lease, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	pid := os.Getenv("TANDEM_VLLM_PREFILL_PID")
	signal := func(s syscall.Signal) func(*testing.T) {
		return func(t *testing.T) { signalTree(t, pid, s) }
	}
	p.prefill.pause, p.prefill.resume, p.prefill.kill = signal(syscall.SIGSTOP), signal(syscall.SIGCONT), signal(syscall.SIGKILL)
	p.revive = func(t *testing.T) {
		out, err := exec.Command("sh", "-c", os.Getenv("TANDEM_VLLM_PREFILL_RESTART")).Output()
		if err != nil {
			t.Fatalf("restarting prefill: %v", err)
		}
		words := strings.Fields(string(out))
		pid = words[len(words)-1]
	}
	runPair(t, p)
}

// signalTree signals a process and all of its descendants.
func signalTree(t *testing.T, pid string, s syscall.Signal) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatalf("TANDEM_VLLM_PREFILL_PID is %q", pid)
	}
	all := append(descendants(t, pid), n)
	if s == syscall.SIGSTOP {
		freeze(t, all...)
		return
	}
	for _, one := range all {
		_ = syscall.Kill(one, s) // a child may end with its parent
	}
}

func descendants(t *testing.T, pid string) []int {
	t.Helper()
	lists, err := filepath.Glob("/proc/" + pid + "/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	for _, list := range lists {
		b, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, child := range strings.Fields(string(b)) {
			n, err := strconv.Atoi(child)
			if err != nil {
				t.Fatal(err)
			}
			all = append(append(all, descendants(t, child)...), n)
		}
	}
	return all
}
