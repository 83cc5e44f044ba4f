package kvindex

import "errors"

// Tier is a kind of memory in which an engine keeps blocks. Faster ones come first.
type Tier uint8

// The tiers.
const (
	GPU  Tier = iota // the accelerator's memory
	CPU              // the host's memory
	Disk             // disks of the host
	Tiers
)

// tierSet is a set of tiers, as bits.
type tierSet uint8

func (t Tier) set() tierSet { return 1 << t }

// upTo returns a tier and all faster ones.
func (t Tier) upTo() tierSet { return 2<<t - 1 }

// A holder has one number for each tier that it uses. What the shares of a number have is in that tier or in a faster one, so the leading
// blocks of the number are what the engine has without a gap, when it also takes blocks from there.

// uses reports whether the holder has ever had a block in a tier.
func (h *Holder) uses(t Tier) bool { return h.numbers[t].Load() != none }

// use gives the holder a number for a tier that it has not used. That takes some 50 ns for each block that it has in faster ones.
func (h *Holder) use(t Tier) {
	if h.uses(t) {
		return
	}
	h.numbers[t].Store(h.index.number())
	c := h.cursor()
	for _, s := range h.table.slots {
		if s.place != 0 && s.place.tiers()&t.upTo() != 0 {
			c.run, c.off = h.index.runs[s.place.run()], s.place.offset()
			c.hold(t)
		}
	}
}

// cursor returns a cursor before the first block.
func (h *Holder) cursor() cursor {
	c := cursor{x: h.index}
	for t := range h.numbers {
		c.holder[t] = h.numbers[t].Load()
	}
	return c
}

// enter adds the block at the cursor, which was in these tiers, to the shares of a tier and of slower ones.
func (h *Holder) enter(c *cursor, had tierSet, t Tier) {
	for ; t < Tiers; t++ {
		if c.holder[t] != none && had&t.upTo() == 0 {
			c.hold(t)
		}
	}
}

// ErrUnknown means that a block is not known by its name.
var ErrUnknown = errors.New("the block is not known by its name")

// Keep notes that the holder has a block in a tier, by the name under which another one, or itself, has it already in any tier. Where keys
// are names, no holder needs to have it; the error is then never ErrUnknown.
func (h *Holder) Keep(t Tier, name uint64, as *Holder) error {
	x := h.index
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sweep(1)
	if !h.uses(GPU) {
		return ErrLeft
	}
	where := as.table.get(name)
	if h.table.get(name) == 0 {
		if where == 0 && !x.Named() {
			return ErrUnknown
		}
		if x.crowded(t) {
			return ErrFull
		}
		if where == 0 {
			c := h.cursor()
			c.move(keyOf(name), 1)
			where = at(c.run.number, c.off)
		}
	}
	h.keep(t, name, where)
	return nil
}

// keep notes that a block is in a tier. where is its place, unless the holder knows it by the name.
func (h *Holder) keep(t Tier, name uint64, where place) {
	h.use(t)
	slot := h.table.slot(name)
	known := slot.place != 0
	if known {
		where = slot.place
	}
	had := slot.place.tiers()
	if had&t.set() != 0 {
		return
	}
	c := h.cursor()
	c.run, c.off = h.index.runs[where.run()], where.offset()
	if !known {
		if c.has(t) || h.hasBelow(&c, t) {
			return // the holder has the block by another name
		}
		h.table.fill(slot, name, where.key().with(t.set()))
		h.size.Add(1)
		h.index.blocks.Add(1)
	} else {
		slot.place = where.with(had | t.set())
	}
	h.in[t].Add(1)
	h.enter(&c, had, t)
}

// crowded reports whether the index has no space for a block that is in no faster tier than this one. Some is left for those in faster
// ones: stores on disks may be large, and not every one tells what it drops.
func (x *Index) crowded(t Tier) bool {
	limit := x.limit
	if t == Disk {
		limit -= limit / 4
	}
	return x.blocks.Load() >= limit
}

// removals is how many blocks are removed at a time, so that other changes of the index do not wait long.
const removals = 256

// Remove notes that the holder has dropped blocks from a tier, in this order, and returns how many of them it had there. Many at once take less
// time for each than one alone.
func (h *Holder) Remove(t Tier, names ...uint64) (removed int) {
	for len(names) > 0 {
		n := min(len(names), removals)
		removed += h.removePart(t, names[:n])
		names = names[n:]
	}
	return removed
}

func (h *Holder) removePart(t Tier, names []uint64) (removed int) {
	x := h.index
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sweep(len(names))
	h.table.fetch(names)
	for _, name := range names {
		if h.remove(t, name) {
			removed++
		}
	}
	return removed
}

// remove removes a block from a tier, and reports whether it was there.
func (h *Holder) remove(t Tier, name uint64) bool {
	x := h.index
	where := h.table.get(name)
	had := where.tiers()
	if had&t.set() == 0 {
		return false
	}
	left := had &^ t.set()
	if left == 0 || left == Disk.set() && x.crowded(Disk) {
		h.drop(name)
		return true
	}
	slot := h.table.slot(name)
	slot.place = where.with(left)
	h.in[t].Add(-1)
	for k := t; k < Tiers && left&k.upTo() == 0; k++ {
		h.lose(where, k)
	}
	return true
}

// lose removes a block from the shares of a tier's number, if the holder has one.
func (h *Holder) lose(where place, t Tier) {
	number := h.numbers[t].Load()
	if number == none {
		return
	}
	r := h.index.runs[where.run()]
	i := r.find(number)
	r.shares[i].remove(where.offset())
	h.index.leave(r, i)
}

// ClearTier makes the holder have nothing in a tier. Of what it has in others it takes some 100 ns for each block.
func (h *Holder) ClearTier(t Tier) {
	x := h.index
	x.mu.Lock()
	defer x.mu.Unlock()
	defer x.sweep(turn)
	if !h.uses(GPU) || !h.uses(t) || h.in[t].Load() == 0 {
		return
	}
	before := h.table.slots
	if h.in[GPU].Load()+h.in[CPU].Load()+h.in[Disk].Load() == h.in[t].Load() {
		before = nil // it has nothing else
	}
	h.retire(x.number())
	for _, s := range before {
		left := s.place.tiers() &^ t.set()
		for k := GPU; k < Tiers; k++ {
			if left&k.set() != 0 {
				h.keep(k, s.name, s.place.key())
			}
		}
	}
}
