package envoy

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes gives Envoy a process group of its own, so that Ctrl-C reaches only its parent. The kernel kills Envoy if its
// parent dies.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// Status says how a process has ended: "exit status 1" or "killed by SIGKILL".
func Status(state *os.ProcessState) string {
	if s, ok := state.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return "killed by " + unix.SignalName(s.Signal())
	}
	return state.String()
}
