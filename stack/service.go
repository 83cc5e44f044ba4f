package stack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Bounds of a Service: one that ends more often than maxRestarts times within restartWindow is not started again.
const (
	maxRestarts   = 5
	restartWindow = time.Minute
)

// Service is a program that is started again, at the addresses it had, when it ends by itself. It is a Member. Its methods may be
// called at any time, by several goroutines.
type Service struct {
	program Program // as it is started again
	say     func(event string)
	cancel  context.CancelFunc // ends a start that is under way
	done    chan struct{}      // closed when it has ended for good and err is set
	err     error

	mu      sync.Mutex
	process *Process
	stopped bool
}

// StartService starts a program, which has Again, and starts it again whenever it ends by itself. say gets a sentence each time
// that it has ended, and when it is ready again. ctx bounds the first start only; Stop ends the program.
func StartService(ctx context.Context, program Program, say func(event string)) (*Service, error) {
	p, err := Start(ctx, program)
	if err != nil {
		return nil, err
	}
	if program.Again != nil {
		program.Args = slices.Concat(program.Args, program.Again(p.Addresses()))
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &Service{program: program, say: say, cancel: cancel, done: make(chan struct{}), process: p}
	go s.watch(running)
	return s, nil
}

// watch starts the program again until Stop is called, or it ends too often, or cannot be started.
func (s *Service) watch(ctx context.Context) {
	defer close(s.done)
	defer s.cancel()
	var ends []time.Time
	for {
		err := s.Process().Wait()
		if err == nil || ctx.Err() != nil {
			return
		}
		now := time.Now()
		ends = append(slices.DeleteFunc(ends, func(t time.Time) bool { return now.Sub(t) > restartWindow }), now)
		if len(ends) > maxRestarts {
			s.err = fmt.Errorf("%w\n%s ended %d times within %v and is not started again", err, s.Name(), len(ends), restartWindow)
			return
		}
		s.say(fmt.Sprintf("%s; starting it again", firstLine(err)))
		next, err := Start(ctx, s.program)
		if ctx.Err() != nil {
			_ = s.replace(next) // Stop has been called, and reports what matters
			return
		}
		if err == nil {
			err = s.replace(next)
		}
		if err != nil {
			s.err = err
			return
		}
		s.say(fmt.Sprintf("%s is ready again after %v", s.Name(), time.Since(now).Round(time.Millisecond)))
	}
}

// firstLine says how a program has ended, without its output, which is in its log.
func firstLine(err error) string {
	if exit, ok := errors.AsType[*ExitError](err); ok {
		return fmt.Sprintf("%s ended: %s", exit.Name, exit.Status)
	}
	return err.Error()
}

// replace makes next the current process, or stops it if Stop has been called.
func (s *Service) replace(next *Process) error {
	if next == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return next.Stop()
	}
	s.process = next
	return nil
}

// Process returns the current process. It may have ended.
func (s *Service) Process() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// Name returns the name that messages have.
func (s *Service) Name() string { return s.program.Name }

// PID returns the process id of the current process.
func (s *Service) PID() int { return s.Process().PID() }

// Output returns the last lines of the current process.
func (s *Service) Output() []string { return s.Process().Output() }

// Wait waits until the program has ended and is not started again. The error is nil if Stop ended it.
func (s *Service) Wait() error {
	<-s.done
	return s.err
}

// Stop ends the program, and waits until it has ended. The error is that of Process.Stop. It may be called again.
func (s *Service) Stop() error {
	s.mu.Lock()
	s.stopped = true
	p := s.process
	s.mu.Unlock()
	s.cancel()
	err := p.Stop()
	<-s.done
	return err
}
