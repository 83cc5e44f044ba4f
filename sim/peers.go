package sim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// rejectLoad tells the owner of KV that it will not be read: the request was refused, or left, before it had blocks.
// Params that name no owner kill the engine here, because it looks the members up unchecked.
func (e *Engine) rejectLoad(p transferParams) {
	if !p.remotePrefill {
		return
	}
	from, ok := p.source()
	if !ok {
		e.die(errors.New("releasing a hand-off that lacks remote_* members"))
		return
	}
	e.release(from)
}

func (e *Engine) release(from source) { e.tell(from, from.requestID+":1", func() {}) }

// notifyTimeout bounds a notification, and with it the goroutines that peers without an answer can hold.
const notifyTimeout = 5 * time.Second

// tell sends a message beside the loop, which then runs done.
func (e *Engine) tell(to source, message string, done func()) {
	e.spawn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
		defer cancel()
		owner, err := e.peers.get(ctx, to)
		if err == nil {
			if err = e.transport.Notify(ctx, owner.name, []byte(message)); err != nil {
				e.peers.forgetLost(owner, err)
			}
		}
		if err != nil {
			e.metrics.add(failedNotifications, 1)
			e.metrics.add(failedTransfers, 1)
			e.log.Warn("notifying the owner of KV failed", "engine", to.engineID, "error", err)
		}
		e.post(done)
	})
}

// heartbeat keeps the leases of everything alive that has not arrived here.
func (e *Engine) heartbeat() {
	var pending []*sequence
	for s := range e.live {
		if !s.done && (s.load == loadWanted || s.load == loadRunning) {
			pending = append(pending, s)
		}
	}
	e.beat(pending)
}

// beat sends one heartbeat per owner. An owner that has not taken the last one is left out.
func (e *Engine) beat(pending []*sequence) {
	owners := make(map[source][]string)
	for _, s := range pending {
		if from, ok := s.params.source(); ok && s.params.heartbeats() {
			id := from.requestID
			from.requestID = ""
			owners[from] = append(owners[from], id)
		}
	}
	for owner, ids := range owners {
		if e.peers.startBeat(owner.engineID) {
			e.tell(owner, "HB:"+strings.Join(ids, ","), func() { e.peers.endBeat(owner.engineID) })
		}
	}
}

// peers are the engines this one knows, by engine id. The address counts at first contact only.
type peers struct {
	transport transfer.Transport
	fetch     func(context.Context, string) ([]byte, error)
	timeout   time.Duration // of trying to reach an unknown peer
	cost      time.Duration // see meet

	mu      sync.Mutex
	known   map[string]*peer
	beating map[string]bool
}

type peer struct {
	ready chan struct{} // closed once name or err is there
	name  transfer.Peer
	err   error

	meeting bool          // a request waits for the first hand-off; peers.mu guards it
	met     chan struct{} // closed once that has been paid for
}

// get returns the peer, after a handshake if it is not known yet. All who ask during a handshake wait for the same one.
func (ps *peers) get(ctx context.Context, from source) (*peer, error) {
	ps.mu.Lock()
	p, ok := ps.known[from.engineID]
	if !ok {
		p = &peer{ready: make(chan struct{}), met: make(chan struct{})}
		ps.known[from.engineID] = p
	}
	ps.mu.Unlock()
	if ok {
		select {
		case <-p.ready:
			return p, p.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	p.name, p.err = ps.handshake(ctx, from)
	if p.err != nil {
		ps.mu.Lock()
		delete(ps.known, from.engineID)
		ps.mu.Unlock()
	}
	close(p.ready)
	return p, p.err
}

// handshakeRetry is the pause between two attempts to reach an unknown peer.
const handshakeRetry = 200 * time.Millisecond

func (ps *peers) handshake(ctx context.Context, from source) (transfer.Peer, error) {
	ctx, cancel := context.WithTimeout(ctx, ps.timeout)
	defer cancel()
	metadata, err := ps.fetch(ctx, from.address)
	for err != nil {
		// Like the socket of the real side channel, which keeps trying a closed port until its time is up.
		if sleep(ctx, handshakeRetry) != nil {
			return "", fmt.Errorf("handshake with %s: %w", from.address, err)
		}
		metadata, err = ps.fetch(ctx, from.address)
	}
	name, err := ps.transport.Load(ctx, metadata)
	if err != nil {
		return "", fmt.Errorf("handshake with %s: %w", from.address, err)
	}
	if string(name) != from.engineID {
		return "", fmt.Errorf("handshake with %s: engine ID mismatch: it is %s, not %s", from.address, name, from.engineID)
	}
	return name, nil
}

// forgetLost makes the next request meet a peer anew, if err says that it is not what it was, and no other request has met it anew
// meanwhile.
func (ps *peers) forgetLost(lost *peer, err error) {
	if !errors.Is(err, transfer.ErrGone) && !errors.Is(err, transfer.ErrRestarted) && !errors.Is(err, transfer.ErrUnknownPeer) {
		return
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.known[string(lost.name)] == lost {
		delete(ps.known, string(lost.name))
		ps.transport.Forget(lost.name)
	}
}

func (ps *peers) startBeat(engineID string) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.beating[engineID] {
		return false
	}
	if ps.beating == nil {
		ps.beating = make(map[string]bool)
	}
	ps.beating[engineID] = true
	return true
}

func (ps *peers) endBeat(engineID string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.beating, engineID)
}

func joinAddress(host, port string) string {
	if _, err := strconv.Atoi(port); err != nil {
		port = "0"
	}
	return net.JoinHostPort(host, port)
}
