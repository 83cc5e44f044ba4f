package replay

import "math/bits"

// chain returns the identities of the first whole parts of a prompt, each of which stands for all parts before it too.
func chain(ids []int64, whole int) []uint64 {
	whole = min(whole, len(ids))
	all := make([]uint64, whole)
	h := uint64(seed)
	for i := range whole {
		h = mix(h, uint64(ids[i]))
		all[i] = h
	}
	return all
}

// blocks returns the chained hashes of a prompt's whole blocks, of tokens each and at most most. ids are those of its beginning, each
// of `each` tokens; own is an identity for the rest, which no other prompt shares.
func blocks(dst []uint64, ids []int64, each, input, tokens, most int, own uint64) []uint64 {
	if tokens <= 0 {
		return nil
	}
	h := uint64(seed)
	for i := range min(input/tokens, most) {
		begin, end := i*tokens, (i+1)*tokens
		for at := begin; at < end; { // parts that the block is made of
			part, next := own, end
			if each > 0 && at/each < len(ids) {
				part, next = uint64(ids[at/each]), min(end, (at/each+1)*each)
			}
			h = mix(mix(h, part), uint64(at))
			at = next
		}
		dst = append(dst, h)
	}
	return dst
}

const seed = 0x9e3779b97f4a7c15

// mix returns a hash of two numbers.
func mix(a, b uint64) uint64 {
	high, low := bits.Mul64(a^0xa0761d6478bd642f, b^0xe7037ed1a0b428db)
	return high ^ low ^ bits.RotateLeft64(a, 23)
}
