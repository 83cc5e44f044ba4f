package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/stack/envoy"
)

// Program describes how to run one program of a stack.
type Program struct {
	// Name identifies it in messages; default: Path.
	Name string
	// Path is the executable; one without a slash is looked up in PATH.
	Path string
	Args []string
	// Env is added to the parent's environment, without the parent's TANDEM_* variables: every Tandem program reads its flags
	// from such variables, so one that is meant for one program would reach all.
	Env []string
	// Probe checks whether a program that prints no ready line is ready. It is called until the error is nil.
	Probe func(ctx context.Context) error
	// ReadyTimeout bounds the wait for the ready line, or for Probe; default 10 s.
	ReadyTimeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL; default 5 s.
	Grace time.Duration
	// Lines is how many of its last lines of output are stored; default 40.
	Lines int
	// Cores are the processors it may run on, counted from 0; nil: all. Only Linux can enforce it.
	Cores []int
	// Log also gets all of its output as it comes; nil: none. An error of Log does not disturb the program.
	Log io.Writer
	// Again returns further flags with which the program listens at the addresses of its ready line again. A Service needs it.
	Again func(addresses map[string]string) []string
}

func (p Program) withDefaults() Program {
	if p.Name == "" {
		p.Name = p.Path
	}
	if p.ReadyTimeout == 0 {
		p.ReadyTimeout = 10 * time.Second
	}
	if p.Grace == 0 {
		p.Grace = 5 * time.Second
	}
	if p.Lines == 0 {
		p.Lines = 40
	}
	return p
}

// probeInterval is the time between two calls of Probe.
const probeInterval = 50 * time.Millisecond

// pipeDelay bounds the wait for the output of a program that has ended, because a child of its own can hold the output open.
const pipeDelay = time.Second

// Process is one running program. Its methods may be called at any time, by several goroutines.
type Process struct {
	program   Program
	cmd       *exec.Cmd
	output    ring
	addresses map[string]string
	ready     chan map[string]string // has room for the one ready line

	asked atomic.Bool   // Stop or Kill was called
	done  chan struct{} // closed when it has ended, all output is read, and err is set
	err   error         // nil if Stop or Kill ended it

	stop    sync.Once
	stopErr error
}

// Start runs a program and returns once it is ready. ctx bounds the start only; Stop ends the program. The error names the
// program, and says whether it could not be run (errors.Is finds fs.ErrNotExist), ended before it was ready (an *ExitError with
// its last lines), or was not ready in time. After an error nothing runs any more.
func Start(ctx context.Context, program Program) (*Process, error) {
	p := &Process{
		program: program.withDefaults(),
		ready:   make(chan map[string]string, 1),
		done:    make(chan struct{}),
	}
	p.output.limit = p.program.Lines
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		<-p.done
		return nil, fmt.Errorf("starting %s: %w", p.program.Name, err)
	}
	if err := p.awaitReady(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("starting %s: %w", p.program.Name, err), p.Stop())
	}
	return p, nil
}

// run starts the program and waits for its end, on one thread: when the thread that started a child ends, Linux sends the
// parent-death signal, and the Go runtime ends idle threads at any time.
func (p *Process) run(started chan<- error) {
	defer close(p.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stdout, stderr := &splitter{line: p.stdoutLine()}, &splitter{line: p.output.add}
	p.cmd = exec.Command(p.program.Path, p.program.Args...)
	p.cmd.Env = append(ownEnvironment(), p.program.Env...)
	p.cmd.Stdout, p.cmd.Stderr = p.program.logged(stdout), p.program.logged(stderr)
	p.cmd.WaitDelay = pipeDelay
	p.cmd.SysProcAttr = attributes()
	err := holdTo(p.program.Cores, p.cmd.Start)
	started <- err
	if err != nil {
		return
	}
	err = p.cmd.Wait()
	stdout.end()
	stderr.end()
	switch {
	case p.cmd.ProcessState == nil:
		p.err = fmt.Errorf("waiting for %s: %w", p.program.Name, err)
	case !p.asked.Load():
		p.err = p.exitError()
	}
}

// ownEnvironment returns the environment without the variables from which Tandem programs read their flags.
func ownEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "TANDEM_") })
}

// stdoutLine takes a line of stdout. The first ready line is not stored as output.
func (p *Process) stdoutLine() func(line string) {
	seen := false
	return func(line string) {
		if addresses, ok := parseReady(line); ok && !seen {
			seen = true
			p.ready <- addresses
			return
		}
		p.output.add(line)
	}
}

func (p *Process) awaitReady(ctx context.Context) error {
	if p.program.Probe != nil {
		return p.awaitProbe(ctx)
	}
	timeout := time.NewTimer(p.program.ReadyTimeout)
	defer timeout.Stop()
	select {
	case p.addresses = <-p.ready:
		return nil
	case <-p.done:
		return p.err
	case <-timeout.C:
		return fmt.Errorf("no ready line on its stdout within %v%s", p.program.ReadyTimeout, quoteLines(p.Output()))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// awaitProbe calls Probe until the program is ready, has ended, or its time is over.
func (p *Process) awaitProbe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.program.ReadyTimeout)
	defer cancel()
	again := time.NewTicker(probeInterval)
	defer again.Stop()
	for {
		err := p.program.Probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-p.done:
			return p.err
		case <-ctx.Done():
			return fmt.Errorf("it is not ready after %v: %w%s", p.program.ReadyTimeout, err, quoteLines(p.Output()))
		}
	}
}

// Name returns the name that messages have.
func (p *Process) Name() string { return p.program.Name }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Addresses returns the addresses of the ready line by purpose.
func (p *Process) Addresses() map[string]string { return maps.Clone(p.addresses) }

// Address returns the host:port that the ready line has for a purpose, such as "http". The error lists those it has.
func (p *Process) Address(purpose string) (string, error) {
	address, ok := p.addresses[purpose]
	if !ok {
		return "", fmt.Errorf("finding address %q of %s: its ready line has %s",
			purpose, p.program.Name, strings.Join(slices.Sorted(maps.Keys(p.addresses)), ", "))
	}
	return address, nil
}

// Output returns its last lines on stdout and stderr, oldest first, without the ready line.
func (p *Process) Output() []string { return p.output.last() }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end of the program. The error is nil if Stop or Kill ended it; otherwise it is an *ExitError, whatever the
// exit status, because programs of a stack do not end by themselves.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// Stop ends the program by SIGTERM, or by SIGKILL after Grace, and waits for its end. The error says that the program had to be
// killed, or ended with a status other than 0. It is nil for a program that ended unexpectedly, which Wait reports. Stop may be
// called again and returns the same error.
func (p *Process) Stop() error {
	p.stop.Do(func() { p.stopErr = p.end() })
	return p.stopErr
}

func (p *Process) end() error {
	select {
	case <-p.done:
		return nil
	default:
	}
	p.asked.Store(true)
	if err := ignoreEnded(terminate(p.cmd.Process)); err != nil {
		return fmt.Errorf("stopping %s: %w", p.program.Name, err)
	}
	grace := time.NewTimer(p.program.Grace)
	defer grace.Stop()
	select {
	case <-p.done:
		return p.uncleanEnd()
	case <-grace.C:
	}
	if err := p.kill(); err != nil {
		return fmt.Errorf("stopping %s: %w", p.program.Name, err)
	}
	return fmt.Errorf("stopping %s: it did not end within %v of SIGTERM and was killed%s", p.program.Name, p.program.Grace, quoteLines(p.Output()))
}

// uncleanEnd is the error of a program that was asked to end, and ended with a failure.
func (p *Process) uncleanEnd() error {
	if p.cmd.ProcessState.ExitCode() > 0 {
		return fmt.Errorf("stopping %w", p.exitError())
	}
	return nil
}

// Kill ends the program by SIGKILL, as the failure of a node does, and waits for its end.
func (p *Process) Kill() error {
	p.asked.Store(true)
	if err := p.kill(); err != nil {
		return fmt.Errorf("killing %s: %w", p.program.Name, err)
	}
	return nil
}

func (p *Process) kill() error {
	if err := ignoreEnded(p.cmd.Process.Kill()); err != nil {
		return err
	}
	<-p.done
	return nil
}

// ignoreEnded removes the error of a signal to a process that has already ended.
func ignoreEnded(err error) error {
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// ExitError says how a program ended.
type ExitError struct {
	Name   string
	Code   int      // exit code; -1: ended by a signal
	Status string   // exit code or signal, in words: "exit status 1", "killed by SIGKILL"
	Output []string // its last lines
}

// Error returns all of it, with the output on lines of its own.
func (e *ExitError) Error() string {
	return fmt.Sprintf("%s ended: %s%s", e.Name, e.Status, quoteLines(e.Output))
}

func (p *Process) exitError() *ExitError {
	state := p.cmd.ProcessState
	return &ExitError{Name: p.program.Name, Code: state.ExitCode(), Status: envoy.Status(state), Output: p.Output()}
}

// quoteLines indents a program's output below a message.
func quoteLines(lines []string) string {
	if len(lines) == 0 {
		return ", no output"
	}
	return "; its last lines:\n\t" + strings.Join(lines, "\n\t")
}
