package body

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

var errText = errors.New("not a JSON string")

// Text decodes a JSON string literal with its quotes, as encoding/json does: lone surrogate halves and invalid UTF-8 become
// U+FFFD; unknown escapes and bare control characters are errors.
func Text(raw []byte) (string, error) {
	if len(raw) < 2 || raw[0] != '"' || raw[len(raw)-1] != '"' {
		return "", fmt.Errorf("decoding a string: %w", errText)
	}
	raw = raw[1 : len(raw)-1]
	for i, c := range raw {
		if c < ' ' {
			return "", fmt.Errorf("decoding a string: control character at byte %d", i+1)
		}
	}
	if end, _ := closing(raw, 0, false); end >= 0 {
		return "", fmt.Errorf("decoding a string: quote at byte %d", end+1)
	}
	if !hasEscape(raw) && utf8.Valid(raw) {
		return string(raw), nil
	}
	text, err := unquote(make([]byte, 0, len(raw)), raw)
	if err != nil {
		return "", fmt.Errorf("decoding a string: %w", err)
	}
	return string(text), nil
}

func hasEscape(raw []byte) bool { return bytes.IndexByte(raw, '\\') >= 0 }

// unquote appends to dst the decoded text of raw, the inside of a JSON string.
func unquote(dst, raw []byte) ([]byte, error) {
	for len(raw) > 0 {
		if raw[0] != '\\' {
			r, n := utf8.DecodeRune(raw)
			dst, raw = utf8.AppendRune(dst, r), raw[n:]
			continue
		}
		r, n := Escape(raw, true)
		if n < 0 {
			return dst, errors.New("unknown escape")
		}
		dst, raw = utf8.AppendRune(dst, r), raw[n:]
	}
	return dst, nil
}

// Escape decodes the escape, or surrogate pair of escapes, at the beginning of raw. n is its length in bytes: 0 if raw may
// end inside it, unless last says that nothing follows; -1 if JSON has no such escape.
func Escape(raw []byte, last bool) (r rune, n int) {
	if len(raw) > 1 && raw[1] != 'u' {
		if c := short[raw[1]]; c != 0 {
			return rune(c), 2
		}
		return 0, -1
	}
	if r = unit(raw); r < 0 {
		if !last && beginsUnit(raw) {
			return 0, 0
		}
		return 0, -1
	}
	if !utf16.IsSurrogate(r) {
		return r, unitLen
	}
	rest := raw[unitLen:]
	if !last && beginsUnit(rest) {
		return 0, 0
	}
	if pair := utf16.DecodeRune(r, unit(rest)); pair != utf8.RuneError {
		return pair, 2 * unitLen
	}
	return utf8.RuneError, unitLen
}

// short has the decoded byte of each short escape.
var short = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unitLen is the length of \uXXXX in bytes.
const unitLen = 6

// beginsUnit reports whether raw is an incomplete \uXXXX.
func beginsUnit(raw []byte) bool {
	for i, c := range raw {
		switch {
		case i == 0 && c == '\\', i == 1 && c == 'u', i > 1 && digits[c] <= 15:
		default:
			return false
		}
	}
	return len(raw) < unitLen
}

// unit returns the UTF-16 code unit of the \uXXXX at the start of raw, -1 if there is none.
func unit(raw []byte) rune {
	if len(raw) < unitLen || raw[0] != '\\' || raw[1] != 'u' {
		return -1
	}
	a, b, c, d := digits[raw[2]], digits[raw[3]], digits[raw[4]], digits[raw[5]]
	if a|b|c|d > 15 {
		return -1
	}
	return rune(a)<<12 | rune(b)<<8 | rune(c)<<4 | rune(d)
}

const hex = "0123456789abcdef"

// digits is the value of each hexadecimal digit, 0xFF for other bytes.
var digits = hexDigits()

func hexDigits() (table [256]byte) {
	for i := range table {
		table[i] = 0xFF
	}
	for i, c := range []byte(hex) {
		table[c] = byte(i)
	}
	for i, c := range []byte("ABCDEF") {
		table[c] = byte(10 + i)
	}
	return table
}

// AppendQuoted appends s as a JSON string, quotes included.
func AppendQuoted(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}
