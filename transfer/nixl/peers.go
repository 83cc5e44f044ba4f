//go:build nixl && cgo && linux

package nixl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

const (
	// atOnce is how many requests a peer has under way, of 4 MiB each: enough to keep a network busy, while a peer that
	// hangs holds a quarter of the memory that is there by default.
	atOnce = 4
	// remembered is how many earlier lives of a peer are known to be over.
	remembered = 16
)

// peer is one life of a remote agent.
type peer struct {
	agent      string
	generation uint64
	places     chan struct{} // full when atOnce requests have not ended
	turn       chan struct{} // to send a message

	// What follows is under Transport.mu.
	name    transfer.Peer
	bare    bool
	blob    []byte
	regions map[uint32]extent // never changed, only replaced
	former  []uint64          // generations
	fate    error             // what callers get; nil while it can be used
	users   int               // who are in the library with it, or may have bytes coming from it
	quiet   chan error        // closed when users becomes 0; nil if no goroutine waits for that
}

// busyError is returned where a peer cannot be parted with before it is quiet.
type busyError struct{ quiet <-chan error }

func (busyError) Error() string {
	return transfer.ErrGone.Error() + ": reads from it have not ended yet"
}
func (busyError) Unwrap() error { return transfer.ErrGone }

// Load implements transfer.Notifier. It does not contact the peer. Further errors: transfer.ErrRestarted for metadata of an
// earlier generation than the loaded one; ErrGone if reads from a lost peer do not end in time.
func (t *Transport) Load(ctx context.Context, metadata []byte) (transfer.Peer, error) {
	e, err := parseEnvelope(metadata)
	if err == nil && e.agent == t.agent.name {
		err = fmt.Errorf("%w: an agent's own metadata", transfer.ErrInvalid)
	}
	if err != nil {
		return "", fmt.Errorf("loading a peer: %w", err)
	}
	stall := time.NewTimer(t.stall)
	defer stall.Stop()
	for {
		err := t.agent.do(ctx, func() error { return t.learn(e) })
		if err == nil {
			return t.sender(e.agent), nil
		}
		var busy busyError
		if errors.As(err, &busy) {
			err = t.await(ctx, busy.quiet, stall)
		}
		if err != nil {
			return "", fmt.Errorf("loading peer %s: %w", e.peer(), err)
		}
	}
}

// learn runs in the agent's goroutine, as everything does that changes what the library knows of peers.
func (t *Transport) learn(e envelope) error {
	t.sweep()
	p, fits, err := t.recall(e)
	if err != nil {
		return err
	}
	if p != nil && !fits {
		// Other memory of the same life: what is under way must not be hurt, so nothing is forgotten first.
		if err := t.agent.lib.load(t.agent.agent, e.blob); err == nil {
			fits = true
		} else if err := t.part(p); err != nil {
			return err
		}
	}
	if !fits {
		if err := t.agent.load(e.agent, e.blob); err != nil {
			return err
		}
		p = &peer{agent: e.agent, generation: e.generation, places: make(chan struct{}, atOnce), turn: make(chan struct{}, 1)}
	}
	t.admit(p, e)
	return nil
}

// recall finds the agent among those that the library knows. fits means that the library knows all that is in the metadata.
func (t *Transport) recall(e envelope) (p *peer, fits bool, err error) {
	t.mu.Lock()
	now := t.peers[e.peer()]
	if now != nil && !e.bare && slices.Contains(now.former, e.generation) {
		err = fmt.Errorf("%w: this metadata is older than what is loaded", transfer.ErrRestarted)
	}
	p = t.known[e.agent]
	lost := p != nil && errors.Is(p.fate, transfer.ErrGone)
	fits = p != nil && !lost && (e.bare && !p.bare || bytes.Equal(p.blob, e.blob))
	t.mu.Unlock()
	if err == nil && lost {
		return nil, false, t.part(p)
	}
	return p, fits, err
}

// part has the library forget a peer. It must not while bytes may come from it: they would, and no status would tell.
func (t *Transport) part(p *peer) error {
	t.mu.Lock()
	p.fate = transfer.ErrGone
	busy := p.users > 0
	if !busy {
		delete(t.known, p.agent)
	} else if p.quiet == nil {
		p.quiet = make(chan error)
	}
	quiet := p.quiet
	t.mu.Unlock()
	if busy {
		return busyError{quiet}
	}
	t.agent.forget(transfer.Peer(p.agent))
	return nil
}

// admit makes a peer that the library knows the one that callers get under its name.
func (t *Transport) admit(p *peer, e envelope) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[p.agent] = p
	p.fate = nil
	if e.bare && p.regions != nil {
		t.peers[p.name] = p
		return // it is known better
	}
	if p.name != "" && p.name != e.peer() {
		delete(t.peers, p.name)
	}
	p.name, p.bare, p.blob, p.regions = e.peer(), e.bare, e.blob, e.regions
	switch old := t.peers[p.name]; {
	case old == nil:
	case old.agent == p.agent:
		p.former = old.former
	default:
		old.fate = transfer.ErrRestarted
		former := append(slices.Clone(old.former), old.generation)
		p.former = former[max(0, len(former)-remembered):]
	}
	t.peers[p.name] = p
}

// Forget implements transfer.Notifier.
func (t *Transport) Forget(peer transfer.Peer) {
	t.mu.Lock()
	if p, ok := t.peers[peer]; ok {
		p.fate = transfer.ErrUnknownPeer
		delete(t.peers, peer)
	}
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), t.stall)
	defer cancel()
	// That the library keeps a little longer what is forgotten here is no harm: the next Load sweeps again.
	_ = t.agent.do(ctx, func() error { t.sweep(); return nil })
}

// sweep has the library forget peers that are of no use any more.
func (t *Transport) sweep() {
	t.mu.Lock()
	var idle []*peer
	for _, p := range t.known {
		if p.users == 0 && (errors.Is(p.fate, transfer.ErrUnknownPeer) || errors.Is(p.fate, transfer.ErrRestarted)) {
			idle = append(idle, p)
			delete(t.known, p.agent)
		}
	}
	t.mu.Unlock()
	for _, p := range idle {
		t.agent.forget(transfer.Peer(p.agent))
	}
}

// find is a peer as it is now.
func (t *Transport) find(name transfer.Peer) (*peer, map[uint32]extent, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil, nil, transfer.ErrClosed
	}
	p, ok := t.peers[name]
	if !ok {
		return nil, nil, transfer.ErrUnknownPeer
	}
	return p, p.regions, p.fate
}

// enter lets the caller go into the library with a peer, until leave and inside.Done.
func (t *Transport) enter(p *peer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return transfer.ErrClosed
	}
	if p.fate != nil {
		return p.fate
	}
	p.users++
	t.inside.Add(1)
	return nil
}

func (t *Transport) leave(p *peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.users--; p.users == 0 && p.quiet != nil {
		close(p.quiet)
		p.quiet = nil
	}
}

// verdict is what an error of the library means to the contract. A peer that the library has lost is lost here.
func (t *Transport) verdict(p *peer, err error) error {
	var c *CallError
	if err == nil || !errors.As(err, &c) {
		return err
	}
	switch {
	case c.Status == StatusNotFound && c.Call == "create_xfer_req":
		return fmt.Errorf("%w: %w", transfer.ErrRange, err)
	case c.Status == StatusBackend, c.Status == StatusNotFound:
		return fmt.Errorf("%w: %w", t.lose(p), err)
	}
	return err
}

// lose notes that a peer does not answer any more, unless worse is known of it.
func (t *Transport) lose(p *peer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.fate == nil {
		p.fate = transfer.ErrGone
	}
	return p.fate
}
