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

// Agent is one NIXL agent, over UCX. It implements transfer.Notifier with these differences, which come from the library:
//
//   - Nil from Notify means that the message was given to the network, not that it arrived.
//   - A peer that restarts under another name is another peer; for one under the same name, only the new metadata is
//     known. So nothing is ever ErrRestarted.
//   - Senders do not learn that a receiver does not read. Messages that do not fit into the channel are dropped.
//
// All calls into the library go through one goroutine, since a call can hang (with a stopped peer, for instance) and cannot
// be ended. A caller waits only as long as its context.
type Agent struct {
	name     string
	lib      *library
	metadata []byte
	calls    chan *call
	closing  chan struct{}
	closed   chan struct{}
	once     sync.Once
	incoming chan transfer.Notification
	sender   func(agent string) transfer.Peer // name shown to callers; set before the goroutine starts
	keep     atomic.Bool                      // other calls are in the library: do not destroy its agent
	closeErr error                            // set before closed is closed

	// The following fields belong to the goroutine.
	agent, backend, list unsafe.Pointer
	peers                map[transfer.Peer]bool
}

var _ transfer.Notifier = (*Agent)(nil)

// call is one call into the library.
type call struct {
	run  func() error
	done chan error // has a buffer of one
}

// lifecycle keeps agents from being made and destroyed at the same time: the library has been seen to hang then.
var lifecycle sync.Mutex

// New starts an agent. The first one opens the library. Errors: ErrNoLibrary; a *CallError, where StatusBackend means that
// UCX found no network, or UCX_* variables forbid all; and invalid configuration.
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

// newAgent returns an agent that does nothing before serve runs.
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

// uniqueName adds eight random digits: peers keep what they know of a name even after its agent has ended.
func uniqueName(name string) (string, error) {
	random := make([]byte, 4)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	unique := name + "-" + hex.EncodeToString(random)
	return unique, checkName(name, unique)
}

// Name returns the agent's name, with its random part.
func (a *Agent) Name() string { return a.name }

// Library returns the path of the library in use.
func (a *Agent) Library() string { return a.lib.path }

// Metadata describes this agent to its peers. It names no memory.
func (a *Agent) Metadata() []byte { return a.metadata }

// Notifications returns the messages of other agents. Messages longer than transfer.MaxMessage, and those that arrive while
// the channel is full, are dropped.
func (a *Agent) Notifications() <-chan transfer.Notification { return a.incoming }

// Load makes a remote agent known. A known agent of the same name is forgotten first: it may have restarted.
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
		a.forget(transfer.Peer(named)) // versions from 1.5 on refuse to load a known name
		return a.load(named, e.blob)
	})
	if err != nil {
		return "", fmt.Errorf("loading peer %s: %w", named, err)
	}
	return transfer.Peer(named), nil
}

// load loads an agent into the library.
func (a *Agent) load(named string, metadata []byte) error {
	if err := a.lib.load(a.agent, metadata); err != nil {
		return fmt.Errorf("%w: %w", transfer.ErrInvalid, err)
	}
	a.peers[transfer.Peer(named)] = true
	return nil
}

// Forget undoes Load.
func (a *Agent) Forget(peer transfer.Peer) {
	// Forget does not have to wait: it has no deadline, and does nothing once the agent is closed.
	_ = a.do(context.Background(), func() error { a.forget(peer); return nil })
}

func (a *Agent) forget(peer transfer.Peer) {
	if a.peers[peer] {
		a.lib.invalidate(a.agent, string(peer))
		delete(a.peers, peer)
	}
}

// Connect prepares sending to a loaded agent, which otherwise delays the first message. Its errors are those of Notify.
func (a *Agent) Connect(ctx context.Context, to transfer.Peer) error {
	err := a.do(ctx, func() error { return a.toPeer(to, func() error { return a.lib.connect(a.agent, string(to)) }) })
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", to, err)
	}
	return nil
}

// Notify sends a message to a loaded agent. Errors: transfer.ErrUnknownPeer, ErrGone (a loaded agent that does not answer
// any more), ErrInvalid (too long), ErrClosed, the context's. After a context error the message may or may not be sent.
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

// toPeer calls send for a loaded peer. The library reports a lost peer like other backend failures, so the error of sending
// decides.
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

// do runs a function in the goroutine, and waits for it as long as the context lasts.
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

// Close ends the agent without notifying peers. It waits for the running call; closing again does nothing.
func (a *Agent) Close() error {
	a.once.Do(func() { close(a.closing) })
	<-a.closed
	return a.closeErr
}

// serve is the goroutine that makes all calls.
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
			// A failure here concerns the whole agent, and shows in the next send.
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
