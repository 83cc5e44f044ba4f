//go:build !linux

package envoy

import (
	"os"
	"syscall"
)

// attributes sets nothing: only Linux can end a child with its parent.
func attributes() *syscall.SysProcAttr { return nil }

// Status says how a process has ended.
func Status(state *os.ProcessState) string { return state.String() }
