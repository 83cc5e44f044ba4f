package tokens

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// hash returns a hash of a short text. It is not keyed: who chooses texts that collide makes look-ups of them slower, and no more.
func hash(b []byte) uint64 {
	const k0, k1 = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F
	n := uint64(len(b))
	var x, y uint64
	switch {
	case n > 16:
		h := n * k1
		for len(b) > 16 {
			hi, lo := bits.Mul64(binary.LittleEndian.Uint64(b)^h, binary.LittleEndian.Uint64(b[8:])^k1)
			h, b = hi^lo^k0, b[16:]
		}
		if len(b) < 8 {
			for _, c := range b {
				x = x<<8 | uint64(c)
			}
		} else {
			x, y = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[len(b)-8:])
		}
		x ^= h
	case n >= 8:
		x, y = binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[n-8:])
	case n >= 4:
		x = uint64(binary.LittleEndian.Uint32(b)) | uint64(binary.LittleEndian.Uint32(b[n-4:]))<<32
	case n > 0:
		x = uint64(b[0]) | uint64(b[n/2])<<8 | uint64(b[n-1])<<16
	}
	hi, lo := bits.Mul64(x^k0^n, y^k1)
	return hi ^ lo
}

// tableOf returns the number of slots of a hash table for n entries: a power of two, at least half of them free.
func tableOf(n int) int { return 1 << bits.Len(uint(2*n+1)) }

// vocabulary finds tokens by their text.
type vocabulary struct {
	slots []slot // open addressing
	texts []byte
}

// slot is an entry of a vocabulary; one with length 0 is free.
type slot struct {
	sum    uint32 // upper half of the hash
	id     uint32
	at     uint32 // into texts
	length uint32
}

func newVocabulary(n int) *vocabulary { return &vocabulary{slots: make([]slot, tableOf(n))} }

// add adds a text that is not there yet and not empty. There must be no more of them than newVocabulary was told.
func (v *vocabulary) add(text []byte, id uint32) {
	h := hash(text)
	i := h & uint64(len(v.slots)-1)
	for v.slots[i].length != 0 {
		i = (i + 1) & uint64(len(v.slots)-1)
	}
	v.slots[i] = slot{sum: uint32(h >> 32), id: id, at: uint32(len(v.texts)), length: uint32(len(text))}
	v.texts = append(v.texts, text...)
}

// find returns the id of a text whose hash is h.
func (v *vocabulary) find(text []byte, h uint64) (id uint32, ok bool) {
	for i := h & uint64(len(v.slots)-1); v.slots[i].length != 0; i = (i + 1) & uint64(len(v.slots)-1) {
		s := &v.slots[i]
		if s.sum == uint32(h>>32) && bytes.Equal(v.texts[s.at:s.at+s.length], text) {
			return s.id, true
		}
	}
	return 0, false
}

// Bounds of a vocabulary, so that a pair of ids and a rank fit into 64 bits.
const (
	idBits    = 20
	rankBits  = 24
	maxIDs    = 1 << idBits
	maxMerges = 1<<rankBits - 1
	noRank    = maxMerges
)

// merges finds the rank of a pair of tokens: the lower, the earlier they are merged.
type merges struct {
	slots  []uint64 // open addressing: left and right id, and rank+1; 0 is free
	merged []uint32 // by rank
	shift  uint8

	// seen has a bit for each pair that is merged, and few others. Most pairs that are asked for are not merged, and it fits into a cache
	// of the processor that the slots do not fit into.
	seen      []uint64
	seenShift uint8
}

// seenBits is how many bits of seen there are for a pair, at least.
const seenBits = 8

func newMerges(n int) *merges {
	size := tableOf(n)
	seen := max(tableOf(n*seenBits/2), 64)
	return &merges{slots: make([]uint64, size), merged: make([]uint32, 0, n), shift: uint8(64 - bits.Len(uint(size-1))),
		seen: make([]uint64, seen/64), seenShift: uint8(64 - bits.Len(uint(seen-1)))}
}

// scatter makes a number whose upper bits depend on all bits of a pair.
func scatter(pair uint64) uint64 { return pair * 0x9E3779B97F4A7C15 }

// add gives a pair the next rank. If the pair has one, the later one counts, as in the reference.
func (m *merges) add(left, right, merged uint32) {
	pair := uint64(left)<<idBits | uint64(right)
	m.merged = append(m.merged, merged)
	h := scatter(pair)
	bit := h >> m.seenShift
	m.seen[bit/64] |= 1 << (bit % 64)
	i := h >> m.shift
	for m.slots[i] != 0 && m.slots[i]>>rankBits != pair {
		i = (i + 1) & uint64(len(m.slots)-1)
	}
	m.slots[i] = pair<<rankBits | uint64(len(m.merged))
}

// rank returns the rank of a pair, noRank if it is not merged.
func (m *merges) rank(left, right uint32) uint32 {
	pair := uint64(left)<<idBits | uint64(right)
	h := scatter(pair)
	if bit := h >> m.seenShift; m.seen[bit/64]>>(bit%64)&1 == 0 {
		return noRank
	}
	return m.find(pair, h)
}

func (m *merges) find(pair, h uint64) uint32 {
	for i := h >> m.shift; ; i = (i + 1) & uint64(len(m.slots)-1) {
		s := m.slots[i]
		if s == 0 {
			return noRank
		}
		if s>>rankBits == pair {
			return uint32(s&(1<<rankBits-1)) - 1
		}
	}
}
