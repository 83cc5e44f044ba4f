package affinity

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// bindings are the endpoints of sessions. Clients choose the names of sessions, so only their hashes are kept, and no more than
// the size. An endpoint that has left the pool is no candidate any more, so its bindings need not be removed. It is safe for
// concurrent use.
type bindings struct {
	seed maphash.Seed
	mu   sync.Mutex
	by   map[uint64]*binding
	old  binding // the root of a ring of all bindings: next is the one that was used last, previous the one that was not for longest
}

type binding struct {
	key            uint64
	endpoint       *epp.Endpoint
	used           time.Time
	next, previous *binding
}

func newBindings() *bindings {
	b := &bindings{seed: maphash.MakeSeed(), by: make(map[uint64]*binding)}
	b.old.next, b.old.previous = &b.old, &b.old
	return b
}

// get returns the endpoint of a session, nil if it has none or was not used within ttl. It counts as a use.
func (b *bindings) get(session string, now time.Time, ttl time.Duration) *epp.Endpoint {
	key := maphash.String(b.seed, session)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expire(now, ttl)
	one := b.by[key]
	if one == nil {
		return nil
	}
	b.use(one, now)
	return one.endpoint
}

// set binds a session to an endpoint. If there are more than size sessions then, it forgets the one not used for longest.
func (b *bindings) set(session string, e *epp.Endpoint, now time.Time, ttl time.Duration, size int) {
	key := maphash.String(b.seed, session)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expire(now, ttl)
	one := b.by[key]
	if one == nil {
		one = &binding{key: key}
		one.next, one.previous = one, one
		b.by[key] = one
	}
	one.endpoint = e
	b.use(one, now)
	for len(b.by) > size {
		b.remove(b.old.previous)
	}
}

// expire removes the bindings that were not used within ttl. They are at the end of the ring, so no sweep is needed.
func (b *bindings) expire(now time.Time, ttl time.Duration) {
	for last := b.old.previous; last != &b.old && now.Sub(last.used) > ttl; last = b.old.previous {
		b.remove(last)
	}
}

// use moves a binding to the front of the ring.
func (b *bindings) use(one *binding, now time.Time) {
	one.used = now
	one.previous.next, one.next.previous = one.next, one.previous
	one.previous, one.next = &b.old, b.old.next
	one.next.previous, b.old.next = one, one
}

func (b *bindings) remove(one *binding) {
	one.previous.next, one.next.previous = one.next, one.previous
	delete(b.by, one.key)
}
