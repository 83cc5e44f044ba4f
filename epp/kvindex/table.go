package kvindex

import (
	"math/bits"
	"runtime"
	"sync/atomic"
)

// place is where a key is: the number of its run, which is not 0, and its offset there. In a table it also has the tiers of the block.
type place uint64

// offsetBits is the size of offsets. Behind the last one a chain goes on in another run.
const (
	offsetBits = 28
	lastOffset = 1<<offsetBits - 1
)

func at(run, offset uint32) place { return place(run)<<32 | place(offset) }

func (p place) run() uint32              { return uint32(p >> 32) }
func (p place) offset() uint32           { return uint32(p) & lastOffset }
func (p place) tiers() tierSet           { return tierSet(uint32(p) >> offsetBits) }
func (p place) key() place               { return p &^ (0xf << offsetBits) }
func (p place) with(tiers tierSet) place { return p.key() | place(tiers)<<offsetBits }

// table finds the place of a block by the name that its engine gave it. It uses linear probing, and is at most three
// quarters full.
type table struct {
	slots []slot
	shift uint
	count int
}

type slot struct {
	name  uint64
	place place // 0 = the slot is empty
}

// home returns the slot at which the search for a name begins. Names are spread, because some are numbers that grow.
func (t *table) home(name uint64) int { return int((name * mix1) >> t.shift) }

// find returns the slot of a name, or the empty one where it belongs. The table has slots.
func (t *table) find(name uint64) int {
	i := t.home(name)
	for t.slots[i].place != 0 && t.slots[i].name != name {
		i = (i + 1) & (len(t.slots) - 1)
	}
	return i
}

func (t *table) get(name uint64) place {
	if t.count == 0 {
		return 0
	}
	return t.slots[t.find(name)].place
}

// fetch brings the slots of names into the processor's cache. Their addresses do not depend on one another, so the processor reads several from
// memory at the same time, where a change of each block after the other waits for every one.
func (t *table) fetch(names []uint64) {
	if len(t.slots) == 0 || len(names) < 2 {
		return
	}
	var all uint64
	for _, name := range names {
		all |= t.slots[t.home(name)].name
	}
	runtime.KeepAlive(all)
}

// slot returns the slot of a name, which is empty if the table does not have it, and makes space for it. The result is valid until the
// next change.
func (t *table) slot(name uint64) *slot {
	if t.count+1 > len(t.slots)/4*3 {
		t.grow()
	}
	return &t.slots[t.find(name)]
}

// fill fills an empty slot of a name.
func (t *table) fill(s *slot, name uint64, p place) {
	*s = slot{name, p}
	t.count++
}

func (t *table) grow() {
	old := t.slots
	t.slots = make([]slot, max(16, 2*len(old)))
	t.shift = uint(64 - bits.TrailingZeros(uint(len(t.slots))))
	for _, s := range old {
		if s.place != 0 {
			t.slots[t.find(s.name)] = s
		}
	}
}

// remove removes a name and returns its place. It moves the slots behind it that would not be found across a gap.
func (t *table) remove(name uint64) place {
	if t.count == 0 {
		return 0
	}
	gap := t.find(name)
	p := t.slots[gap].place
	if p == 0 {
		return 0
	}
	t.count--
	mask := len(t.slots) - 1
	for i := (gap + 1) & mask; t.slots[i].place != 0; i = (i + 1) & mask {
		if (i-t.home(t.slots[i].name))&mask >= (i-gap)&mask {
			t.slots[gap], gap = t.slots[i], i
		}
	}
	t.slots[gap] = slot{}
	return p
}

// places finds the places of keys that are names. It is in parts, so that a change waits for one of them to grow, not for all. A nil one keeps
// nothing.
type places struct {
	index *Index
	parts [256]placePart
}

// placePart is a table like the one of names, without the keys: they are in the runs, so a slot takes half as much. In place of tiers a slot
// has four bits of its key, so that few runs of other keys are looked at.
type placePart struct {
	slots []place // 0 = the slot is empty
	shift uint
	count int
}

// tag is what a slot has of a key, the bits of which are spread evenly.
func tag(key Key) tierSet { return tierSet(key & 0xf) }

func (t *placePart) home(key Key) int { return int((key * mix1) >> t.shift) }

// find returns the slot of a key, or the empty one where it belongs. The part has slots.
func (p *places) find(t *placePart, key Key) int {
	i := t.home(key)
	for t.slots[i] != 0 && (t.slots[i].tiers() != tag(key) || p.index.keyAt(t.slots[i]) != key) {
		i = (i + 1) & (len(t.slots) - 1)
	}
	return i
}

// keyAt returns the key at a place.
func (x *Index) keyAt(p place) Key { return x.runs[p.run()].keys[p.offset()] }

func (p *places) part(key Key) *placePart { return &p.parts[key>>56] }

// get returns the place of a key, 0 if it has none.
func (p *places) get(key Key) place {
	t := p.part(key)
	if t.count == 0 {
		return 0
	}
	return t.slots[p.find(t, key)].key()
}

// put notes the place of a key that has none, and is there already.
func (p *places) put(key Key, where place) {
	if p == nil {
		return
	}
	t := p.part(key)
	if t.count+1 > len(t.slots)/4*3 {
		p.grow(t)
	}
	t.slots[p.find(t, key)] = where.with(tag(key))
	t.count++
}

func (p *places) grow(t *placePart) {
	old := t.slots
	t.slots = make([]place, max(16, 2*len(old)))
	t.shift = uint(64 - bits.TrailingZeros(uint(len(t.slots))))
	for _, at := range old {
		if at != 0 {
			t.slots[p.find(t, p.index.keyAt(at))] = at
		}
	}
}

// remove removes keys, which are still at their places. It moves the slots behind them that would not be found across a gap.
func (p *places) remove(keys []Key) {
	if p == nil {
		return
	}
	for _, key := range keys {
		t := p.part(key)
		gap := p.find(t, key)
		t.count--
		mask := len(t.slots) - 1
		for i := (gap + 1) & mask; t.slots[i] != 0; i = (i + 1) & mask {
			if (i-t.home(p.index.keyAt(t.slots[i])))&mask >= (i-gap)&mask {
				t.slots[gap], gap = t.slots[i], i
			}
		}
		t.slots[gap] = 0
	}
}

// heads finds runs by their first key. Readers take no lock: a slot's key is written once, and a table that is too full is
// replaced by another one.
type heads struct {
	parts [256]atomic.Pointer[headTable]
}

type headTable struct {
	slots []headSlot
	used  int // slots that have a key, also of runs that are gone
	live  int
}

type headSlot struct {
	key atomic.Uint64 // 0 = the slot is empty
	run atomic.Pointer[run]
}

// part returns the part of a key. The bits of a key are spread evenly.
func (h *heads) part(key Key) *atomic.Pointer[headTable] { return &h.parts[key>>56] }

func (t *headTable) find(key Key) *headSlot {
	mask := len(t.slots) - 1
	for i := int(key) & mask; ; i = (i + 1) & mask {
		if k := t.slots[i].key.Load(); k == key || k == 0 {
			return &t.slots[i]
		}
	}
}

// get returns the run that begins with a key, nil if there is none.
func (h *heads) get(key Key) *run {
	t := h.part(key).Load()
	if t == nil {
		return nil
	}
	return t.find(key).run.Load()
}

// fetch brings the slots of keys into the processor's cache.
func (h *heads) fetch(keys []Key) {
	if len(keys) < 2 {
		return
	}
	var all uint64
	for _, key := range keys {
		if t := h.part(key).Load(); t != nil {
			all |= t.slots[int(key)&(len(t.slots)-1)].key.Load()
		}
	}
	runtime.KeepAlive(all)
}

// put makes a run the one that begins with its first key.
func (h *heads) put(key Key, r *run) {
	part := h.part(key)
	t := part.Load()
	if t == nil || t.used+1 > len(t.slots)/4*3 {
		t = t.rebuild()
		part.Store(t)
	}
	s := t.find(key)
	if s.run.Load() == nil {
		t.live++
	}
	s.run.Store(r)
	if s.key.Load() == 0 {
		t.used++
		s.key.Store(key)
	}
}

// rebuild returns a copy with space, without the keys of runs that are gone.
func (t *headTable) rebuild() *headTable {
	if t == nil {
		return &headTable{slots: make([]headSlot, 8)}
	}
	size := 8
	for size < 2*(t.live+1) {
		size *= 2
	}
	next := &headTable{slots: make([]headSlot, size), used: t.live, live: t.live}
	for i := range t.slots {
		if r := t.slots[i].run.Load(); r != nil {
			key := t.slots[i].key.Load()
			s := next.find(key)
			s.run.Store(r)
			s.key.Store(key)
		}
	}
	return next
}

// remove removes the run that begins with a key.
func (h *heads) remove(key Key) {
	t := h.part(key).Load()
	t.find(key).run.Store(nil)
	t.live--
}
