package stack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Program says how to run one program of a stack.
type Program struct {
	// Name is what messages call it; default: Path.
	Name string
	// Path is the executable; one without a slash is looked up in PATH.
	Path string
	Args []string
	// Env is added to the parent's environment, of which the program does not get TANDEM_*: every Tandem program reads
	// its flags from there, so what is meant for one of them would reach all.
	Env []string
	// Probe asks a program that prints no ready line whether it is ready: again and again until the error is nil.
	Probe func(ctx context.Context) error
	// ReadyTimeout bounds the wait for the ready line, or for Probe; default 10 s.
	ReadyTimeout time.Duration
	// Grace is the time between SIGTERM and SIGKILL; default 5 s.
	Grace time.Duration
	// Lines is how many of its last lines of output are kept; default 40.
	Lines int
	// Cores are the processors it may run on, counted from 0; none = all. Only Linux can hold it to them.
	Cores []int
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

// probeInterval is how often Probe asks.
const probeInterval = 50 * time.Millisecond

// pipeDelay bounds how long the output of a program that has ended is waited for, should a child of its own hold it open.
const pipeDelay = time.Second

// Process is one running program. Its methods may be called at any time, by several goroutines.
type Process struct {
	program   Program
	cmd       *exec.Cmd
	output    ring
	addresses map[string]string
	ready     chan map[string]string // takes the one ready line, without waiting

	asked atomic.Bool   // this program wants it to end
	done  chan struct{} // closed when it has ended, all output is read, and err is there
	err   error         // nil if it was asked to end

	stop    sync.Once
	stopErr error
}

// Start runs a program and returns once it is ready. ctx bounds the start only: what runs is ended by Stop. The error
// names the program and says whether it could not be run (errors.Is tells fs.ErrNotExist), ended before it was ready (an
// *ExitError with its last lines), or did not get ready in time; then nothing runs any more.
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

// run starts the program and waits for its end, on one thread: Linux takes the death of the thread that started a child
// for that of its parent, and the runtime ends idle threads as it likes.
func (p *Process) run(started chan<- error) {
	defer close(p.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stdout, stderr := &splitter{line: p.stdoutLine()}, &splitter{line: p.output.add}
	p.cmd = exec.Command(p.program.Path, p.program.Args...)
	p.cmd.Env = append(ownEnvironment(), p.program.Env...)
	p.cmd.Stdout, p.cmd.Stderr = stdout, stderr
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

// ownEnvironment is the environment without what Tandem programs read their flags from.
func ownEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "TANDEM_") })
}

// stdoutLine takes a line of stdout, of which the first ready line is no output.
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

// awaitProbe asks until the program is ready, has ended, or its time is up.
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

// Name is what messages call the program.
func (p *Process) Name() string { return p.program.Name }

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Address is the host:port that the ready line gives for a purpose, such as "http". The error lists those it gives.
func (p *Process) Address(purpose string) (string, error) {
	address, ok := p.addresses[purpose]
	if !ok {
		return "", fmt.Errorf("finding address %q of %s: its ready line has %s",
			purpose, p.program.Name, strings.Join(slices.Sorted(maps.Keys(p.addresses)), ", "))
	}
	return address, nil
}

// Output is its last lines on stdout and stderr, oldest first, without the ready line.
func (p *Process) Output() []string { return p.output.last() }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end of the program. The error is nil if Stop or Kill ended it, and else an *ExitError, whatever its
// exit status: nothing of a stack ends unasked.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// Stop ends the program by SIGTERM or, if that has not done it within Grace, by SIGKILL, and waits for its end. The error
// says that it had to be killed, or that it ended with a status other than 0. Of a program that has ended unasked it
// says nothing: Wait does. Stop may be called again and gives the same answer.
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

// uncleanEnd is the error of a program that was asked to end and found something to complain about.
func (p *Process) uncleanEnd() error {
	if p.cmd.ProcessState.ExitCode() > 0 {
		return fmt.Errorf("stopping %w", p.exitError())
	}
	return nil
}

// Kill ends the program by SIGKILL, as a node that fails does, and waits for its end.
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

// ignoreEnded drops the error of a signal that came too late.
func ignoreEnded(err error) error {
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// ExitError says that a program ended.
type ExitError struct {
	Name   string
	Code   int      // exit code; -1: by a signal
	Status string   // exit code or signal in words
	Output []string // its last lines
}

// Error gives all of it, the output on lines of its own.
func (e *ExitError) Error() string {
	return fmt.Sprintf("%s ended: %s%s", e.Name, e.Status, quoteLines(e.Output))
}

func (p *Process) exitError() *ExitError {
	state := p.cmd.ProcessState
	return &ExitError{Name: p.program.Name, Code: state.ExitCode(), Status: state.String(), Output: p.Output()}
}

// quoteLines sets a program's output apart from the message around it.
func quoteLines(lines []string) string {
	if len(lines) == 0 {
		return ", without a word"
	}
	return "; its last lines:\n\t" + strings.Join(lines, "\n\t")
}
