package stack_test

import (
	"runtime"
	"testing"
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
	ended := make(chan struct{})
	program := played(t, "echo")
	starter := make(chan func())
	go func() {
		defer close(ended)
		runtime.LockOSThread() // without unlocking: the thread ends with the goroutine
		p := start(t, program)
		starter <- func() { exchange(t, dial(t, p)) }
	}()
	use := <-starter
	<-ended
	use()
}
