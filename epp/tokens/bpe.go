package tokens

import (
	"math/bits"
	"unicode/utf8"
)

// bpe is byte-pair encoding: a word is a sequence of characters, of which the pair of the lowest rank is merged, the leftmost one of equals,
// until there is none. Its characters are bytes, if the file has byte-level pre-tokenization, or code points.
type bpe struct {
	merges *merges
	whole  *vocabulary // words that are one token

	bytes    bool
	byteIDs  [256]uint32           // bytes: id, or none
	byteRank []uint32              // bytes: ranks of pairs of them, the first one in the upper bits; nil if some byte has no id
	runeIDs  map[rune]uint32       // code points that are tokens
	lowIDs   [utf8.RuneSelf]uint32 // those of ASCII again: ids, or none
	fallback [256]uint32           // code points that are none: ids of their bytes, or none
	unknown  uint32                // id of unknown characters, or none
	fuse     bool                  // unknown characters in sequence are one token
}

// none stands for an id that a vocabulary lacks.
const none = 1<<32 - 1

// symbols is the scratch space of one encoder.
type symbols struct {
	short [1 << placeBits]uint32 // of mergeShort: ids,
	pairs [1 << placeBits]uint32 // and of the pair that begins there, the rank and the place

	ids   []uint32
	ranks []uint32 // of the pair that begins here
	queue queue
	next  []int32 // long words: where the next symbol is
	prev  []int32

	places []place // of unigram
}

const (
	// shortSequence is up to how many symbols are merged by looking at all of them, which is faster than a queue.
	shortSequence = 40
	// placeBits are the bits of a place in such a sequence, which a rank fits in above.
	placeBits = 6
	noPair    = 1<<32 - 1
)

// append appends the ids of a word.
func (m *bpe) append(dst []uint32, word []byte, s *symbols) []uint32 {
	if len(word) <= shortSequence && m.byteRank != nil {
		for i, b := range word {
			s.short[i] = m.byteIDs[b]
		}
		for i := range len(word) - 1 {
			s.pairs[i] = m.byteRank[uint(word[i])<<8|uint(word[i+1])]<<placeBits | uint32(i)
		}
		return m.mergeShort(dst, len(word), s)
	}
	s.ids = m.characters(s.ids[:0], word)
	if len(s.ids) < 2 {
		return append(dst, s.ids...)
	}
	if n := len(s.ids); n <= shortSequence {
		copy(s.short[:], s.ids)
		for i := range n - 1 {
			s.pairs[i] = m.merges.rank(s.ids[i], s.ids[i+1])<<placeBits | uint32(i)
		}
		return m.mergeShort(dst, n, s)
	}
	s.ranks = s.ranks[:0]
	for i := range len(s.ids) - 1 {
		s.ranks = append(s.ranks, m.merges.rank(s.ids[i], s.ids[i+1]))
	}
	return m.mergeLong(dst, s)
}

// characters appends the ids that a word consists of before merging. An unknown character that is not part of the next sequence is
// written only when a known one follows: ids of bytes that stand for other characters overtake it, as in the reference.
func (m *bpe) characters(dst []uint32, word []byte) []uint32 {
	pending := false
	for len(word) > 0 {
		id, size := uint32(none), 1
		if m.bytes {
			id = m.byteIDs[word[0]]
		} else if word[0] < utf8.RuneSelf {
			id = m.lowIDs[word[0]]
		} else {
			var r rune
			r, size = utf8.DecodeRune(word)
			if known, ok := m.runeIDs[r]; ok {
				id = known
			}
		}
		char := word[:size]
		word = word[size:]
		if id == none {
			if before := len(dst); !m.bytes {
				if dst = m.appendBytes(dst, char); len(dst) > before {
					continue
				}
			}
			if m.unknown == none {
				continue // the reference drops it
			}
			if pending && !m.fuse {
				dst = append(dst, m.unknown)
			}
			pending = true
			continue
		}
		if pending {
			dst, pending = append(dst, m.unknown), false
		}
		dst = append(dst, id)
	}
	if pending {
		dst = append(dst, m.unknown)
	}
	return dst
}

// appendBytes appends the tokens of a character's bytes, and nothing if one of them has none.
func (m *bpe) appendBytes(dst []uint32, char []byte) []uint32 {
	for _, b := range char {
		if m.fallback[b] == none {
			return dst
		}
	}
	for _, b := range char {
		dst = append(dst, m.fallback[b])
	}
	return dst
}

// mergeShort merges the first n symbols of s.short and appends what is left. s.pairs has the ranks of all pairs of them.
func (m *bpe) mergeShort(dst []uint32, n int, s *symbols) []uint32 {
	s.pairs[n-1] = noPair
	for i := n; i%4 != 0; i++ {
		s.pairs[i] = noPair
	}
	left := uint64(1)<<n - 1 // a bit for each symbol that is left
	for {
		// Four least ones at a time do not wait for each other.
		a, b, c, d := uint32(noPair), uint32(noPair), uint32(noPair), uint32(noPair)
		for p := s.pairs[:(n+3)&^3]; len(p) >= 4; p = p[4:] {
			a, b, c, d = min(a, p[0]), min(b, p[1]), min(c, p[2]), min(d, p[3])
		}
		best := min(a, b, c, d)
		if best >= noRank<<placeBits {
			break
		}
		at := int(best & (1<<placeBits - 1))
		gone := at + 1 + bits.TrailingZeros64(left>>(at+1))
		left &^= 1 << gone
		id := m.merges.merged[best>>placeBits]
		s.short[at], s.pairs[gone], s.pairs[at] = id, noPair, noPair
		if after := left >> gone; after != 0 {
			s.pairs[at] = m.merges.rank(id, s.short[(gone+bits.TrailingZeros64(after))%len(s.short)])<<placeBits | uint32(at)
		}
		if before := left & (1<<at - 1); before != 0 {
			prev := (bits.Len64(before) - 1) % len(s.short)
			s.pairs[prev] = m.merges.rank(s.short[prev], id)<<placeBits | uint32(prev)
		}
	}
	for ; left != 0; left &= left - 1 {
		dst = append(dst, s.short[bits.TrailingZeros64(left)%len(s.short)])
	}
	return dst
}

// mergeLong does the same with a queue, in a time that is nearly linear.
func (m *bpe) mergeLong(dst []uint32, s *symbols) []uint32 {
	n := len(s.ids)
	s.ranks = append(s.ranks, noRank) // of the last symbol
	s.queue, s.next, s.prev = s.queue[:0], s.next[:0], s.prev[:0]
	for i := range n {
		s.next, s.prev = append(s.next, int32(i+1)), append(s.prev, int32(i-1))
		s.push(i)
	}
	for len(s.queue) > 0 {
		rank, at := s.queue.pop()
		if s.ranks[at] != rank {
			continue // one of the pair has been merged with another symbol
		}
		gone := s.next[at]
		after := s.next[gone]
		s.ids[at], s.ids[gone], s.ranks[gone] = m.merges.merged[rank], none, noRank
		s.next[at] = after
		s.ranks[at] = noRank
		if int(after) < n {
			s.prev[after] = int32(at)
			s.ranks[at] = m.merges.rank(s.ids[at], s.ids[after])
			s.push(at)
		}
		if before := s.prev[at]; before >= 0 {
			s.ranks[before] = m.merges.rank(s.ids[before], s.ids[at])
			s.push(int(before))
		}
	}
	for i := 0; i < n; i = int(s.next[i]) {
		dst = append(dst, s.ids[i])
	}
	return dst
}

// push puts the pair that begins at a symbol into the queue, if it can be merged.
func (s *symbols) push(at int) {
	if rank := s.ranks[at]; rank != noRank {
		s.queue.push(uint64(rank)<<32 | uint64(at))
	}
}

// queue is a heap of pairs that may be merged: the rank, and below it where the pair begins. The least comes first.
type queue []uint64

func (q *queue) push(v uint64) {
	h := append(*q, v)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up] <= v {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = v
	*q = h
}

func (q *queue) pop() (rank uint32, at int) {
	h := *q
	first, v := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	for i := 0; len(h) > 0; {
		down := 2*i + 1
		if down+1 < len(h) && h[down+1] < h[down] {
			down++
		}
		if down >= len(h) || h[down] >= v {
			h[i] = v
			break
		}
		h[i] = h[down]
		i = down
	}
	*q = h
	return uint32(first >> 32), int(uint32(first))
}
