package stack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Group is the programs of one stack, which end together.
type Group struct {
	alive context.CancelCauseFunc
	stop  chan struct{} // closed to end the group
	once  sync.Once
	done  chan struct{} // closed when all have ended and err is there
	err   error

	watching sync.WaitGroup

	mu      sync.Mutex
	members []*Process // in the order of their start
	closed  bool       // nothing is started any more
}

var errStopped = errors.New("the stack has been stopped")

// NewGroup makes a group that stops when ctx ends, or by Stop, which has to be called in any case. The context it returns
// ends when the first member ends unasked, with the *ExitError as its cause, and when the group is stopped. The others
// then run on until Stop, because they may have something to tell.
func NewGroup(ctx context.Context) (*Group, context.Context) {
	alive, end := context.WithCancelCause(ctx)
	g := &Group{alive: end, stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(g.done)
		select {
		case <-ctx.Done():
		case <-g.stop:
		}
		g.err = g.end()
	}()
	return g, alive
}

// Start starts one more program and watches it; see the function Start.
func (g *Group) Start(ctx context.Context, program Program) (*Process, error) {
	p, err := Start(ctx, program)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, errors.Join(fmt.Errorf("starting %s: %w", p.Name(), errStopped), p.Stop())
	}
	g.members = append(g.members, p)
	g.watching.Go(func() {
		if err := p.Wait(); err != nil {
			g.alive(err)
		}
	})
	return p, nil
}

// Stop ends all members, the last started first, and waits for the end of each before the next. The error joins theirs;
// see Process.Stop. Stop may be called again and gives the same answer.
func (g *Group) Stop() error {
	g.once.Do(func() { close(g.stop) })
	<-g.done
	return g.err
}

func (g *Group) end() error {
	g.mu.Lock()
	g.closed = true
	members := g.members
	g.mu.Unlock()
	var errs []error
	for _, p := range slices.Backward(members) {
		errs = append(errs, p.Stop())
	}
	g.watching.Wait()
	g.alive(errStopped)
	return errors.Join(errs...)
}
