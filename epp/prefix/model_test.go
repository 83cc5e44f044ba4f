package prefix

import (
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// model is the simplest description of what an endpoint holds: when each block was requested last, and its depth.
type model struct {
	held map[uint64]age
	now  int
}

type age struct{ at, depth int }

func (m *model) add(chain []uint64, capacity int) {
	if m.held == nil {
		m.held = make(map[uint64]age)
	}
	m.now++
	for i, hash := range chain[:min(len(chain), capacity)] {
		m.held[hash] = age{m.now, i}
	}
	for len(m.held) > capacity {
		var worst uint64
		oldest := age{m.now + 1, 0}
		for hash, a := range m.held {
			if a.at < oldest.at || a.at == oldest.at && a.depth > oldest.depth {
				worst, oldest = hash, a
			}
		}
		delete(m.held, worst)
	}
}

// match returns the length of the chain's beginning that is held without a gap.
func (m *model) match(chain []uint64) int {
	for i, hash := range chain {
		if _, ok := m.held[hash]; !ok {
			return i
		}
	}
	return len(chain)
}

// link returns the hash of a block that follows another.
func link(before, block uint64) uint64 {
	high, low := bits.Mul64(before^0x517c_c1b7_2722_0a95, block*2+0x9e37_79b9_7f4a_7c15)
	return high ^ low
}

// chain makes the chain of the given blocks.
func chain(blocks ...uint64) []uint64 {
	hashes := make([]uint64, len(blocks))
	before := uint64(0)
	for i, b := range blocks {
		before = link(before, b)
		hashes[i] = before
	}
	return hashes
}

// talk makes chains that share beginnings with those it made before, as prompts do.
type talk struct {
	*rand.Rand
	said [][]uint64
}

func newTalk(seed uint64) *talk { return &talk{Rand: rand.New(rand.NewPCG(seed, 1))} }

func (t *talk) next() []uint64 {
	var said []uint64
	if n := len(t.said); n > 0 && t.IntN(4) > 0 {
		said = t.said[t.IntN(n)]
		said = said[:t.IntN(len(said)+1)]
	}
	said = said[:len(said):len(said)]
	for range t.IntN(12) {
		said = append(said, t.Uint64N(3))
	}
	t.said = append(t.said, said)
	return chain(said...)
}

// check fails the test if the parts of an index contradict each other. No other goroutine may use the index.
func check(t testing.TB, x *Index) {
	t.Helper()
	total := 0
	for i := range x.groups {
		if g := x.groups[i].Load(); g != nil {
			checkTree(t, &g.tree)
			for place := range g.tree.slots {
				total += g.tree.slots[place].size
			}
		}
	}
	if int64(total) != x.blocks.Load() {
		t.Fatalf("%d blocks are counted, %d are held", x.blocks.Load(), total)
	}
}

func checkTree(t testing.TB, tree *tree) {
	t.Helper()
	var sizes [places]int
	kids, marked := map[*share]int{}, map[*share]bool{}
	for hash, s := range tree.heads {
		checkSegment(t, hash, s)
		i := 0
		for place := range places {
			if s.holders&(1<<place) == 0 {
				continue
			}
			sizes[place] += s.shares[i].held
			if s.parent != nil {
				if s.parent.full&(1<<place) == 0 {
					t.Fatal("a segment is held, but not all of the one before it")
				}
				kids[s.parent.share(place)]++
			}
			i++
		}
	}
	for place := range tree.slots {
		slot := &tree.slots[place]
		if slot.size != sizes[place] {
			t.Fatalf("slot %d holds %d blocks, but counts %d", place, sizes[place], slot.size)
		}
		for s := slot.ages.younger; s != nil && s != &slot.ages; s = s.younger {
			if s.younger.older != s || s.of.share(place) != s {
				t.Fatal("the ring of ages is broken, or has a share that is not of this slot")
			}
			marked[s] = true
		}
	}
	for _, s := range tree.heads {
		for _, one := range s.shares {
			if one.kids != kids[one] || marked[one] != (one.older != nil) || one.kids == 0 && !marked[one] {
				t.Fatalf("a share has %d kids, but counts %d; its mark is %v", kids[one], one.kids, marked[one])
			}
		}
	}
}

func checkSegment(t testing.TB, hash uint64, s *segment) {
	t.Helper()
	if len(s.blocks) == 0 || s.blocks[0] != hash || len(s.shares) != bits.OnesCount64(s.holders) || s.full == 0 {
		t.Fatalf("segment %x: %d blocks, holders %x, full %x, %d shares", hash, len(s.blocks), s.holders, s.full, len(s.shares))
	}
	if cap(s.blocks) > 2*len(s.blocks)+8 { // Clone rounds up
		t.Fatalf("%d blocks take the memory of %d", len(s.blocks), cap(s.blocks))
	}
	i := 0
	for place := range places {
		if s.holders&(1<<place) == 0 {
			continue
		}
		one := s.shares[i]
		if one.of != s || one.held < 1 || one.held > len(s.blocks) || s.full&(1<<place) != 0 != (one.held == len(s.blocks)) {
			t.Fatalf("slot %d holds %d of %d blocks, full %x", place, one.held, len(s.blocks), s.full)
		}
		i++
	}
}

// depth asks an index how many blocks of a chain an endpoint holds.
func depth(x *Index, e *epp.Endpoint, chain []uint64) int {
	c := []epp.Candidate{{Endpoint: e, Cached: -1}}
	x.Match(chain, 1, c)
	return c[0].Cached
}
