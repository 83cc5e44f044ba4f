package chars

import "unicode/utf8"

// Repair appends text to dst, with U+FFFD for what is not UTF-8: one for each longest start of a character, and one for each other byte,
// as Python's decoding with errors="replace" does. The result of a valid text is the text.
func Repair(dst, text []byte) []byte {
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r == utf8.RuneError && size == 1 {
			dst = utf8.AppendRune(dst, utf8.RuneError)
			size = broken(text)
		} else {
			dst = append(dst, text[:size]...)
		}
		text = text[size:]
	}
	return dst
}

// broken returns how many bytes at the beginning of text are the start of one character that is incomplete, 1 at least.
func broken(text []byte) int {
	low, high, follow := byte(0x80), byte(0xBF), 0 // of the second byte; how many follow the first one
	switch b := text[0]; {
	case b >= 0xC2 && b <= 0xDF:
		follow = 1
	case b >= 0xE0 && b <= 0xEF:
		follow = 2
		if b == 0xE0 {
			low = 0xA0 // shorter forms exist
		} else if b == 0xED {
			high = 0x9F // surrogates
		}
	case b >= 0xF0 && b <= 0xF4:
		follow = 3
		if b == 0xF0 {
			low = 0x90
		} else if b == 0xF4 {
			high = 0x8F // beyond U+10FFFF
		}
	}
	n := 1
	for n <= follow && n < len(text) && text[n] >= low && text[n] <= high {
		low, high = 0x80, 0xBF
		n++
	}
	return n
}
