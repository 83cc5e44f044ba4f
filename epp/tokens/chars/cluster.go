package chars

import (
	"unicode"
	"unicode/utf8"
)

var (
	// extending are the characters that belong to the cluster of the one before them: Grapheme_Cluster_Break is Extend, ZWJ or SpacingMark.
	extending = Union(categories("Mn", "Me", "Mc"), table(unicode.Other_Grapheme_Extend), Of(0x200D, 0x0E33, 0x0EB3), Ranges(Range{0x1F3FB, 0x1F3FF}))
	// apart are marks that do not, in Unicode's GraphemeBreakProperty.
	apart = Ranges(Range{0x102B, 0x102C}, Range{0x1038, 0x1038}, Range{0x1062, 0x1064}, Range{0x1067, 0x106D}, Range{0x1083, 0x1083}, Range{0x1087, 0x108C},
		Range{0x108F, 0x108F}, Range{0x109A, 0x109C}, Range{0x1A61, 0x1A61}, Range{0x1A63, 0x1A64}, Range{0xAA7B, 0xAA7B}, Range{0xAA7D, 0xAA7D}, Range{0x11720, 0x11721})
	// prepended are the characters that belong to the cluster of the one after them.
	prepended = Union(table(unicode.Prepended_Concatenation_Mark), Of(0x0D4E, 0x113D1, 0x1193F, 0x11941, 0x11A3A, 0x11F02), Ranges(Range{0x111C2, 0x111C3}, Range{0x11A84, 0x11A89}))
	// controls end the cluster before them, and are one each.
	controls = Union(table(unicode.Cc), table(unicode.Cf), table(unicode.Zl), table(unicode.Zp))
)

func extends(r rune) bool { return r >= 0x300 && extending.Contains(r) && !apart.Contains(r) }

func isControl(r rune) bool {
	return controls.Contains(r) && r != 0x200C && r != 0x200D && !prepended.Contains(r) && (r < 0xE0020 || r > 0xE007F)
}

// Cluster returns the length in bytes of the grapheme cluster that a text begins with, which is UTF-8 and not empty. It may be too short where the
// cluster has several characters that mark nothing: syllables of Hangul and of Indic conjuncts, flags, and sequences of emoji. All of these have six bytes or more.
func Cluster(text []byte) int {
	if text[0] == '\r' && len(text) > 1 && text[1] == '\n' {
		return 2
	}
	r, n := utf8.DecodeRune(text)
	if isControl(r) {
		return n
	}
	for prepended.Contains(r) && n < len(text) {
		next, size := utf8.DecodeRune(text[n:])
		if isControl(next) {
			return n
		}
		r = next
		n += size
	}
	for n < len(text) {
		next, size := utf8.DecodeRune(text[n:])
		if !extends(next) && next != 0x200C {
			break
		}
		n += size
	}
	return n
}
