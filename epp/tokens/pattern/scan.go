package pattern

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// Next returns where the first match at or after from begins and ends; false if there is none. The text must be UTF-8, and from must be
// where a character begins. Where matches fail late, as with a+b on many a, the time is quadratic in the text's length, as in a
// backtracking matcher; the expressions of known tokenizers fail at the second character at the latest.
func (p *Pattern) Next(text []byte, from int) (start, end int, ok bool) {
	for start = from; start < len(text); {
		if !p.begins[text[start]] {
			start++
			continue
		}
		if end := p.Match(text, start); end > 0 {
			return start, end, true
		}
		_, size := utf8.DecodeRune(text[start:])
		start += size
	}
	return 0, 0, false
}

// Ends writes the ends of matches that follow each other without a gap, the first of which begins at from: up to len(ends) of them, or to
// where no match begins. It returns how many. The text must be UTF-8.
func (p *Pattern) Ends(text []byte, from int, ends []int) int {
	const each, upper = 0x0101010101010101, 0x8080808080808080
	at := from
	for n := range ends {
		if at >= len(text) {
			return n
		}
		end := 0
		if b := text[at]; b < utf8.RuneSelf && p.runs[b].state != 0 {
			r := &p.runs[b]
			// The upper bit of each byte of no says whether the byte, folded, is not from a to z. No sum carries into the next byte.
			for end = at; end+9 <= len(text); {
				t := binary.LittleEndian.Uint64(text[end:])
				fold := t&^upper | each*uint64(r.fold)
				no := ^((fold + each*(0x80-'a')) &^ (fold + each*(0x80-'z'-1)) &^ t) & upper
				if end == at {
					no &^= 0x80
				}
				end += bits.TrailingZeros64(no) / 8
				if no != 0 {
					break
				}
			}
			// Only where the text ends, or the match does not, is there more to look at.
			if b := text[end]; end-at < int(r.least) || b >= utf8.RuneSelf || p.table[r.state+uint32(p.ascii[b])] != accepting {
				end = 0
			}
		}
		if end == 0 {
			if end = p.Match(text, at); end == 0 {
				return n
			}
		}
		ends[n] = end
		at = end
	}
	return len(ends)
}

// Match returns where the match that begins at start ends, 0 if there is none. The text must be UTF-8.
func (p *Pattern) Match(text []byte, start int) int {
	table, state, end, at := p.table, uint32(p.stride), 0, start
	if start+4 <= len(text) {
		if t := binary.LittleEndian.Uint32(text[start:]); t&0x80808080 == 0 {
			// Most matches are that short. A state that nothing follows leads to itself, so there is nothing to branch on.
			e0 := table[state+uint32(p.ascii[t&0x7f])]
			e1 := table[e0>>stateBits+uint32(p.ascii[t>>8&0x7f])]
			e2 := table[e1>>stateBits+uint32(p.ascii[t>>16&0x7f])]
			e3 := table[e2>>stateBits+uint32(p.ascii[t>>24])]
			if e1&accepting != 0 {
				end = start + 1
			}
			if e2&accepting != 0 {
				end = start + 2
			}
			if e3&accepting != 0 {
				end = start + 3
			}
			if state = e3 >> stateBits; state == 0 {
				return end
			}
			at = start + 4
		}
	}
	for at < len(text) {
		var entry uint32
		size := 1
		if b := text[at]; b < utf8.RuneSelf {
			entry = table[state+uint32(p.ascii[b])]
		} else {
			var class uint8
			class, size = p.class(text[at:])
			entry = table[state+uint32(class)]
		}
		if entry&accepting != 0 {
			end = at
		}
		state = entry >> stateBits
		if state == 0 {
			return end
		}
		at += size
	}
	if table[state+uint32(p.stride)-1]&accepting != 0 {
		end = len(text)
	}
	return end
}

// class returns the class and length of a character that is not ASCII.
func (p *Pattern) class(text []byte) (class uint8, size int) {
	r, size := utf8.DecodeRune(text)
	if r < utf8.RuneSelf {
		return p.ascii[r], size
	}
	r -= utf8.RuneSelf
	return p.wide[int(p.blocks[r>>blockBits])<<blockBits|int(r)&(blockSize-1)], size
}
