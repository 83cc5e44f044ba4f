package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/metrics"
	"github.com/tandem-serving/tandem/transfer"
)

// Engine is one simulated engine. Its loop owns the queues, the blocks and the leases; other goroutines send it functions to
// run, with post and call.
type Engine struct {
	cfg       Config
	log       *slog.Logger
	transport transfer.Transport
	kv        *kv.Memory
	pool      *kv.Pool
	metrics   *metrics.Page
	peers     *peers
	identity  identity

	sideChannel net.Listener // nil if it is not served

	waiting []*sequence // next to be admitted first
	running []*sequence // oldest first
	live    map[*sequence]struct{}
	leases  *leases
	counts  counts
	waiters []waiter // callers of WaitState
	loop
}

// identity is what hand-offs and answers say about the engine.
type identity struct {
	engineID    string // new for every start
	host        string // where peers fetch the metadata
	port        int
	fingerprint string
}

// counts has what State reports and no metric of the real engine does.
type counts struct {
	requests                     int64
	held                         int64 // by faults, now
	expired, released            int64 // leases
	stale, foreign               int64 // reads
	kvBytesRead, kvBytesReleased int64
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

// New starts an engine. It takes requests until Close, or until it dies of one (see Done).
func New(cfg Config) (*Engine, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("checking the simulator's configuration: %w", err)
	}
	e := &Engine{
		cfg: cfg, log: cfg.Logger, transport: cfg.Transfer.Transport, pool: kv.NewPool(cfg.KV.Blocks),
		metrics: metrics.NewPage(cfg.ServedModelName, metrics.Cache{Blocks: cfg.KV.Blocks, BlockSize: cfg.KV.BlockSize}),
		live:    make(map[*sequence]struct{}), leases: newLeases(),
		identity: identity{engineID: cfg.Transfer.EngineID},
	}
	if err := e.openTransport(); err != nil {
		return nil, err
	}
	e.identity.fingerprint = "vllm-" + Version + "-" + RandomHex(4)
	e.peers = &peers{transport: e.transport, fetch: e.cfg.Transfer.Fetch, timeout: cfg.KV.HandshakeTimeout,
		cost: cfg.handshakeTime(), known: make(map[string]*peer)}
	if e.kv, err = kv.NewMemory(&cfg.Model, cfg.KV.Blocks, cfg.KV.BlockSize, e.transport); err == nil {
		err = e.kv.Register(e.transport)
	}
	if err != nil {
		return nil, errors.Join(err, e.closeTransport())
	}
	e.start()
	return e, nil
}

// NoStallTimeout is the time that a transport of the engine waits for a peer that hangs. It is longer than any caller waits,
// because the real engine has no deadline.
const NoStallTimeout = 24 * time.Hour

func (e *Engine) start() {
	ctx, cancel := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	e.loop = loop{
		commands: make(chan func()),
		stopped:  make(chan struct{}),
		finished: make(chan struct{}),
		stop:     cancel,
		spawn:    func(work func(context.Context)) { workers.Go(func() { work(ctx) }) },
	}
	if e.sideChannel != nil {
		e.spawn(e.serveSideChannel)
	}
	go func() {
		defer close(e.finished)
		e.run(ctx)
		cancel()
		workers.Wait()
		if err := e.closeTransport(); err != nil {
			e.log.Error("closing the transfer transport", "error", err)
		}
	}()
}

// Close ends the engine as a SIGTERM does: running requests get an error, and hand-offs that were not read are lost.
// It waits until everything has ended, and may be called again.
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

// Kill makes the engine die of a cause, and running requests end with ErrDead.
func (e *Engine) Kill(cause error) { e.call(func() { e.die(cause) }) }

// Config returns the configuration with its defaults.
func (e *Engine) Config() Config { return e.cfg }

// ID returns the engine id that hand-offs name; it is new for every start.
func (e *Engine) ID() string { return e.identity.engineID }

// Fingerprint returns the system_fingerprint of answers.
func (e *Engine) Fingerprint() string { return e.identity.fingerprint }

// post has the loop run f. It returns false, and f does not run, if the engine has stopped.
func (e *Engine) post(f func()) bool {
	select {
	case e.commands <- f:
		return true
	case <-e.stopped:
		return false
	}
}

// call is post, and waits until f has run.
func (e *Engine) call(f func()) bool {
	done := make(chan struct{})
	if !e.post(func() { f(); close(done) }) {
		return false
	}
	<-done
	return true
}

// run is the engine's loop. A step is scheduled, takes its time, and is applied. The loop runs commands meanwhile, so an
// abort frees blocks within a step.
func (e *Engine) run(ctx context.Context) {
	var (
		step   batch
		timers = newLoopTimers(e.cfg.KV.Lease)
	)
	defer timers.stop()
	for !e.dead {
		if step.Sequences == 0 {
			if step = e.schedule(); step.Sequences > 0 {
				timers.step.Reset(e.scaled(e.cfg.Model.StepTime(step.Step)))
			}
			if e.dead { // of a hand-off that it scheduled
				break
			}
		}
		e.waiters = slices.DeleteFunc(e.waiters, e.reached)
		timers.armLease(e.leases)
		select {
		case f := <-e.commands:
			f()
		case <-timers.step.C:
			e.apply(step)
			step = batch{}
		case n, ok := <-e.transport.Notifications():
			if !ok {
				e.die(fmt.Errorf("reading notifications: %w", transfer.ErrClosed))
				break
			}
			e.notified(string(n.Message))
		case <-timers.lease.C:
			e.expireLeases(time.Now())
		case <-timers.heartbeat.C:
			e.sendHeartbeats()
		case <-ctx.Done():
			e.die(errStopped)
		}
	}
	e.failAll()
	close(e.stopped)
}

// loopTimers are the timers of the loop. They are the standard library's, so testing/synctest replaces them.
type loopTimers struct {
	step, lease *time.Timer
	heartbeat   *time.Ticker
}

func newLoopTimers(lease time.Duration) *loopTimers {
	t := &loopTimers{step: time.NewTimer(time.Hour), lease: time.NewTimer(time.Hour), heartbeat: time.NewTicker(lease / heartbeatsPerLease)}
	t.step.Stop()
	t.lease.Stop()
	return t
}

func (t *loopTimers) armLease(l *leases) {
	switch next, ok, changed := l.nextExpiry(); {
	case !changed:
	case ok:
		t.lease.Reset(time.Until(next))
	default:
		t.lease.Stop()
	}
}

func (t *loopTimers) stop() {
	t.step.Stop()
	t.lease.Stop()
	t.heartbeat.Stop()
}

func (e *Engine) scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * e.cfg.TimeScale)
}

// die ends the loop. The first cause counts.
func (e *Engine) die(cause error) {
	if e.dead {
		return
	}
	e.dead, e.err = true, cause
	if !errors.Is(cause, errStopped) {
		e.log.Error("engine died", "cause", cause)
	}
}

// failAll ends all requests of a dead engine.
func (e *Engine) failAll() {
	for s := range e.live {
		if !s.done {
			s.done = true
			s.out.put(Output{Index: s.index, Token: -1, Err: ErrDead})
		}
	}
}
