package pattern

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/epp/tokens/chars"
)

// Bounds of what is compiled. The expressions of known tokenizers take below 20 classes and 60 states.
const (
	maxSteps   = 20_000
	maxClasses = 250
	maxStates  = 4_000
)

// Pattern is a compiled expression. Its methods may be called from several goroutines at once.
type Pattern struct {
	ascii  [utf8.RuneSelf]uint8 // class of a character below 128
	blocks []uint16             // for the upper bits of other characters, where their block begins in wide
	wide   []uint8              // classes, blockSize of them for each block

	stride int      // entries of a state: one for each class, and one for the end of the text
	table  []uint32 // by state and class: an entry

	begins [256]bool          // whether a match may begin with a byte; true for all that begin a character of several bytes
	runs   [utf8.RuneSelf]run // by the byte that a match begins with

	root  *node     // the expression
	until chars.Set // the characters that are taken for the end of the text
}

// An entry of the table is the index of the next state's entries, above these bits.
const (
	accepting = 1 // the text so far matches
	stateBits = 1
)

// run says what follows a byte that a match begins with, if letters do: most matches are words.
type run struct {
	state uint32 // in which letters leave the pattern; 0 = Match looks at each character
	// least is the least length of a match in that state (bytes): 1 if the byte is in the state already, 2 if a letter leads there.
	least uint8
	fold  uint8 // 'a'-'A' if the letters are all of ASCII, 0 if only a to z
}

const (
	blockBits = 7
	blockSize = 1 << blockBits
)

// kind of a step.
type kind uint8

const (
	stepSet   kind = iota // consume a character of the set
	stepSplit             // go on at next, or if that fails at other
	stepLook              // go on at next if a character of the set follows
	stepMatch
)

// step is one instruction of the expression as a non-deterministic automaton.
type step struct {
	kind        kind
	set         int // index into compiler.sets
	next, other int
	end         bool // stepLook: the end of the text will do as well
}

type compiler struct {
	steps []step
	sets  []chars.Set
	has   [][]bool // by set and class

	until int // index into sets of the characters that a text ends before; -1 = none

	states map[string]int
	cores  [][]int // by state, the steps that are tried in this order
	seen   []bool  // steps visited in one closure
}

var errTooLarge = errors.New("is too large for a table")

// Parse compiles an expression.
func Parse(text string) (*Pattern, error) {
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("regular expression %q is not UTF-8", text)
	}
	p := parser{text: text}
	root, err := p.alternatives()
	if err != nil {
		return nil, err
	}
	if p.more() {
		return nil, p.fail("a parenthesis closes no group")
	}
	out, err := compile(root)
	if err != nil {
		return nil, fmt.Errorf("regular expression %q %w", text, err)
	}
	return out, nil
}

// Literal returns a pattern that matches a text as it is, which must not be empty.
func Literal(text string) (*Pattern, error) {
	var n node
	n.op = opConcat
	for _, r := range text {
		n.nodes = append(n.nodes, &node{op: opSet, set: chars.Of(r)})
	}
	out, err := compile(&n)
	if err != nil {
		return nil, fmt.Errorf("pattern %q %w", text, err)
	}
	return out, nil
}

// Set returns a pattern that matches one character of a set, or, if many, as many as follow each other.
func Set(set chars.Set, many bool) (*Pattern, error) {
	n := &node{op: opSet, set: set}
	if many {
		n = &node{op: opRepeat, nodes: []*node{n}, min: 1, max: -1}
	}
	return compile(n)
}

// Runs returns a pattern that matches as many characters of one of several sets as follow each other.
func Runs(sets ...chars.Set) (*Pattern, error) {
	all := &node{op: opAlt}
	for _, set := range sets {
		all.nodes = append(all.nodes, &node{op: opRepeat, nodes: []*node{{op: opSet, set: set}}, min: 1, max: -1})
	}
	return compile(all)
}

// Repeats returns the set of characters of which a pattern matches one or more; false if it matches anything else.
func (p *Pattern) Repeats() (set chars.Set, ok bool) {
	n := p.root
	for len(n.nodes) == 1 && (n.op == opConcat || n.op == opAlt || n.op == opRepeat && n.min == 1) {
		n = n.nodes[0]
	}
	return n.set, n.op == opSet
}

// Until returns a pattern that takes each character of a set for the end of the text.
func (p *Pattern) Until(set chars.Set) (*Pattern, error) {
	return compileUntil(p.root, chars.Union(p.until, set))
}

// MatchesOf reports whether a pattern matches any text that consists of characters of a set alone.
func (p *Pattern) MatchesOf(set chars.Set) (bool, error) {
	only, err := p.Until(set.Negate())
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(only.table, func(entry uint32) bool { return entry&accepting != 0 }), nil
}

func compile(root *node) (*Pattern, error) { return compileUntil(root, nil) }

func compileUntil(root *node, until chars.Set) (*Pattern, error) {
	c := compiler{states: map[string]int{}, until: -1}
	if len(until) > 0 {
		c.until = c.set(until)
	}
	c.steps = append(c.steps, step{kind: stepMatch})
	start, err := c.node(root, 0)
	if err != nil {
		return nil, err
	}
	p := &Pattern{root: root, until: until}
	if err := c.classes(p); err != nil {
		return nil, err
	}
	if err := c.tabulate(p, start); err != nil {
		return nil, err
	}
	return p, nil
}

func (c *compiler) add(s step) (int, error) {
	if len(c.steps) >= maxSteps {
		return 0, errTooLarge
	}
	c.steps = append(c.steps, s)
	return len(c.steps) - 1, nil
}

func (c *compiler) set(s chars.Set) int {
	for i, other := range c.sets {
		if slices.Equal(s, other) {
			return i
		}
	}
	c.sets = append(c.sets, s)
	return len(c.sets) - 1
}

// node adds the steps of a node that go on at next, and returns the first one.
func (c *compiler) node(n *node, next int) (int, error) {
	var err error
	switch n.op {
	case opSet:
		return c.add(step{kind: stepSet, set: c.set(n.set), next: next})
	case opLook:
		return c.add(step{kind: stepLook, set: c.set(n.set), next: next, end: n.end})
	case opConcat:
		for _, part := range slices.Backward(n.nodes) {
			if next, err = c.node(part, next); err != nil {
				return 0, err
			}
		}
	case opAlt:
		first := -1
		for _, part := range slices.Backward(n.nodes) {
			at, err := c.node(part, next)
			if err != nil {
				return 0, err
			}
			if first < 0 {
				first = at
			} else if first, err = c.add(step{kind: stepSplit, next: at, other: first}); err != nil {
				return 0, err
			}
		}
		return first, nil
	case opRepeat:
		return c.repeat(n, next)
	}
	return next, nil
}

// split adds a choice between going on with a repetition and leaving it.
func (c *compiler) split(on, out int, lazy bool) (int, error) {
	if lazy {
		on, out = out, on
	}
	return c.add(step{kind: stepSplit, next: on, other: out})
}

func (c *compiler) repeat(n *node, next int) (int, error) {
	part, out := n.nodes[0], next
	if n.max < 0 {
		loop, err := c.add(step{kind: stepSplit})
		if err != nil {
			return 0, err
		}
		on, err := c.node(part, loop)
		if err != nil {
			return 0, err
		}
		c.steps[loop].next, c.steps[loop].other = on, out
		if n.lazy {
			c.steps[loop].next, c.steps[loop].other = out, on
		}
		next = loop
	}
	for i := n.min; i < n.max; i++ {
		on, err := c.node(part, next)
		if err != nil {
			return 0, err
		}
		if next, err = c.split(on, out, n.lazy); err != nil {
			return 0, err
		}
	}
	for range n.min {
		var err error
		if next, err = c.node(part, next); err != nil {
			return 0, err
		}
	}
	return next, nil
}

// classes divides all characters into classes that no set of the expression tells apart.
func (c *compiler) classes(p *Pattern) error {
	bounds := []rune{0}
	for _, set := range c.sets {
		for _, r := range set {
			bounds = append(bounds, r.Lo, r.Hi+1)
		}
	}
	slices.Sort(bounds)
	bounds = slices.Compact(bounds)
	c.has = make([][]bool, len(c.sets))
	byMembership := map[string]uint8{}
	var wide []uint8 // by code point from the first that is not ASCII
	for i, low := range bounds {
		if low > unicode.MaxRune {
			break
		}
		high := rune(unicode.MaxRune)
		if i+1 < len(bounds) {
			high = min(high, bounds[i+1]-1)
		}
		membership := make([]byte, len(c.sets))
		for s, set := range c.sets {
			if set.Contains(low) {
				membership[s] = 1
			}
		}
		class, known := byMembership[string(membership)]
		if !known {
			if len(byMembership) == maxClasses {
				return errTooLarge
			}
			class = uint8(len(byMembership))
			byMembership[string(membership)] = class
			for s := range c.sets {
				c.has[s] = append(c.has[s], membership[s] == 1)
			}
		}
		for r := low; r <= min(high, utf8.RuneSelf-1); r++ {
			p.ascii[r] = class
		}
		for r := max(low, utf8.RuneSelf); r <= high; r++ {
			wide = append(wide, class)
		}
	}
	p.stride = len(byMembership) + 1
	p.pack(wide)
	return nil
}

// pack keeps each block of classes once.
func (p *Pattern) pack(wide []uint8) {
	known := map[string]uint16{}
	for block := range slices.Chunk(wide, blockSize) {
		at, ok := known[string(block)]
		if !ok {
			at = uint16(len(known))
			known[string(block)] = at
			p.wide = append(p.wide, block...)
		}
		p.blocks = append(p.blocks, at)
	}
}

// tabulate makes the table. A state is the list of steps that may come next, in the order in which they are tried.
func (c *compiler) tabulate(p *Pattern, start int) error {
	c.seen = make([]bool, len(c.steps))
	c.state(nil) // state 0: nothing can match any more
	c.state([]int{start})
	for s := 0; s < len(c.cores); s++ {
		if s >= maxStates {
			return errTooLarge
		}
		for class := range p.stride {
			end := class == p.stride-1 || c.until >= 0 && c.has[c.until][class]
			next, matched := c.advance(c.cores[s], class, end)
			entry := uint32(c.state(next)*p.stride) << stateBits
			if matched {
				entry |= accepting
			}
			p.table = append(p.table, entry)
		}
	}
	for class := range p.stride {
		if p.table[p.stride+class]&accepting != 0 {
			return errors.New("matches a text of no characters, which splits nothing")
		}
	}
	for b := range p.begins {
		p.begins[b] = b >= utf8.RuneSelf || p.table[p.stride+int(p.ascii[b])]>>stateBits != 0
	}
	for b := range utf8.RuneSelf {
		p.runs[b] = p.run(p.table[p.stride+int(p.ascii[b])] >> stateBits)
	}
	return nil
}

// leads reports whether all letters lead from a state to another one: those of ASCII, or a to z if fold is 0.
func (p *Pattern) leads(from, to uint32, fold uint8) bool {
	for b := byte('a'); b <= 'z'; b++ {
		if p.table[from+uint32(p.ascii[b])]>>stateBits != to || p.table[from+uint32(p.ascii[b-fold])]>>stateBits != to {
			return false
		}
	}
	return true
}

// run returns what letters do after a state.
func (p *Pattern) run(state uint32) run {
	if state == 0 {
		return run{}
	}
	for _, fold := range []uint8{'a' - 'A', 0} {
		if p.leads(state, state, fold) {
			return run{state, 1, fold}
		}
		if next := p.table[state+uint32(p.ascii['a'])] >> stateBits; next != 0 && p.leads(state, next, fold) && p.leads(next, next, fold) {
			return run{next, 2, fold}
		}
	}
	return run{}
}

// state returns the number of a state, and adds it if it is new.
func (c *compiler) state(core []int) int {
	var key []byte
	for _, s := range core {
		key = binary.AppendUvarint(key, uint64(s))
	}
	n, ok := c.states[string(key)]
	if !ok {
		n = len(c.cores)
		c.states[string(key)] = n
		c.cores = append(c.cores, core)
	}
	return n
}

// advance follows a state over one character of a class, or over the end of the text. It reports also whether the text before that matches.
func (c *compiler) advance(core []int, class int, end bool) (next []int, matches bool) {
	clear(c.seen)
	consumed := map[int]bool{}
	var visit func(at int) bool
	visit = func(at int) bool { // true: the match is decided, what comes later in the order is not tried
		if c.seen[at] {
			return false
		}
		c.seen[at] = true
		switch s := c.steps[at]; s.kind {
		case stepMatch:
			matches = true
			return true
		case stepSplit:
			return visit(s.next) || visit(s.other)
		case stepLook:
			if end && s.end || !end && c.has[s.set][class] {
				return visit(s.next)
			}
		case stepSet:
			if !end && c.has[s.set][class] && !consumed[s.next] {
				consumed[s.next] = true
				next = append(next, s.next)
			}
		}
		return false
	}
	for _, at := range core {
		if visit(at) {
			break
		}
	}
	return next, matches
}
