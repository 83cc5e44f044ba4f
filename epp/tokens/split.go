package tokens

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/epp/tokens/chars"
	"github.com/tandem-serving/tandem/epp/tokens/pattern"
)

// split is a step of pre-tokenization: it divides each piece of text that the step before it has made.
type split struct {
	pattern   *pattern.Pattern // nil = the piece stays whole
	keep      behavior
	invert    bool // what the pattern matches counts as what it does not, and the other way round
	byteLevel bool // a piece that begins with no space gets one, if prefix is true; the model sees bytes
	prefix    bool
	space     []byte // Metaspace: what takes the place of spaces, with which pieces begin; nil = this is another step
	before    prepending
}

// prepending says which pieces Metaspace puts a space before, if they begin with none.
type prepending uint8

const (
	everyPiece prepending = iota
	firstPiece            // the one that a text begins with
	noPiece
)

var prependings = map[string]prepending{"": everyPiece, "always": everyPiece, "first": firstPiece, "never": noPiece}

// behavior says what becomes of what a pattern matches.
type behavior uint8

const (
	isolated           behavior = iota // a piece of its own
	removed                            // no piece
	mergedWithPrevious                 // a part of the piece before it
	mergedWithNext                     // a part of the piece after it
	contiguous                         // a piece together with the matches before and after it
)

var behaviors = map[string]behavior{"Isolated": isolated, "Removed": removed, "MergedWithPrevious": mergedWithPrevious,
	"MergedWithNext": mergedWithNext, "Contiguous": contiguous}

// scanner does several steps at once: each of the first ones isolates runs of some characters, and the last one splits what is between them.
type scanner struct {
	runs  []*pattern.Pattern // of the first steps: each up to characters of those before it
	whole []bool             // by run: no later step matches anything in it
	last  *pattern.Pattern   // up to characters of runs
	drops bool               // what it does not match is no piece
}

// newScanner returns what does all steps, nil if they are not of that kind.
func newScanner(splits []split) (*scanner, error) {
	var s scanner
	var known chars.Set // the characters of runs
	for i := range splits {
		p := &splits[i]
		all, repeats := chars.Set(nil), false
		if p.pattern != nil {
			all, repeats = p.pattern.Repeats()
		}
		keeps, drops := p.keep == isolated && !p.invert, p.keep == removed && p.invert
		switch {
		case p.prefix || p.space != nil:
			return nil, nil
		case p.pattern == nil && s.last != nil:
		case p.pattern == nil || s.last != nil:
			return nil, nil
		case repeats && keeps && slices.ContainsFunc(splits[i+1:], func(p split) bool { return p.pattern != nil }):
			run, err := p.pattern.Until(known)
			if err != nil {
				return nil, err
			}
			whole := true
			for _, later := range splits[i+1:] {
				if later.pattern == nil {
					continue
				}
				matches, err := later.pattern.MatchesOf(all)
				if err != nil {
					return nil, err
				}
				whole = whole && !matches && later.keep == isolated && !later.invert
			}
			s.runs, s.whole = append(s.runs, run), append(s.whole, whole)
			known = chars.Union(known, all)
		case keeps || drops:
			last, err := p.pattern.Until(known)
			if err != nil {
				return nil, err
			}
			s.last, s.drops = last, drops
		default:
			return nil, nil
		}
	}
	if s.last == nil {
		return nil, nil
	}
	return &s, nil
}

// begins reports whether a match of any pattern begins at a place.
func (s *scanner) begins(text []byte, at int) bool {
	return s.last.Match(text, at) > 0 || slices.ContainsFunc(s.runs, func(p *pattern.Pattern) bool { return p.Match(text, at) > 0 })
}

// gpt2 is the expression of ByteLevel.
const gpt2 = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// splits returns what a component of the file does.
func (c *component) splits(at string) ([]split, error) {
	if c == nil {
		return nil, nil
	}
	var s split
	var err error
	switch c.Type {
	case "Sequence":
		var all []split
		for i, part := range c.PreTokenizers {
			s, err := part.splits(fmt.Sprintf("%s.pretokenizers[%d]", at, i))
			if err != nil {
				return nil, err
			}
			all = append(all, s...)
		}
		return all, nil
	case "ByteLevel":
		s.byteLevel, s.prefix = true, c.AddPrefixSpace == nil || *c.AddPrefixSpace
		if c.UseRegex == nil || *c.UseRegex {
			s.pattern, err = pattern.Parse(gpt2)
		}
	case "Split":
		s, err = c.split()
	case "Digits":
		s.pattern, err = pattern.Set(chars.Numeric(), !c.IndividualDigits)
	case "Metaspace":
		s, err = c.metaspace()
	case "Whitespace":
		s.keep, s.invert = removed, true
		word := chars.RustWord()
		s.pattern, err = pattern.Runs(word, chars.Union(word, chars.Space()).Negate())
	case "WhitespaceSplit":
		s.keep = removed
		s.pattern, err = pattern.Set(chars.Space(), false)
	case "CharDelimiterSplit":
		s.keep = removed
		if utf8.RuneCountInString(c.Delimiter) != 1 {
			return nil, fmt.Errorf("%s: delimiter must be one character, got %q", at, c.Delimiter)
		}
		s.pattern, err = pattern.Literal(c.Delimiter)
	case "Punctuation":
		var ok bool
		if s.keep, ok = behaviors[cmp.Or(c.Behavior, "Isolated")]; !ok {
			return nil, fmt.Errorf("%s: behavior %q is not supported", at, c.Behavior)
		}
		s.pattern, err = pattern.Set(chars.Punctuation(), false)
	case "BertPreTokenizer":
		spaces := split{keep: removed}
		if spaces.pattern, err = pattern.Set(chars.Space(), false); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		if s.pattern, err = pattern.Set(chars.Punctuation(), false); err != nil {
			return nil, fmt.Errorf("%s: %w", at, err)
		}
		return []split{spaces, s}, nil
	default:
		return nil, unsupported(at, c.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	return []split{s}, nil
}

func (c *component) metaspace() (s split, err error) {
	var ok bool
	if s.before, ok = prependings[c.PrependScheme]; !ok {
		return s, fmt.Errorf("prepend_scheme %q is not supported", c.PrependScheme)
	}
	if c.AddPrefixSpace != nil && !*c.AddPrefixSpace && s.before != noPiece {
		return s, errors.New("add_prefix_space and prepend_scheme contradict each other")
	}
	if utf8.RuneCountInString(c.Replacement) != 1 {
		return s, fmt.Errorf("replacement must be one character, got %q", c.Replacement)
	}
	s.space = []byte(c.Replacement)
	if c.Split == nil || *c.Split {
		s.keep = mergedWithNext
		s.pattern, err = pattern.Literal(c.Replacement)
	}
	return s, err
}

func (c *component) split() (s split, err error) {
	var ok bool
	if s.keep, ok = behaviors[c.Behavior]; !ok {
		return s, fmt.Errorf("behavior %q is not supported", c.Behavior)
	}
	s.invert = c.Invert
	switch {
	case c.Pattern.String != nil && *c.Pattern.String != "":
		s.pattern, err = pattern.Literal(*c.Pattern.String)
	case c.Pattern.Regex != nil:
		s.pattern, err = pattern.Parse(*c.Pattern.Regex)
	default:
		err = errors.New("pattern must be a String that is not empty, or a Regex")
	}
	return s, err
}

// each calls piece for each piece of a text.
func (s *split) each(text []byte, piece func([]byte)) {
	if s.pattern == nil {
		piece(text)
		return
	}
	m := merger{behavior: s.keep, text: text, piece: piece}
	for done := 0; done < len(text); {
		start, end, ok := s.pattern.Next(text, done)
		if !ok {
			m.part(done, len(text), s.invert)
			break
		}
		if done < start {
			m.part(done, start, s.invert)
		}
		m.part(start, end, !s.invert)
		done = end
	}
	m.flush()
}

// merger makes pieces of parts, which come in their order.
type merger struct {
	behavior   behavior
	text       []byte
	piece      func([]byte)
	start, end int  // the piece that may still grow, if end is not 0
	match      bool // the last part was a match
}

func (m *merger) part(start, end int, match bool) {
	grow := false // whether this part belongs to the piece before it
	switch m.behavior {
	case isolated:
		m.piece(m.text[start:end])
		return
	case removed:
		if !match {
			m.piece(m.text[start:end])
		}
		return
	case mergedWithPrevious:
		grow = match && !m.match
	case mergedWithNext:
		grow = !match && m.match
	case contiguous:
		grow = match == m.match
	}
	m.match = match
	if grow && m.end > 0 {
		m.end = end
		return
	}
	m.flush()
	m.start, m.end = start, end
}

func (m *merger) flush() {
	if m.end > 0 {
		m.piece(m.text[m.start:m.end])
		m.end = 0
	}
}
