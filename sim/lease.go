package sim

import (
	"strconv"
	"strings"
	"time"
)

// heartbeatsPerLease is how often a decode engine says that it will come, per lease; each heartbeat is good for two
// thirds of one.
const heartbeatsPerLease = 6

// lease keeps the blocks of a finished prefill for their reader.
type lease struct {
	blocks  []*block
	expires time.Time
	readers int // notifications that have come
}

// leaseBook is every lease of an engine by request id, and the ids of recent ones that ran out.
type leaseBook struct {
	open    map[string]*lease
	expired map[string]struct{}
	order   []string // of expired, oldest first
	changed bool     // since nextExpiry was asked last
}

// maxExpired bounds what is remembered of leases that ran out. A read that comes after so many others is counted as
// unknown instead of stale.
const maxExpired = 4096

func newLeaseBook() *leaseBook {
	return &leaseBook{open: make(map[string]*lease), expired: make(map[string]struct{})}
}

// nextExpiry is asked between all steps, so it has to cost nothing while no lease changes: then it is not new.
func (b *leaseBook) nextExpiry() (next time.Time, ok, changed bool) {
	if !b.changed {
		return next, false, false
	}
	b.changed = false
	for _, l := range b.open {
		if !ok || l.expires.Before(next) {
			next, ok = l.expires, true
		}
	}
	return next, ok, true
}

func (b *leaseBook) rememberExpired(id string) {
	if len(b.order) == maxExpired {
		delete(b.expired, b.order[0])
		b.order = b.order[1:]
	}
	b.expired[id] = struct{}{}
	b.order = append(b.order, id)
}

// handOff turns a finished prefill into a lease and describes it for the decode engine.
func (e *Engine) handOff(s *sequence) *handoff {
	delete(e.live, s)
	l := &lease{blocks: s.blocks, expires: time.Now().Add(e.cfg.KV.Lease)}
	e.leases.open[s.id], e.leases.changed = l, true
	e.pool.pin(l.blocks)
	h := &handoff{
		DoRemotePrefill: true,
		RemoteBlockIDs:  [][]int{blockIDs(s.blocks)},
		RemoteEngineID:  e.identity.engineID, RemoteRequestID: s.id,
		RemoteHost: e.identity.host, RemotePort: e.identity.port,
		TPSize: 1, DCPSize: 1, PPSize: 1,
		RemoteNumTokens: s.computed,
		TransferMode:    "pull",
	}
	// The scheduler adds it for prefills of one token only.
	if s.generated() == 1 && !e.cfg.KV.OmitPrefillCachedTokens {
		h.RemotePrefillCachedTokens = &s.usage.cached
	}
	if s.fault.is(faultStale) {
		e.expire(s.id, l)
		e.overwriteFree(l.blocks)
	}
	return h
}

func blockIDs(blocks []*block) []int {
	ids := make([]int, len(blocks))
	for i, b := range blocks {
		ids[i] = b.id
	}
	return ids
}

// notified takes a message of a peer: "<request id>:<readers expected>" ends a lease, "HB:<id>,<id>" prolongs leases.
func (e *Engine) notified(message string) {
	if ids, ok := strings.CutPrefix(message, "HB:"); ok {
		for id := range strings.SplitSeq(ids, ",") {
			e.prolong(id, time.Now())
		}
		return
	}
	id, readers := message, 1
	if i := strings.LastIndexByte(message, ':'); i >= 0 {
		if n, err := strconv.Atoi(message[i+1:]); err == nil {
			id, readers = message[:i], n
		}
	}
	l, ok := e.leases.open[id]
	if !ok {
		e.metrics.add(notificationsAfterExpiry, 1)
		if _, late := e.leases.expired[id]; late {
			e.counts.stale++
		}
		e.log.Warn("KV read, or released, that no lease holds", "request", id)
		return
	}
	if l.readers++; l.readers >= readers {
		e.endLease(id, l)
		e.counts.released++
		e.counts.kvBytesReleased += int64(len(l.blocks) * e.kv.blockBytes())
	}
}

// prolong ignores ids it does not know, as the engine does.
func (e *Engine) prolong(id string, now time.Time) {
	if l, ok := e.leases.open[id]; ok {
		if until := now.Add(e.cfg.KV.Lease * 2 / 3); until.After(l.expires) {
			l.expires, e.leases.changed = until, true
		}
	}
}

func (e *Engine) expireLeases(now time.Time) {
	e.leases.changed = true // the timer has to be set again, whatever is found
	for id, l := range e.leases.open {
		if !l.expires.After(now) {
			e.expire(id, l)
		}
	}
}

func (e *Engine) expire(id string, l *lease) {
	e.endLease(id, l)
	e.leases.rememberExpired(id)
	e.counts.expired++
	e.metrics.add(kvExpired, 1)
	e.log.Warn("lease ran out before the KV was read", "request", id)
}

func (e *Engine) endLease(id string, l *lease) {
	delete(e.leases.open, id)
	e.leases.changed = true
	e.pool.unpin(l.blocks)
	e.pool.release(l.blocks)
}

// overwriteFree has those of the blocks that no sequence holds reused at once, by a made-up prompt.
func (e *Engine) overwriteFree(blocks []*block) {
	foreign := make([]int, e.cfg.KV.BlockSize)
	for i := range foreign {
		foreign[i] = tokenEOS
	}
	for _, b := range blocks {
		if b.refs > 0 {
			continue
		}
		e.pool.uncache(b)
		if err := e.kv.compute([]*block{b}, foreign, 0); err != nil {
			e.die(err)
		}
	}
}
