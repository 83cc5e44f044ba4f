package pattern

import "unicode/utf8"

// Next returns where the first match at or after from begins and ends; false if there is none. The text must be UTF-8, and from must be
// where a character begins. Where matches fail late, as with a+b on many a, the time is quadratic in the text's length, as in a
// backtracking matcher; the expressions of known tokenizers fail at the second character at the latest.
func (p *Pattern) Next(text []byte, from int) (start, end int, ok bool) {
	for start = from; start < len(text); {
		if !p.begins[text[start]] {
			start++
			continue
		}
		if end := p.match(text, start); end > 0 {
			return start, end, true
		}
		_, size := utf8.DecodeRune(text[start:])
		start += size
	}
	return 0, 0, false
}

// match returns where the match that begins at start ends, 0 if there is none.
func (p *Pattern) match(text []byte, start int) int {
	table, state, end := p.table, uint32(p.stride), 0
	for at := start; at < len(text); {
		var entry uint32
		size := 1
		if b := text[at]; b < utf8.RuneSelf {
			entry = table[state+uint32(p.ascii[b])]
		} else {
			var class uint8
			class, size = p.class(text[at:])
			entry = table[state+uint32(class)]
		}
		if entry&1 != 0 {
			end = at
		}
		state = entry >> 1
		if state == 0 {
			return end
		}
		at += size
	}
	if table[state+uint32(p.stride)-1]&1 != 0 {
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
