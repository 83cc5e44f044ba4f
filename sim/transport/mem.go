package transport

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/tandem-serving/tandem/transfer"
)

// MemNetwork connects the agents of one process. Use NewMemNetwork.
type MemNetwork struct {
	mu     sync.RWMutex
	agents map[string]*Mem
}

// NewMemNetwork returns a network without agents.
func NewMemNetwork() *MemNetwork {
	return &MemNetwork{agents: make(map[string]*Mem)}
}

// Mem is an agent on a MemNetwork, and the reference for other transports. It starts no goroutine; the reading goroutine copies
// the bytes.
type Mem struct {
	network *MemNetwork
	self    identity
	memory  regions
	inbox   *inbox

	mu     sync.RWMutex
	closed bool
	peers  map[transfer.Peer]metadata
}

var _ transfer.Transport = (*Mem)(nil)

// NewMem starts an agent. If an agent has the name, the new one replaces it like a process that was restarted: calls with
// metadata of the old one get ErrRestarted. Error: ErrInvalid for a name that is empty, too long or holds a zero byte.
func NewMem(network *MemNetwork, name string) (*Mem, error) {
	if err := checkName(name); err != nil {
		return nil, fmt.Errorf("starting memory agent: %w", err)
	}
	m := &Mem{
		network: network,
		self:    identity{name: name, generation: rand.Uint64()},
		inbox:   newInbox(),
		peers:   make(map[transfer.Peer]metadata),
	}
	network.mu.Lock()
	defer network.mu.Unlock()
	network.agents[name] = m
	return m, nil
}

// Metadata implements Transport.
func (m *Mem) Metadata() []byte {
	return metadata{identity: m.self, kind: kindMem, regions: m.memory.lengths()}.append(nil)
}

// Register implements Transport.
func (m *Mem) Register(mem []byte) (transfer.Region, error) {
	r, err := m.memory.register(mem)
	if err != nil {
		return nil, err // not r: a nil *region in an interface is not nil
	}
	return r, nil
}

// Load implements Notifier. It contacts no peer.
func (m *Mem) Load(ctx context.Context, blob []byte) (transfer.Peer, error) {
	md, err := loadable(ctx, blob, kindMem, m.self)
	if err != nil {
		return "", fmt.Errorf("loading metadata: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return "", fmt.Errorf("loading metadata: %w", transfer.ErrClosed)
	}
	m.peers[transfer.Peer(md.name)] = md
	return transfer.Peer(md.name), nil
}

// Forget implements Notifier.
func (m *Mem) Forget(peer transfer.Peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.peers, peer)
}

// Notify implements Notifier.
func (m *Mem) Notify(ctx context.Context, to transfer.Peer, message []byte) error {
	md, err := m.loaded(ctx, to, message)
	if err == nil {
		err = m.notify(md, message)
	}
	if err != nil {
		return fmt.Errorf("notifying %s: %w", to, err)
	}
	return nil
}

// Notifications implements Notifier.
func (m *Mem) Notifications() <-chan transfer.Notification { return m.inbox.queue }

// Read implements Transport.
func (m *Mem) Read(ctx context.Context, from transfer.Peer, spans []transfer.Span, into [][]byte, notify []byte) error {
	if err := m.read(ctx, from, spans, into, notify); err != nil {
		return fmt.Errorf("reading from %s: %w", from, err)
	}
	return nil
}

func (m *Mem) read(ctx context.Context, from transfer.Peer, spans []transfer.Span, into [][]byte, notify []byte) error {
	md, err := m.loaded(ctx, from, notify)
	if err != nil {
		return err
	}
	if err := md.check(spans, into); err != nil {
		return err
	}
	owner, err := m.network.find(md.identity)
	if err != nil {
		return err
	}
	for i, s := range spans {
		if err := ctx.Err(); err != nil {
			return err
		}
		r := owner.memory.get(s.Region)
		if r == nil || !r.copyOut(into[i], s.Offset) {
			return m.lost(md)
		}
	}
	if notify == nil {
		return nil
	}
	return m.notify(md, notify)
}

// Close implements Transport.
func (m *Mem) Close() error {
	m.mu.Lock()
	m.closed = true
	m.peers = nil
	m.mu.Unlock()

	m.network.mu.Lock()
	if m.network.agents[m.self.name] == m {
		delete(m.network.agents, m.self.name)
	}
	m.network.mu.Unlock()

	m.memory.closeAll()
	m.inbox.close()
	return nil
}

// loaded returns the metadata of a peer, or the error of calls to it.
func (m *Mem) loaded(ctx context.Context, peer transfer.Peer, message []byte) (metadata, error) {
	if err := ctx.Err(); err != nil {
		return metadata{}, err
	}
	if err := checkMessage(message); err != nil {
		return metadata{}, err
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return metadata{}, transfer.ErrClosed
	}
	md, ok := m.peers[peer]
	if !ok {
		return metadata{}, transfer.ErrUnknownPeer
	}
	return md, nil
}

func (m *Mem) notify(md metadata, message []byte) error {
	owner, err := m.network.find(md.identity)
	if err != nil {
		return err
	}
	return owner.inbox.put(transfer.Peer(m.self.name), message)
}

// lost returns why memory in the metadata does not exist: the agent has ended, or the region was closed.
func (m *Mem) lost(md metadata) error {
	if _, err := m.network.find(md.identity); err != nil {
		return err
	}
	return transfer.ErrRange
}

// find returns the agent of that generation. Errors: ErrGone, ErrRestarted.
func (n *MemNetwork) find(who identity) (*Mem, error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	agent, ok := n.agents[who.name]
	if !ok {
		return nil, transfer.ErrGone
	}
	if agent.self != who {
		return nil, transfer.ErrRestarted
	}
	return agent, nil
}
