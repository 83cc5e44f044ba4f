package kvindex

import "math/bits"

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
	// The tokens are hashed without the key before them, and in two halves, so that the processor can work on several at once.
	h, g := uint64(s)^extra, uint64(s)^mix2
	for ; len(tokens) >= 8; tokens = tokens[8:] {
		t := (*[8]uint32)(tokens)
		h = mix(h^mix0^(uint64(t[0])|uint64(t[1])<<32), mix1^(uint64(t[2])|uint64(t[3])<<32)^h>>32)
		g = mix(g^mix3^(uint64(t[4])|uint64(t[5])<<32), mix0^(uint64(t[6])|uint64(t[7])<<32)^g>>32)
	}
	for _, t := range tokens {
		h = mix(h^mix2^uint64(t), mix3^h>>32)
	}
	h ^= bits.RotateLeft64(g, 32)
	return max(mix(before^mix3, h^mix2), 1) // 0 is no key
}

// Append appends the keys of the whole blocks of a prompt. root is what Root returned, and salt the extra of the first block.
func (s Seed) Append(dst []Key, root Key, salt uint64, blockTokens int, tokens []uint32) []Key {
	if blockTokens < 1 {
		return dst
	}
	for ; len(tokens) >= blockTokens; tokens = tokens[blockTokens:] {
		root = s.Next(root, tokens[:blockTokens], salt)
		dst, salt = append(dst, root), 0
	}
	return dst
}
