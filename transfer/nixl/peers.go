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
	// atOnce is how many requests to a peer run at once, of 4 MiB each: enough to keep a network busy, while a peer that hangs
	// uses a quarter of the default memory.
	atOnce = 4
	// remembered is how many earlier generations of a peer are stored, to refuse their metadata.
	remembered = 16
)

// peer is one generation of a remote agent.
type peer struct {
	agent      string
	generation uint64
	places     chan struct{} // full while atOnce requests run
	turn       chan struct{} // held by the call that sends a message

	// Transport.mu guards what follows.
	name    transfer.Peer
	bare    bool
	blob    []byte
	regions map[uint32]extent // replaced as a whole, never changed
	former  []uint64          // earlier generations
	failure error             // error of calls to it; nil while it can be used
	users   int               // calls in the library for it, and requests whose bytes may still arrive
	unused  chan error        // closed when users becomes 0; nil if no goroutine waits for that
}

// busyError says that a peer cannot be forgotten before its requests have ended.
type busyError struct{ unused <-chan error }

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
		err := t.agent.do(ctx, func() error { return t.loadEnvelope(e) })
		if err == nil {
			return t.sender(e.agent), nil
		}
		var busy busyError
		if errors.As(err, &busy) {
			err = t.await(ctx, busy.unused, stall)
		}
		if err != nil {
			return "", fmt.Errorf("loading peer %s: %w", e.peer(), err)
		}
	}
}

// loadEnvelope makes the library know the metadata. It runs in the agent's goroutine, like everything that changes which peers the
// library knows.
func (t *Transport) loadEnvelope(e envelope) error {
	t.sweep()
	p, fits, err := t.knownPeer(e)
	if err != nil {
		return err
	}
	if p != nil && !fits {
		// The same generation has other memory. Forgetting the peer first would break its running requests.
		if err := t.agent.lib.load(t.agent.agent, e.blob); err == nil {
			fits = true
		} else if err := t.forgetPeer(p); err != nil {
			return err
		}
	}
	if !fits {
		if err := t.agent.load(e.agent, e.blob); err != nil {
			return err
		}
		p = &peer{agent: e.agent, generation: e.generation, places: make(chan struct{}, atOnce), turn: make(chan struct{}, 1)}
	}
	t.publish(p, e)
	return nil
}

// knownPeer returns the peer if the library knows it. fits says that the library knows everything in the metadata.
func (t *Transport) knownPeer(e envelope) (p *peer, fits bool, err error) {
	t.mu.Lock()
	now := t.peers[e.peer()]
	if now != nil && !e.bare && slices.Contains(now.former, e.generation) {
		err = fmt.Errorf("%w: this metadata is older than what is loaded", transfer.ErrRestarted)
	}
	p = t.known[e.agent]
	lost := p != nil && errors.Is(p.failure, transfer.ErrGone)
	fits = p != nil && !lost && (e.bare && !p.bare || bytes.Equal(p.blob, e.blob))
	t.mu.Unlock()
	if err == nil && lost {
		return nil, false, t.forgetPeer(p)
	}
	return p, fits, err
}

// forgetPeer makes the library forget a peer. It must not while requests run: their bytes would still arrive, and the library would
// not report their end.
func (t *Transport) forgetPeer(p *peer) error {
	t.mu.Lock()
	p.failure = transfer.ErrGone
	busy := p.users > 0
	if !busy {
		delete(t.known, p.agent)
	} else if p.unused == nil {
		p.unused = make(chan error)
	}
	unused := p.unused
	t.mu.Unlock()
	if busy {
		return busyError{unused}
	}
	t.agent.forget(transfer.Peer(p.agent))
	return nil
}

// publish makes a peer that the library knows the one that callers use under its name.
func (t *Transport) publish(p *peer, e envelope) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[p.agent] = p
	p.failure = nil
	if e.bare && p.regions != nil {
		t.peers[p.name] = p
		return // its memory is already known
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
		old.failure = transfer.ErrRestarted
		former := append(slices.Clone(old.former), old.generation)
		p.former = former[max(0, len(former)-remembered):]
	}
	t.peers[p.name] = p
}

// Forget implements transfer.Notifier.
func (t *Transport) Forget(peer transfer.Peer) {
	t.mu.Lock()
	if p, ok := t.peers[peer]; ok {
		p.failure = transfer.ErrUnknownPeer
		delete(t.peers, peer)
	}
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), t.stall)
	defer cancel()
	// An error does no harm: the library forgets the peer at the next Load.
	_ = t.agent.do(ctx, func() error { t.sweep(); return nil })
}

// sweep makes the library forget peers that callers can no longer use.
func (t *Transport) sweep() {
	t.mu.Lock()
	var idle []*peer
	for _, p := range t.known {
		if p.users == 0 && (errors.Is(p.failure, transfer.ErrUnknownPeer) || errors.Is(p.failure, transfer.ErrRestarted)) {
			idle = append(idle, p)
			delete(t.known, p.agent)
		}
	}
	t.mu.Unlock()
	for _, p := range idle {
		t.agent.forget(transfer.Peer(p.agent))
	}
}

// find returns a peer with its regions, or the error of calls to it.
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
	return p, p.regions, p.failure
}

// enter allows the caller to call the library for a peer, until leave and inside.Done.
func (t *Transport) enter(p *peer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return transfer.ErrClosed
	}
	if p.failure != nil {
		return p.failure
	}
	p.users++
	t.inside.Add(1)
	return nil
}

func (t *Transport) leave(p *peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.users--; p.users == 0 && p.unused != nil {
		close(p.unused)
		p.unused = nil
	}
}

// contractError returns the error of the contract for an error of the library. It marks a peer as lost if the library has lost it.
func (t *Transport) contractError(p *peer, err error) error {
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

// lose marks a peer as unreachable, unless it has another failure already.
func (t *Transport) lose(p *peer) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.failure == nil {
		p.failure = transfer.ErrGone
	}
	return p.failure
}
