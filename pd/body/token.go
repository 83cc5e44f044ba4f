package body

import "bytes"

// token is the part of a string, number or word that was read so far.
type token struct {
	escaped bool   // string: the next byte is escaped
	phase   phase  // number
	rest    string // word: the bytes that must follow
}

// mark is the UTF-8 byte order mark, which Python's json.loads accepts.
const mark = "\xEF\xBB\xBF"

// kinds has the kind of value that a byte begins, words what must follow it in a word.
var (
	kinds = [256]Kind{
		'"': String, '{': Object, '[': Array, 't': True, 'f': False, 'n': Null, 'N': Number, 'I': Number, '-': Number,
		'0': Number, '1': Number, '2': Number, '3': Number, '4': Number,
		'5': Number, '6': Number, '7': Number, '8': Number, '9': Number,
	}
	words = [256]string{'t': "rue", 'f': "alse", 'n': "ull", 'N': "aN", 'I': "nfinity"}
)

// closing returns the index of the quote that ends the string whose inside p[i:] is, -1 if p does not contain it. escaped
// says whether a backslash escapes p[i]; the result says the same of the byte after p.
func closing(p []byte, i int, escaped bool) (int, bool) {
	for {
		n := bytes.IndexByte(p[i:], '"')
		if n < 0 {
			return -1, escapes(p[i:], escaped)
		}
		if !escapes(p[i:i+n], escaped) {
			return i + n, false
		}
		i += n + 1
		escaped = false
	}
}

// escapes reports whether the byte after p is escaped: whether p ends in an odd number of backslashes. escaped says whether
// the first byte of p is escaped.
func escapes(p []byte, escaped bool) bool {
	k := len(p)
	for k > 0 && p[k-1] == '\\' {
		k--
	}
	odd := (len(p)-k)&1 == 1
	return odd != (k == 0 && escaped)
}

// scanString reads the next part of a string value.
func (s *Scanner) scanString(p []byte, i int) int {
	q, escaped := closing(p, i, s.token.escaped)
	s.token.escaped = escaped
	end := q
	if q < 0 {
		end = len(p)
	}
	if s.depth > 0 && s.depth == s.tracked {
		if m := s.current(); m != nil && !m.Escaped {
			m.Escaped = hasEscape(p[i:end])
		}
	}
	if q < 0 {
		return end
	}
	s.endValue(p, q+1, q)
	return q + 1
}

func (s *Scanner) beginKey(p []byte, i int) int {
	if p[i] != '"' {
		return s.fail(i, "no key")
	}
	s.state, s.token.escaped = inKey, false
	s.key.span.Start = s.base + int64(i)
	s.key.raw, s.key.long = s.key.raw[:0], false
	return s.scanKey(p, i+1)
}

// scanKey reads the next part of a key.
func (s *Scanner) scanKey(p []byte, i int) int {
	q, escaped := closing(p, i, s.token.escaped)
	s.token.escaped = escaped
	if q < 0 {
		s.holdKey(p[i:])
		return len(p)
	}
	s.state = beforeColon
	if s.depth == s.tracked {
		raw := p[i:q]
		if len(s.key.raw) > 0 || s.key.long {
			s.holdKey(raw)
			raw = s.key.raw
		}
		s.key.span.End = s.base + int64(q) + 1
		s.endKey(raw)
	}
	return q + 1
}

// holdKey keeps a part of a key, unless the key is too long to be wanted.
func (s *Scanner) holdKey(part []byte) {
	if s.depth != s.tracked || s.key.long {
		return
	}
	if len(s.key.raw)+len(part) > s.table.longestKey() {
		s.key.long = true
		return
	}
	s.key.raw = append(s.key.raw, part...)
}

// endKey finds out whether the complete key is wanted.
func (s *Scanner) endKey(raw []byte) {
	f := s.top()
	f.count++
	s.key.match = nil
	if s.key.long || len(raw) > s.table.longestKey() {
		return
	}
	k := f.node.find(raw, &s.key.decoded)
	if k < 0 {
		return
	}
	n, bit := f.node.kids[k], uint64(1)<<k
	repeated := f.seen&bit != 0
	if n.once && (repeated || f.again && s.born[n.id] >= 0) {
		s.err = &DuplicateError{Path: n.path, Offset: s.key.span.Start}
		return
	}
	f.seen |= bit
	s.key.match, s.key.again = n, f.again || repeated
	s.keep(f)
}

// scanWord reads the next part of a literal word, or of the byte order mark.
func (s *Scanner) scanWord(p []byte, i int) int {
	for ; i < len(p) && s.token.rest != ""; i++ {
		if p[i] != s.token.rest[0] {
			return s.fail(i, "no value")
		}
		s.token.rest = s.token.rest[1:]
	}
	switch {
	case s.token.rest != "":
	case s.state == inMark:
		s.state = beforeValue
	default:
		s.endValue(p, i, i)
	}
	return i
}

// phase is a position within a number.
type phase uint8

const (
	overNumber phase = iota // the byte is after the number, or wrong
	atMinus
	atZero
	inInteger
	atPoint
	inFraction
	atExponent
	atSign
	inExponent
)

// complete reports whether a number may end here.
func (ph phase) complete() bool {
	return ph == atZero || ph == inInteger || ph == inFraction || ph == inExponent
}

// The classes of bytes in numbers.
const (
	classOther = iota
	classMinus
	classPlus
	classZero
	classDigit
	classPoint
	classE
)

var classes = [256]uint8{
	'-': classMinus, '+': classPlus, '.': classPoint, 'e': classE, 'E': classE, '0': classZero,
	'1': classDigit, '2': classDigit, '3': classDigit, '4': classDigit, '5': classDigit,
	'6': classDigit, '7': classDigit, '8': classDigit, '9': classDigit,
}

// phases is the grammar of numbers: phase before, class of the byte, phase after. Row 0 is the beginning of a number.
var phases = [...][7]phase{
	overNumber: {classMinus: atMinus, classZero: atZero, classDigit: inInteger},
	atMinus:    {classZero: atZero, classDigit: inInteger},
	atZero:     {classPoint: atPoint, classE: atExponent},
	inInteger:  {classZero: inInteger, classDigit: inInteger, classPoint: atPoint, classE: atExponent},
	atPoint:    {classZero: inFraction, classDigit: inFraction},
	inFraction: {classZero: inFraction, classDigit: inFraction, classE: atExponent},
	atExponent: {classZero: inExponent, classDigit: inExponent, classMinus: atSign, classPlus: atSign},
	atSign:     {classZero: inExponent, classDigit: inExponent},
	inExponent: {classZero: inExponent, classDigit: inExponent},
}

// scanNumber reads the next part of a number.
func (s *Scanner) scanNumber(p []byte, i int) int {
	ph := s.token.phase
	for ; i < len(p); i++ {
		next := phases[ph][classes[p[i]]]
		if next == overNumber {
			break
		}
		ph = next
	}
	s.token.phase = ph
	switch {
	case i == len(p):
	case ph.complete():
		s.endValue(p, i, i)
	case ph == atMinus && p[i] == 'I':
		s.state, s.token.rest = inWord, words['I']
		i++
	default:
		return s.fail(i, "malformed number")
	}
	return i
}
