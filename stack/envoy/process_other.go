//go:build !linux

package envoy

import "syscall"

// attributes has nothing to add: only Linux ends children with their parent.
func attributes() *syscall.SysProcAttr { return nil }
