package sglang

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/metrics"
	"github.com/tandem-serving/tandem/sim/transport"
	"github.com/tandem-serving/tandem/transfer"
)

// Engine is one simulated SGLang engine. Its methods may be called from several goroutines.
type Engine struct {
	cfg       Config
	ranks     []*rank
	bootstrap *bootstrapServer // nil unless it prefills
	client    *http.Client     // for the bootstrap servers of others
	page      *metrics.Page    // what the front end counts

	next     atomic.Uint64 // rank, where they take requests in turn
	draining chan struct{}
	drain    func()

	mu   sync.Mutex
	rids map[string]bool // in use

	life
}

// life says how far the engine's end is.
type life struct {
	begin   sync.Once
	hurry   func()
	hurried chan struct{} // closed once there is no time to hang
	crashed chan struct{} // closed once no scheduler answers any more
	stopped chan struct{} // closed once its ports have to close
	ended   chan struct{} // closed once every goroutine has ended
	err     error         // why it died; written before crashed is closed
}

// errClosed is the cause of death of an engine that was closed.
var errClosed = errors.New("engine closed")

// New starts an engine. It takes requests until Close, or until it dies of one (see Done).
func New(cfg Config) (*Engine, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("checking the simulator's configuration: %w", err)
	}
	e := &Engine{cfg: cfg, page: newFrontPage(&cfg), rids: make(map[string]bool), draining: make(chan struct{}),
		client: &http.Client{Transport: &http.Transport{DialContext: cfg.Network.DialContext, DisableKeepAlives: true}},
		life:   life{hurried: make(chan struct{}), crashed: make(chan struct{}), stopped: make(chan struct{}), ended: make(chan struct{})}}
	e.drain, e.hurry = sync.OnceFunc(func() { close(e.draining) }), sync.OnceFunc(func() { close(e.hurried) })
	for i := range cfg.Ranks {
		r, err := newRank(e, i)
		if err != nil {
			e.closeRanks()
			return nil, err
		}
		e.ranks = append(e.ranks, r)
	}
	if cfg.Mode == Prefill {
		if e.bootstrap, err = newBootstrapServer(e); err != nil {
			e.closeRanks()
			return nil, err
		}
	}
	for _, r := range e.ranks {
		go func() { // ends with the rank, which ends with the engine
			<-r.core.Finished()
			e.end(r.core.Err())
		}()
	}
	return e, nil
}

func (e *Engine) closeRanks() {
	for _, r := range e.ranks {
		r.core.Close()
	}
}

// end begins the engine's end, if it has not begun.
func (e *Engine) end(cause error) {
	e.begin.Do(func() {
		e.err = cause
		close(e.crashed)
		go func() {
			defer close(e.ended)
			e.closeRanks()
			hang := time.NewTimer(e.cfg.Times.CrashHang)
			defer hang.Stop()
			select {
			case <-hang.C:
			case <-e.hurried:
			}
			if e.bootstrap != nil {
				e.bootstrap.close()
			}
			close(e.stopped)
		}()
	})
}

// Kill makes the engine die of a cause at once, with all its processes.
func (e *Engine) Kill(cause error) {
	e.hurry()
	e.end(cause)
}

// Close ends the engine at once, and waits until everything has ended. It may be called again.
func (e *Engine) Close() {
	e.Kill(errClosed)
	<-e.ended
}

// Drain ends the engine as SIGTERM does: it says that it is not ready, serves what comes, and ends when no request is left. Drain
// returns then, or when ctx ends.
func (e *Engine) Drain(ctx context.Context) {
	e.drain()
	tick := time.NewTicker(e.cfg.Times.Drain)
	defer tick.Stop()
	for e.busy() {
		select {
		case <-tick.C:
		case <-e.stopped:
			return
		case <-ctx.Done():
			return
		}
	}
	e.Close()
}

// busy reports whether some request is being served.
func (e *Engine) busy() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.rids) > 0
}

// Draining reports whether Drain was called.
func (e *Engine) Draining() bool {
	select {
	case <-e.draining:
		return true
	default:
		return false
	}
}

// Crashed is closed when no scheduler answers any more. The ports are open until Done.
func (e *Engine) Crashed() <-chan struct{} { return e.crashed }

// Done is closed when the engine has died or was closed, and its ports have to close; Err then says of what.
func (e *Engine) Done() <-chan struct{} { return e.stopped }

// Finished is closed when every goroutine of the engine has ended.
func (e *Engine) Finished() <-chan struct{} { return e.ended }

// Err returns what the engine died of, or nil while it lives and after Close.
func (e *Engine) Err() error {
	select {
	case <-e.crashed:
		if errors.Is(e.err, errClosed) {
			return nil
		}
		return e.err
	default:
		return nil
	}
}

// HoldRequest counts a request as held back in State.Held, until the caller calls end.
func (e *Engine) HoldRequest() (end func()) { return e.ranks[0].core.HoldRequest() }

// Config returns the configuration with its defaults.
func (e *Engine) Config() Config { return e.cfg }

// Take reserves request ids until the caller calls release. It returns one that is in use instead, if there is one.
func (e *Engine) Take(rids []string) (release func(), used string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, rid := range rids {
		if e.rids[rid] {
			return nil, rid
		}
	}
	for _, rid := range rids {
		e.rids[rid] = true
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		maps.DeleteFunc(e.rids, func(rid string, _ bool) bool { return slices.Contains(rids, rid) })
	}, ""
}

// Submit queues a request, for choices answers to one prompt. The error is core.ErrDead.
func (e *Engine) Submit(q *Request, choices int) (*core.Generation, int, error) {
	number, err := e.choose(q)
	if err != nil {
		return nil, 0, err
	}
	list := make([]core.Request, choices)
	for i := range list {
		list[i] = core.Request{ID: q.RID, Prompt: slices.Clone(q.Prompt), Sampling: q.Sampling, Salt: q.Salt, Leg: &leg{req: q}}
		list[i].Sampling.Choice = uint64(i)
		if e.cfg.Mode == Prefill { // whatever the request says, it draws one token
			list[i].Sampling.MaxTokens, list[i].Sampling.MinTokens, list[i].Sampling.IgnoreEOS = 1, 0, true
			list[i].Sampling.Stop, list[i].Sampling.StopTokens = nil, nil
		}
	}
	g, err := e.ranks[number].core.Submit(list)
	return g, number, err
}

// choose returns the rank that takes a request.
func (e *Engine) choose(q *Request) (int, error) {
	n := len(e.ranks)
	switch room := q.Rendezvous.Room; {
	case n == 1:
		return 0, nil
	case q.Rank != nil:
		return *q.Rank, nil
	case e.cfg.Mode != Prefill:
		return int(e.next.Add(1)-1) % n, nil
	case room == nil:
		// The real controller asserts that there is a bootstrap room, and takes the engine with it.
		e.end(errors.New("AssertionError: req.bootstrap_room should not be None"))
		return 0, core.ErrDead
	default:
		return room.rank(n), nil
	}
}

// Abort ends the requests whose ids begin with a prefix; "" ends all.
func (e *Engine) Abort(prefix string) {
	for _, r := range e.ranks {
		r.core.Call(func() { r.abortAll(prefix) })
	}
}

// Flush empties the prefix caches, unless requests are there.
func (e *Engine) Flush() bool {
	flushed := true
	for _, r := range e.ranks {
		r.core.Call(func() {
			for range r.core.Live() {
				flushed = false
				return
			}
			r.core.Pool().Reset()
		})
	}
	return flushed
}

// Bootstrap returns the address of the bootstrap server: where it listens, or what decode legs without a port get.
func (e *Engine) Bootstrap() string {
	if e.bootstrap != nil {
		return e.bootstrap.listener.Addr().String()
	}
	return e.cfg.Bootstrap
}

// open opens the transport of a rank.
func (c *Config) open(host, name string) (transfer.Transport, error) {
	if c.Open != nil {
		return c.Open(name)
	}
	return transport.NewTCP(transport.TCPConfig{Listen: net.JoinHostPort(host, "0"), Name: name, StallTimeout: noStallTimeout, Logger: c.Logger})
}

// noStallTimeout is longer than any caller waits: the real engine has no deadline for a transfer.
const noStallTimeout = 24 * time.Hour

// NewRID returns a request id, which is also a name that no other transport has.
func NewRID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
