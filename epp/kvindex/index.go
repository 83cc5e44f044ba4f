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
	// ahead is how many blocks' slots are fetched before the first of them is stored: 64 bytes each, of two tables.
	ahead = 64
	// shortest is the number of keys below which a run is not made smaller.
	shortest = 64
)

// Index is what all holders have. Its methods and those of its holders are safe for concurrent use.
type Index struct {
	seed  Seed
	limit int64 // blocks, each counted for each of its holders

	heads  heads
	places *places       // of all keys, where keys are names; else nil
	top    atomic.Uint32 // numbers of holders are below it
	blocks atomic.Int64

	mu      sync.Mutex // held for every change
	runs    []*run     // by number; nil = free
	free    []uint32   // numbers of runs
	numbers []uint32   // of holders that are cleaned up
	retired []retired
	chain   []Key // memory of Store
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

// NewNamed returns an empty index whose keys are the names that engines give to blocks, so a look-up takes the names that the engines would
// give. It needs no token ids, and of a block neither the one before it nor that any holder has it already. All engines must name blocks in
// the same way. Names must be hashes of the block and all before it, as keys are. It takes some 17 bytes more for each block,
// which holders share, and freeing a run takes time for each of its blocks.
func NewNamed(seed Seed, limit int64) *Index {
	x := New(seed, limit)
	x.places = &places{index: x}
	return x
}

// Named reports whether keys are the engines' names.
func (x *Index) Named() bool { return x.places != nil }

// Seed returns the seed of the keys.
func (x *Index) Seed() Seed { return x.seed }

// Blocks returns the number of blocks, each counted for each of its holders. Claims are not counted.
func (x *Index) Blocks() int64 { return x.blocks.Load() }

// Holder is one KV cache: of an engine, or of one of its ranks.
type Holder struct {
	index   *Index
	numbers [Tiers]atomic.Uint32 // none where a tier is not used
	size    atomic.Int64
	in      [Tiers]atomic.Int64 // blocks
	table   table
	claimed []uint32 // runs
}

// Join returns a new holder, which has no blocks.
func (x *Index) Join() *Holder {
	x.mu.Lock()
	defer x.mu.Unlock()
	h := &Holder{index: x}
	for t := range h.numbers {
		h.numbers[t].Store(none)
	}
	h.numbers[GPU].Store(x.number())
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

// Len returns the number of blocks that the holder has, in whatever tiers. Claims are not counted.
func (h *Holder) Len() int { return int(h.size.Load()) }

// In returns the number of blocks that the holder has in a tier.
func (h *Holder) In(t Tier) int { return int(h.in[t].Load()) }

// none is the number of holders that have left, and of tiers that are not used.
const none = ^uint32(0)

// Clear makes the holder have nothing.
func (h *Holder) Clear() {
	x := h.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if h.uses(GPU) && len(h.table.slots)+len(h.claimed) > 0 {
		h.retire(x.number())
	}
	x.sweep(turn)
}

// Leave makes the holder have nothing for ever.
func (h *Holder) Leave() {
	x := h.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if h.uses(GPU) {
		h.retire(none)
	}
	x.sweep(turn)
}

// retire gives the holder another number, and none for slower tiers. What it had belongs to the old ones, for which no reader asks any more.
func (h *Holder) retire(number uint32) {
	x := h.index
	for t := range h.numbers {
		if old := h.numbers[t].Swap(none); old != none {
			x.retired = append(x.retired, retired{old, h.table.slots, h.claimed})
			h.claimed = nil // only the first number has claims
		}
		h.in[t].Store(0)
	}
	h.numbers[GPU].Store(number)
	x.blocks.Add(-h.size.Swap(0))
	h.table, h.claimed = table{}, nil
}

// Stored is blocks that a holder has now.
type Stored struct {
	Tier   Tier
	Names  []uint64 // the engine's, in the order of the prompt
	First  bool     // the first block is that of a prompt
	Parent uint64   // else the name of the block before the first one
	Root   Key      // of a first block: what Seed.Root returned
	// Tokens are the token ids of all blocks, which have the same length. They and Extras do not count where keys are names.
	Tokens []uint32
	Extras []uint64 // what each block depends on beside its tokens; nil = nothing
	// Loose says that the blocks need not follow one another. Keys must be names.
	Loose bool
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
	x := h.index
	each := len(s.Tokens) / max(len(s.Names), 1)
	if !x.Named() && (each == 0 || each*len(s.Names) != len(s.Tokens) || s.Extras != nil && len(s.Extras) != len(s.Names)) {
		return ErrForm
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sweep(turn)
	if !h.uses(GPU) {
		return ErrLeft
	}
	if s.Tier != GPU && h.keepAll(s) {
		return nil
	}
	if x.blocks.Load()+int64(len(s.Names)) > x.limit || x.crowded(s.Tier) {
		return ErrFull
	}
	h.use(s.Tier)
	if x.Named() {
		h.storeNamed(s)
		return nil
	}
	c, key := h.cursor(), s.Root
	if !s.First {
		parent := h.table.get(s.Parent)
		if parent == 0 {
			return ErrParent
		}
		key = c.to(parent)
	}
	x.chain = x.seed.chain(x.chain[:0], key, s, 0)
	for i, name := range s.Names {
		if i%ahead == 0 {
			end := min(i+ahead, len(s.Names))
			h.table.fetch(s.Names[i:end])
			x.heads.fetch(x.chain[i:end])
		}
		if s.Tier != GPU {
			// Events about slower tiers may leave out what a block depends on beside its tokens, so the name says more.
			if where := h.table.get(name); where != 0 {
				h.keep(s.Tier, name, where)
				if key := c.to(where); key != x.chain[i] {
					x.chain = x.seed.chain(x.chain[:i+1], key, s, i+1)
				}
				continue
			}
		}
		c.move(x.chain[i], len(s.Names)-i)
		h.put(&c, name, s.Tier)
	}
	return nil
}

// chain appends the keys of the blocks that are stored from one on. before is the key of the block before it.
func (s Seed) chain(dst []Key, before Key, of *Stored, from int) []Key {
	each := len(of.Tokens) / len(of.Names)
	if of.Extras == nil {
		return s.Append(dst, before, 0, each, of.Tokens[from*each:])
	}
	for i := from; i < len(of.Names); i++ {
		before = s.Next(before, of.Tokens[i*each:(i+1)*each], of.Extras[i])
		dst = append(dst, before)
	}
	return dst
}

// storeNamed notes blocks whose keys are their names. One whose predecessor no holder has begins a run.
func (h *Holder) storeNamed(s *Stored) {
	c := h.cursor()
	if !s.First {
		if parent := h.index.places.get(keyOf(s.Parent)); parent != 0 {
			c.to(parent)
		}
	}
	for i, name := range s.Names {
		ahead := len(s.Names) - i
		if s.Loose {
			c.run, ahead = nil, 1
		}
		c.move(keyOf(name), ahead)
		h.put(&c, name, s.Tier)
	}
}

// keepAll notes that blocks are in a tier too, if all of them are known by their names; else it reports false.
func (h *Holder) keepAll(s *Stored) bool {
	for _, name := range s.Names {
		if h.table.get(name) == 0 {
			return false
		}
	}
	for _, name := range s.Names {
		h.keep(s.Tier, name, 0)
	}
	return true
}

// put notes that the holder has the block at the cursor in a tier, by a name.
func (h *Holder) put(c *cursor, name uint64, t Tier) {
	here, slot := at(c.run.number, c.off), h.table.slot(name)
	if had := slot.place.tiers(); had != 0 && slot.place.key() == here {
		if had&t.set() == 0 {
			slot.place = here.with(had | t.set())
			h.in[t].Add(1)
			h.enter(c, had, t)
		}
		return
	}
	fresh := !h.hasBelow(c, t) && c.hold(t)
	if slot.place != 0 { // the name was that of another block
		h.drop(name)
		c.again(here)
		slot = h.table.slot(name)
	}
	if !fresh {
		return // the holder has the block by another name
	}
	h.table.fill(slot, name, here.with(t.set()))
	h.size.Add(1)
	h.in[t].Add(1)
	h.index.blocks.Add(1)
	h.enter(c, 0, t+1)
}

// hasBelow reports whether the holder has the block at the cursor in a slower tier, by whatever name.
func (h *Holder) hasBelow(c *cursor, t Tier) bool {
	for t++; t < Tiers; t++ {
		if c.holder[t] != none && c.has(t) {
			return true
		}
	}
	return false
}

// drop removes a name and its block from all tiers. The holder has the block of every name in its table.
func (h *Holder) drop(name uint64) {
	where := h.table.remove(name)
	if where == 0 {
		return
	}
	h.size.Add(-1)
	h.index.blocks.Add(-1)
	for t := GPU; t < Tiers; t++ {
		if where.tiers()&t.set() != 0 {
			h.in[t].Add(-1)
		}
		if where.tiers()&t.upTo() != 0 {
			h.lose(where, t)
		}
	}
}

// Has reports whether the holder has a block in a tier, by its engine's name.
func (h *Holder) Has(t Tier, name uint64) bool {
	h.index.mu.Lock()
	defer h.index.mu.Unlock()
	return h.table.get(name).tiers()&t.set() != 0
}

// Claim notes blocks that the holder will have soon, or is taken to have, by their keys. Only Clear removes them, so a holder
// of claims must not be that of engine's blocks.
func (h *Holder) Claim(chain []Key) {
	x := h.index
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sweep(turn)
	if !h.uses(GPU) {
		return
	}
	c := h.cursor()
	for len(chain) > 0 {
		c.move(chain[0], len(chain))
		if !c.joined(GPU) {
			c.join(GPU)
			h.claimed = append(h.claimed, c.run.number)
		}
		n := 1
		if c.off == 0 {
			n = c.run.common(chain)
		}
		c.off += uint32(n - 1)
		if s := &c.run.shares[c.index[GPU]]; uint32(s.word) <= c.off {
			s.store(c.holder[GPU], c.off+1)
		}
		chain = chain[n:]
	}
}

// cursor goes along a chain and holds its blocks.
type cursor struct {
	x      *Index
	holder [Tiers]uint32 // none where a tier is not used
	run    *run          // nil = before the first block
	off    uint32
	in     [Tiers]*run // the run whose share is at index
	index  [Tiers]int
}

// to goes to a place, and returns its key.
func (c *cursor) to(p place) Key {
	c.run, c.off = c.x.runs[p.run()], p.offset()
	return c.run.keys[c.off]
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
	if x.Named() {
		if p := x.places.get(key); p != 0 {
			c.to(p)
			return
		}
	} else if r := x.heads.get(key); r != nil {
		// A run that begins with the key may be older than the one before it, which was dropped and came back.
		c.run, c.off = r, 0
		return
	}
	r := c.run
	if r == nil || c.off+1 < r.n.Load() || c.off == lastOffset {
		c.run, c.off = x.begin(key, ahead), 0
		return
	}
	c.off++
	if int(c.off) == len(r.keys) {
		keys := make([]Key, len(r.keys)+max(ahead, len(r.keys)/2))
		copy(keys, r.keys)
		c.run = x.replace(r, keys, r.shares)
		for t := range c.in {
			if c.in[t] == r {
				c.in[t] = c.run
			}
		}
		r = c.run
	}
	r.keys[c.off] = key
	r.n.Store(c.off + 1)
	x.places.put(key, at(r.number, c.off))
}

// again goes to a place again, after a change that may have replaced the run, or freed it.
func (c *cursor) again(p place) {
	c.run, c.in = c.x.runs[p.run()], [Tiers]*run{}
}

// share returns the index of the share of a tier's number of the run, which may be empty, or -1.
func (c *cursor) share(t Tier) int {
	if c.in[t] != c.run {
		c.in[t], c.index[t] = c.run, c.run.find(c.holder[t])
	}
	return c.index[t]
}

// joined reports whether a tier's number has a part of the run.
func (c *cursor) joined(t Tier) bool {
	i := c.share(t)
	return i >= 0 && !c.run.shares[i].empty()
}

// has reports whether the block at the cursor is in a tier, or a faster one, by whatever name.
func (c *cursor) has(t Tier) bool {
	i := c.share(t)
	return i >= 0 && c.run.shares[i].has(c.off)
}

// hold adds the block at the cursor to what the holder has in a tier, or a faster one, and reports whether it is new there.
func (c *cursor) hold(t Tier) bool {
	if !c.joined(t) {
		c.join(t)
	}
	return c.run.shares[c.index[t]].add(c.off)
}

// join gives a tier's number a share of the run, in place of an empty one if there is any.
func (c *cursor) join(t Tier) {
	r := c.run
	n := int(r.holders.Load())
	i := c.share(t)
	r.live++
	if i < 0 && int(r.live) <= n {
		i = slices.IndexFunc(r.shares[:n], func(s share) bool { return s.empty() })
		for k := range c.in {
			if c.index[k] == i {
				c.in[k] = nil // it was that of another tier
			}
		}
		c.in[t] = r
	}
	if i >= 0 {
		r.shares[i].store(c.holder[t], 0)
		c.index[t] = i
		return
	}
	if n == len(r.shares) {
		shares := make([]share, n+max(1, n/2))
		copy(shares, r.shares)
		r = c.x.replace(r, r.keys, shares)
		c.run = r
	}
	c.in[t], c.index[t] = r, n
	r.shares[n].store(c.holder[t], 0)
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
	x.places.put(key, at(number, 0))
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
			x.places.remove(r.keys[:r.n.Load()])
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
		most = max(1, most)
		x.places.remove(r.keys[most:n])
		x.replace(r, slices.Clone(r.keys[:most]), slices.Clone(r.shares))
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

// Of returns the blocks that a holder has in the accelerator's memory, or claims.
func (d *Depths) Of(h *Holder) int { return d.UpTo(h, GPU) }

// UpTo returns the leading blocks each of which a holder has in a tier or in a faster one.
func (d *Depths) UpTo(h *Holder, t Tier) (n int) {
	for k := range h.numbers[:t+1] {
		if number := h.numbers[k].Load(); uint64(number) < uint64(len(d.of)) {
			n = max(n, int(d.of[number]))
		}
	}
	return n
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
