package prefix

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tandem-serving/tandem/epp"
)

// MaxSlots is how many endpoints an Index distinguishes. An endpoint whose slot is not below it is never matched.
const MaxSlots = 1 << 14

// Index records which endpoints hold which blocks. The zero value is empty. An Index is safe for concurrent use.
//
// A slot belongs to the endpoint for which Add was called last. Other endpoints with the same slot match nothing.
type Index struct {
	groups    [MaxSlots / places]atomic.Pointer[group]
	blocks    atomic.Int64
	evictions atomic.Int64
}

// group is the endpoints that share a tree.
type group struct {
	endpoints [places]atomic.Pointer[epp.Endpoint] // changed under mu
	mu        sync.RWMutex
	tree      tree
}

// group returns the group of a slot and the slot's place in it. g is nil if the group does not exist.
func (x *Index) group(slot int) (g *group, place int) {
	if uint(slot) >= MaxSlots {
		return nil, 0
	}
	return x.groups[slot/places].Load(), slot % places
}

// open returns the group of a slot, and makes it if it does not exist. slot is below MaxSlots.
func (x *Index) open(slot int) (g *group, place int) {
	at := &x.groups[slot/places]
	if at.Load() == nil {
		at.CompareAndSwap(nil, new(group))
	}
	return at.Load(), slot % places
}

// Match sets Cached of every candidate to the tokens of the leading blocks that it holds. tokens is the length of a block.
func (x *Index) Match(blocks []uint64, tokens int, c []epp.Candidate) {
	// The candidates of a group form a list: first has the number, from 1, of its head, and each Cached that of the next.
	var first [MaxSlots / places]int32
	groups := 0
	for i := range c {
		slot := c[i].Slot
		c[i].Cached = 0
		if g, place := x.group(slot); g == nil || g.endpoints[place].Load() != c[i].Endpoint {
			continue
		}
		at := &first[slot/places]
		c[i].Cached, *at = int(*at), int32(i+1)
		groups = max(groups, slot/places+1)
	}
	for i, n := range first[:groups] {
		if n != 0 {
			x.groups[i].Load().match(blocks, tokens, c, int(n))
		}
	}
}

// match does Match for the list of candidates whose head has number n.
func (g *group) match(blocks []uint64, tokens int, c []epp.Candidate, n int) {
	var want uint64
	for i := n; i != 0; i = c[i-1].Cached {
		want |= 1 << (c[i-1].Slot % places)
	}
	var depth [places]int
	g.mu.RLock()
	g.tree.measure(blocks, want, &depth)
	g.mu.RUnlock()
	for i := n; i != 0; {
		at := &c[i-1]
		i, at.Cached = at.Cached, tokens*depth[at.Slot%places]
	}
}

// Add records that an endpoint holds the blocks of a prompt, as its most recent ones. capacity is the most blocks that it can
// hold; the oldest blocks above that are dropped, also if capacity has shrunk.
func (x *Index) Add(e *epp.Endpoint, blocks []uint64, capacity int) {
	if uint(e.Slot) >= MaxSlots {
		return
	}
	capacity = max(capacity, 0)
	blocks = blocks[:min(len(blocks), capacity)]
	g, place := x.open(e.Slot)
	g.mu.RLock()
	known := g.tree.known(blocks)
	g.mu.RUnlock()
	end := slices.Clone(blocks[known:]) // outside the lock

	g.mu.Lock()
	defer g.mu.Unlock()
	if g.endpoints[place].Load() != e {
		g.endpoints[place].Store(nil)
		x.shrink(g, place, 0)
		g.endpoints[place].Store(e)
	}
	// The new blocks are the youngest, so the order of adding and dropping does not matter.
	x.blocks.Add(int64(g.tree.hold(place, blocks, end)))
	x.evictions.Add(int64(x.shrink(g, place, capacity)))
}

// EndpointJoined implements epp.EndpointObserver. The index learns of an endpoint at its first prompt.
func (x *Index) EndpointJoined(*epp.Endpoint) {}

// EndpointLeft implements epp.EndpointObserver: the endpoint holds nothing any more. Another one may then get its slot.
func (x *Index) EndpointLeft(e *epp.Endpoint) {
	g, place := x.group(e.Slot)
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.endpoints[place].Load() == e {
		g.endpoints[place].Store(nil) // from now on, Match finds nothing for it
		x.shrink(g, place, 0)
	}
}

// shrink removes the oldest blocks of a slot until size are left, and returns how many. The caller holds the lock, which
// shrink releases from time to time.
func (x *Index) shrink(g *group, place, size int) (lost int) {
	for {
		n, done := g.tree.shrink(place, size)
		x.blocks.Add(-int64(n))
		lost += n
		if done {
			return lost
		}
		g.mu.Unlock()
		g.mu.Lock()
	}
}
