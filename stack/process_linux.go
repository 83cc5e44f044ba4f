package stack

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes gives a child a process group of its own, so that Ctrl-C reaches only its parent, which ends the stack in order.
// The kernel kills the child if its parent dies.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// holdTo runs start on the given processors; the child inherits them. The caller has locked its thread, which afterwards may use
// all of its processors again.
func holdTo(cores []int, start func() error) error {
	if len(cores) == 0 {
		return start()
	}
	var before, held unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("reading the processors it may run on: %w", err)
	}
	for _, core := range cores {
		held.Set(core)
	}
	if err := unix.SchedSetaffinity(0, &held); err != nil {
		return fmt.Errorf("holding it to processors %v: %w", cores, err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &before) }() // it was allowed before
	return start()
}
