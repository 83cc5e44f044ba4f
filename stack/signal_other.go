//go:build !unix

package stack

import "os"

// terminate ends a process at once: without signals there is no asking.
func terminate(p *os.Process) error { return p.Kill() }
