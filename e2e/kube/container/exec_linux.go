package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// execGrace is how long what a program of Exec has started may hold its output, once it has ended or was killed.
const execGrace = time.Second

func (c *Container) exec(ctx context.Context, argv []string) (output []byte, code int, err error) {
	if len(argv) == 0 {
		return nil, 0, errNothing
	}
	select {
	case <-c.done:
		return nil, 0, errEnded
	default:
	}
	process, err := unix.PidfdOpen(c.PID(), 0)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", errEnded, err)
	}
	file := os.NewFile(uintptr(process), "container")
	defer file.Close()
	cmd, err := shim(ctx, roleExec)
	if err != nil {
		return nil, 0, err
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, execGrace
	cmd.ExtraFiles = []*os.File{file}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	spec := c.spec
	spec.Args = argv
	answer, err := startShim(cmd, launch{Spec: spec}, func(start func() error) error {
		return onThread(process, unix.CLONE_NEWPID, "pid", start)
	})
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENOMEM): // what Linux says of a namespace without a first process
		return nil, 0, fmt.Errorf("%w: %w", errEnded, err)
	case err != nil:
		return nil, 0, err
	}
	code, err = verdict(ctx, listen(answer), cmd)
	return out.Bytes(), code, err
}

// verdict waits for a program of Exec, of which the shim has answered that it runs, or why not.
func verdict(ctx context.Context, refused error, cmd *exec.Cmd) (code int, err error) {
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case refused != nil:
		return 0, refused
	case err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay):
		return 0, err
	}
	code, _ = statusOf(cmd.ProcessState.Sys().(syscall.WaitStatus))
	return code, nil
}
