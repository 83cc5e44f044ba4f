package pyjson

import (
	"encoding/json"
	"unicode/utf8"
)

// FindSyntaxError returns where (in characters) and why Python's JSON parser refuses a body, or "" if it accepts it. The engine's
// answer contains both, and Go's errors have other texts. Bodies that Go's decoder accepts are not examined.
func FindSyntaxError(body []byte) (position int, message string) {
	if json.Valid(body) {
		return 0, ""
	}
	s := syntax{b: body}
	s.value()
	if s.message == "" {
		s.space()
		if s.i < len(body) {
			s.fail(s.i, "Extra data")
		}
	}
	if s.message == "" {
		s.fail(0, "Expecting value")
	}
	return utf8.RuneCount(body[:min(s.at, len(body))]), s.message
}

// syntax reads a document up to the first error.
type syntax struct {
	b       []byte
	i       int
	at      int
	message string
}

func (s *syntax) fail(at int, message string) bool {
	s.at, s.message = at, message
	return false
}

func (s *syntax) space() {
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\t' || s.b[s.i] == '\n' || s.b[s.i] == '\r') {
		s.i++
	}
}

func (s *syntax) next(c byte) bool {
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

func (s *syntax) value() bool {
	s.space()
	switch {
	case s.next('{'):
		return s.object()
	case s.next('['):
		return s.array()
	case s.i < len(s.b) && s.b[s.i] == '"':
		return s.text()
	}
	start := s.i
	for s.i < len(s.b) && isWord(s.b[s.i]) {
		s.i++
	}
	if !json.Valid(s.b[start:s.i]) {
		return s.fail(start, "Expecting value")
	}
	return true
}

func isWord(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == '-' || c == '+' || c == '.' || c == 'E'
}

func (s *syntax) object() bool {
	s.space()
	if s.next('}') {
		return true
	}
	for {
		s.space()
		if s.i >= len(s.b) || s.b[s.i] != '"' {
			return s.fail(s.i, "Expecting property name enclosed in double quotes")
		}
		if !s.text() {
			return false
		}
		s.space()
		if !s.next(':') {
			return s.fail(s.i, "Expecting ':' delimiter")
		}
		if done, ok := s.afterItem('}'); done || !ok {
			return ok
		}
	}
}

func (s *syntax) array() bool {
	s.space()
	if s.next(']') {
		return true
	}
	for {
		if done, ok := s.afterItem(']'); done || !ok {
			return ok
		}
	}
}

// afterItem reads a value, and the comma or the end after it.
func (s *syntax) afterItem(end byte) (done, ok bool) {
	if !s.value() {
		return false, false
	}
	s.space()
	if s.next(end) {
		return true, true
	}
	if !s.next(',') {
		return false, s.fail(s.i, "Expecting ',' delimiter")
	}
	return false, true
}

func (s *syntax) text() bool {
	start := s.i
	for s.i++; s.i < len(s.b); s.i++ {
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return true
		case c == '\\':
			if !s.escape() {
				return false
			}
		case c < ' ':
			return s.fail(s.i, "Invalid control character at")
		}
	}
	return s.fail(start, "Unterminated string starting at")
}

// escape leaves the position on the last byte of the escape.
func (s *syntax) escape() bool {
	s.i++
	if s.i >= len(s.b) {
		return true // the string is then unterminated, which is what gets reported
	}
	switch s.b[s.i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	case 'u':
		for n := 1; n <= 4; n++ {
			if s.i+n >= len(s.b) || !isHex(s.b[s.i+n]) {
				return s.fail(s.i, "Invalid \\uXXXX escape")
			}
		}
		s.i += 4
		return true
	}
	return s.fail(s.i-1, "Invalid \\escape")
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}
