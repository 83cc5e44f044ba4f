package kvindex

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	// reach is how many runs of a chain are followed: clients may send prompts from which others branch at each block.
	reach = 1024
	// turn is how many slots of a cleared holder's table a change cleans up.
	turn = 256
	// shortest is the number of keys below which a run is not made smaller.
	shortest = 64
)

// Index is what all holders have. Its methods and those of its holders are safe for concurrent use.
type Index struct {
	seed  Seed
	limit int64 // blocks, each counted for each of its holders

	heads  heads
	top    atomic.Uint32 // numbers of holders are below it
	blocks atomic.Int64

	mu      sync.Mutex // held for every change
	runs    []*run     // by number; nil = free
	free    []uint32   // numbers of runs
	numbers []uint32   // of holders that are cleaned up
	retired []retired
}

// retired is what a holder has left behind.
type retired struct {
	number  uint32
	slots   []slot   // of its table
	claimed []uint32 // runs
}

// New returns an empty index. limit is the most blocks that it keeps, each counted for each of its holders.
func New(seed Seed, limit int64) *Index {
	return &Index{seed: seed, limit: limit, runs: make([]*run, 1)}
}

// Seed returns the seed of the keys.
func (x *Index) Seed() Seed { return x.seed }

// Blocks returns the number of blocks, each counted for each of its holders. Claims are not counted.
func (x *Index) Blocks() int64 { return x.blocks.Load() }

// Holder is one KV cache: of an engine, or of one of its ranks.
type Holder struct {
	index   *Index
	number  atomic.Uint32
	size    atomic.Int64
	table   table
	claimed []uint32 // runs
}

// Join returns a new holder, which has no blocks.
func (x *Index) Join() *Holder {
	x.mu.Lock()
	defer x.mu.Unlock()
	h := &Holder{index: x}
	h.number.Store(x.number())
	return h
}

// number returns a number that no holder has and no run mentions.
func (x *Index) number() uint32 {
	if n := len(x.numbers); n > 0 {
		number := x.numbers[n-1]
		x.numbers = x.numbers[:n-1]
		return number
	}
	return x.top.Add(1) - 1
}

// Len returns the number of blocks that the holder has. Claims are not counted.
func (h *Holder) Len() int { return int(h.size.Load()) }

// none is the number of holders that have left.
const none = ^uint32(0)

// Clear makes the holder have nothing.
func (h *Holder) Clear() {
	x := h.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if h.number.Load() != none && len(h.table.slots)+len(h.claimed) > 0 {
		h.retire(x.number())
	}
	x.sweep(turn)
}

// Leave makes the holder have nothing for ever.
func (h *Holder) Leave() {
	x := h.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if h.number.Load() != none {
		h.retire(none)
	}
	x.sweep(turn)
}

// retire gives the holder another number. What it had belongs to the old one, for which no reader asks any more.
func (h *Holder) retire(number uint32) {
	x := h.index
	x.retired = append(x.retired, retired{h.number.Load(), h.table.slots, h.claimed})
	h.number.Store(number)
	x.blocks.Add(-h.size.Swap(0))
	h.table, h.claimed = table{}, nil
}

// Stored is blocks that a holder has now.
type Stored struct {
	Names  []uint64 // the engine's, in the order of the prompt
	First  bool     // the first block is that of a prompt
	Parent uint64   // else the name of the block before the first one
	Root   Key      // of a first block: what Seed.Root returned
	// Tokens are the token ids of all blocks, which have the same length.
	Tokens []uint32
	Extras []uint64 // what each block depends on beside its tokens; nil = nothing
}

// What Store returns.
var (
	ErrForm   = errors.New("the tokens or extras are not those of the blocks")
	ErrParent = errors.New("the block before the first one is not known")
	ErrFull   = errors.New("the index is full")
	ErrLeft   = errors.New("the holder has left")
)

// Store notes blocks that the holder has, or changes nothing and returns one of the errors above. A second name of a block is ignored.
func (h *Holder) Store(s *Stored) error {
	each := len(s.Tokens) / max(len(s.Names), 1)
	if each == 0 || each*len(s.Names) != len(s.Tokens) || s.Extras != nil && len(s.Extras) != len(s.Names) {
		return ErrForm
	}
	x := h.index
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sweep(turn)
	if x.blocks.Load()+int64(len(s.Names)) > x.limit {
		return ErrFull
	}
	c := cursor{x: x, holder: h.number.Load()}
	if c.holder == none {
		return ErrLeft
	}
	key := s.Root
	if !s.First {
		parent := h.table.get(s.Parent)
		if parent == 0 {
			return ErrParent
		}
		c.run, c.off = x.runs[parent.run()], parent.offset()
		key = c.run.keys[c.off]
	}
	for i, name := range s.Names {
		var extra uint64
		if s.Extras != nil {
			extra = s.Extras[i]
		}
		key = x.seed.Next(key, s.Tokens[i*each:(i+1)*each], extra)
		c.move(key, len(s.Names)-i)
		here, slot := at(c.run.number, c.off), h.table.slot(name)
		fresh := c.hold()
		if slot.place != 0 && (fresh || slot.place != here) { // the name was that of another block
			h.drop(name)
			c.again()
			slot = h.table.slot(name)
		}
		if !fresh {
			continue
		}
		h.table.fill(slot, name, here)
		h.size.Add(1)
		x.blocks.Add(1)
	}
	return nil
}

// Remove notes that the holder has dropped a block, and reports whether it had it.
func (h *Holder) Remove(name uint64) bool {
	x := h.index
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sweep(1)
	return h.drop(name)
}

// drop removes a name and its block. The holder has the block of every name in its table.
func (h *Holder) drop(name uint64) bool {
	x := h.index
	where := h.table.remove(name)
	if where == 0 {
		return false
	}
	r := x.runs[where.run()]
	i := r.find(h.number.Load())
	r.shares[i].remove(where.offset())
	h.size.Add(-1)
	x.blocks.Add(-1)
	x.leave(r, i)
	return true
}

// Has reports whether the holder has a block by its engine's name.
func (h *Holder) Has(name uint64) bool {
	h.index.mu.Lock()
	defer h.index.mu.Unlock()
	return h.table.get(name) != 0
}

// Claim notes blocks that the holder will have soon, or is taken to have, by their keys. Only Clear removes them, so a holder
// of claims must not be that of engine's blocks.
func (h *Holder) Claim(chain []Key) {
	x := h.index
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sweep(turn)
	c := cursor{x: x, holder: h.number.Load()}
	if c.holder == none {
		return
	}
	for len(chain) > 0 {
		c.move(chain[0], len(chain))
		if c.share() < 0 {
			c.join()
			h.claimed = append(h.claimed, c.run.number)
		}
		n := 1
		if c.off == 0 {
			n = c.run.common(chain)
		}
		c.off += uint32(n - 1)
		if s := &c.run.shares[c.index]; uint32(s.word) <= c.off {
			s.store(c.holder, c.off+1)
		}
		chain = chain[n:]
	}
}

// cursor goes along a chain and holds its blocks.
type cursor struct {
	x      *Index
	holder uint32
	run    *run // nil = before the first block
	off    uint32
	in     *run // the run whose share is at index
	index  int
}

// move goes to the place of the next key, and makes it if there is none. ahead is how many keys are to follow, with this one.
func (c *cursor) move(key Key, ahead int) {
	x := c.x
	if r := c.run; r != nil {
		if c.off+1 < r.n.Load() && r.keys[c.off+1] == key {
			c.off++
			return
		}
	}
	// A run that begins with the key may be older than the one before it, which was dropped and came back.
	if r := x.heads.get(key); r != nil {
		c.run, c.off = r, 0
		return
	}
	r := c.run
	if r == nil || c.off+1 < r.n.Load() {
		c.run, c.off = x.begin(key, ahead), 0
		return
	}
	c.off++
	if int(c.off) == len(r.keys) {
		keys := make([]Key, len(r.keys)+max(ahead, len(r.keys)/2))
		copy(keys, r.keys)
		c.run = x.replace(r, keys, r.shares)
		r = c.run
		if c.in != nil {
			c.in = r
		}
	}
	r.keys[c.off] = key
	r.n.Store(c.off + 1)
}

// again finds the run again, which may have been replaced. The holder has the block at the cursor, so it is where it was.
func (c *cursor) again() {
	c.run, c.in = c.x.runs[c.run.number], nil
}

// share returns the index of the holder's share of the run, or -1.
func (c *cursor) share() int {
	if c.in != c.run {
		c.in, c.index = c.run, c.run.find(c.holder)
	}
	if c.index >= 0 && c.run.shares[c.index].empty() {
		return -1
	}
	return c.index
}

// hold adds the block at the cursor to what the holder has, and reports whether it is new there.
func (c *cursor) hold() bool {
	if c.share() < 0 {
		c.join()
	}
	return c.run.shares[c.index].add(c.off)
}

// join gives the holder a share of the run, in place of an empty one if there is any.
func (c *cursor) join() {
	r := c.run
	n := int(r.holders.Load())
	r.live++
	if c.index < 0 && int(r.live) <= n {
		c.index = slices.IndexFunc(r.shares[:n], func(s share) bool { return s.empty() })
	}
	if c.index >= 0 {
		r.shares[c.index].store(c.holder, 0)
		return
	}
	if n == len(r.shares) {
		shares := make([]share, n+max(1, n/2))
		copy(shares, r.shares)
		r = c.x.replace(r, r.keys, shares)
		c.run, c.in = r, r
	}
	c.index = n
	r.shares[n].store(c.holder, 0)
	r.holders.Store(uint32(n + 1))
}

// begin makes a run.
func (x *Index) begin(key Key, ahead int) *run {
	var number uint32
	if n := len(x.free); n > 0 {
		number, x.free = x.free[n-1], x.free[:n-1]
	} else {
		number = uint32(len(x.runs))
		x.runs = append(x.runs, nil)
	}
	r := &run{number: number, keys: make([]Key, max(1, ahead))}
	r.keys[0] = key
	r.n.Store(1)
	x.runs[number] = r
	x.heads.put(key, r)
	return r
}

// replace puts a run with other arrays in the place of one. Readers of the old one see how it was.
func (x *Index) replace(r *run, keys []Key, shares []share) *run {
	next := &run{number: r.number, live: r.live, keys: keys, shares: shares}
	next.n.Store(min(r.n.Load(), uint32(len(keys))))
	next.holders.Store(min(r.holders.Load(), uint32(len(shares))))
	x.runs[r.number] = next
	x.heads.put(keys[0], next)
	return next
}

// leave frees what is not needed after a block was removed from a share.
func (x *Index) leave(r *run, i int) {
	s := &r.shares[i]
	if s.empty() {
		r.live--
		if r.live == 0 {
			x.heads.remove(r.keys[0])
			x.runs[r.number] = nil
			x.free = append(x.free, r.number)
			return
		}
	}
	// The number of blocks passes few powers of two, so that the other shares are not looked at for each block.
	n := r.n.Load()
	if held := uint32(s.word); held&(held-1) != 0 || n < shortest || held > n/4 {
		return
	}
	var most uint32
	for j := range r.shares[:r.holders.Load()] {
		most = max(most, r.shares[j].extent())
	}
	if most <= n/4 {
		// Other keys may take the place of those that are cut off, so readers of the old run must not see the new shares.
		x.replace(r, slices.Clone(r.keys[:max(1, most)]), slices.Clone(r.shares))
	}
}

// Sweep cleans up what cleared holders have left, and reports whether it is done. It takes the lock for some microseconds.
func (x *Index) Sweep() (done bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sweep(turn)
	return len(x.retired) == 0
}

// sweep looks at n slots of the tables of cleared holders.
func (x *Index) sweep(n int) {
	for len(x.retired) > 0 && n > 0 {
		old := &x.retired[len(x.retired)-1]
		for ; n > 0 && len(old.slots) > 0; n-- {
			if p := old.slots[0].place; p != 0 {
				x.forget(p.run(), old.number)
			}
			old.slots = old.slots[1:]
		}
		for ; n > 0 && len(old.claimed) > 0; n-- {
			x.forget(old.claimed[0], old.number)
			old.claimed = old.claimed[1:]
		}
		if len(old.slots) == 0 && len(old.claimed) == 0 {
			x.numbers = append(x.numbers, old.number)
			x.retired = x.retired[:len(x.retired)-1]
		}
	}
}

// forget removes a holder's share of a run. The run may be gone, and its number that of another one.
func (x *Index) forget(number, holder uint32) {
	r := x.runs[number]
	if r == nil {
		return
	}
	if i := r.find(holder); i >= 0 && !r.shares[i].empty() {
		r.shares[i].beyond = nil
		r.shares[i].store(holder, 0)
		x.leave(r, i)
	}
}

// Depths is how many leading blocks of a chain each holder has. It can be used again, but not by several goroutines at once.
type Depths struct{ of []uint32 }

// Of returns the blocks of a holder.
func (d *Depths) Of(h *Holder) int {
	if n := int(h.number.Load()); n < len(d.of) {
		return int(d.of[n])
	}
	return 0
}

// Measure finds out how many leading blocks of a chain each holder has.
func (x *Index) Measure(chain []Key, d *Depths) {
	top := int(x.top.Load())
	d.of = slices.Grow(d.of[:0], top)[:top]
	clear(d.of)
	var r *run
	for pos, steps := 0, 0; pos < len(chain) && steps < reach; steps++ {
		if r = x.heads.get(chain[pos]); r == nil {
			return
		}
		common := r.common(chain[pos:])
		further := false
		for i := range r.shares[:r.holders.Load()] {
			holder, held := r.shares[i].load()
			// Only a holder that has all blocks before the run has a use for its own.
			if held == 0 || int(holder) >= top || int(d.of[holder]) != pos {
				continue
			}
			if int(held) >= common {
				held, further = uint32(common), true
			}
			d.of[holder] += held
		}
		if !further {
			return
		}
		pos += common
	}
}
