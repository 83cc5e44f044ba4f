package epp

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

// unescaper turns the raw text of a JSON string, cut anywhere, into what it stands for: one prompt must hash and count
// equal however its newlines are spelled. It decodes as encoding/json does, but that bytes that are no UTF-8 stay, and that
// escapes JSON does not know are no error: the engine will refuse them.
type unescaper struct {
	held []byte    // the beginning of an escape, or of a pair of them that makes one character
	out  [256]byte // scratch
}

// reset forgets what is held.
func (u *unescaper) reset() { u.held = u.held[:0] }

// write decodes p into d. Text between escapes that is short is gathered, long text is hashed where it lies.
func (u *unescaper) write(d *digest, p []byte) {
	for len(u.held) > 0 && len(p) > 0 {
		u.held, p = append(u.held, p[0]), p[1:]
		u.settle(d)
	}
	out := u.out[:0]
	for len(p) > 0 {
		if len(out)+utf8.UTFMax > len(u.out) {
			d.write(out)
			out = out[:0]
		}
		if p[0] == '\\' {
			r, n := escape(p)
			if n == 0 {
				u.held = append(u.held[:0], p...)
				break
			}
			out, p = utf8.AppendRune(out, r), p[n:]
			continue
		}
		n := bytes.IndexByte(p, '\\')
		if n < 0 {
			n = len(p)
		}
		if len(out)+n > len(u.out) {
			d.write(out)
			d.write(p[:n])
			out = out[:0]
		} else {
			out = append(out, p[:n]...)
		}
		p = p[n:]
	}
	d.write(out)
}

// settle decodes the held escape if it is whole. What was held and turned out not to belong to it is text again.
func (u *unescaper) settle(d *digest) {
	r, n := escape(u.held)
	if n == 0 {
		return
	}
	d.write(utf8.AppendRune(u.out[:0], r))
	rest := u.held[n:]
	u.held = u.held[:0]
	u.write(d, rest)
}

// begun reports whether a backslash was written last whose escape has to come.
func (u *unescaper) begun() bool { return len(u.held) > 0 && u.held[len(u.held)-1] == '\\' }

// end tells that nothing follows. What is held then is a lone half of a surrogate pair, or no JSON.
func (u *unescaper) end(d *digest) {
	rest := u.held
	if len(rest) >= unitLen {
		d.write(utf8.AppendRune(u.out[:0], utf8.RuneError))
		rest = rest[unitLen:]
	}
	d.write(rest)
	u.held = u.held[:0]
}

// unitLen is the length of \uXXXX in bytes.
const unitLen = 6

// escape reads the escape at the start of raw, or the two of a surrogate pair, and tells its length in bytes: 0 if more of
// it has to come.
func escape(raw []byte) (r rune, n int) {
	if len(raw) < 2 {
		return 0, 0
	}
	if raw[1] != 'u' {
		if c := short[raw[1]]; c != 0 {
			return rune(c), 2
		}
		return rune(raw[1]), 2
	}
	r, n = unit(raw)
	if n < unitLen || !utf16.IsSurrogate(r) {
		return r, n
	}
	rest := raw[n:]
	switch {
	case len(rest) == 0, len(rest) == 1 && rest[0] == '\\':
		return 0, 0
	case rest[0] != '\\', rest[1] != 'u':
		return utf8.RuneError, n
	}
	low, k := unit(rest)
	if k == 0 {
		return 0, 0
	}
	if pair := utf16.DecodeRune(r, low); k == unitLen && pair != utf8.RuneError {
		return pair, n + k
	}
	return utf8.RuneError, n
}

// unit reads the \u at the start of raw and its four digits; n is 0 if more has to come. Where one is no digit it reads the
// u alone.
func unit(raw []byte) (r rune, n int) {
	for _, c := range raw[2:min(unitLen, len(raw))] {
		digit := digits[c]
		if digit == 0 {
			return 'u', 2
		}
		r = r<<4 | rune(digit-1)
	}
	if len(raw) < unitLen {
		return 0, 0
	}
	return r, unitLen
}

var (
	// short is what the escapes of one byte stand for; any other byte stands for itself.
	short = [256]byte{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}
	// digits is one more than the value of each hexadecimal digit, 0 for other bytes.
	digits = [256]byte{
		'0': 1, '1': 2, '2': 3, '3': 4, '4': 5, '5': 6, '6': 7, '7': 8, '8': 9, '9': 10,
		'a': 11, 'b': 12, 'c': 13, 'd': 14, 'e': 15, 'f': 16, 'A': 11, 'B': 12, 'C': 13, 'D': 14, 'E': 15, 'F': 16,
	}
)
