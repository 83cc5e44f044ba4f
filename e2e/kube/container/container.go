package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// Mount is a file or folder that a container sees in addition to its image.
type Mount struct {
	Source   string // file or folder of this machine; "" is an empty folder in memory that every user may write to
	Target   string // absolute path in the container; made if the image has none
	ReadOnly bool
}

// Spec says what a container runs.
type Spec struct {
	Name         string // in errors
	Image        Image  // its files; the caller applies its command and user
	Args         []string
	Env          []string // all of it, NAME=value
	Dir          string   // working directory; made if it is missing; "": the root
	UID          int
	GID          int
	Groups       []int // more of its groups
	ReadOnlyRoot bool
	Mounts       []Mount
	Log          io.Writer // gets what the container prints, from one goroutine; nil: it is dropped
}

// Container is a container that was started.
type Container struct {
	spec   Spec
	cmd    *exec.Cmd
	done   chan struct{}
	code   int            // after done
	signal syscall.Signal // after done
}

var (
	// errEnded says that a container has ended, so that it cannot do what the caller wants.
	errEnded = errors.New("it has ended")
	// errNothing says that there are no arguments.
	errNothing = errors.New("there is nothing to run")
)

// Start runs a container. The error says why its program could not be run: it wraps [fs.ErrNotExist] if there is no such
// program, and [fs.ErrPermission] if it cannot be executed.
func (s *Sandbox) Start(spec Spec) (*Container, error) {
	c, err := s.start(spec)
	if err != nil {
		return nil, fmt.Errorf("starting container %s in %s: %w", spec.Name, s.name, err)
	}
	return c, nil
}

// PID returns its first process in the node's PID namespace.
func (c *Container) PID() int { return c.cmd.Process.Pid }

// Done returns a channel that is closed when all its processes have ended and all their output is in the log.
func (c *Container) Done() <-chan struct{} { return c.done }

// Exit returns, after [Container.Done], the exit code of its first process, which is 128 plus the signal if a signal ended
// it.
func (c *Container) Exit() (code int, signal syscall.Signal) {
	<-c.done
	return c.code, c.signal
}

// Signal sends a signal to its first process, which ignores signals without a handler. The error is os.ErrProcessDone if it
// has ended.
func (c *Container) Signal(sig syscall.Signal) error {
	if err := c.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("sending %s to container %s: %w", sig, c.spec.Name, err)
	}
	return nil
}

// Kill ends all its processes at once and waits for them. It does nothing if the container has ended.
func (c *Container) Kill() error {
	if err := c.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-c.done
	return nil
}

// Exec runs another program in the container, as its user, in its working directory and with its environment, and returns the
// output and the exit code, which is 128 plus the signal if a signal ended it. When the context ends, the program is killed,
// and the error is the context's. Otherwise the error says why the program could not be run, as [Sandbox.Start] does.
func (c *Container) Exec(ctx context.Context, argv []string) (output []byte, code int, err error) {
	if output, code, err = c.exec(ctx, argv); err != nil {
		return output, code, fmt.Errorf("running %q in container %s: %w", argv, c.spec.Name, err)
	}
	return output, code, nil
}
