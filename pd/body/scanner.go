package body

import "slices"

// Kind is the type of a JSON value.
type Kind uint8

// The kinds of values. NaN, Infinity and -Infinity are Numbers. Invalid is the kind of a value that was not reached.
const (
	Invalid Kind = iota
	String
	Number
	Object
	Array
	True
	False
	Null
)

// Span is a range of byte offsets in the body, End exclusive.
type Span struct{ Start, End int64 }

// Len returns the number of bytes in the span.
func (s Span) Len() int64 { return s.End - s.Start }

// Member is one wanted member that was found, or one wanted element of an array.
type Member struct {
	Want       int   // index into the table's wants
	Kind       Kind  // Invalid until the value begins
	Key, Value Span  // Key with its quotes, empty for an element; Value of a string with its quotes; -1 where not reached
	Index      int   // position among the members of its object, 0 = first
	Prev, Next int64 // offset of the comma before and after it, -1 = none
	Object     int64 // offset of the '{' (or '[') of the container
	Count      int   // Object: number of its members; Array: number of its elements
	First      Kind  // Array: kind of its first element, Invalid if empty
	Escaped    bool  // a string value that contains a backslash
}

// Sink receives the text of a value whose Want has Sink, in pieces, as the chunks arrive. The text is raw: escaped, strings
// without their quotes, other kinds as JSON. last marks the end of the value. A piece may be empty, may end inside an escape
// or a UTF-8 sequence, and is valid during the call only. Scanner.Sinking returns the kind of the value.
// the call only. Scanner.Sinking tells the kind of the value.
type Sink func(want int, piece []byte, last bool)

// Limits bound the bodies that a scanner accepts.
type Limits struct {
	Depth   int   // nested containers; 0 = DefaultDepth
	Size    int64 // bytes; 0 = no limit
	Members int   // found members that are kept; 0 = DefaultMembers
}

// Defaults of Limits. Python's json fails near a depth of 1000, and no request schema comes near 512.
const (
	DefaultDepth   = 512
	DefaultMembers = 1024
)

// headLength is how many bytes are checked for the text encoding.
const headLength = 4

// Scanner reads one JSON value once, in chunks of any size, and records where the wanted members are. It must be Reset before
// use, may be reused, and then allocates nothing for a chunk. It is not safe for concurrent use.
type Scanner struct {
	table  *Table
	limits Limits
	sink   Sink
	err    error

	base    int64 // offset of the current chunk's first byte
	state   state
	token   token
	depth   int      // number of open containers
	tracked int      // depth inside the innermost container that has a frame
	objects []uint64 // bit d-1: the container at depth d is an object

	frames  []frame
	key     key
	flows   []flow
	sinking Kind
	found
}

// found is the result of a scan.
type found struct {
	members []Member
	root    Member
	born    []int // by node id: number of members when it occurred last, -1 = never
}

// frame is an open container in which a member is wanted, or whose members are counted. Other containers are skipped.
type frame struct {
	node  *node
	depth int
	open  int64  // offset of its { or [
	comma int64  // offset of the last comma, -1 = none
	count int    // members or elements that have begun
	first Kind   // kind of its first element
	cur   int    // index of the wanted member that is being read, -1 = none
	seen  uint64 // bit k: the k-th name of its node occurred
	again bool   // it, or a container around it, is the value of a repeated key
}

// key is the key being read, then the one whose value is being read.
type key struct {
	span    Span
	raw     []byte // the part from earlier chunks
	long    bool   // longer than any wanted key
	match   *node  // node that it leads to, nil = it is not wanted
	again   bool   // it occurred before in this object, or a parent did
	decoded []byte // scratch
}

// flow is a value whose text goes to the sink.
type flow struct {
	want  int
	kind  Kind
	depth int // of the container that contains it
	from  int // index in the chunk of its first byte that the sink has not got
}

// Reset prepares for a new body. sink may be nil if no want has Sink.
func (s *Scanner) Reset(t *Table, l Limits, sink Sink) {
	if l.Depth == 0 {
		l.Depth = DefaultDepth
	}
	if l.Members == 0 {
		l.Members = DefaultMembers
	}
	*s = Scanner{
		table: t, limits: l, sink: sink,
		objects: s.objects[:0], frames: s.frames[:0], flows: s.flows[:0],
		key:   key{raw: s.key.raw[:0], decoded: s.key.decoded[:0]},
		found: found{members: s.members[:0], born: slices.Grow(s.born[:0], t.nodes)[:t.nodes]},
	}
	for id := range s.born {
		s.born[id] = -1
	}
	s.root = Member{Want: -1, Key: Span{-1, -1}, Value: Span{-1, -1}, Prev: -1, Next: -1, Object: -1}
}

// Write scans the next chunk, which it does not keep, and returns how many bytes it accepted. After an error every further
// Write returns the same error.
func (s *Scanner) Write(chunk []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	p := chunk
	if room := s.limits.Size - s.base; s.limits.Size > 0 && int64(len(p)) > room {
		p = p[:room]
	}
	n := 0
	for n < len(p) && s.base < headLength && s.err == nil {
		n += s.feedHead(p[n : n+1])
	}
	if n < len(p) && s.err == nil {
		n += s.feed(p[n:])
	}
	if n < len(chunk) && s.err == nil {
		s.err = ErrTooLarge
	}
	return n, s.err
}

// feedHead scans one of the first bytes. Single bytes make the result independent of the chunks: either a wrong encoding or
// wrong syntax.
func (s *Scanner) feedHead(p []byte) int {
	// UTF-8 text contains no byte FE or FF. JSON in UTF-16 or UTF-32 has a byte order mark or, since it begins with ASCII, a
	// zero byte.
	if p[0] == 0 || p[0] >= 0xFE && s.base == 0 {
		s.err = ErrEncoding
		return 0
	}
	return s.feed(p)
}

func (s *Scanner) feed(p []byte) int {
	i := s.scan(p)
	for k := range s.flows {
		f := &s.flows[k]
		if f.from < i {
			s.hand(f, p[f.from:i], false)
		}
		f.from = 0
	}
	s.base += int64(i)
	return i
}

func (s *Scanner) hand(f *flow, piece []byte, last bool) {
	if s.sink != nil {
		s.sinking = f.kind
		s.sink(f.want, piece, last)
	}
}

// Close ends the body. It returns nil if the body was exactly one JSON value, else the error of Write or a *SyntaxError.
func (s *Scanner) Close() error {
	if s.err != nil {
		return s.err
	}
	if s.state == inNumber && s.token.phase.complete() {
		s.endValue(nil, 0, 0)
	}
	if s.state != afterAll {
		s.fail(0, "unexpected end")
	}
	return s.err
}

// Scan scans one complete JSON value: it is Reset, Write and Close.
func (s *Scanner) Scan(t *Table, l Limits, value []byte) error {
	s.Reset(t, l, nil)
	if _, err := s.Write(value); err != nil {
		return err
	}
	return s.Close()
}

// Members returns the wanted members in order of appearance, until Reset. During the scan, or after an error, the last ones
// may be incomplete.
func (s *Scanner) Members() []Member { return s.members }

// Find returns the last occurrence of a want, as encoding/json and Python do. An occurrence whose parent was repeated later
// does not count.
func (s *Scanner) Find(want int) (Member, bool) {
	for i := len(s.members) - 1; i >= 0; i-- {
		if s.members[i].Want == want {
			return s.members[i], !s.replaced(want, i)
		}
	}
	return Member{}, false
}

// replaced reports whether a parent of the i-th member was repeated after it.
func (s *Scanner) replaced(want, i int) bool {
	for _, id := range s.table.lines[want] {
		if s.born[id] > i {
			return true
		}
	}
	return false
}

// Root returns the top-level value: Kind, Value, Count, First.
func (s *Scanner) Root() Member { return s.root }

// Sinking returns the kind of the value whose text the sink receives. Only the sink may call it.
func (s *Scanner) Sinking() Kind { return s.sinking }

// Offset returns how many bytes were accepted.
func (s *Scanner) Offset() int64 { return s.base }

// Settled returns an offset before which no further byte can belong to the removal of a wanted member: only a comma and a key
// that is not decided yet come after it.
func (s *Scanner) Settled() int64 {
	if s.depth == 0 || s.depth != s.tracked {
		return s.base
	}
	f := s.top()
	named := f.node.lengths != 0
	switch {
	case s.state == beforeKey && named,
		s.state == beforeValue && f.comma >= 0 && f.node.any != nil && !s.inObject():
		return f.comma
	case s.state == inKey && named && !s.key.long:
		if f.comma >= 0 {
			return f.comma
		}
		return s.key.span.Start
	}
	return s.base
}
