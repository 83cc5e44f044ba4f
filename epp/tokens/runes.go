package tokens

import (
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/epp/tokens/chars"
)

// eachRune is a normalizer that changes each character on its own.
type eachRune struct {
	put   func(dst []byte, r rune) []byte // appends what a character becomes
	ascii [utf8.RuneSelf]bool             // the ones that change
}

func newEachRune(put func(dst []byte, r rune) []byte) *eachRune {
	n := &eachRune{put: put}
	for r := range rune(utf8.RuneSelf) {
		n.ascii[r] = string(put(nil, r)) != string(r)
	}
	return n
}

func (n *eachRune) changes(text []byte) bool {
	return slices.ContainsFunc(text, func(b byte) bool { return b >= utf8.RuneSelf || n.ascii[b] })
}

func (n *eachRune) append(dst, text []byte) []byte {
	for len(text) > 0 {
		if b := text[0]; b < utf8.RuneSelf && !n.ascii[b] {
			dst, text = append(dst, b), text[1:]
			continue
		}
		r, size := utf8.DecodeRune(text)
		dst, text = n.put(dst, r), text[size:]
	}
	return dst
}

// without returns what drops the characters of a set.
func without(set chars.Set) func(dst []byte, r rune) []byte {
	return func(dst []byte, r rune) []byte {
		if set.Contains(r) {
			return dst
		}
		return utf8.AppendRune(dst, r)
	}
}

// bert returns what a BertNormalizer does.
func (c *component) bert() (all normalizers) {
	if c.CleanText {
		control := chars.Control()
		all = append(all, newEachRune(func(dst []byte, r rune) []byte {
			switch {
			case control.Contains(r):
				return dst
			case unicode.IsSpace(r):
				return append(dst, ' ')
			}
			return utf8.AppendRune(dst, r)
		}))
	}
	if c.HandleChineseChars {
		ideograph := chars.Ideograph()
		all = append(all, newEachRune(func(dst []byte, r rune) []byte {
			if ideograph.Contains(r) {
				return append(utf8.AppendRune(append(dst, ' '), r), ' ')
			}
			return utf8.AppendRune(dst, r)
		}))
	}
	if c.StripAccents == nil && c.Lowercase || c.StripAccents != nil && *c.StripAccents {
		all = append(all, form{chars.NFD}, newEachRune(without(chars.Accent())))
	}
	if c.Lowercase {
		all = append(all, newEachRune(chars.AppendLower))
	}
	return all
}

// nmt appends what Nmt makes of a character: nothing of control characters, a space of what stands for one.
func nmt(dst []byte, r rune) []byte {
	switch {
	case r >= 0x01 && r <= 0x08, r == 0x0B, r >= 0x0E && r <= 0x1F, r == 0x7F, r == 0x8F, r == 0x9F:
		return dst
	case r == '\t', r == '\n', r == '\f', r == '\r', r == 0x1680, r >= 0x200B && r <= 0x200F, r == 0x2028, r == 0x2029, r == 0x2581, r == 0xFEFF, r == utf8.RuneError:
		return append(dst, ' ')
	}
	return utf8.AppendRune(dst, r)
}

// strip removes spaces from the ends of a text.
type strip struct{ left, right bool }

func (n strip) trim(text []byte) []byte {
	if n.left {
		text = trimLeft(text)
	}
	if n.right {
		text = trimRight(text)
	}
	return text
}

func (n strip) changes(text []byte) bool       { return len(n.trim(text)) < len(text) }
func (n strip) append(dst, text []byte) []byte { return append(dst, n.trim(text)...) }
