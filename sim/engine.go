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

	"github.com/tandem-serving/tandem/transfer"
)

// Engine is one simulated engine. Its loop owns the queues, the blocks and the leases; all other goroutines ask it through
// post and call.
type Engine struct {
	cfg       Config
	log       *slog.Logger
	transport transfer.Transport
	kv        *kvMemory
	pool      *pool
	metrics   *metrics
	peers     *peers
	faults    *faultList
	identity  identity

	sideChannel net.Listener // nil if it is not served

	waiting []*sequence // first in line first
	running []*sequence // oldest first
	live    map[*sequence]struct{}
	leases  *leaseBook
	counts  counts
	waiters []waiter // of WaitState
	loop
}

// identity is what hand-offs and answers say about the engine.
type identity struct {
	engineID    string // new for every start
	host        string // where peers fetch the metadata
	port        int
	fingerprint string
}

// counts is what State reports and no metric of the real engine does.
type counts struct {
	requests                     int64
	held                         int64 // by slow faults, now
	expired, released            int64 // leases
	stale, foreign               int64 // reads
	kvBytesRead, kvBytesReleased int64
}

// loop is the life of the engine's goroutines.
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

// New starts an engine. It takes requests through Handler until Close, or until it dies of one (see Done).
func New(cfg Config) (*Engine, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("checking the simulator's configuration: %w", err)
	}
	e := &Engine{
		cfg: cfg, log: cfg.Logger, transport: cfg.Transfer.Transport,
		pool: newPool(cfg.KV.Blocks), metrics: newMetrics(&cfg), faults: newFaultList(),
		live: make(map[*sequence]struct{}), leases: newLeaseBook(),
		identity: identity{engineID: cfg.Transfer.EngineID},
	}
	if err := e.openTransport(); err != nil {
		return nil, err
	}
	e.identity.fingerprint = "vllm-" + engineVersion + "-" + randomHex(4)
	e.peers = &peers{transport: e.transport, fetch: e.cfg.Transfer.Fetch, timeout: cfg.KV.HandshakeTimeout,
		cost: cfg.handshakeTime(), known: make(map[string]*peer)}
	if e.kv, err = newKVMemory(&cfg.Model, cfg.KV.Blocks, cfg.KV.BlockSize, e.transport); err == nil {
		err = e.kv.register(e.transport)
	}
	if err != nil {
		return nil, errors.Join(err, e.closeTransport())
	}
	e.start()
	return e, nil
}

// NoStallTimeout is what a transport of the engine is given for a peer that hangs, longer than any caller waits: the real engine
// has no deadline.
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

// Err is nil while the engine lives and after Close; otherwise the request that killed it is to blame.
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

// post has the loop run f. False: the engine has stopped, and f does not run.
func (e *Engine) post(f func()) bool {
	select {
	case e.commands <- f:
		return true
	case <-e.stopped:
		return false
	}
}

// call is post, and waits.
func (e *Engine) call(f func()) bool {
	done := make(chan struct{})
	if !e.post(func() { f(); close(done) }) {
		return false
	}
	<-done
	return true
}

// run is the engine's loop. A step is scheduled, takes its time, and is applied; commands are taken meanwhile, so an
// abort frees blocks within a step.
func (e *Engine) run(ctx context.Context) {
	var (
		step   batch
		timers = newLoopTimers(e.cfg.KV.Lease)
	)
	defer timers.stop()
	for !e.dead {
		if step.sequences == 0 {
			if step = e.schedule(); step.sequences > 0 {
				timers.step.Reset(e.scaled(e.cfg.Model.stepTime(step)))
			}
			if e.dead { // of what it scheduled
				break
			}
		}
		e.waiters = slices.DeleteFunc(e.waiters, e.served)
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
			e.heartbeat()
		case <-ctx.Done():
			e.die(errStopped)
		}
	}
	e.failAll()
	close(e.stopped)
}

// loopTimers are the clocks of the loop. They are the standard library's, so testing/synctest replaces them.
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

func (t *loopTimers) armLease(b *leaseBook) {
	switch next, ok, changed := b.nextExpiry(); {
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

// die ends the loop. What runs gets the engine's last error.
func (e *Engine) die(cause error) {
	if e.dead {
		return
	}
	e.dead, e.err = true, cause
	if !errors.Is(cause, errStopped) {
		e.log.Error("engine died", "cause", cause)
	}
}

func (e *Engine) failAll() {
	for s := range e.live {
		if !s.done {
			s.done = true
			s.out.put(output{index: s.index, token: -1, err: errEngineDead})
		}
	}
}

// submit queues sequences that came with one request. The error is what the client gets.
func (e *Engine) submit(seqs []*sequence) *apiError {
	refusal := errEngineDead
	e.call(func() {
		if refusal = e.refuses(len(seqs)); refusal != nil {
			return
		}
		now := time.Now()
		for _, s := range seqs {
			s.times.queued = now
			if s.params.remotePrefill {
				s.load = loadWanted
				if len(e.waiting) > 0 {
					e.beat([]*sequence{s}) // it will wait: the lease must not run out before the next heartbeat
				}
			}
			e.live[s] = struct{}{}
			e.waiting = append(e.waiting, s)
		}
		e.counts.requests++
	})
	return refusal
}

func (e *Engine) refuses(n int) *apiError {
	limit := e.cfg.Schedule.MaxQueuedRequests
	if limit > 0 && e.queued()+n > limit {
		e.metrics.addTo(admissionRejections, "max_num_queued_reqs", 1)
		return errBusy
	}
	return nil
}

// queued is how many sequences wait or run.
func (e *Engine) queued() int {
	n := 0
	for s := range e.live {
		if !s.done {
			n++
		}
	}
	return n
}

// abort ends sequences whose client has left. Blocks are free when it returns, but for those that bytes are on the way to.
func (e *Engine) abort(seqs []*sequence) {
	e.call(func() {
		for _, s := range seqs {
			if !s.done {
				e.abortOne(s)
			}
		}
	})
}

func (e *Engine) abortOne(s *sequence) {
	s.done = true
	e.running = remove(e.running, s)
	e.waiting = remove(e.waiting, s)
	switch s.load {
	case loadRunning: // the load frees the blocks when no byte can land in them any more
		return
	case loadStuck:
		e.die(fmt.Errorf("aborting %s: its hand-off lacks remote_* members", s.id))
		return
	case loadWanted:
		e.rejectLoad(s.params)
	}
	e.free(s)
}
