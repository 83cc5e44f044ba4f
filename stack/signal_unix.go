//go:build unix

package stack

import (
	"fmt"
	"os"
	"syscall"
)

// terminate asks a process to end. A paused process gets the signal when it is resumed.
func terminate(p *os.Process) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.Signal(syscall.SIGCONT)
}

// Pause stops the program (SIGSTOP): its connections stay open and it does not answer, as on a node that hangs.
func (p *Process) Pause() error { return p.signal(syscall.SIGSTOP) }

// Resume continues a paused program (SIGCONT).
func (p *Process) Resume() error { return p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("sending %v to %s: %w", s, p.program.Name, err)
	}
	return nil
}
