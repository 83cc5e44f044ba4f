package sim

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/metrics"
	"github.com/tandem-serving/tandem/sim/model"
)

// heartbeatsPerLease is how many heartbeats a decode engine sends in the time of one lease, for KV that it has not read yet. Each
// heartbeat renews the lease for two thirds of that time.
const heartbeatsPerLease = 6

// lease holds the blocks of a finished prefill for the decode engine that will read them.
type lease struct {
	blocks  []*kv.Block
	expires time.Time
	readers int // notifications that have arrived
}

// leases are the leases of an engine by request id, and the ids of those that expired recently.
type leases struct {
	open    map[string]*lease
	expired map[string]struct{}
	order   []string // of expired, oldest first
	changed bool     // since the last call of nextExpiry
}

// maxExpired bounds how many ids of expired leases are stored. A read of a lease that expired before these is counted as
// unknown instead of stale.
const maxExpired = 4096

func newLeases() *leases {
	return &leases{open: make(map[string]*lease), expired: make(map[string]struct{})}
}

// nextExpiry returns when the next lease expires; ok is false if there is none. changed is false, and the rest is not set, if
// no lease has changed since the last call: the loop calls nextExpiry between all steps, so it must be cheap.
func (l *leases) nextExpiry() (next time.Time, ok, changed bool) {
	if !l.changed {
		return next, false, false
	}
	l.changed = false
	for _, one := range l.open {
		if !ok || one.expires.Before(next) {
			next, ok = one.expires, true
		}
	}
	return next, ok, true
}

func (l *leases) noteExpired(id string) {
	if len(l.order) == maxExpired {
		delete(l.expired, l.order[0])
		l.order = l.order[1:]
	}
	l.expired[id] = struct{}{}
	l.order = append(l.order, id)
}

// handOff turns a finished prefill into a lease and describes it for the decode engine.
func (c *connector) handOff(s *core.Sequence) *Handoff {
	c.core.Forget(s)
	l := &lease{blocks: s.Blocks, expires: time.Now().Add(c.cfg.KV.Lease)}
	c.leases.open[s.ID], c.leases.changed = l, true
	c.core.Pool().Pin(l.blocks)
	h := &Handoff{
		DoRemotePrefill: true,
		RemoteBlockIDs:  [][]int{kv.IDs(s.Blocks)},
		RemoteEngineID:  c.identity.engineID, RemoteRequestID: s.ID,
		RemoteHost: c.identity.host, RemotePort: c.identity.port,
		TPSize: 1, DCPSize: 1, PPSize: 1,
		RemoteNumTokens: s.Computed,
		TransferMode:    "pull", RemoteBlocksExpiryTime: json.RawMessage("null"),
	}
	if c.cfg.KV.Push {
		h.TransferMode, h.RemoteBlocksExpiryTime = "push", nil
	}
	// The real scheduler adds it for prefills of one token only.
	if s.Generated() == 1 && !c.cfg.KV.OmitPrefillCachedTokens {
		h.RemotePrefillCachedTokens = &s.Usage.Cached
	}
	if legOf(s).stale {
		c.expire(s.ID, l)
		c.overwriteFree(l.blocks)
	}
	if c.cfg.KV.Push {
		c.prefilled(s.ID)
	}
	return h
}

// notified takes a peer's message: "<request id>:<readers expected>" ends a lease, "HB:<id>,<id>" renews leases. Those of push.go
// are told by their beginnings.
func (c *connector) notified(message string) {
	if c.cfg.KV.Push && c.pushNotified(message) {
		return
	}
	if ids, ok := strings.CutPrefix(message, "HB:"); ok {
		for id := range strings.SplitSeq(ids, ",") {
			c.renewLease(id, time.Now())
		}
		return
	}
	id, readers := message, 1
	if i := strings.LastIndexByte(message, ':'); i >= 0 {
		if n, err := strconv.Atoi(message[i+1:]); err == nil {
			id, readers = message[:i], n
		}
	}
	l, ok := c.leases.open[id]
	if !ok {
		c.metrics.Add(metrics.NotificationsAfterExpiry, 1)
		if _, late := c.leases.expired[id]; late {
			c.counts.stale++
		}
		c.log.Warn("notification for a request without a lease", "request", id)
		return
	}
	if l.readers++; l.readers >= readers {
		c.endLease(id, l)
		c.counts.released++
		c.counts.kvBytesReleased += int64(len(l.blocks) * c.kv.BlockBytes())
	}
}

// renewLease renews a lease. It ignores ids that it does not know, as the real engine does.
func (c *connector) renewLease(id string, now time.Time) {
	if l, ok := c.leases.open[id]; ok {
		if until := now.Add(c.cfg.KV.Lease * 2 / 3); until.After(l.expires) {
			l.expires, c.leases.changed = until, true
		}
	}
}

func (c *connector) expireLeases(now time.Time) {
	c.leases.changed = true // the timer has fired, and has to be set again
	for id, l := range c.leases.open {
		if !l.expires.After(now) {
			c.expire(id, l)
		}
	}
}

func (c *connector) expire(id string, l *lease) {
	c.endLease(id, l)
	c.leases.noteExpired(id)
	c.counts.expired++
	c.metrics.Add(metrics.KVExpired, 1)
	c.log.Warn("lease expired before the KV was read", "request", id)
}

func (c *connector) endLease(id string, l *lease) {
	delete(c.leases.open, id)
	c.leases.changed = true
	c.core.Pool().Unpin(l.blocks)
	c.core.Pool().Release(l.blocks)
}

// overwriteFree writes the KV of a made-up prompt into those of the blocks that no sequence holds.
func (c *connector) overwriteFree(blocks []*kv.Block) {
	foreign := make([]int, c.cfg.KV.BlockSize)
	for i := range foreign {
		foreign[i] = model.EOS
	}
	for _, b := range blocks {
		if b.Held() {
			continue
		}
		c.core.Pool().Uncache(b)
		if err := c.kv.Compute([]*kv.Block{b}, foreign, 0); err != nil {
			c.core.Die(err)
		}
	}
}
