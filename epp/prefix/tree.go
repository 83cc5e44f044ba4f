package prefix

import (
	"math/bits"
	"slices"
	"sort"
)

const (
	// places is how many endpoints share a tree: one for each bit of a word.
	places = 64
	// turn is how many shares are evicted while the lock is held: some microseconds.
	turn = 64
	// reach is how many segments of a chain are followed, from its beginning; the rest is neither found nor added.
	// Conversations have one for every answered message, so few reach it. But a client may send prompts that branch at each
	// of their blocks, and other requests must not wait while all of them are followed.
	reach = 1024
)

// tree is what the endpoints of a group hold. Chains with a common beginning share its segments. An endpoint has a share of
// each segment of which it holds a block. It is not safe for concurrent use.
//
// An endpoint drops the blocks first that were requested longest ago, and of one chain the last blocks first. A request makes
// all shares of its chain young, but marks only the last one: the age of a share is that of the youngest marked share in its
// continuations or of itself, so the shares before the last need not be touched.
type tree struct {
	heads map[uint64]*segment // segments by their first block
	slots [places]slot
}

// slot is what one endpoint holds.
type slot struct {
	ages share // root of the ring of marked shares, from old to young; it contains every share without kids
	size int   // blocks
}

// segment is a part of a chain at which other chains branch only at the end.
type segment struct {
	parent  *segment // nil = a chain begins here
	blocks  []uint64 // never empty; some endpoint holds all of them
	holders uint64   // places of the endpoints that hold the first block
	full    uint64   // of these, the places of those that hold all blocks
	shares  []*share // of the holders, in the order of their places
}

// share is what one endpoint holds of a segment.
type share struct {
	of             *segment
	held           int    // number of blocks, from the first one on
	kids           int    // segments that continue this one and of which the endpoint has a share
	older, younger *share // nil = not marked
}

// share returns a holder's share of the segment.
func (s *segment) share(place int) *share {
	return s.shares[bits.OnesCount64(s.holders&(1<<place-1))]
}

// next returns the segment that continues before (nil at the beginning of a chain), and how many of its first blocks equal
// those of the chain.
func (t *tree) next(before *segment, chain []uint64) (s *segment, common int) {
	s = t.heads[chain[0]]
	if s == nil || s.parent != before {
		return nil, 0
	}
	n := min(len(s.blocks), len(chain))
	if s.blocks[n-1] == chain[n-1] {
		return s, n
	}
	// A hash stands for all blocks before it, so after the first difference all hashes differ.
	return s, sort.Search(n, func(i int) bool { return s.blocks[i] != chain[i] })
}

// measure sets depth, which must be 0, to the number of blocks of a chain that each of the wanted endpoints holds.
func (t *tree) measure(chain []uint64, want uint64, depth *[places]int) {
	var before *segment
	for at, n := 0, 0; want != 0; n++ {
		var s *segment
		var common int
		if at < len(chain) && n < reach {
			s, common = t.next(before, chain[at:])
		}
		if s == nil {
			assign(depth, want, at)
			return
		}
		assign(depth, want&^s.holders, at)
		want &= s.holders
		var through uint64
		if common == len(s.blocks) {
			through = want & s.full
		}
		for ending := want &^ through; ending != 0; ending &= ending - 1 {
			place := bits.TrailingZeros64(ending)
			depth[place] = at + min(common, s.share(place).held)
		}
		before, want, at = s, through, at+common
	}
}

func assign(depth *[places]int, who uint64, n int) {
	for ; who != 0; who &= who - 1 {
		depth[bits.TrailingZeros64(who)] = n
	}
}

// known returns how many blocks of a chain, from its beginning, some endpoint holds.
func (t *tree) known(chain []uint64) (at int) {
	var before *segment
	for n := 0; at < len(chain) && n < reach; n++ {
		s, common := t.next(before, chain[at:])
		at += common
		if s == nil || common < len(s.blocks) {
			break
		}
		before = s
	}
	return at
}

// hold adds a chain to an endpoint and returns how many of its blocks are new there. The tree keeps end, a copy of the part
// of the chain that it did not know; if the tree has changed since, hold makes another copy.
func (t *tree) hold(place int, chain, end []uint64) (fresh int) {
	var before *share // the endpoint's share of the segment before
	for at, n := 0, 0; at < len(chain) && n < reach; n++ {
		var of *segment
		if before != nil {
			of = before.of
		}
		s, common := t.next(of, chain[at:])
		if s == nil {
			if len(end) != len(chain)-at {
				end = slices.Clone(chain[at:])
			}
			s, common = t.grow(of, end), len(end)
		}
		mine := t.join(s, place, before)
		if common < len(s.blocks) && (at+common < len(chain) || mine.held > common) {
			// Another chain branches here, or the rest of the segment becomes older than this part.
			s = t.split(s, common)
			mine = s.share(place)
		}
		if more := common - mine.held; more > 0 {
			mine.held = common
			fresh += more
		}
		if mine.held == len(s.blocks) {
			s.full |= 1 << place
		}
		before, at = mine, at+common
	}
	slot := &t.slots[place]
	slot.size += fresh
	if before != nil {
		slot.mark(before, slot.ages.older)
	}
	return fresh
}

// grow makes a segment that no endpoint holds yet. It keeps blocks.
func (t *tree) grow(parent *segment, blocks []uint64) *segment {
	if t.heads == nil {
		t.heads = make(map[uint64]*segment)
	}
	s := &segment{parent: parent, blocks: blocks}
	t.heads[blocks[0]] = s
	return s
}

// join returns an endpoint's share of a segment, and makes an empty one if there is none. before is the endpoint's share of
// the segment before.
func (t *tree) join(s *segment, place int, before *share) *share {
	if s.holders&(1<<place) != 0 {
		return s.share(place)
	}
	if before != nil {
		before.kids++
	}
	mine := &share{of: s}
	s.shares = slices.Insert(s.shares, bits.OnesCount64(s.holders&(1<<place-1)), mine)
	s.holders |= 1 << place
	return mine
}

// split cuts a segment after n blocks and returns the new segment of these n. Both get slices of their own, because a shared
// array would stay in memory as long as either segment.
func (t *tree) split(s *segment, n int) (head *segment) {
	head = &segment{parent: s.parent, blocks: slices.Clone(s.blocks[:n]), holders: s.holders}
	head.shares = make([]*share, 0, len(s.shares))
	s.parent, s.blocks = head, slices.Clone(s.blocks[n:])
	t.heads[head.blocks[0]], t.heads[s.blocks[0]] = head, s
	all := s.shares
	s.shares = nil
	for i, who := 0, head.holders; who != 0; i, who = i+1, who&(who-1) {
		bit, mine := who&-who, all[i]
		if mine.held >= n {
			head.full |= bit
		}
		if mine.held <= n { // all its blocks are in the head
			mine.of = head
			s.holders &^= bit
		} else {
			mine.held -= n
			s.shares = append(s.shares, mine)
			mine = &share{of: head, held: n, kids: 1}
		}
		head.shares = append(head.shares, mine)
	}
	return head
}

// shrink removes the oldest blocks of an endpoint until at most size are left. done is false if another turn is needed.
func (t *tree) shrink(place, size int) (lost int, done bool) {
	slot := &t.slots[place]
	before := slot.size
	for range turn {
		if slot.size <= size {
			break
		}
		oldest := slot.ages.younger
		if oldest.kids > 0 { // kids are younger, so the share's own mark no longer counts
			oldest.unmark()
			continue
		}
		n := min(slot.size-size, oldest.held)
		oldest.held -= n
		slot.size -= n
		oldest.of.full &^= 1 << place
		if oldest.held == 0 {
			t.leave(oldest, place)
		}
		t.trim(oldest.of)
	}
	return before - slot.size, slot.size <= size
}

// leave removes a share that holds no blocks and has no kids. The share before it takes over its age, unless it has a younger
// mark.
func (t *tree) leave(mine *share, place int) {
	mine.unmark()
	s, slot := mine.of, &t.slots[place]
	if s.parent != nil {
		before := s.parent.share(place)
		if before.kids--; before.kids == 0 && before.older == nil {
			slot.mark(before, &slot.ages)
		}
	}
	at := bits.OnesCount64(s.holders & (1<<place - 1))
	s.shares = slices.Delete(s.shares, at, at+1)
	s.holders &^= 1 << place
}

// trim drops the blocks of a segment that no endpoint holds, and the segment if none is left.
func (t *tree) trim(s *segment) {
	if s.full != 0 {
		return
	}
	longest := 0
	for _, one := range s.shares {
		longest = max(longest, one.held)
	}
	if longest == 0 {
		if t.heads[s.blocks[0]] == s {
			delete(t.heads, s.blocks[0])
		}
		return
	}
	s.blocks = s.blocks[:longest]
	if 2*longest < cap(s.blocks) {
		s.blocks = slices.Clone(s.blocks)
	}
	for i, who := 0, s.holders; who != 0; i, who = i+1, who&(who-1) {
		if s.shares[i].held == longest {
			s.full |= who & -who
		}
	}
}

// mark puts a share into the ring of ages, next younger than another.
func (s *slot) mark(mine, older *share) {
	if s.ages.older == nil {
		s.ages.older, s.ages.younger = &s.ages, &s.ages
		older = &s.ages
	}
	if mine == older {
		return
	}
	mine.unmark()
	mine.older, mine.younger = older, older.younger
	mine.older.younger, mine.younger.older = mine, mine
}

func (s *share) unmark() {
	if s.older != nil {
		s.older.younger, s.younger.older = s.younger, s.older
		s.older, s.younger = nil, nil
	}
}
