package chars

import (
	"cmp"
	"slices"
	"unicode"
)

// Range is a range of code points, both ends included.
type Range struct{ Lo, Hi rune }

// Set is a set of code points: ranges in ascending order that neither overlap nor touch.
type Set []Range

// Of returns the set of the given code points.
func Of(runes ...rune) Set {
	ranges := make([]Range, len(runes))
	for i, r := range runes {
		ranges[i] = Range{r, r}
	}
	return Ranges(ranges...)
}

// Ranges returns the set of the given ranges, which may overlap.
func Ranges(ranges ...Range) Set {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b Range) int { return cmp.Compare(a.Lo, b.Lo) })
	set := sorted[:0]
	for _, r := range sorted {
		if last := len(set) - 1; last >= 0 && r.Lo <= set[last].Hi+1 {
			set[last].Hi = max(set[last].Hi, r.Hi)
			continue
		}
		set = append(set, r)
	}
	return set
}

// Union returns what is in any of the sets.
func Union(sets ...Set) Set { return Ranges(slices.Concat(sets...)...) }

// Negate returns the code points that are not in the set.
func (s Set) Negate() Set {
	var out Set
	next := rune(0)
	for _, r := range s {
		if r.Lo > next {
			out = append(out, Range{next, r.Lo - 1})
		}
		next = r.Hi + 1
	}
	if next <= unicode.MaxRune {
		out = append(out, Range{next, unicode.MaxRune})
	}
	return out
}

// Contains reports whether a code point is in the set.
func (s Set) Contains(r rune) bool {
	_, found := slices.BinarySearchFunc(s, r, func(a Range, r rune) int {
		switch {
		case a.Hi < r:
			return -1
		case a.Lo > r:
			return 1
		}
		return 0
	})
	return found
}

// Fold returns the set with all upper and lower case forms of its letters. Only the set's ASCII letters are folded: patterns of
// tokenizers fold nothing else.
func (s Set) Fold() Set {
	out := slices.Clone(s)
	for r := rune('A'); r <= 'z'; r++ {
		if !s.Contains(r) || !unicode.IsLetter(r) {
			continue
		}
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			out = append(out, Range{f, f})
		}
	}
	return Ranges(out...)
}

// table returns the ranges of a table of Go's.
func table(t *unicode.RangeTable) Set {
	var ranges []Range
	add := func(lo, hi, stride rune) {
		if stride == 1 {
			ranges = append(ranges, Range{lo, hi})
			return
		}
		for r := lo; r <= hi; r += stride {
			ranges = append(ranges, Range{r, r})
		}
	}
	for _, r := range t.R16 {
		add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
	}
	for _, r := range t.R32 {
		add(rune(r.Lo), rune(r.Hi), rune(r.Stride))
	}
	return Ranges(ranges...)
}
