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

// prompt is the prompt of a request, as a trace has it.
type prompt struct {
	parts  []int64 // identities of its beginning, each of `each` tokens
	own    uint64  // identity of the rest, which no other prompt shares
	each   int     // tokens of a part
	tokens int
}

// blocks returns the chained hashes of a prompt's whole blocks of size tokens, at most most.
func (p *prompt) blocks(size, most int) (dst []uint64) {
	if size <= 0 {
		return nil
	}
	h := uint64(seed)
	for i := range min(p.tokens/size, most) {
		begin, end := i*size, (i+1)*size
		for at := begin; at < end; { // parts that the block is made of
			part, next := p.own, end
			if p.each > 0 && at/p.each < len(p.parts) {
				part, next = uint64(p.parts[at/p.each]), min(end, (at/p.each+1)*p.each)
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
