//go:build nixl && cgo && linux

package nixl

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// Transport is a NIXL agent, over UCX, that also registers memory and reads that of others. It implements transfer.Transport
// with these differences, which the library causes (transfertest skips what needs the missing abilities):
//
//   - Nil from Notify means that the message was given to the network. A receiver whose channel is full drops messages: Notify
//     never returns ErrBusy.
//   - The transport does not ask its peers, so it learns of a restart only from the peer's new metadata. Until that is loaded,
//     calls return ErrGone. Calls that run at that time, and Load of metadata from before the restart, return ErrRestarted.
//   - A read of memory in the same machine is done without the peer. One that begins before the library has learnt that the peer
//     closed succeeds if the peer's process still has the memory.
//   - Calls to a peer that was lost return ErrGone until its metadata is loaded again.
//   - Peers with earlier metadata can still read a closed region, and Region.Write does not exclude reads.
//   - Peers can also write to registered memory, and to the memory that reads use. Use it only with peers that you trust.
//
// Metadata of another program's agent can be loaded as well: that agent takes notifications, and Read from it returns
// ErrNotSupported.
//
// Reads use memory of the transport's own, and copy from there, because a transfer cannot be stopped, and no byte may arrive in
// the caller's memory after Read has returned. Calls into the library for reads run concurrently with each other and with all
// other calls, so that a peer that hangs delays only its own callers.
type Transport struct {
	agent             *Agent
	generation        uint64
	stall, quarantine time.Duration
	memory            regions
	bounce            *bounce
	blob              atomic.Pointer[[]byte] // the library's part of the metadata
	closing           chan struct{}
	closeTime         time.Duration
	destroyed         atomic.Bool // no request can use memory any more
	once              sync.Once
	closeErr          error

	mu     sync.Mutex
	ended  bool
	peers  map[transfer.Peer]*peer
	known  map[string]*peer // peers that the library knows, by its names
	inside sync.WaitGroup   // calls that may be in the library
}

var _ transfer.Transport = (*Transport)(nil)

const (
	// closeGrace is how long Close waits for requests that do not end. The memory that they write to then stays mapped.
	closeGrace = time.Second
	// closeTime is how long Close waits for calls that do not return: several times closeGrace.
	closeTime = 5 * time.Second
)

// NewTransport starts an agent. Errors are those of New, and transfer.ErrInvalid for wrong configuration.
func NewTransport(c TransportConfig) (*Transport, error) {
	c.setDefaults()
	t, err := newTransport(c)
	if err != nil {
		return nil, fmt.Errorf("starting a NIXL transport: %w", err)
	}
	go t.agent.serve(c.Poll)
	return t, nil
}

func newTransport(c TransportConfig) (*Transport, error) {
	t := &Transport{generation: rand.Uint64(), stall: c.Stall, quarantine: c.Quarantine,
		closing: make(chan struct{}), closeTime: closeTime,
		memory: regions{open: map[uint32]*region{}}, peers: map[transfer.Peer]*peer{}, known: map[string]*peer{}}
	name := named(c.Name, t.generation)
	if err := errors.Join(c.validate(), checkName(c.Name, name)); err != nil {
		return nil, err
	}
	var err error
	if t.agent, err = newAgent(c.Config, name); err != nil {
		return nil, err
	}
	t.agent.sender = t.sender
	t.blob.Store(&t.agent.metadata)
	t.bounce = newBounce(c.Bounce, t.grow)
	return t, nil
}

// Name returns the name that the library has for the agent, with the generation.
func (t *Transport) Name() string { return t.agent.name }

// Library returns the path of the library in use.
func (t *Transport) Library() string { return t.agent.lib.path }

// Memory returns how much memory reads use.
func (t *Transport) Memory() MemoryUse { return t.bounce.use() }

// Notifications implements transfer.Notifier. Messages longer than transfer.MaxMessage, and those that arrive while the channel
// is full, are dropped.
func (t *Transport) Notifications() <-chan transfer.Notification { return t.agent.incoming }

// Metadata implements transfer.Transport.
func (t *Transport) Metadata() []byte {
	// The regions are read first: they must not include regions that the library's metadata lacks.
	e := envelope{generation: t.generation, regions: t.memory.extents()}
	e.blob = *t.blob.Load()
	return e.append(nil)
}

// sender returns the name that callers use for an agent. It runs in the agent's goroutine.
func (t *Transport) sender(agent string) transfer.Peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p, ok := t.known[agent]; ok {
		return p.name
	}
	name, _ := plainName(agent)
	return transfer.Peer(name)
}

// Notify implements transfer.Notifier. After an error of the context the message may or may not be sent.
func (t *Transport) Notify(ctx context.Context, to transfer.Peer, message []byte) error {
	if err := t.notify(ctx, to, message); err != nil {
		return fmt.Errorf("notifying %s: %w", to, err)
	}
	return nil
}

func (t *Transport) notify(ctx context.Context, to transfer.Peer, message []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := checkMessage(message); err != nil {
		return err
	}
	p, _, err := t.find(to)
	if err != nil {
		return err
	}
	return t.tell(ctx, p, message)
}

// tell sends a message. It sends one at a time to each peer, which keeps their order.
func (t *Transport) tell(ctx context.Context, p *peer, message []byte) error {
	stall := time.NewTimer(t.stall)
	defer stall.Stop()
	if err := t.acquire(ctx, p.turn, stall.C); err != nil {
		return err
	}
	if err := t.enter(p); err != nil {
		<-p.turn
		return err
	}
	message = append([]byte(nil), message...) // the caller may reuse it before the call
	done := make(chan error, 1)
	go func() {
		defer t.inside.Done()
		err := t.agent.lib.notify(t.agent.agent, p.agent, message)
		t.leave(p)
		<-p.turn
		done <- t.contractError(p, err)
	}()
	return t.await(ctx, done, stall)
}

// await waits for an outcome until the context ends, the transport closes, or stall fires.
func (t *Transport) await(ctx context.Context, done <-chan error, stall *time.Timer) error {
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.closing:
		return transfer.ErrClosed
	case <-stall.C:
		return fmt.Errorf("%w: no answer for %v", transfer.ErrGone, t.stall)
	}
}

// acquire takes one of a peer's places. The caller frees it by receiving from places.
func (t *Transport) acquire(ctx context.Context, places chan struct{}, stall <-chan time.Time) error {
	if try(places) {
		return nil
	}
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.closing:
		return transfer.ErrClosed
	case <-stall:
		return fmt.Errorf("%w: what was begun before has not ended for %v", transfer.ErrGone, t.stall)
	}
}

// try takes a place if one is free.
func try(places chan struct{}) bool {
	select {
	case places <- struct{}{}:
		return true
	default:
		return false
	}
}

// Close implements transfer.Transport. End the peers' reads before: over TCP the library has been seen to crash when its agent
// ends during a read. An error means that a call into the library hangs; all memory has to stay mapped then.
func (t *Transport) Close() error {
	t.once.Do(func() { t.closeErr = t.close() })
	return t.closeErr
}

func (t *Transport) close() error {
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	close(t.closing)
	t.memory.close()
	hangs := !returns(t.closeTime, t.inside.Wait)
	t.agent.keep.Store(hangs)
	var err error
	hangs = !returns(t.closeTime, func() { err = t.agent.Close() }) || hangs
	if hangs {
		return fmt.Errorf("closing a NIXL transport: a call into %s does not return: end this process", t.agent.lib.path)
	}
	if err != nil {
		return err
	}
	t.destroyed.Store(true)
	return t.bounce.unmap()
}

// returns reports whether wait returned within the limit. If not, wait goes on.
func returns(limit time.Duration, wait func()) bool {
	done := make(chan struct{})
	go func() {
		wait()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}
