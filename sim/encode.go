package sim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
)

// encodeJSON writes a value as the engine does: without blanks, and with every character as itself.
// The values are this package's own, so failing to encode one is a bug.
func encodeJSON(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// member is one member of an object whose order matters.
type member struct {
	name  string
	value any
}

// object encodes its members in their order: for events that are too many for a type each.
type object []member

// MarshalJSON implements json.Marshaler; it has no error.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, m := range o {
		b.WriteByte("{,"[min(i, 1)])
		b.Write(encodeJSON(m.name))
		b.WriteByte(':')
		b.Write(encodeJSON(m.value))
	}
	if len(o) == 0 {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// sortedMembers orders members as /v1/responses does in its small events: by name.
func sortedMembers(members []member) []member {
	slices.SortStableFunc(members, func(a, b member) int { return cmp.Compare(a.name, b.name) })
	return members
}
