package body

import (
	"bytes"
	"slices"
	"unicode/utf16"
)

// hint searches text that need not be JSON for the names of members to remove: literally, or as a \u escape that could be
// part of one. It may report a name that is not there, and never misses one.
type hint struct {
	table  *Table
	remove func(want int) bool
	ascii  [2]uint64 // the characters of the names below 128, one bit each
	wide   bool      // the names have characters above 127
	keep   int       // how many earlier bytes a match can begin in
	past   []byte
}

// mention is how a body could mention a want.
type mention struct {
	name  []byte // the last name in its path, empty if there is none
	units []rune // its UTF-16 units
	same  int    // index of the first want with this name
}

func (t *Table) mention(i int, elements []string) mention {
	name := ""
	for _, e := range elements {
		if e != "*" {
			name = e
		}
	}
	m := mention{name: []byte(name), same: i}
	for _, u := range utf16.Encode([]rune(name)) {
		m.units = append(m.units, rune(u))
	}
	if k := slices.IndexFunc(t.mentions, func(o mention) bool { return string(o.name) == name }); k >= 0 {
		m.same = k
	}
	return m
}

// hint returns the hint for the wants for which remove returns true.
func (t *Table) hint(remove func(want int) bool) hint {
	h := hint{table: t, remove: remove, keep: max(len(`\u0000`), t.longest) - 1}
	for i := range t.mentions {
		if !remove(i) {
			continue
		}
		for _, u := range t.mentions[i].units {
			if u < 128 {
				h.ascii[u/64] |= 1 << (u % 64)
			} else {
				h.wide = true
			}
		}
	}
	return h
}

// feed searches the next piece and reports whether it mentions a name, alone or with the pieces before it.
func (h *hint) feed(p []byte) bool {
	border := append(h.past, p[:min(len(p), h.keep)]...)
	found := h.in(border) || h.in(p)
	h.note(p)
	return found
}

// note records a piece that needs no search.
func (h *hint) note(p []byte) {
	if len(p) >= h.keep {
		h.past = append(h.past[:0], p[len(p)-h.keep:]...)
		return
	}
	h.past = append(h.past, p...)
	h.past = slices.Delete(h.past, 0, max(0, len(h.past)-h.keep))
}

func (h *hint) in(p []byte) bool {
	for i, m := range h.table.mentions {
		searched := m.same < i && h.remove(m.same)
		if !searched && h.remove(i) && bytes.Contains(p, m.name) {
			return true
		}
	}
	for {
		i := bytes.Index(p, []byte(`\u`))
		if i < 0 {
			return false
		}
		p = p[i:]
		u := unit(p)
		for ; u >= 0; u = unit(p) { // text beyond ASCII may consist of escapes only
			if h.hasUnit(u) {
				return true
			}
			p = p[len(`\u0000`):]
		}
		if bytes.HasPrefix(p, []byte(`\u`)) {
			p = p[len(`\u`):]
		}
	}
}

func (h *hint) hasUnit(u rune) bool {
	if u < 128 {
		return h.ascii[u/64]>>(u%64)&1 != 0
	}
	if !h.wide {
		return false
	}
	for i, m := range h.table.mentions {
		if slices.Contains(m.units, u) && h.remove(i) {
			return true
		}
	}
	return false
}

// Mentions reports whether the last name of a want for which remove returns true occurs anywhere in a body, or could be
// spelled there by a \u escape. It is for bodies that are not JSON, in which members cannot be distinguished from text: if it
// returns false, no lenient reader finds such a member either.
func (t *Table) Mentions(b *Body, remove func(want int) bool) bool {
	h := t.hint(remove)
	return slices.ContainsFunc(b.segments, h.feed)
}
