package chars

import (
	"slices"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Form is a Unicode normalisation form.
type Form = norm.Form

// The forms.
const (
	NFC  = norm.NFC
	NFD  = norm.NFD
	NFKC = norm.NFKC
	NFKD = norm.NFKD
)

// firstMark is the first byte of U+0300 in UTF-8. What is below U+0300 is normal in NFC, and combines with nothing before it.
const firstMark = 0xCC

// IsNormal reports whether valid UTF-8 is in a normalisation form. It may say false of text that is.
func IsNormal(form Form, text []byte) bool {
	first := byte(utf8.RuneSelf)
	if form == NFC {
		first = firstMark
	}
	if !slices.ContainsFunc(text, func(b byte) bool { return b >= first }) {
		return true
	}
	return form.QuickSpan(text) == len(text)
}

// AppendNormal appends text, which is UTF-8, to dst in a normalisation form. Code points that the reference's version of Unicode does not have stay
// as they are, and nothing is composed or ordered over them.
func AppendNormal(form Form, dst, text []byte) []byte {
	at, size := later(text)
	if size == 0 {
		return appendKnown(form, dst, text)
	}
	for size > 0 {
		dst = append(append(dst, appendKnown(form, nil, text[:at])...), text[at:at+size]...)
		text = text[at+size:]
		at, size = later(text)
	}
	return append(dst, appendKnown(form, nil, text)...)
}

// firstLater is the first byte of the least code point of older["later"] in UTF-8.
const firstLater = 0xDF

// later returns where a text has a code point that the reference's version of Unicode does not have, and its length; 0 if there is none.
func later(text []byte) (at, size int) {
	for at < len(text) {
		if text[at] < firstLater {
			at++
			continue
		}
		r, size := utf8.DecodeRune(text[at:])
		if older["later"].Contains(r) {
			return at, size
		}
		at += size
	}
	return 0, 0
}

func appendKnown(form Form, dst, text []byte) []byte {
	if longestMarks(text) < safeMarks {
		return form.Append(dst, text...)
	}
	return appendMarks(form, dst, text)
}

// safeMarks is how many combining marks can follow each other before norm.Form puts U+034F between them, which bounds its memory and
// which no tokenizer does. Its own bound is 30, after decomposition to as many as 4.
const safeMarks = 7

// longestMarks returns the length of the longest sequence of characters that change their order or combine with what is before them.
func longestMarks(text []byte) int {
	longest, marks := 0, 0
	for len(text) > 0 {
		if text[0] < firstMark {
			text, marks = text[1:], 0
			continue
		}
		p := NFKD.Properties(text)
		if p.BoundaryBefore() {
			marks = 0
		}
		marks++
		longest = max(longest, marks)
		text = text[max(p.Size(), 1):]
	}
	return longest
}

// appendMarks is the algorithm of the Unicode standard, without a bound of marks in sequence.
func appendMarks(form Form, dst, text []byte) []byte {
	apart, compose := form, false
	switch form {
	case NFC:
		apart, compose = NFD, true
	case NFKC:
		apart, compose = NFKD, true
	}
	var runes []rune
	for _, r := range string(text) {
		runes = append(runes, []rune(apart.String(string(r)))...)
	}
	order(runes)
	if compose {
		runes = composed(runes)
	}
	return append(dst, string(runes)...)
}

func class(r rune) uint8 { return NFD.PropertiesString(string(r)).CCC() }

// order sorts combining marks in sequence by their class.
func order(runes []rune) {
	for start := 0; start < len(runes); start++ {
		end := start
		for end < len(runes) && class(runes[end]) != 0 {
			end++
		}
		slices.SortStableFunc(runes[start:end], func(a, b rune) int { return int(class(a)) - int(class(b)) })
		start = end
	}
}

// composed replaces base characters and marks by the characters that are composed of them.
func composed(runes []rune) []rune {
	out := runes[:0]
	base := -1 // where in out the last base character is
	last := 0  // class of the last character in out behind the base, -1 if there is none
	for _, r := range runes {
		c := int(class(r))
		if base >= 0 && (last < c || last < 0) {
			if one, ok := pair(out[base], r); ok {
				out[base] = one
				continue
			}
		}
		if c == 0 {
			base, last = len(out), -1
		} else {
			last = c
		}
		out = append(out, r)
	}
	return out
}

// pair returns the character that two are composed to.
func pair(a, b rune) (rune, bool) {
	s := NFC.String(string([]rune{a, b}))
	r, size := utf8.DecodeRuneInString(s)
	return r, size == len(s)
}
