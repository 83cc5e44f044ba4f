package pattern

import "unicode/utf8"

// Between says what a place between two ASCII characters in a text is to the pattern. apart: no match reaches over the place, and none before
// it depends on what follows. begins: the character after it begins a match whatever follows. Where both hold, matches in a text are those in
// its two parts.
func (p *Pattern) Between(before, after byte) (apart, begins bool) {
	if before >= utf8.RuneSelf || after >= utf8.RuneSelf {
		return false, false
	}
	a, b, end := int(p.ascii[before]), int(p.ascii[after]), p.stride-1
	for state := p.stride; state < len(p.table); state += p.stride {
		next := int(p.table[state+a] >> stateBits)
		if next == 0 {
			continue
		}
		follows, ends := p.table[next+b], p.table[next+end]
		if follows>>stateBits != 0 || (follows^ends)&accepting != 0 {
			return false, false
		}
	}
	first := int(p.table[p.stride+b] >> stateBits)
	if first == 0 {
		return true, false
	}
	for class := range p.stride {
		if p.table[first+class]&accepting == 0 {
			return true, false
		}
	}
	return true, true
}
