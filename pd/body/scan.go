package body

// state is what a scanner expects next.
type state uint8

const (
	atStart      state = iota // the value, or a byte order mark
	beforeValue               // a value
	beforeFirst               // a value or ]
	beforeKey                 // a key
	beforeMember              // a key or }
	beforeColon               // a colon
	afterValue                // a comma, } or ]
	afterAll                  // white space
	inKey
	inString
	inNumber
	inWord // true, false, null, NaN, Infinity
	inMark // the byte order mark
)

// scan reads p up to the first wrong byte, for which it sets s.err, and returns how many bytes it read.
func (s *Scanner) scan(p []byte) int {
	i := 0
	for i < len(p) && s.err == nil {
		switch s.state {
		case inString:
			i = s.scanString(p, i)
		case inKey:
			i = s.scanKey(p, i)
		case inNumber:
			i = s.scanNumber(p, i)
		case inWord, inMark:
			i = s.scanWord(p, i)
		default:
			if s.depth > s.tracked {
				i = s.skim(p, i)
			}
			if i = skipSpace(p, i); i < len(p) {
				i = s.step(p, i)
			}
		}
	}
	return i
}

func skipSpace(p []byte, i int) int {
	for i < len(p) && isSpace(p[i]) {
		i++
	}
	return i
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// step reads the structural byte p[i], or the first byte of a key or value.
func (s *Scanner) step(p []byte, i int) int {
	c := p[i]
	switch s.state {
	case atStart:
		if c == mark[0] && s.base == 0 {
			s.state, s.token.rest = inMark, mark[1:]
			return i + 1
		}
		return s.beginValue(p, i)
	case beforeFirst:
		if c == ']' {
			return s.closeContainer(p, i)
		}
		return s.beginValue(p, i)
	case beforeValue:
		return s.beginValue(p, i)
	case beforeMember:
		if c == '}' {
			return s.closeContainer(p, i)
		}
		return s.beginKey(p, i)
	case beforeKey:
		return s.beginKey(p, i)
	case beforeColon:
		if c != ':' {
			return s.fail(i, "no colon after a key")
		}
		s.state = beforeValue
		return i + 1
	case afterValue:
		return s.afterValue(p, i)
	}
	return s.fail(i, "something after the value")
}

func (s *Scanner) afterValue(p []byte, i int) int {
	object := s.inObject()
	switch c := p[i]; {
	case c == ',' && object:
		s.comma(i)
		s.state = beforeKey
	case c == ',':
		s.comma(i)
		s.state = beforeValue
		return s.skipIDs(p, i+1)
	case c == '}' && object, c == ']' && !object:
		return s.closeContainer(p, i)
	default:
		return s.fail(i, "no comma after a value")
	}
	return i + 1
}

func (s *Scanner) comma(i int) {
	if s.depth != s.tracked {
		return
	}
	f := s.top()
	f.comma = s.base + int64(i)
	if f.cur >= 0 {
		s.members[f.cur].Next = f.comma
		f.cur = -1
	}
}

// beginValue reads the first byte of a value.
func (s *Scanner) beginValue(p []byte, i int) int {
	k, word := kinds[p[i]], words[p[i]]
	if k == Invalid {
		return s.fail(i, "no value")
	}
	if s.depth == s.tracked && !s.note(k, i) {
		return i
	}
	switch {
	case k == Object || k == Array:
		return s.openContainer(i, k)
	case k == String:
		s.state, s.token.escaped = inString, false
		return s.scanString(p, i+1)
	case word != "":
		s.state, s.token.rest = inWord, word
	default:
		s.state, s.token.phase = inNumber, phases[overNumber][classes[p[i]]]
	}
	return i + 1
}

// note records that a value begins in the innermost frame. It returns false if that is an error.
func (s *Scanner) note(k Kind, i int) bool {
	at := s.base + int64(i)
	if s.depth == 0 {
		s.root.Kind, s.root.Value.Start = k, at
		return true
	}
	f := s.top()
	if !s.inObject() {
		if f.count == 0 {
			f.first = k
		}
		s.key.match, s.key.again, s.key.span = f.node.any, f.again, Span{at, at}
		f.count++
		if s.key.match != nil && !s.keep(f) {
			return false
		}
	}
	n := s.key.match
	if n == nil {
		return true
	}
	if f.cur >= 0 {
		m := &s.members[f.cur]
		m.Kind, m.Value.Start = k, at
	}
	if n.sink {
		if k == String {
			i++
		}
		s.flows = append(s.flows, flow{want: n.want, kind: k, depth: s.depth, from: i})
	}
	return true
}

// keep adds the member whose key was read last, if it is wanted.
func (s *Scanner) keep(f *frame) bool {
	n := s.key.match
	s.born[n.id] = len(s.members)
	if n.want < 0 || n.sink && n.loose {
		return true
	}
	if len(s.members) >= s.limits.Members {
		s.err = ErrTooMany
		return false
	}
	f.cur = len(s.members)
	s.members = append(s.members, Member{
		Want: n.want, Key: s.key.span, Value: Span{-1, -1},
		Index: f.count - 1, Prev: f.comma, Next: -1, Object: f.open,
	})
	return true
}

// endValue records that a value ended before p[i]. The part of it for the sink ends before p[text].
func (s *Scanner) endValue(p []byte, i, text int) {
	s.state = afterValue
	if s.depth != s.tracked {
		return
	}
	at := s.base + int64(i)
	if s.depth == 0 {
		s.root.Value.End = at
		s.state = afterAll
		return
	}
	if m := s.current(); m != nil {
		m.Value.End = at
	}
	if n := len(s.flows) - 1; n >= 0 && s.flows[n].depth == s.depth {
		f := s.flows[n]
		s.flows = s.flows[:n]
		s.hand(&f, p[f.from:text], true)
	}
}

// openContainer enters the { or [ at p[i].
func (s *Scanner) openContainer(i int, k Kind) int {
	n := s.key.match
	if s.depth == 0 {
		n = s.table.root
	}
	follow := s.depth == s.tracked && n != nil
	if !s.push(k == Object) {
		return i
	}
	if follow {
		s.tracked = s.depth
		s.frames = append(s.frames, frame{
			node: n, depth: s.depth, open: s.base + int64(i), comma: -1, cur: -1, again: s.key.again,
		})
	}
	return i + 1
}

// push enters a container.
func (s *Scanner) push(object bool) bool {
	if s.depth == s.limits.Depth {
		s.err = ErrTooDeep
		return false
	}
	word, bit := s.depth/64, uint64(1)<<(s.depth%64)
	if word == len(s.objects) {
		s.objects = append(s.objects, 0)
	}
	s.depth++
	if object {
		s.objects[word] |= bit
		s.state = beforeMember
	} else {
		s.objects[word] &^= bit
		s.state = beforeFirst
	}
	return true
}

// closeContainer leaves the container that p[i] closes.
func (s *Scanner) closeContainer(p []byte, i int) int {
	if s.depth == s.tracked {
		s.popFrame()
	}
	s.depth--
	s.endValue(p, i+1, i+1)
	return i + 1
}

func (s *Scanner) popFrame() {
	f := s.top()
	count, first := f.count, f.first
	s.frames = s.frames[:len(s.frames)-1]
	if len(s.frames) == 0 {
		s.tracked = 0
		s.root.Count, s.root.First = count, first
		return
	}
	s.tracked = s.top().depth
	if m := s.current(); m != nil {
		m.Count, m.First = count, first
	}
}

// inObject reports whether the innermost container is an object.
func (s *Scanner) inObject() bool {
	d := s.depth - 1
	return s.objects[d/64]>>(d%64)&1 != 0
}

func (s *Scanner) top() *frame { return &s.frames[len(s.frames)-1] }

// current returns the wanted member whose value the innermost frame reads, or nil.
func (s *Scanner) current() *Member {
	if k := s.top().cur; k >= 0 {
		return &s.members[k]
	}
	return nil
}

func (s *Scanner) fail(i int, reason string) int {
	s.err = &SyntaxError{Offset: s.base + int64(i), Reason: reason}
	return i
}
