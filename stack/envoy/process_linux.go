package envoy

import "syscall"

// attributes gives Envoy a process group of its own, so that Ctrl-C reaches only its parent. The kernel kills Envoy if its
// parent dies.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
