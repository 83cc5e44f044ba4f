package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/sim/pyjson"
)

// fields reads the members of a request body as the engine's request models do: of duplicate names the last counts, names are
// case-sensitive, unknown ones are ignored, and one answer lists every wrong type.
type fields struct {
	members  map[string]json.RawMessage
	problems []problem
}

// problem is one validation error: the kind, the member, the message, and a description of the member's value.
type problem struct{ kind, loc, message, input string }

// maxProblems is how many validation errors an answer lists.
const maxProblems = 10

// parseBody reads a JSON object.
func parseBody(body []byte) (*fields, *apiError) {
	if len(body) == 0 {
		return nil, schemaError([]problem{{"missing", "body", "Field required", "None"}})
	}
	if position, message := pyjson.FindSyntaxError(body); message != "" {
		return nil, jsonError(position, message)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil || members == nil {
		return nil, schemaError([]problem{{"model_attributes_type", "body",
			"Input should be a valid dictionary or object to extract fields from", pyjson.Describe(body)}})
	}
	return &fields{members: members}, nil
}

func jsonError(position int, message string) *apiError {
	loc := "body." + strconv.Itoa(position)
	return &apiError{
		Message: fmt.Sprintf("1 validation error:\n  {'type': 'json_invalid', 'loc': '%s', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': %s}}",
			loc, pyjson.Quote(message)),
		Type: typeSchema, Param: &loc, Code: http.StatusBadRequest, schema: true,
	}
}

func schemaError(problems []problem) *apiError {
	var b strings.Builder
	fmt.Fprintf(&b, "%d validation error", len(problems))
	if len(problems) > 1 {
		b.WriteByte('s')
	}
	b.WriteByte(':')
	for i, p := range problems {
		if i == maxProblems {
			fmt.Fprintf(&b, "\n  ...and %d more errors", len(problems)-maxProblems)
			break
		}
		fmt.Fprintf(&b, "\n  {'type': %s, 'loc': %s, 'msg': %s, 'input': %s}", pyjson.Quote(p.kind), pyjson.Quote(p.loc), pyjson.Quote(p.message), pyjson.Quote(p.input))
	}
	return &apiError{Message: b.String(), Type: typeSchema, Param: &problems[0].loc, Code: http.StatusBadRequest, schema: true}
}

func (f *fields) err() *apiError {
	if len(f.problems) == 0 {
		return nil
	}
	return schemaError(f.problems)
}

func (f *fields) wrong(kind, name, message string, raw json.RawMessage) {
	f.problems = append(f.problems, problem{kind, "body." + name, message, pyjson.Describe(raw)})
}

// get returns a member. It returns false for one that is missing or null.
func (f *fields) get(name string) (json.RawMessage, bool) {
	raw, ok := f.members[name]
	if !ok || string(raw) == "null" {
		return nil, false
	}
	return raw, true
}

// require returns a member, and adds a problem if it is missing. It may be null.
func (f *fields) require(name string) (json.RawMessage, bool) {
	raw, ok := f.members[name]
	if !ok {
		f.problems = append(f.problems, problem{"missing", "body." + name, "Field required", fmt.Sprintf("<dict of %d items>", len(f.members))})
	}
	return raw, ok
}

// truthy reports whether a member is true in a Python condition, which the engine asks before it checks types.
func (f *fields) truthy(name string) bool {
	var v any
	return json.Unmarshal(f.members[name], &v) == nil && v != nil && v != false && v != 0.0 && v != ""
}

func (f *fields) text(name, missing string) string {
	raw, ok := f.get(name)
	if !ok {
		return missing
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		f.wrong("string_type", name, "Input should be a valid string", raw)
	}
	return s
}

// integer accepts what the engine's lax mode accepts: floats without a fraction, numbers in strings, and booleans.
func (f *fields) integer(name string, missing int) int {
	raw, ok := f.get(name)
	if !ok {
		return missing
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		f.wrong("int_type", name, "Input should be a valid integer", raw)
		return missing
	}
	switch v := v.(type) {
	case bool:
		return map[bool]int{true: 1}[v]
	case float64:
		if v == float64(int(v)) {
			return int(v)
		}
		f.wrong("int_from_float", name, "Input should be a valid integer, got a number with a fractional part", raw)
	case string:
		if i, err := strconv.Atoi(strings.TrimSpace(v)); err == nil {
			return i
		}
		f.wrong("int_parsing", name, "Input should be a valid integer, unable to parse string as an integer", raw)
	default:
		f.wrong("int_type", name, "Input should be a valid integer", raw)
	}
	return missing
}

// optionalInteger returns nil for a member that is missing or null.
func (f *fields) optionalInteger(name string) *int {
	if _, ok := f.get(name); !ok {
		return nil
	}
	v := f.integer(name, 0)
	return &v
}

func (f *fields) float(name string, missing float64) float64 {
	raw, ok := f.get(name)
	if !ok {
		return missing
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		f.wrong("float_type", name, "Input should be a valid number", raw)
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
		f.wrong("float_parsing", name, "Input should be a valid number, unable to parse string as a number", raw)
	default:
		f.wrong("float_type", name, "Input should be a valid number", raw)
	}
	return missing
}

// booleans has what lax mode accepts as true and false, in lower case.
var booleans = map[string]bool{
	"true": true, "1": true, "yes": true, "on": true, "t": true, "y": true,
	"false": false, "0": false, "no": false, "off": false, "f": false, "n": false,
}

func (f *fields) boolean(name string) bool {
	raw, ok := f.get(name)
	if !ok {
		return false
	}
	word := strings.ToLower(strings.Trim(string(raw), `"`))
	if v, ok := booleans[word]; ok {
		return v
	}
	if raw[0] == '{' || raw[0] == '[' {
		f.wrong("bool_type", name, "Input should be a valid boolean", raw)
	} else {
		f.wrong("bool_parsing", name, "Input should be a valid boolean, unable to interpret input", raw)
	}
	return false
}

// object returns a member that is an object. It returns nil for one that is missing, null or of another type.
func (f *fields) object(name string) json.RawMessage {
	raw, ok := f.get(name)
	if !ok {
		return nil
	}
	if raw[0] != '{' {
		f.wrong("dict_type", name, "Input should be a valid dictionary", raw)
		return nil
	}
	return raw
}

// texts reads a string or a list of strings.
func (f *fields) texts(name string) []string {
	raw, ok := f.get(name)
	if !ok {
		return nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}
	}
	var many []string
	if json.Unmarshal(raw, &many) != nil {
		f.wrong("string_type", name, "Input should be a valid string", raw)
	}
	return many
}

// integers reads a list of integers.
func (f *fields) integers(name string) []int {
	raw, ok := f.get(name)
	if !ok {
		return nil
	}
	var list []int
	if json.Unmarshal(raw, &list) != nil {
		f.wrong("list_type", name, "Input should be a valid list", raw)
	}
	return list
}
