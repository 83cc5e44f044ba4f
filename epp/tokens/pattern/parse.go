package pattern

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/epp/tokens/chars"
)

// op is the kind of a node.
type op uint8

const (
	opEmpty  op = iota // matches nothing at all
	opSet              // one character of a set
	opConcat           // one node after the other
	opAlt              // the first of its nodes that matches
	opRepeat           // its node, min to max times
	opLook             // matches nothing, where a character of the set follows, or the text ends and end is true
)

// node is a part of a parsed expression.
type node struct {
	op       op
	set      chars.Set
	nodes    []*node
	min, max int // max -1 = any number
	lazy     bool
	end      bool
}

// maxRepeat bounds the numbers in braces: every repetition is a copy of the states.
const maxRepeat = 1000

// parser reads an expression.
type parser struct {
	text string
	at   int
	fold bool // (?i: is open
	deep int  // groups that are open
}

// maxDeep bounds groups in groups.
const maxDeep = 100

func (p *parser) fail(format string, args ...any) error {
	return fmt.Errorf("regular expression %q, at byte %d: %s", p.text, p.at, fmt.Sprintf(format, args...))
}

func (p *parser) more() bool { return p.at < len(p.text) }

func (p *parser) has(prefix string) bool { return strings.HasPrefix(p.text[p.at:], prefix) }

func (p *parser) take(prefix string) bool {
	if !p.has(prefix) {
		return false
	}
	p.at += len(prefix)
	return true
}

func (p *parser) rune() rune {
	r, n := utf8.DecodeRuneInString(p.text[p.at:])
	p.at += n
	return r
}

// alternatives reads up to the end, or to the parenthesis that closes the group.
func (p *parser) alternatives() (*node, error) {
	alt := &node{op: opAlt}
	for {
		n, err := p.concat()
		if err != nil {
			return nil, err
		}
		alt.nodes = append(alt.nodes, n)
		if !p.take("|") {
			break
		}
	}
	if len(alt.nodes) == 1 {
		return alt.nodes[0], nil
	}
	return alt, nil
}

func (p *parser) concat() (*node, error) {
	out := &node{op: opConcat}
	for p.more() && !p.has("|") && !p.has(")") {
		n, err := p.repeated()
		if err != nil {
			return nil, err
		}
		out.nodes = append(out.nodes, n)
	}
	return out, nil
}

// repeated reads an atom and its quantifier.
func (p *parser) repeated() (*node, error) {
	n, err := p.atom()
	if err != nil {
		return nil, err
	}
	low, high := 1, 1
	braces := false
	switch {
	case p.take("?"):
		low = 0
	case p.take("*"):
		low, high = 0, -1
	case p.take("+"):
		high = -1
	case p.has("{"):
		if low, high, err = p.braces(); err != nil {
			return nil, err
		}
		braces = true
	default:
		return n, nil
	}
	if n.op == opLook {
		return nil, p.fail("a look-ahead cannot be repeated here")
	}
	out := &node{op: opRepeat, nodes: []*node{n}, min: low, max: high}
	switch {
	case p.take("?"):
		out.lazy = true
	case p.has("+") && !braces:
		return nil, p.fail("possessive quantifiers are not supported")
	}
	if p.has("?") || p.has("*") || p.has("+") || p.has("{") {
		return nil, p.fail("a quantifier follows a quantifier, which is not supported")
	}
	return out, nil
}

// braces reads {n}, {n,}, {,m} or {n,m}.
func (p *parser) braces() (low, high int, err error) {
	end := strings.IndexByte(p.text[p.at:], '}')
	if end < 0 {
		return 0, 0, p.fail("a brace is not closed; write \\{ for the character")
	}
	from, to, two := strings.Cut(p.text[p.at+1:p.at+end], ",")
	number := func(s string, missing int) int {
		if s == "" && two {
			return missing
		}
		n, e := strconv.ParseUint(s, 10, 31)
		if e != nil || n > maxRepeat {
			err = p.fail("between braces there must be numbers up to %d, got %q", maxRepeat, s)
		}
		return int(n)
	}
	low = number(from, 0)
	high = low
	if two {
		high = number(to, -1)
	}
	if err == nil && high >= 0 && high < low {
		err = p.fail("between braces, the second number must not be less than the first")
	}
	p.at += end + 1
	return low, high, err
}

// atom reads what a quantifier would apply to.
func (p *parser) atom() (*node, error) {
	switch {
	case p.has("("):
		return p.group()
	case p.has("["):
		set, err := p.class()
		return &node{op: opSet, set: set}, err
	case p.take("."):
		return &node{op: opSet, set: chars.Of('\n').Negate()}, nil
	case p.has("^"), p.has("$"):
		return nil, p.fail("anchors are not supported")
	case p.has("?"), p.has("*"), p.has("+"), p.has("{"):
		return nil, p.fail("there is nothing to repeat")
	case p.has(`\`):
		set, err := p.escape()
		return &node{op: opSet, set: set}, err
	}
	return &node{op: opSet, set: p.folded(chars.Of(p.rune()))}, nil
}

func (p *parser) folded(s chars.Set) chars.Set {
	if p.fold {
		return s.Fold()
	}
	return s
}

// group reads a group of any kind.
func (p *parser) group() (*node, error) {
	if p.deep++; p.deep > maxDeep {
		return nil, p.fail("more than %d groups in groups", maxDeep)
	}
	defer func(fold bool) { p.fold = fold; p.deep-- }(p.fold)
	look, negated := false, false
	switch {
	case p.take("(?:"):
	case p.take("(?i:"):
		p.fold = true
	case p.take("(?-i:"):
		p.fold = false
	case p.take("(?="):
		look = true
	case p.take("(?!"):
		look, negated = true, true
	case p.has("(?<="), p.has("(?<!"):
		return nil, p.fail("look-behind is not supported")
	case p.has("(?>"):
		return nil, p.fail("atomic groups are not supported")
	case p.has("(?"):
		return nil, p.fail("this kind of group is not supported")
	default:
		p.take("(")
	}
	n, err := p.alternatives()
	if err != nil {
		return nil, err
	}
	if !p.take(")") {
		return nil, p.fail("a group is not closed")
	}
	if !look {
		return n, nil
	}
	set, ok := single(n)
	if !ok {
		return nil, p.fail("look-ahead over anything but one character is not supported")
	}
	if negated {
		set = set.Negate()
	}
	return &node{op: opLook, set: set, end: negated}, nil
}

// single returns the set of a node that matches exactly one character.
func single(n *node) (chars.Set, bool) {
	switch n.op {
	case opSet:
		return n.set, true
	case opConcat:
		if len(n.nodes) == 1 {
			return single(n.nodes[0])
		}
	case opAlt:
		var all chars.Set
		for _, n := range n.nodes {
			set, ok := single(n)
			if !ok {
				return nil, false
			}
			all = chars.Union(all, set)
		}
		return all, true
	}
	return nil, false
}

// class reads a set in brackets.
func (p *parser) class() (chars.Set, error) {
	if p.deep++; p.deep > maxDeep {
		return nil, p.fail("more than %d groups in groups", maxDeep)
	}
	defer func() { p.deep-- }()
	p.take("[")
	negated := p.take("^")
	var set chars.Set
	for first := true; first || !p.has("]"); first = false {
		switch {
		case !p.more():
			return nil, p.fail("a class is not closed")
		case p.has("&&"):
			return nil, p.fail("intersections of classes are not supported")
		case p.has("[:"):
			return nil, p.fail("POSIX classes are not supported")
		case p.has("["):
			inner, err := p.class()
			if err != nil {
				return nil, err
			}
			set = chars.Union(set, inner)
			continue
		}
		part, err := p.member()
		if err != nil {
			return nil, err
		}
		set = chars.Union(set, part)
	}
	p.take("]")
	if set = p.folded(set); negated {
		set = set.Negate()
	}
	return set, nil
}

// member reads one character, escape or range of a class.
func (p *parser) member() (chars.Set, error) {
	low, err := p.one()
	if err != nil {
		return nil, err
	}
	isOne := len(low) == 1 && low[0].Lo == low[0].Hi
	if !isOne || !p.has("-") || p.has("-]") || p.has("-[") {
		return low, nil
	}
	p.take("-")
	if !p.more() {
		return nil, p.fail("a class is not closed")
	}
	high, err := p.one()
	if err != nil {
		return nil, err
	}
	if len(high) != 1 || high[0].Lo != high[0].Hi || high[0].Lo < low[0].Lo {
		return nil, p.fail("this is not a range of characters")
	}
	return chars.Ranges(chars.Range{Lo: low[0].Lo, Hi: high[0].Hi}), nil
}

func (p *parser) one() (chars.Set, error) {
	if p.has(`\`) {
		return p.escape()
	}
	return chars.Of(p.rune()), nil
}

var controls = map[rune]rune{'n': '\n', 'r': '\r', 't': '\t', 'f': '\f', 'v': '\v', 'a': '\a', 'e': 0x1b}

// escape reads a backslash and what it is about.
func (p *parser) escape() (chars.Set, error) {
	p.take(`\`)
	if !p.more() {
		return nil, p.fail("a backslash ends the expression")
	}
	switch r := p.rune(); r {
	case 's':
		return chars.Space(), nil
	case 'S':
		return chars.Space().Negate(), nil
	case 'd':
		return chars.Digit(), nil
	case 'D':
		return chars.Digit().Negate(), nil
	case 'w':
		return chars.Word(), nil
	case 'W':
		return chars.Word().Negate(), nil
	case 'p', 'P':
		return p.property(r == 'P')
	case 'x', 'u':
		return p.hexadecimal(r)
	default:
		if c, ok := controls[r]; ok {
			return chars.Of(c), nil
		}
		if r < utf8.RuneSelf && !chars.ASCIIPunctuation().Contains(r) && r != ' ' {
			return nil, p.fail("the escape \\%c is not supported", r)
		}
		return p.folded(chars.Of(r)), nil
	}
}

// property reads the name of a Unicode category or script in braces.
func (p *parser) property(negated bool) (chars.Set, error) {
	if p.more() && !p.has("{") {
		return nil, p.fail("a property must be in braces")
	}
	end := strings.IndexByte(p.text[p.at:], '}')
	if end < 0 {
		return nil, p.fail("a property must be in braces")
	}
	name, not := strings.CutPrefix(p.text[p.at+1:p.at+end], "^")
	p.at += end + 1
	set, ok := chars.Category(name)
	if !ok {
		set, ok = chars.Script(name)
	}
	if !ok {
		return nil, p.fail("the property %q is not supported", name)
	}
	if negated != not {
		set = set.Negate()
	}
	return set, nil
}

// hexadecimal reads \xHH, \x{H…} or \uHHHH.
func (p *parser) hexadecimal(kind rune) (chars.Set, error) {
	digits := 2
	if kind == 'u' {
		digits = 4
	}
	rest := p.text[p.at:]
	if kind == 'x' && strings.HasPrefix(rest, "{") {
		end := strings.IndexByte(rest, '}')
		if end < 0 {
			return nil, p.fail("a brace is not closed")
		}
		rest, digits = rest[1:end], 1
		p.at += end + 1
	} else {
		rest = rest[:min(digits, len(rest))]
		p.at += len(rest)
	}
	r, err := strconv.ParseUint(rest, 16, 32)
	if err != nil || digits > len(rest) || !utf8.ValidRune(rune(r)) || kind == 'x' && len(rest) <= 2 && r >= utf8.RuneSelf {
		return nil, p.fail("%q is not the number of a character", rest)
	}
	return chars.Of(rune(r)), nil
}
