//go:build !linux

package envoy

import "syscall"

// attributes sets nothing: only Linux can end a child with its parent.
func attributes() *syscall.SysProcAttr { return nil }
