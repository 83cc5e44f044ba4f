package api

import (
	"bytes"
	"encoding/json"
	"math/big"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/web"
)

// many is a member that is one value, or a list with one for each prompt.
type many[T any] struct {
	set  bool
	list bool
	one  T
	each []T
}

// at returns the value for one of several prompts; ok is false if a list is too short.
func (m *many[T]) at(i int) (v T, ok bool) {
	switch {
	case !m.list:
		return m.one, true
	case i < len(m.each):
		return m.each[i], true
	}
	return v, false
}

// meeting is the rendezvous members of a body, for all its prompts.
type meeting struct {
	room        many[*big.Int]
	host        many[string]
	port        many[*big.Int]
	rank        *int // routed_dp_rank
	prefillRank *int
}

// readMeeting reads the rendezvous members.
func (c *call) readMeeting(f *web.Fields) (m meeting, err error) {
	strict := c.R.URL.Path == generatePath
	if m.room, err = readIntegers(f, "bootstrap_room", strict); err != nil {
		return m, err
	}
	if m.port, err = readIntegers(f, "bootstrap_port", strict); err != nil {
		return m, err
	}
	if raw, ok := f.Get("bootstrap_host"); ok {
		m.host.set = true
		switch {
		case json.Unmarshal(raw, &m.host.one) == nil:
		case json.Unmarshal(raw, &m.host.each) == nil:
			m.host.list = true
		default:
			f.Wrong("string_type", "bootstrap_host", "Input should be a valid string", raw)
		}
	}
	m.rank = f.OptionalInteger("routed_dp_rank")
	if m.rank == nil {
		m.rank = f.OptionalInteger("data_parallel_rank")
	}
	m.prefillRank = f.OptionalInteger("disagg_prefill_dp_rank")
	if n, err := strconv.Atoi(c.R.Header.Get("X-Data-Parallel-Rank")); err == nil && !strict {
		m.rank = &n
	}
	return m, nil
}

// readIntegers reads a bootstrap room or a port. The request models convert floats without a fraction, digits in strings, and booleans; strict
// paths refuse them afterwards.
func readIntegers(f *web.Fields, name string, strict bool) (m many[*big.Int], err error) {
	raw, ok := f.Get(name)
	if !ok {
		return m, nil
	}
	m.set = true
	var each []json.RawMessage
	if raw[0] != '[' {
		n, problem := integer(raw)
		if problem.Kind == "" && strict && !plainInteger(raw) {
			return m, &contractProblem{"invalid type: " + rustType(raw) + ", expected a value or an array of values for OptionalInt64OrList"}
		}
		if problem.Kind != "" {
			element := "list[int]"
			if strict {
				element = "list[nullable[int]]"
			}
			input := describe(raw)
			f.Problems = append(f.Problems,
				web.Problem{Kind: "list_type", Loc: "body." + name + "." + element, Message: "Input should be a valid list", Input: input},
				web.Problem{Kind: problem.Kind, Loc: "body." + name + ".int", Message: problem.Message, Input: input})
		}
		m.one = n
		return m, nil
	}
	m.list = true
	if json.Unmarshal(raw, &each) != nil {
		f.Wrong("list_type", name, "Input should be a valid list", raw)
	}
	for _, raw := range each {
		n, problem := integer(raw)
		if problem.Kind != "" {
			f.Problems = append(f.Problems, web.Problem{Kind: problem.Kind, Loc: "body." + name, Message: problem.Message, Input: describe(raw)})
		}
		m.each = append(m.each, n)
	}
	return m, nil
}

// describe returns how an error shows a value.
func describe(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return pyjson.Quote(text)
	}
	if n, ok := new(big.Int).SetString(string(raw), 10); ok && !n.IsInt64() { // its JSON reader makes floats of them
		v, _ := new(big.Float).SetInt(n).Float64()
		return pyjson.FormatFloat(v)
	}
	return pyjson.Describe(raw)
}

func plainInteger(raw json.RawMessage) bool { return !bytes.ContainsAny(raw, `."eEtf`) }

// rustType describes a value as the contract's own reader does.
func rustType(raw json.RawMessage) string {
	switch {
	case raw[0] == '"':
		return "string " + strconv.Quote(strings.Trim(string(raw), `"`))
	case raw[0] == 't', raw[0] == 'f':
		return "boolean `" + string(raw) + "`"
	}
	return "floating point `" + string(raw) + "`"
}

// integer converts a value as the request models do. The problem has no kind if it could.
func integer(raw json.RawMessage) (*big.Int, web.Problem) {
	text := string(raw)
	switch {
	case text == "null":
		return nil, web.Problem{}
	case text == "true":
		return big.NewInt(1), web.Problem{}
	case text == "false":
		return new(big.Int), web.Problem{}
	}
	fromString := strings.HasPrefix(text, `"`)
	if fromString {
		text = strings.TrimSpace(strings.Trim(text, `"`))
	}
	if n, ok := new(big.Int).SetString(text, 10); ok {
		if _, fits := sglang.NewRoom(n); !fits {
			return nil, web.Problem{Kind: "int_parsing_size", Message: "Unable to parse input string as an integer, exceeded maximum size"}
		}
		return n, web.Problem{}
	}
	if r, ok := new(big.Float).SetString(text); ok && !fromString {
		if n, exact := r.Int(nil); exact == big.Exact {
			return n, web.Problem{}
		}
		return nil, web.Problem{Kind: "int_from_float", Message: "Input should be a valid integer, got a number with a fractional part"}
	}
	if fromString {
		return nil, web.Problem{Kind: "int_parsing", Message: "Input should be a valid integer, unable to parse string as an integer"}
	}
	return nil, web.Problem{Kind: "int_type", Message: "Input should be a valid integer"}
}

// of returns the rendezvous of one of several prompts. The error breaks the handler: a list is too short.
func (m *meeting) of(i int, batch bool) (at sglang.Rendezvous, err error) {
	if !batch && (m.room.list || m.host.list || m.port.list) {
		at.Broken = true
	}
	room, okRoom := m.room.at(i)
	host, okHost := m.host.at(i)
	port, okPort := m.port.at(i)
	if !okRoom || !okHost || !okPort {
		return at, errBroken
	}
	if room != nil {
		r, _ := sglang.NewRoom(room)
		if !m.room.list {
			r = r.Add(i)
		}
		at.Room = &r
	}
	if port != nil {
		at.Port = int(port.Int64())
	}
	at.Host, at.PrefillRank = host, m.prefillRank
	return at, nil
}
