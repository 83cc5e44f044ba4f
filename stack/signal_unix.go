//go:build unix

package stack

import (
	"fmt"
	"os"
	"syscall"
)

// terminate asks a process to end. One that is paused can only take the signal once it goes on.
func terminate(p *os.Process) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.Signal(syscall.SIGCONT)
}

// Pause stops the program where it is (SIGSTOP): its connections stay open and nothing answers, as on a node that hangs.
func (p *Process) Pause() error { return p.signal(syscall.SIGSTOP) }

// Resume lets a paused program go on (SIGCONT).
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("sending %v to %s: %w", s, p.program.Name, err)
	}
	return nil
}
