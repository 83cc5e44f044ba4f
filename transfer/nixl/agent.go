//go:build nixl && cgo && linux

package nixl

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/tandem-serving/tandem/transfer"
)

// Agent is one NIXL agent, over UCX. It implements transfer.Notifier with these differences, which are the library's:
//
//   - Nil from Notify means that the message was given to the network, not that it arrived.
//   - A peer that lives again under another name is another peer; one under the same name is known by its new metadata
//     only. So nothing is ever ErrRestarted.
//   - A receiver that does not read is not told to its senders. Here, what does not fit into the channel is dropped.
//
// All calls into the library go through one goroutine, since a call can hang (a peer that was stopped has been seen to do
// that), and nothing can end it. A caller waits for its context, no longer.
type Agent struct {
	name     string
	lib      *library
	metadata []byte
	calls    chan *call
	closing  chan struct{}
	closed   chan struct{}
	once     sync.Once
	incoming chan transfer.Notification
	sender   func(agent string) transfer.Peer // what callers call it; set before the goroutine starts
	keep     atomic.Bool                      // others are in the library: leave its agent alone
	closeErr error                            // set before closed is closed

	// What follows belongs to the goroutine.
	agent, backend, list unsafe.Pointer
	peers                map[transfer.Peer]bool
}

var _ transfer.Notifier = (*Agent)(nil)

// call is one visit to the library.
type call struct {
	run  func() error
	done chan error // room for one
}

// lifecycle keeps agents from being made and destroyed at the same time: the library has been seen to hang then.
var lifecycle sync.Mutex

// New starts an agent. The first one opens the library. Errors: ErrNoLibrary; a *CallError, where StatusBackend means that
// UCX found no network to use, or was told by UCX_* variables not to; and wrong configuration.
func New(c Config) (*Agent, error) {
	c.setDefaults()
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("starting a NIXL agent: %w", err)
	}
	name, err := uniqueName(c.Name)
	if err != nil {
		return nil, fmt.Errorf("starting a NIXL agent: %w", err)
	}
	a, err := newAgent(c, name)
	if err != nil {
		return nil, fmt.Errorf("starting a NIXL agent: %w", err)
	}
	a.sender = func(agent string) transfer.Peer { return transfer.Peer(agent) }
	go a.serve(c.Poll)
	return a, nil
}

// newAgent is an agent that does nothing before serve runs.
func newAgent(c Config, name string) (*Agent, error) {
	lib, err := openLibrary(c.Library)
	if err != nil {
		return nil, err
	}
	lifecycle.Lock()
	defer lifecycle.Unlock()
	a := &Agent{name: name, lib: lib, calls: make(chan *call), closing: make(chan struct{}), closed: make(chan struct{}),
		incoming: make(chan transfer.Notification, transfer.QueueLength), peers: map[transfer.Peer]bool{}}
	if a.agent, a.backend, err = lib.start(c, name); err != nil {
		return nil, fmt.Errorf("%s: %w", lib.path, err)
	}
	if a.metadata, err = lib.metadata(a.agent); err == nil {
		a.list, err = lib.inbox()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", lib.path, err), lib.stop(a.agent, a.backend))
	}
	return a, nil
}

// uniqueName adds eight random digits: peers keep what they know of a name, also when its agent is gone.
func uniqueName(name string) (string, error) {
	random := make([]byte, 4)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	unique := name + "-" + hex.EncodeToString(random)
	return unique, checkName(name, unique)
}

// Name is what the agent is called, with its random part.
func (a *Agent) Name() string { return a.name }

// Library is the path of the library that is used.
func (a *Agent) Library() string { return a.lib.path }

// Metadata describes this agent to its peers. It names no memory.
func (a *Agent) Metadata() []byte { return a.metadata }

// Notifications returns what others sent here. Messages longer than transfer.MaxMessage, and those that come while the
// channel is full, are dropped.
func (a *Agent) Notifications() <-chan transfer.Notification { return a.incoming }

// Load makes a remote agent known. An agent of the same name that was known before is forgotten: it may have restarted.
func (a *Agent) Load(ctx context.Context, metadata []byte) (transfer.Peer, error) {
	e, err := parseEnvelope(metadata)
	if err != nil {
		return "", fmt.Errorf("loading a peer: %w", err)
	}
	named := e.agent
	if named == a.name {
		return "", fmt.Errorf("loading a peer: %w: an agent's own metadata", transfer.ErrInvalid)
	}
	err = a.do(ctx, func() error {
		a.forget(transfer.Peer(named)) // versions from 1.5 on refuse to load a name that they know
		return a.load(named, e.blob)
	})
	if err != nil {
		return "", fmt.Errorf("loading peer %s: %w", named, err)
	}
	return transfer.Peer(named), nil
}

// load has the library know an agent.
func (a *Agent) load(named string, metadata []byte) error {
	if err := a.lib.load(a.agent, metadata); err != nil {
		return fmt.Errorf("%w: %w", transfer.ErrInvalid, err)
	}
	a.peers[transfer.Peer(named)] = true
	return nil
}

// Forget undoes Load.
func (a *Agent) Forget(peer transfer.Peer) {
	// Whoever forgets has nothing to wait for: without a deadline, and not at all once the agent is closed.
	_ = a.do(context.Background(), func() error { a.forget(peer); return nil })
}

func (a *Agent) forget(peer transfer.Peer) {
	if a.peers[peer] {
		a.lib.invalidate(a.agent, string(peer))
		delete(a.peers, peer)
	}
}

// Connect prepares to send to a loaded agent, so that the first message need not. Errors are those of Notify.
func (a *Agent) Connect(ctx context.Context, to transfer.Peer) error {
	err := a.do(ctx, func() error { return a.toPeer(to, func() error { return a.lib.connect(a.agent, string(to)) }) })
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", to, err)
	}
	return nil
}

// Notify sends a message to a loaded agent.
// Errors: transfer.ErrUnknownPeer, ErrGone (a loaded agent that does not answer any more), ErrInvalid (too long), ErrClosed,
// the context's. After the context's the message may or may not be sent.
func (a *Agent) Notify(ctx context.Context, to transfer.Peer, message []byte) error {
	err := checkMessage(message)
	if err == nil {
		message = bytes.Clone(message)
		err = a.do(ctx, func() error { return a.toPeer(to, func() error { return a.lib.notify(a.agent, string(to), message) }) })
	}
	if err != nil {
		return fmt.Errorf("notifying %s: %w", to, err)
	}
	return nil
}

// toPeer does something with a peer that is loaded. The library cannot tell a peer that is lost from other failures below
// but by sending to it, which is what is done here.
func (a *Agent) toPeer(to transfer.Peer, send func() error) error {
	if !a.peers[to] {
		return transfer.ErrUnknownPeer
	}
	err := send()
	switch {
	case errors.Is(err, StatusBackend):
		return fmt.Errorf("%w: %w", transfer.ErrGone, err)
	case errors.Is(err, StatusNotFound):
		delete(a.peers, to)
		return fmt.Errorf("%w: %w", transfer.ErrUnknownPeer, err)
	}
	return err
}

// do has the goroutine run something, and waits for it as long as the context lasts.
func (a *Agent) do(ctx context.Context, run func() error) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	c := &call{run, make(chan error, 1)}
	select {
	case a.calls <- c:
	case <-a.closing:
		return transfer.ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close ends the agent. Its peers are not told. It waits for the call that is under way; closing again does nothing.
func (a *Agent) Close() error {
	a.once.Do(func() { close(a.closing) })
	<-a.closed
	return a.closeErr
}

// serve is the goroutine.
func (a *Agent) serve(every time.Duration) {
	defer close(a.closed)
	defer close(a.incoming)
	poll := time.NewTicker(every)
	defer poll.Stop()
	for {
		select {
		case c := <-a.calls:
			c.done <- c.run()
		case <-poll.C:
			// A failure here is one of the whole agent, which shows in what is sent next.
			_ = a.lib.fetch(a.agent, a.list, a.receive)
		case <-a.closing:
			a.closeErr = a.destroy()
			return
		}
	}
}

func (a *Agent) receive(from string, message []byte) {
	if len(message) > transfer.MaxMessage {
		return
	}
	select {
	case a.incoming <- transfer.Notification{From: a.sender(from), Message: message}:
	default:
	}
}

func (a *Agent) destroy() error {
	if a.keep.Load() {
		return nil
	}
	lifecycle.Lock()
	defer lifecycle.Unlock()
	for peer := range a.peers {
		a.lib.invalidate(a.agent, string(peer))
	}
	a.lib.freeInbox(a.list)
	if err := a.lib.stop(a.agent, a.backend); err != nil {
		return fmt.Errorf("closing a NIXL agent: %w", err)
	}
	return nil
}

func checkMessage(message []byte) error {
	if len(message) > transfer.MaxMessage {
		return fmt.Errorf("%w: notification of %d bytes, at most %d", transfer.ErrInvalid, len(message), transfer.MaxMessage)
	}
	return nil
}
