package kvindex

import (
	"math/bits"
	"sort"
	"sync/atomic"
)

// run is keys that follow one another, and who holds them. Readers use it without a lock: keys below n and shares below
// holders do not move. A run without space for more is replaced by a larger one with the same number.
type run struct {
	number  uint32
	live    uint32 // shares that are not empty; only writers use it
	n       atomic.Uint32
	holders atomic.Uint32
	keys    []Key   // the first n are valid
	shares  []share // the first holders are valid
}

// share is what one holder has of a run.
type share struct {
	// word is the holder's number in the upper half, and below it how many leading blocks it has: one word, so that readers never see the
	// number of one and the blocks of another. It is read and written atomically.
	word   uint64
	beyond *bitmap // blocks behind the first one that is missing, or nil; only writers use it
}

func (s *share) load() (holder, held uint32) {
	w := atomic.LoadUint64(&s.word)
	return uint32(w >> 32), uint32(w)
}

func (s *share) store(holder, held uint32) {
	atomic.StoreUint64(&s.word, uint64(holder)<<32|uint64(held))
}

// empty reports whether the holder has no block of the run any more.
func (s *share) empty() bool { return uint32(s.word) == 0 && s.beyond == nil }

// extent returns the offset behind the last block that the share has.
func (s *share) extent() uint32 {
	if s.beyond != nil {
		return s.beyond.end()
	}
	return uint32(s.word)
}

// has reports whether a block is there.
func (s *share) has(off uint32) bool { return off < uint32(s.word) || s.beyond.has(off) }

// add notes a block, and reports whether it is new.
func (s *share) add(off uint32) bool {
	holder, held := s.load()
	switch {
	case off < held || s.beyond.has(off):
		return false
	case off > held:
		if s.beyond == nil {
			s.beyond = new(bitmap)
		}
		s.beyond.set(off, off+1)
		return true
	}
	held++
	if s.beyond != nil {
		if held = s.beyond.take(held); s.beyond.count == 0 {
			s.beyond = nil
		}
	}
	s.store(holder, held)
	return true
}

// remove notes that a block is gone, and reports whether it was there.
func (s *share) remove(off uint32) bool {
	holder, held := s.load()
	if off >= held {
		if !s.beyond.has(off) {
			return false
		}
		if s.beyond.clear(off); s.beyond.count == 0 {
			s.beyond = nil
		}
		return true
	}
	if off+1 < held {
		if s.beyond == nil {
			s.beyond = new(bitmap)
		}
		s.beyond.set(off+1, held)
	}
	s.store(holder, off)
	return true
}

// common returns how many keys of the run, from its first one on, are those of a chain. A key stands for all before it, so
// after the first difference all differ.
func (r *run) common(chain []Key) int {
	n := min(int(r.n.Load()), len(chain))
	keys := r.keys[:n]
	if n > 0 && keys[n-1] == chain[n-1] {
		return n
	}
	return sort.Search(n, func(i int) bool { return keys[i] != chain[i] })
}

// find returns the index of a holder's share, or -1.
func (r *run) find(holder uint32) int {
	for i := range r.shares[:r.holders.Load()] {
		if h, _ := r.shares[i].load(); h == holder {
			return i
		}
	}
	return -1
}

// bitmap is a set of offsets.
type bitmap struct {
	words []uint64
	count uint32
}

func (b *bitmap) has(off uint32) bool {
	return b != nil && int(off/64) < len(b.words) && b.words[off/64]&(1<<(off%64)) != 0
}

// set adds the offsets from first up to end, none of which it has.
func (b *bitmap) set(first, end uint32) {
	if need := int(end+63) / 64; need > len(b.words) {
		b.words = append(b.words, make([]uint64, need-len(b.words))...)
	}
	b.count += end - first
	for first < end {
		n := min(64-first%64, end-first)
		b.words[first/64] |= (^uint64(0) >> (64 - n)) << (first % 64)
		first += n
	}
}

func (b *bitmap) clear(off uint32) {
	b.words[off/64] &^= 1 << (off % 64)
	b.count--
}

// take removes the offsets that follow one another from off on, and returns the first one that it does not have.
func (b *bitmap) take(off uint32) uint32 {
	for int(off/64) < len(b.words) {
		ones := uint32(bits.TrailingZeros64(^(b.words[off/64] >> (off % 64))))
		ones = min(ones, 64-off%64)
		if ones == 0 {
			break
		}
		b.words[off/64] &^= (^uint64(0) >> (64 - ones)) << (off % 64)
		b.count -= ones
		if off += ones; off%64 != 0 {
			break
		}
	}
	return off
}

// end returns the offset behind the last one. The set is not empty.
func (b *bitmap) end() uint32 {
	i := len(b.words) - 1
	for b.words[i] == 0 {
		i--
	}
	return uint32(64*i + bits.Len64(b.words[i]))
}
