package envoy

import "syscall"

// attributes gives Envoy a process group of its own, so that Ctrl-C reaches it through its parent, and has it killed with
// its parent.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
