package body

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Want names one member that a Scanner finds.
type Want struct {
	// Path is dotted: "model", "sampling_params.extra_args.x". An element "*" is every element of an array
	// ("messages.*.content"); every other element is a member's decoded name, compared case-sensitively.
	Path string

	// Once makes a second occurrence a *DuplicateError, in the same object or in a parent that occurs twice. The elements of
	// an array are different objects.
	Once bool

	// Sink sends the value's text to the scanner's Sink during the scan. Matches beneath a "*" are then sent to the sink
	// only, and are not kept as Members, so their number is not limited.
	Sink bool
}

// maxNames is the most names that a table may want in one object: a frame records the names it has seen in one word.
const maxNames = 64

// escapedByte is the most source bytes for one byte of a decoded name: \u0061 for an a. (Runes of 2, 3 and 4 bytes take 3, 2
// and 3 per byte.)
const escapedByte = 6

// Table is a compiled set of wants. It is immutable and safe for concurrent use.
type Table struct {
	wants    []Want
	root     *node
	nodes    int       // number of nodes; the id of the next one
	lines    [][]int   // per want: ids of the nodes on its path before the first "*"
	mentions []mention // per want
	longest  int       // bytes of the longest name
}

// node is an element of a wanted path.
type node struct {
	id      int
	want    int // index of the want that ends here, -1 if none
	path    string
	once    bool
	sink    bool
	loose   bool // beneath a "*": it may occur any number of times
	names   []string
	kids    []*node // parallel to names
	any     *node   // node of the elements, if this is an array
	lengths uint64  // bit min(len, 63) is set for each name
	strange bool    // a name contains U+FFFD, to which invalid UTF-8 decodes
}

// NewTable compiles wants. It panics on a malformed table, which is a programming error: an empty path or element, a path
// twice, more than 64 names in one object, a name that is not valid UTF-8 or contains a quote, a slash, a backslash or a
// control character. (Those have short escapes; without them \u is the only other spelling of a name, as Mentions assumes.)
func NewTable(wants ...Want) *Table {
	t := &Table{wants: slices.Clone(wants), root: &node{want: -1}, nodes: 1}
	for i, w := range wants {
		t.insert(i, w)
	}
	return t
}

// Wants returns the number of wants. Member.Want is less than that.
func (t *Table) Wants() int { return len(t.wants) }

// Path returns the path of a want.
func (t *Table) Path(want int) string { return t.wants[want].Path }

func (t *Table) insert(i int, w Want) {
	n := t.root
	var line []int
	elements := strings.Split(w.Path, ".")
	for k, e := range elements {
		n = t.child(n, e, strings.Join(elements[:k+1], "."))
		if !n.loose {
			line = append(line, n.id)
		}
	}
	if n.want >= 0 {
		panic(fmt.Sprintf("body: path %q is wanted twice", w.Path))
	}
	n.want, n.once, n.sink = i, w.Once, w.Sink
	t.lines = append(t.lines, line)
	t.mentions = append(t.mentions, t.mention(i, elements))
}

// child returns the node beneath n for element e, and makes it if it is missing.
func (t *Table) child(n *node, e, path string) *node {
	if e == "*" {
		if n.any == nil {
			n.any = t.newNode(path, true)
		}
		return n.any
	}
	if k := slices.Index(n.names, e); k >= 0 {
		return n.kids[k]
	}
	checkName(e, path)
	if len(n.names) == maxNames {
		panic(fmt.Sprintf("body: more than %d names beside %q", maxNames, path))
	}
	kid := t.newNode(path, n.loose)
	n.names = append(n.names, e)
	n.kids = append(n.kids, kid)
	n.lengths |= 1 << min(len(e), 63)
	n.strange = n.strange || strings.ContainsRune(e, utf8.RuneError)
	t.longest = max(t.longest, len(e))
	return kid
}

func (t *Table) newNode(path string, loose bool) *node {
	n := &node{id: t.nodes, want: -1, path: path, loose: loose}
	t.nodes++
	return n
}

func checkName(name, path string) {
	bad := func(r rune) bool { return r < ' ' || r == '"' || r == '\\' || r == '/' }
	if name == "" || !utf8.ValidString(name) || strings.ContainsFunc(name, bad) {
		panic(fmt.Sprintf("body: path %q has a malformed element", path))
	}
}

// longestKey returns the length in source bytes above which no key is wanted.
func (t *Table) longestKey() int { return t.longest * escapedByte }

// find returns the index of the child that the key names, -1 if none. raw is the key without its quotes; decoded is scratch
// space for a key with escapes.
func (n *node) find(raw []byte, decoded *[]byte) int {
	if n.lengths == 0 {
		return -1
	}
	if hasEscape(raw) || n.strange {
		text, err := unquote((*decoded)[:0], raw)
		if *decoded = text; err != nil {
			return -1 // no reader accepts it as a name
		}
		raw = text
	}
	if n.lengths>>min(len(raw), 63)&1 == 0 {
		return -1
	}
	for k, name := range n.names {
		if string(raw) == name {
			return k
		}
	}
	return -1
}
