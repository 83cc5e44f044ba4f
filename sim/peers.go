package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/metrics"
	"github.com/tandem-serving/tandem/transfer"
)

// notifyTimeout bounds a notification, and with it the number of goroutines that wait for peers that do not answer.
const notifyTimeout = 5 * time.Second

// notify sends a message from a goroutine of its own. The loop runs done afterwards, whether it was delivered or not.
func (c *connector) notify(to source, message string, done func()) {
	c.core.Spawn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
		defer cancel()
		owner, err := c.peers.get(ctx, to)
		if err == nil {
			if err = c.transport.Notify(ctx, owner.name, []byte(message)); err != nil {
				c.peers.forgetLost(owner, err)
			}
		}
		if err != nil {
			c.metrics.Add(metrics.FailedNotifications, 1)
			c.metrics.Add(metrics.FailedTransfers, 1)
			c.log.Warn("notifying the owner of KV failed", "engine", to.engineID, "error", err)
		}
		c.core.Post(done)
	})
}

// heartbeat sends heartbeats until ctx ends. It runs outside of the loop.
func (c *connector) heartbeat(ctx context.Context) {
	t := time.NewTicker(c.cfg.KV.Lease / heartbeatsPerLease)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			c.core.Post(c.sendHeartbeats)
		case <-ctx.Done():
			return
		}
	}
}

// sendHeartbeats renews the leases of all KV that this engine will read.
func (c *connector) sendHeartbeats() {
	var pending []*core.Sequence
	for s := range c.core.Live() {
		if !s.Done && !legOf(s).stuck && legOf(s).params.RemotePrefill && (s.KV == core.Wanted || s.KV == core.Arriving) {
			pending = append(pending, s)
		}
	}
	c.renewRemote(pending)
}

// renewRemote sends one heartbeat to each owner of KV that sequences wait for, unless the owner has not accepted the last one yet.
func (c *connector) renewRemote(pending []*core.Sequence) {
	owners := make(map[source][]string)
	for _, s := range pending {
		if from, ok := legOf(s).params.source(); ok && legOf(s).params.renewable() {
			id := from.requestID
			from.requestID = ""
			owners[from] = append(owners[from], id)
		}
	}
	for owner, ids := range owners {
		if c.peers.startHeartbeat(owner.engineID) {
			c.notify(owner, "HB:"+strings.Join(ids, ","), func() { c.peers.endHeartbeat(owner.engineID) })
		}
	}
}

// peers are the engines that this one knows, by engine id. The address in a hand-off is used at the first contact only.
type peers struct {
	transport transfer.Transport
	fetch     func(context.Context, string) ([]byte, error)
	timeout   time.Duration // for the attempts to reach an unknown peer
	cost      time.Duration // of the first hand-off of each peer; see meet

	mu       sync.Mutex
	known    map[string]*peer
	renewing map[string]bool // peers that have not accepted the last heartbeat
}

type peer struct {
	ready chan struct{} // closed once name or err is set
	name  transfer.Peer
	err   error

	meeting bool          // the delay of the first hand-off has begun; peers.mu guards it
	met     chan struct{} // closed once that delay is over
}

// get returns the peer, after a handshake if it is not known yet. Calls for the same peer share one handshake.
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
		// The socket of the real side channel also connects again until the timeout.
		if core.Sleep(ctx, handshakeRetry) != nil {
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

// forgetLost removes a peer if err says that its process has ended or was replaced, so that the next request does a handshake.
// It does nothing if another request has done one meanwhile.
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

func (ps *peers) startHeartbeat(engineID string) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.renewing[engineID] {
		return false
	}
	if ps.renewing == nil {
		ps.renewing = make(map[string]bool)
	}
	ps.renewing[engineID] = true
	return true
}

func (ps *peers) endHeartbeat(engineID string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.renewing, engineID)
}

// handshakeTime returns how long the first hand-off of a pair of engines is delayed: Config.KV.HandshakeTime, or else what the
// model says.
func (c *Config) handshakeTime() time.Duration {
	if c.KV.HandshakeTime > 0 {
		return c.KV.HandshakeTime
	}
	return time.Duration(float64(c.Model.HandshakeTime()) * c.TimeScale)
}

// meet is get for callers that read KV: the first hand-off of a peer is delayed, as its handshake delays it on real engines, and
// other hand-offs of the peer wait with it. An engine that was restarted has another id, and is another peer. Notifications are
// not delayed, because the delay of a real engine's notifications was not measured.
func (ps *peers) meet(ctx context.Context, from source) (*peer, error) {
	p, err := ps.get(ctx, from)
	if err != nil {
		return nil, err
	}
	ps.mu.Lock()
	first := !p.meeting
	p.meeting = true
	ps.mu.Unlock()
	if first {
		defer close(p.met)
		return p, core.Sleep(ctx, ps.cost)
	}
	select {
	case <-p.met:
		return p, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
