package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// launch is what the shim is told.
type launch struct {
	Spec     Spec
	Hostname string
	Root     string // empty folder where the root is mounted, in the shim's mount namespace only
	Etc      string // folder of the files that the sandbox has in /etc
}

// failure is what the shim answers if it could not become the program.
type failure struct {
	Text  string
	Errno syscall.Errno // 0 if the cause is none
}

// refusal is a failure as an error, which is its Errno.
type refusal failure

func (r refusal) Error() string { return r.Text }

func (r refusal) Unwrap() error {
	if r.Errno == 0 {
		return nil
	}
	return r.Errno
}

func (s *Sandbox) start(spec Spec) (*Container, error) {
	s.life.RLock()
	defer s.life.RUnlock()
	if s.closed {
		return nil, errClosed
	}
	if len(spec.Args) == 0 {
		return nil, errNothing
	}
	root := filepath.Join(s.dir, strconv.FormatInt(s.started.Add(1), 10))
	if err := os.Mkdir(root, 0o755); err != nil {
		return nil, err
	}
	c := &Container{spec: spec, done: make(chan struct{})}
	log := spec.Log
	c.spec.Log = nil // not for the shim
	if log == nil {
		log = io.Discard
	}
	logged, err := s.run(c, log, launch{Spec: c.spec, Hostname: s.hostname, Root: root, Etc: s.dir})
	if err != nil {
		return nil, errors.Join(err, os.Remove(root))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.containers[c] = true
	go func() {
		c.wait(logged)
		_ = os.Remove(root) // else with the sandbox
		s.mu.Lock()
		delete(s.containers, c)
		s.mu.Unlock()
		close(c.done)
	}()
	return c, nil
}

// run starts the shim and returns when that is the program, with a channel that is closed when all output is in the log.
func (s *Sandbox) run(c *Container, log io.Writer, l launch) (logged <-chan struct{}, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer read.Close()
		drain(log, read)
	}()
	// Or the program could not open /dev/stdout.
	if err = write.Chown(l.Spec.UID, l.Spec.GID); err == nil {
		err = s.runShim(c, write, l)
	}
	_ = write.Close() // the program has its own
	if err != nil {
		<-done
	}
	return done, err
}

func (s *Sandbox) runShim(c *Container, output *os.File, l launch) error {
	namespace, err := os.Open(s.namespace())
	if err != nil {
		return err
	}
	defer namespace.Close()
	if c.cmd, err = shim(context.Background(), roleStart); err != nil {
		return err
	}
	c.cmd.Stdout, c.cmd.Stderr = output, output
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true,
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS}
	answer, err := startShim(c.cmd, l, func(start func() error) error {
		return onThread(int(namespace.Fd()), unix.CLONE_NEWNET, "net", start)
	})
	if err != nil {
		return err
	}
	if err = listen(answer); err != nil {
		_ = c.cmd.Wait() // what it says is known
	}
	return err
}

// drain copies what a container prints. It reads on where the log takes no more, or the container would block.
func drain(log io.Writer, from io.Reader) {
	if _, err := io.Copy(log, from); err != nil {
		_, _ = io.Copy(io.Discard, from)
	}
}

// wait waits for the container's end.
func (c *Container) wait(logged <-chan struct{}) {
	_ = c.cmd.Wait() // says what the state does
	<-logged
	c.code, c.signal = statusOf(c.cmd.ProcessState.Sys().(syscall.WaitStatus))
}

// shim returns the test binary as a shim: it gets no arguments, and nothing of the environment.
func shim(ctx context.Context, role string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding the test binary: %w", err)
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = []string{roleVariable + "=" + role}
	return cmd, nil
}

// startShim starts a shim by a function, and gives it what it has to know. What the command brings along becomes its file
// containerFile.
func startShim(cmd *exec.Cmd, l launch, by func(start func() error) error) (answer *os.File, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer write.Close()
	cmd.ExtraFiles = append([]*os.File{read}, cmd.ExtraFiles...)
	err = by(func() (err error) {
		answer, err = startAnswering(cmd)
		return err
	})
	_ = read.Close()
	if err != nil {
		return nil, err
	}
	// If it dies early, what it answers says more than that this broke.
	_ = json.NewEncoder(write).Encode(l)
	return answer, nil
}

// listen waits for a shim's answer: nothing, once it is the program.
func listen(answer *os.File) error {
	defer answer.Close()
	said, err := io.ReadAll(answer)
	if err != nil || len(said) == 0 {
		return err
	}
	var f failure
	if err := json.Unmarshal(said, &f); err != nil {
		return fmt.Errorf("reading why: %w: %s", err, said)
	}
	return refusal(f)
}

// onThread does something on a thread that has entered a namespace: the children that it starts are in there. own is the
// namespace's kind as a name in /proc.
func onThread(namespace, kind int, own string, do func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		back, err := unix.Open("/proc/thread-self/ns/"+own, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("opening the own namespace: %w", err)
			return
		}
		defer unix.Close(back)
		if err = unix.Setns(namespace, kind); err != nil {
			err = fmt.Errorf("entering the namespace: %w", err)
		} else {
			err = do()
		}
		// A thread that cannot go back ends with this goroutine, since it stays locked.
		if unix.Setns(back, kind) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}
