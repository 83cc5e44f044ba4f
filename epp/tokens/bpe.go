package tokens

import "unicode/utf8"

// bpe is byte-pair encoding: a word is a sequence of characters, of which the pair of the lowest rank is merged, the leftmost one of equals,
// until there is none. Its characters are bytes, if the file has byte-level pre-tokenization, or code points.
type bpe struct {
	merges *merges
	whole  *vocabulary // words that are one token

	bytes    bool
	byteIDs  [256]uint32     // bytes: id, or none
	byteRank []uint32        // bytes: ranks of pairs of them, the first one in the upper bits; nil if some byte has no id
	runeIDs  map[rune]uint32 // code points that are tokens
	fallback [256]uint32     // code points that are none: ids of their bytes, or none
	unknown  uint32          // id of unknown characters, or none
	fuse     bool            // unknown characters in sequence are one token
}

// none stands for an id that a vocabulary lacks.
const none = 1<<32 - 1

// symbols is the scratch space of one encoder.
type symbols struct {
	ids   []uint32
	ranks []uint32 // of the pair that begins here
	queue queue
	next  []int32 // long words: where the next symbol is
	prev  []int32

	places []place // of unigram
}

// shortWord is up to how many symbols are merged by looking at all of them, which is faster than a queue.
const shortWord = 40

// append appends the ids of a word.
func (m *bpe) append(dst []uint32, word []byte, s *symbols) []uint32 {
	s.ids = m.characters(s.ids[:0], word)
	if len(s.ids) < 2 {
		return append(dst, s.ids...)
	}
	s.ranks = s.ranks[:0]
	if m.byteRank != nil {
		for i := range len(word) - 1 {
			s.ranks = append(s.ranks, m.byteRank[uint(word[i])<<8|uint(word[i+1])])
		}
	} else {
		for i := range len(s.ids) - 1 {
			s.ranks = append(s.ranks, m.merges.rank(s.ids[i], s.ids[i+1]))
		}
	}
	if len(s.ids) <= shortWord {
		return append(dst, m.mergeShort(s)...)
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

// mergeShort merges the symbols in place and returns them.
func (m *bpe) mergeShort(s *symbols) []uint32 {
	ids, ranks := s.ids, s.ranks
	for len(ranks) > 0 {
		best, at := uint32(noRank), 0
		for i, r := range ranks {
			if r < best {
				best, at = r, i
			}
		}
		if best == noRank {
			break
		}
		ids[at] = m.merges.merged[best]
		ids = append(ids[:at+1], ids[at+2:]...)
		ranks = append(ranks[:at], ranks[at+1:]...)
		if at > 0 {
			ranks[at-1] = m.merges.rank(ids[at-1], ids[at])
		}
		if at < len(ranks) {
			ranks[at] = m.merges.rank(ids[at], ids[at+1])
		}
	}
	return ids
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
