package stack

import "syscall"

// attributes gives a child a process group of its own, so that Ctrl-C reaches it through its parent, which ends a stack
// in order, and has it killed with its parent.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
