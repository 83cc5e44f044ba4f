package kvindex

import (
	"math/bits"
	"slices"
)

// Key stands for a block and all blocks before it.
type Key = uint64

// keyOf returns the key of a block where keys are names.
func keyOf(name uint64) Key { return max(name, 1) } // 0 is no key

// Seed keeps keys apart that must not be compared, and those who do not know it from finding prompts with equal keys.
type Seed uint64

// Odd constants without structure: the fractional parts of square roots of primes.
const (
	mix0 = 0x6a09e667f3bcc909
	mix1 = 0xbb67ae8584caa73b
	mix2 = 0x3c6ef372fe94f82b
	mix3 = 0xa54ff53a5f1d36f1
	mix4 = 0x510e527fade682d1
	mix5 = 0x9b05688c2b3e6c1f
	mix6 = 0x1f83d9abfb41bd6b
	mix7 = 0x5be0cd19137e2179
)

// mix multiplies and folds: each bit of the result depends on all bits of both.
func mix(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}

// Root returns what the key of a first block is made from. Prompts whose blocks have another length, or that were computed by
// another adapter (empty = none), have no keys in common.
func (s Seed) Root(blockTokens int, adapter []byte) Key {
	return mix(s.Text(0, adapter)^mix0, uint64(blockTokens)^mix1)
}

// Text hashes a text, such as a cache salt, together with what was hashed before it, 0 = nothing. The result is not 0.
func (s Seed) Text(before uint64, text []byte) uint64 {
	h := mix(uint64(s)^before^mix2, uint64(len(text))^mix3)
	for ; len(text) > 0; text = text[min(8, len(text)):] {
		var word uint64
		for i, b := range text[:min(8, len(text))] {
			word |= uint64(b) << (8 * i)
		}
		h = mix(h^word^mix0, mix1^bits.RotateLeft64(h, 32))
	}
	return h | 1
}

// Next returns the key of a block. before is the key of the block before it, or the Root. extra is what the block depends on
// beside its tokens, 0 = nothing.
func (s Seed) Next(before Key, tokens []uint32, extra uint64) Key {
	if extra != 0 {
		before = mix(before^mix0, extra^mix1)
	}
	var key [1]Key
	s.keys(key[:], before, tokens, len(tokens))
	return key[0]
}

// Append appends the keys of the whole blocks of a prompt. root is what Root returned, and salt the extra of the first block.
func (s Seed) Append(dst []Key, root Key, salt uint64, blockTokens int, tokens []uint32) []Key {
	if blockTokens < 1 || len(tokens) < blockTokens {
		return dst
	}
	n := len(dst)
	dst = slices.Grow(dst, len(tokens)/blockTokens)[:n+len(tokens)/blockTokens]
	if salt != 0 {
		root = s.Next(root, tokens[:blockTokens], salt)
		dst[n] = root
		n, tokens = n+1, tokens[blockTokens:]
	}
	s.keys(dst[n:], root, tokens, blockTokens)
	return dst
}

// keys computes the keys of blocks of so many tokens, which depend on nothing else.
func (s Seed) keys(dst []Key, key Key, tokens []uint32, blockTokens int) {
	// Two tokens at different places of a block are combined with different constants, so that equal ones do not cancel out, and with the seed, so
	// that those who do not know it cannot choose tokens that make a product 0.
	k := &[8]uint64{mix0, mix1, mix2, mix3, mix4, mix5, mix6, mix7}
	for i := range k {
		k[i] ^= uint64(s)
	}
	for i := range dst {
		block := tokens[i*blockTokens : (i+1)*blockTokens]
		// Sixteen tokens are hashed without the key before them, in four products that do not depend on one another, so that the processor works
		// on several at once, also of further blocks.
		for ; len(block) >= 16; block = block[16:] {
			t := (*[16]uint32)(block)
			h := mix(k[0]^(uint64(t[0])|uint64(t[1])<<32), k[1]^(uint64(t[2])|uint64(t[3])<<32))
			h ^= mix(k[2]^(uint64(t[4])|uint64(t[5])<<32), k[3]^(uint64(t[6])|uint64(t[7])<<32))
			h ^= mix(k[4]^(uint64(t[8])|uint64(t[9])<<32), k[5]^(uint64(t[10])|uint64(t[11])<<32))
			h ^= mix(k[6]^(uint64(t[12])|uint64(t[13])<<32), k[7]^(uint64(t[14])|uint64(t[15])<<32))
			key = mix(key^mix3, h^mix2)
		}
		if len(block) > 0 {
			h := k[0]
			for _, t := range block {
				h = mix(h^uint64(t), k[1]^h>>32)
			}
			key = mix(key^mix3, h^mix2)
		}
		key = max(key, 1) // 0 is no key
		dst[i] = key
	}
}
