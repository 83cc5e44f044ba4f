package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/transfer"
)

// Config describes the core of one engine. Every field is required, except TextOfPrompts and Cached.
type Config struct {
	Model       model.Model
	MaxModelLen int // of prompt plus answer, in tokens
	// TimeScale multiplies every modelled duration: at 1 the engine has the model's own speed, at 0 it does not wait at all.
	TimeScale float64
	Schedule  Schedule
	Blocks    int // in the pool, with the null block
	BlockSize int // tokens
	// HostBlocks is how many blocks the host's memory has space for, to which all blocks are copied that enter the prefix cache; 0: none are.
	HostBlocks int
	// ReservedTokens is how much stays free for the answers of each sequence that has KV when one whose KV comes from another
	// engine gets blocks.
	ReservedTokens int
	// NoPrefixCache has every prompt computed or loaded whole.
	NoPrefixCache bool
	// TextOfPrompts has the first text of an answer repeat a prompt that ends within a character.
	TextOfPrompts bool
	// Cached is called with the blocks of a sequence that have entered the prefix cache: those from first on of hashes, whose tokens are
	// the beginning of its tokens. nil = nothing is told.
	Cached func(s *Sequence, first int, hashes []kv.Hash)
	Logger *slog.Logger
}

// Schedule bounds what one step of an engine does.
type Schedule struct {
	// MaxBatchedTokens is how many tokens a step computes at most; default 2048.
	MaxBatchedTokens int
	// MaxSequences is how many sequences run at once; default 256.
	MaxSequences int
	// MaxQueuedRequests refuses requests with 503 while so many are waiting or running; 0: no limit.
	MaxQueuedRequests int
}

// Engine is the core of one engine. Its loop owns the queues and the blocks; other goroutines send it functions to run, with Post
// and Call. The loop calls the protocol.
type Engine struct {
	cfg       Config
	log       *slog.Logger
	transport transfer.Transport
	protocol  Protocol
	kv        *kv.Memory
	pool      *kv.Pool
	host      *kv.Host

	waiting []*Sequence // next to be admitted first
	running []*Sequence // oldest first
	live    map[*Sequence]struct{}
	stalls  int
	counts  Counts
	waiters []waiter // callers of WaitFor
	loop
}

// Counts has what no metric of a real engine counts.
type Counts struct {
	Requests int64 // submissions
	Held     int64 // requests that faults hold back now
}

// loop has the life of the engine's goroutines.
type loop struct {
	commands chan func()
	spawn    func(func(context.Context)) // runs work that Close cancels and waits for
	stop     func()
	stopped  chan struct{} // closed once the engine takes no commands any more
	finished chan struct{} // closed once every goroutine has ended
	dead     bool          // owned by the loop
	err      error         // why the engine died; written before stopped is closed
}

// errStopped is the cause of death of an engine that was closed.
var errStopped = errors.New("engine closed")

// New makes an engine with the memory of its blocks, which is registered with the transport that moves KV. Both are the caller's.
// Start has to follow.
func New(cfg Config, t transfer.Transport, m *kv.Memory) *Engine {
	return &Engine{cfg: cfg, log: cfg.Logger, transport: t, kv: m, pool: kv.NewPool(cfg.Blocks), host: kv.NewHost(cfg.HostBlocks), live: make(map[*Sequence]struct{})}
}

// Start begins to serve by a protocol. Each work runs in a goroutine of its own until its context ends. After every goroutine of the
// engine has ended, ended is called, which releases what the caller has opened for it.
func (e *Engine) Start(p Protocol, ended func(), work ...func(context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	e.protocol = p
	e.loop = loop{
		commands: make(chan func()),
		stopped:  make(chan struct{}),
		finished: make(chan struct{}),
		stop:     cancel,
		spawn:    func(work func(context.Context)) { workers.Go(func() { work(ctx) }) },
	}
	for _, w := range work {
		e.spawn(w)
	}
	go func() {
		defer close(e.finished)
		e.run(ctx)
		cancel()
		workers.Wait()
		ended()
	}()
}

// Close ends the engine: sequences that live get ErrDead. It waits until everything has ended, and may be called again.
func (e *Engine) Close() {
	e.stop()
	<-e.finished
}

// Done is closed when the engine has died or was closed; Err then says of what.
func (e *Engine) Done() <-chan struct{} { return e.stopped }

// Finished is closed when every goroutine of the engine has ended, which is later than Done.
func (e *Engine) Finished() <-chan struct{} { return e.finished }

// Err returns what the engine died of, or nil while it lives and after Close.
func (e *Engine) Err() error {
	select {
	case <-e.stopped:
		if errors.Is(e.err, errStopped) {
			return nil
		}
		return e.err
	default:
		return nil
	}
}

// Kill makes the engine die of a cause.
func (e *Engine) Kill(cause error) { e.Call(func() { e.Die(cause) }) }

// Spawn runs work in a goroutine of its own. Its context ends with the engine, which waits for it. Only the loop may call it.
func (e *Engine) Spawn(work func(context.Context)) { e.spawn(work) }

// Post has the loop run f. It returns false, and f does not run, if the engine has stopped.
func (e *Engine) Post(f func()) bool {
	select {
	case e.commands <- f:
		return true
	case <-e.stopped:
		return false
	}
}

// Call is Post, and waits until f has run.
func (e *Engine) Call(f func()) bool {
	done := make(chan struct{})
	if !e.Post(func() { f(); close(done) }) {
		return false
	}
	<-done
	return true
}

// run is the engine's loop. A step is scheduled, takes its time, and is applied. The loop runs commands meanwhile, so an
// abort frees blocks within a step.
func (e *Engine) run(ctx context.Context) {
	var step batch
	stepped, due := time.NewTimer(time.Hour), time.NewTimer(time.Hour)
	stepped.Stop()
	due.Stop()
	defer stepped.Stop()
	defer due.Stop()
	for !e.dead {
		if step.Sequences == 0 {
			if step = e.schedule(); step.Sequences > 0 {
				stepped.Reset(e.Scaled(e.cfg.Model.StepTime(step.Step)))
			}
			if e.dead { // of a sequence that it scheduled
				break
			}
		}
		e.waiters = slices.DeleteFunc(e.waiters, waiter.reached)
		e.arm(due)
		select {
		case f := <-e.commands:
			f()
		case <-stepped.C:
			e.apply(step)
			step = batch{}
		case n, ok := <-e.transport.Notifications():
			if !ok {
				e.Die(fmt.Errorf("reading notifications: %w", transfer.ErrClosed))
				break
			}
			e.protocol.Notified(n)
		case <-due.C:
			e.protocol.Expired(time.Now())
		case <-ctx.Done():
			e.Die(errStopped)
		}
	}
	e.failAll()
	close(e.stopped)
}

// arm sets the timer to the protocol's next deadline.
func (e *Engine) arm(due *time.Timer) {
	switch next, ok, changed := e.protocol.Deadline(); {
	case !changed:
	case ok:
		due.Reset(time.Until(next))
	default:
		due.Stop()
	}
}

// Scaled returns a modelled duration as the engine waits for it.
func (e *Engine) Scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * e.cfg.TimeScale)
}

// Die ends the loop, which calls it. The first cause counts.
func (e *Engine) Die(cause error) {
	if e.dead {
		return
	}
	e.dead, e.err = true, cause
	if !errors.Is(cause, errStopped) {
		e.log.Error("engine died", "cause", cause)
	}
}

// failAll ends all sequences of a dead engine.
func (e *Engine) failAll() {
	for s := range e.live {
		if !s.Done {
			s.Done = true
			s.out.put(Output{Index: s.Index, Token: -1, Err: ErrDead})
		}
	}
}

// waiter is a caller of WaitFor.
type waiter struct {
	ok   func() bool
	done chan struct{}
}

// reached answers a waiter if its condition is true.
func (w waiter) reached() bool {
	if !w.ok() {
		return false
	}
	close(w.done)
	return true
}

// WaitFor returns when ok is true. The engine's loop calls ok after every change, so ok must not call the engine. The error is the
// context's, or ErrDead.
func (e *Engine) WaitFor(ctx context.Context, ok func() bool) error {
	w := waiter{ok, make(chan struct{})}
	if !e.Post(func() { e.waiters = append(e.waiters, w) }) {
		return ErrDead
	}
	select {
	case <-w.done:
		return nil
	case <-e.stopped:
		return ErrDead
	case <-ctx.Done():
		e.Call(func() {
			e.waiters = slices.DeleteFunc(e.waiters, func(other waiter) bool { return other.done == w.done })
		})
		return ctx.Err()
	}
}

// HoldRequest counts a request as held back in Counts.Held, until the caller calls end.
func (e *Engine) HoldRequest() (end func()) {
	e.Post(func() { e.counts.Held++ })
	return func() { e.Post(func() { e.counts.Held-- }) }
}
