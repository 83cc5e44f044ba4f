//go:build !unix

package stack

import "os"

// terminate ends a process at once: this system has no signals.
func terminate(p *os.Process) error { return p.Kill() }
