package tokens

import "unicode/utf8"

// boundaries are the places at which a word of code points can be cut, and its parts be merged by themselves, without other ids: between two
// characters that are not side by side in anything that merging makes. Models that come from SentencePiece have no pre-tokenization, so their
// words are whole texts, but nearly all of their tokens are of one word with the space before it, and of one kind of characters.
type boundaries struct {
	cut   [boundaryClasses][boundaryClasses]bool
	known map[rune]uint32 // characters that are tokens
}

// Classes of characters: those of ASCII by themselves, what stands for a space, and all others.
const (
	markClass       = utf8.RuneSelf
	otherClass      = utf8.RuneSelf + 1
	boundaryClasses = utf8.RuneSelf + 2
)

// mark stands for a space.
const mark = '▁'

// newBoundaries returns the boundaries of a model, nil if it has none.
func newBoundaries(f *fileModel, m *bpe) *boundaries {
	if m.bytes || f.IgnoreMerges { // with ignore_merges a text of several words may be a token that no merge makes
		return nil
	}
	made := map[uint32]bool{m.unknown: m.unknown != none} // tokens whose text is not that of the characters they are made of
	for _, id := range m.fallback {
		made[id] = id != none
	}
	var joined [boundaryClasses][boundaryClasses]bool
	for _, merge := range f.Merges {
		if made[f.Vocab[merge.left]] || made[f.Vocab[merge.right]] {
			return nil
		}
		before := -1
		for _, r := range merge.left + merge.right {
			class := classOf(r)
			if before >= 0 {
				joined[before][class] = true
			}
			before = class
		}
	}
	// Only between characters that are tokens: others are dropped, or come later than those after them.
	known := [boundaryClasses]bool{otherClass: true} // as far as can be said here
	for r, id := range m.runeIDs {
		if made[id] {
			return nil
		}
		known[classOf(r)] = true
	}
	b, any := &boundaries{known: m.runeIDs}, false
	for before := range known {
		for after := range otherClass {
			if known[before] && known[after] && !joined[before][after] {
				b.cut[before][after], any = true, true
			}
		}
	}
	if !any {
		return nil
	}
	return b
}

func classOf(r rune) int {
	switch {
	case r < utf8.RuneSelf:
		return int(r)
	case r == mark:
		return markClass
	}
	return otherClass
}

// knows reports whether the last character of a text is a token.
func (b *boundaries) knows(text []byte) bool {
	r, _ := utf8.DecodeLastRune(text)
	_, ok := b.known[r]
	return ok
}

// cutWord appends the ids of a word, part by part.
func (e *encoder) cutWord(word []byte) {
	before, n, done := otherClass, 0, 0
	for at := 0; at < len(word); {
		class, size := int(word[at]), 1
		if class >= utf8.RuneSelf {
			var r rune
			r, size = utf8.DecodeRune(word[at:])
			class = classOf(r)
		}
		if at > 0 && e.boundaries.cut[before][class] && (before != otherClass || e.boundaries.knows(word[:at])) {
			e.ends[n] = at
			if n++; n == len(e.ends) {
				done, n = e.append(word, done, e.ends[:n]), 0
			}
		}
		before = class
		at += size
	}
	if n > 0 {
		done = e.append(word, done, e.ends[:n])
	}
	e.word(word[done:])
}
