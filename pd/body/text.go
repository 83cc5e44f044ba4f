package body

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

var errText = errors.New("not a JSON string")

// Text decodes a JSON string literal, its quotes included, as encoding/json
// does: surrogate halves that stand alone and bytes that are no UTF-8 become
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

// unquote appends to dst what raw, the inside of a JSON string, stands for.
func unquote(dst, raw []byte) ([]byte, error) {
	for len(raw) > 0 {
		if raw[0] != '\\' {
			r, n := utf8.DecodeRune(raw)
			dst, raw = utf8.AppendRune(dst, r), raw[n:]
			continue
		}
		r, n := unescape(raw)
		if n == 0 {
			return dst, errors.New("unknown escape")
		}
		dst, raw = utf8.AppendRune(dst, r), raw[n:]
	}
	return dst, nil
}

// unescape reads one escape, or a pair of them that make one rune, and returns
// its length in bytes, 0 if it is none.
func unescape(raw []byte) (rune, int) {
	if len(raw) < 2 {
		return 0, 0
	}
	if raw[1] != 'u' {
		k := bytes.IndexByte([]byte(`"\/bfnrt`), raw[1])
		if k < 0 {
			return 0, 0
		}
		return rune("\"\\/\b\f\n\r\t"[k]), 2
	}
	r := unit(raw)
	if r < 0 {
		return 0, 0
	}
	if utf16.IsSurrogate(r) {
		if pair := utf16.DecodeRune(r, unit(raw[6:])); pair != utf8.RuneError {
			return pair, 12
		}
		r = utf8.RuneError
	}
	return r, 6
}

// unit returns the UTF-16 code unit that a \uXXXX at the start of raw stands
// for, -1 if there is none.
func unit(raw []byte) rune {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
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

// appendQuoted appends s as a JSON string.
func appendQuoted(dst []byte, s string) []byte {
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
