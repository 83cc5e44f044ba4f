package stack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
)

// Member is a running program of a Group.
type Member interface {
	// Name identifies it in messages.
	Name() string
	// Wait waits until it has ended. The error is nil if Stop ended it; otherwise it says how it ended.
	Wait() error
	// Stop ends it, and waits until it has ended. It may be called again.
	Stop() error
}

// Group has the programs of one stack, which end together.
type Group struct {
	alive context.CancelCauseFunc
	stop  chan struct{} // closed to end the group
	once  sync.Once
	done  chan struct{} // closed when all have ended and err is set
	err   error

	watching sync.WaitGroup

	mu      sync.Mutex
	members []Member       // in the order of their start
	later   []func() error // called when all members have ended
	closed  bool           // no more programs are started
}

var errStopped = errors.New("the stack has been stopped")

// NewGroup makes a group that stops when ctx ends, or by Stop, which has to be called in any case. The context it returns ends
// when the group is stopped, and when the first member ends unexpectedly, with the error of its Wait as the cause (an *ExitError
// for programs that Start has started). The other members then run on until Stop, because their output may explain the failure.
func NewGroup(ctx context.Context) (*Group, context.Context) {
	alive, end := context.WithCancelCause(ctx)
	g := &Group{alive: end, stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(g.done)
		select {
		case <-ctx.Done():
			g.err = g.end(context.Cause(ctx)) // which alive may not have yet
		case <-g.stop:
			g.err = g.end(errStopped)
		}
	}()
	return g, alive
}

// Start starts one more program and watches it; see the function Start.
func (g *Group) Start(ctx context.Context, program Program) (*Process, error) {
	p, err := Start(ctx, program)
	if err != nil {
		return nil, err
	}
	if err := g.Add(p); err != nil {
		return nil, err
	}
	return p, nil
}

// Add watches a program that already runs, and stops it with the others. If it returns an error, the group and the program have
// been stopped.
func (g *Group) Add(m Member) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errors.Join(fmt.Errorf("starting %s: %w", m.Name(), errStopped), m.Stop())
	}
	g.members = append(g.members, m)
	g.watching.Go(func() {
		if err := m.Wait(); err != nil {
			g.alive(err)
		}
	})
	return nil
}

// Member finds a program by its name.
func (g *Group) Member(name string) (m Member, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.IndexFunc(g.members, func(m Member) bool { return m.Name() == name })
	if i < 0 {
		return nil, false
	}
	return g.members[i], true
}

// TempDir makes a folder for files of the programs. Stop removes it once they have ended.
func (g *Group) TempDir() (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return "", fmt.Errorf("making a folder: %w", errStopped)
	}
	dir, err := os.MkdirTemp("", "tandem")
	if err != nil {
		return "", fmt.Errorf("making a folder: %w", err)
	}
	g.later = append(g.later, func() error { return os.RemoveAll(dir) })
	return dir, nil
}

// logFile makes a file for the output of a program. It is closed when all programs have ended.
func (g *Group) logFile(path string) (io.Writer, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, fmt.Errorf("making a log file: %w", errStopped)
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("making a log file: %w", err)
	}
	g.later = append(g.later, f.Close)
	return f, nil
}

// Stop ends all members, the last started first, and waits for the end of each before it ends the next. The error joins theirs,
// except that of a member that ended unexpectedly, which the context has. Stop may be called again and returns the same error.
func (g *Group) Stop() error {
	g.once.Do(func() { close(g.stop) })
	<-g.done
	return g.err
}

func (g *Group) end(why error) error {
	g.mu.Lock()
	g.closed = true
	members, later := g.members, g.later
	g.mu.Unlock()
	var errs []error
	for _, m := range slices.Backward(members) {
		if err := m.Stop(); m.Wait() == nil {
			errs = append(errs, err)
		}
	}
	g.watching.Wait()
	for _, f := range later {
		errs = append(errs, f())
	}
	g.alive(why)
	return errors.Join(errs...)
}
