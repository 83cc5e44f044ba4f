package web

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/sim/pyjson"
)

// Fields reads the members of a request body as the engines' request models do: of duplicate names the last counts, names are
// case-sensitive, unknown ones are ignored, and one answer lists every wrong type.
type Fields struct {
	Members  map[string]json.RawMessage
	Problems []Problem
}

// Problem is one validation error: the kind, the member, the message, and a description of the member's value.
type Problem struct{ Kind, Loc, Message, Input string }

// ReadObject reads a JSON object that is valid JSON. It returns nil for other values.
func ReadObject(body []byte) *Fields {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil || members == nil {
		return nil
	}
	return &Fields{Members: members}
}

// Wrong adds a problem.
func (f *Fields) Wrong(kind, name, message string, raw json.RawMessage) {
	f.Problems = append(f.Problems, Problem{kind, "body." + name, message, pyjson.Describe(raw)})
}

// Get returns a member. It returns false for one that is missing or null.
func (f *Fields) Get(name string) (json.RawMessage, bool) {
	raw, ok := f.Members[name]
	if !ok || string(raw) == "null" {
		return nil, false
	}
	return raw, true
}

// Require returns a member, and adds a problem if it is missing. It may be null.
func (f *Fields) Require(name string) (json.RawMessage, bool) {
	raw, ok := f.Members[name]
	if !ok {
		f.Problems = append(f.Problems, Problem{"missing", "body." + name, "Field required", fmt.Sprintf("<dict of %d items>", len(f.Members))})
	}
	return raw, ok
}

// Truthy reports whether a member is true in a Python condition, which the engine asks before it checks types.
func (f *Fields) Truthy(name string) bool {
	var v any
	return json.Unmarshal(f.Members[name], &v) == nil && v != nil && v != false && v != 0.0 && v != ""
}

// Text reads a string.
func (f *Fields) Text(name, missing string) string {
	raw, ok := f.Get(name)
	if !ok {
		return missing
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		f.Wrong("string_type", name, "Input should be a valid string", raw)
	}
	return s
}

// Integer accepts what the engine's lax mode accepts: floats without a fraction, numbers in strings, and booleans.
func (f *Fields) Integer(name string, missing int) int {
	raw, ok := f.Get(name)
	if !ok {
		return missing
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		f.Wrong("int_type", name, "Input should be a valid integer", raw)
		return missing
	}
	switch v := v.(type) {
	case bool:
		return map[bool]int{true: 1}[v]
	case float64:
		if v == float64(int(v)) {
			return int(v)
		}
		f.Wrong("int_from_float", name, "Input should be a valid integer, got a number with a fractional part", raw)
	case string:
		if i, err := strconv.Atoi(strings.TrimSpace(v)); err == nil {
			return i
		}
		f.Wrong("int_parsing", name, "Input should be a valid integer, unable to parse string as an integer", raw)
	default:
		f.Wrong("int_type", name, "Input should be a valid integer", raw)
	}
	return missing
}

// OptionalInteger returns nil for a member that is missing or null.
func (f *Fields) OptionalInteger(name string) *int {
	if _, ok := f.Get(name); !ok {
		return nil
	}
	v := f.Integer(name, 0)
	return &v
}

// Float reads a number, in the engine's lax mode as well.
func (f *Fields) Float(name string, missing float64) float64 {
	raw, ok := f.Get(name)
	if !ok {
		return missing
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		f.Wrong("float_type", name, "Input should be a valid number", raw)
		return missing
	}
	switch v := v.(type) {
	case bool:
		return map[bool]float64{true: 1}[v]
	case float64:
		return v
	case string:
		if x, err := strconv.ParseFloat(strings.TrimSpace(v), 64); err == nil {
			return x
		}
		f.Wrong("float_parsing", name, "Input should be a valid number, unable to parse string as a number", raw)
	default:
		f.Wrong("float_type", name, "Input should be a valid number", raw)
	}
	return missing
}

// booleans has what lax mode accepts as true and false, in lower case.
var booleans = map[string]bool{
	"true": true, "1": true, "yes": true, "on": true, "t": true, "y": true,
	"false": false, "0": false, "no": false, "off": false, "f": false, "n": false,
}

// Boolean reads true or false, in the engine's lax mode as well.
func (f *Fields) Boolean(name string) bool {
	raw, ok := f.Get(name)
	if !ok {
		return false
	}
	word := strings.ToLower(strings.Trim(string(raw), `"`))
	if v, ok := booleans[word]; ok {
		return v
	}
	if raw[0] == '{' || raw[0] == '[' {
		f.Wrong("bool_type", name, "Input should be a valid boolean", raw)
	} else {
		f.Wrong("bool_parsing", name, "Input should be a valid boolean, unable to interpret input", raw)
	}
	return false
}

// Object returns a member that is an object. It returns nil for one that is missing, null or of another type.
func (f *Fields) Object(name string) json.RawMessage {
	raw, ok := f.Get(name)
	if !ok {
		return nil
	}
	if raw[0] != '{' {
		f.Wrong("dict_type", name, "Input should be a valid dictionary", raw)
		return nil
	}
	return raw
}

// Texts reads a string or a list of strings.
func (f *Fields) Texts(name string) []string {
	raw, ok := f.Get(name)
	if !ok {
		return nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}
	}
	var many []string
	if json.Unmarshal(raw, &many) != nil {
		f.Wrong("string_type", name, "Input should be a valid string", raw)
	}
	return many
}

// Integers reads a list of integers.
func (f *Fields) Integers(name string) []int {
	raw, ok := f.Get(name)
	if !ok {
		return nil
	}
	var list []int
	if json.Unmarshal(raw, &list) != nil {
		f.Wrong("list_type", name, "Input should be a valid list", raw)
	}
	return list
}
