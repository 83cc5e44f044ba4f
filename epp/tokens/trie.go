package tokens

import "math/bits"

// trie finds the texts that another one begins with. Its nodes are numbers: 0 is the empty text.
type trie struct {
	slots  []uint64 // open addressing: node and byte of a step, and the node that it leads to; 0 is free
	shift  uint8
	values []uint32   // by node: what the text that ends there was added with, none if no text does
	first  [256]int32 // the steps from node 0, which are most of all; 0 if there is none
}

// Bounds of a trie, so that a step and the node that it leads to fit into 64 bits.
const (
	nodeBits = 28
	maxNodes = 1<<nodeBits - 1
)

func newTrie() *trie {
	const size = 1 << 10
	return &trie{slots: make([]uint64, size), shift: uint8(64 - bits.Len(size-1)), values: []uint32{none}}
}

// add adds a text with a value. Of equal texts the last one counts.
func (t *trie) add(text string, value uint32) {
	node := int32(0)
	for i := range len(text) {
		next := t.step(node, text[i])
		if next == 0 {
			next = int32(len(t.values))
			t.values = append(t.values, none)
			t.put(node, text[i], next)
		}
		node = next
	}
	t.values[node] = value
}

func (t *trie) put(node int32, b byte, next int32) {
	if node == 0 {
		t.first[b] = next
		return
	}
	if 2*len(t.values) > len(t.slots) {
		old := t.slots
		t.slots = make([]uint64, 2*len(old))
		t.shift--
		for _, s := range old {
			if s != 0 {
				t.insert(s)
			}
		}
	}
	t.insert((uint64(node)<<8|uint64(b))<<nodeBits | uint64(next))
}

// insert puts a step into a free slot.
func (t *trie) insert(s uint64) {
	i := scatter(s>>nodeBits) >> t.shift
	for t.slots[i] != 0 {
		i = (i + 1) & uint64(len(t.slots)-1)
	}
	t.slots[i] = s
}

// step returns the node that a byte leads to, 0 if no text goes on with it.
func (t *trie) step(node int32, b byte) int32 {
	if node == 0 {
		return t.first[b]
	}
	key := uint64(node)<<8 | uint64(b)
	for i := scatter(key) >> t.shift; ; i = (i + 1) & uint64(len(t.slots)-1) {
		s := t.slots[i]
		if s == 0 {
			return 0
		}
		if s>>nodeBits == key {
			return int32(s & (1<<nodeBits - 1))
		}
	}
}

// longest returns the value and length of the longest text that another begins with; length 0 if there is none.
func (t *trie) longest(text []byte) (value uint32, length int) {
	node := int32(0)
	for i, b := range text {
		if node = t.step(node, b); node == 0 {
			break
		}
		if v := t.values[node]; v != none {
			value, length = v, i+1
		}
	}
	return value, length
}
