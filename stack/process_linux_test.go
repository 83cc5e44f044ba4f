package stack_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/stack"
)

func TestKilledParentTakesItsChildrenAlong(t *testing.T) {
	p := start(t, played(t, "parent"))
	child := dial(t, p)
	exchange(t, child)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	expectEnd(t, child)
}

// The kernel sends the parent-death signal when the thread that started a child ends.
func TestChildOutlivesTheThreadOfItsStarter(t *testing.T) {
	program := played(t, "echo")
	var p *stack.Process
	var err error
	var starter sync.WaitGroup
	starter.Go(func() {
		runtime.LockOSThread() // without unlocking: the thread ends with the goroutine
		p, err = stack.Start(t.Context(), program)
	})
	starter.Wait()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop() })
	exchange(t, dial(t, p))
}

func TestCores(t *testing.T) {
	program := played(t, "silent")
	program.Cores, program.Probe = []int{0}, func(context.Context) error { return nil }
	p := start(t, program)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(status), "\nCpus_allowed_list:\t0\n") {
		t.Errorf("it may run elsewhere:\n%s", status)
	}
	program.Cores = []int{1000}
	if p, err := stack.Start(t.Context(), program); p != nil || err == nil {
		t.Errorf("held to a processor that is not there: %v", err)
	}
}
