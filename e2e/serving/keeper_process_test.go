package serving

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
)

// keeperProgram is how a sidecar gets a keeper that speaks NIXL. The zero value is none.
type keeperProgram struct{ path, library string }

func (k keeperProgram) there() bool { return k.path != "" }

func (k keeperProgram) flags() []string {
	if !k.there() {
		return nil
	}
	return []string{"--keeper=" + k.path, "--keeper-library=" + k.library}
}

// nixlKeeper builds the keeper, once for all tests. The library is the engines' own.
func nixlKeeper(t *testing.T) keeperProgram {
	t.Helper()
	path, err := buildKeeper()
	if err != nil {
		t.Fatal(err)
	}
	const wheels = "../../.tools/vllm/lib/python3*/site-packages/.nixl_*.mesonpy.libs"
	found, err := filepath.Glob(wheels)
	if err != nil || len(found) != 1 {
		t.Fatalf("the NIXL library of the engines: %q at %s (%v)", found, wheels, err)
	}
	library, err := filepath.Abs(found[0])
	if err != nil {
		t.Fatal(err)
	}
	return keeperProgram{path, library}
}

var buildKeeper = sync.OnceValues(func() (path string, err error) {
	path = filepath.Join(harness.BinDir, "nixl", "keeper")
	build := exec.Command("go", "build", "-tags=nixl", "-o", path, "./cmd/keeper")
	build.Dir, build.Env = harness.Root, append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the keeper: %w\n%s", err, out)
	}
	return path, nil
})

// killKeeper ends the keeper at once (SIGKILL).
func (k *kept) killKeeper(t *testing.T) {
	t.Helper()
	children := childrenOf(t, k.sidecar.PID())
	if len(children) != 1 {
		t.Fatalf("the sidecar has the children %v", children)
	}
	if err := syscall.Kill(children[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// childrenOf returns the processes that a process has started.
func childrenOf(t *testing.T, parent int) (pids []int) {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, stat := range stats {
		b, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state parent …
		text := string(b)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		if len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}
