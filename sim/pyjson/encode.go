package pyjson

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
)

// Encode writes a value as the engine does: without blanks, and without escapes for characters that need none. It panics on
// a value that JSON cannot represent: callers pass their own types, so that is a bug.
func Encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// EncodeSpaced is Encode with the blanks that json.dumps writes.
func EncodeSpaced(v any) []byte {
	var b bytes.Buffer
	text := false
	escaped := false
	for _, c := range Encode(v) {
		b.WriteByte(c)
		switch {
		case escaped:
			escaped = false
		case text:
			escaped, text = c == '\\', c != '"'
		case c == '"':
			text = true
		case c == ',' || c == ':':
			b.WriteByte(' ')
		}
	}
	return b.Bytes()
}

// Member is one member of an Object.
type Member struct {
	Name  string
	Value any
}

// Object is encoded with its members in their order. It is for the many small events that have no type of their own.
type Object []Member

// MarshalJSON implements json.Marshaler; it has no error.
func (o Object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, m := range o {
		b.WriteByte("{,"[min(i, 1)])
		b.Write(Encode(m.Name))
		b.WriteByte(':')
		b.Write(Encode(m.Value))
	}
	if len(o) == 0 {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// Sort orders the members by name.
func (o Object) Sort() {
	slices.SortStableFunc(o, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
}
