package merge

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
)

var errShape = errors.New("an answer has not the form of its API")

// Whole merges the complete answers to the requests for the choices of one request, in the order of the choices. The error
// says which answer is not what the API's answers are.
func Whole(api pd.API, answers [][]byte) ([]byte, error) {
	if api == pd.APISGLang {
		return wholeList(answers)
	}
	return wholeChoices(answers)
}

// choice is one choice in an answer: its bytes, and the place of its index in them.
type choice struct {
	raw   []byte
	index body.Span // empty: it has none
}

func wholeChoices(answers [][]byte) ([]byte, error) {
	var u usage
	choices := make([][]choice, len(answers))
	size := 0
	var first body.Scanner
	scan := &first
	for i, answer := range answers {
		if i == 1 {
			scan = new(body.Scanner) // the first one's members are needed below
		}
		var ok bool
		if ok = scan.Scan(table, limits, answer) == nil; ok {
			choices[i], ok = choicesOf(answer, scan)
		}
		if !ok || len(choices[i]) != len(choices[0]) {
			return nil, fmt.Errorf("merging choice %d: %w", i, errShape)
		}
		u.add(answer, scan.Members(), i, i == 0)
		size += len(answer)
	}
	list, _ := first.Find(wChoices)
	return edit(make([]byte, 0, size), answers[0], first.Members(), func(dst []byte, m body.Member) ([]byte, bool) {
		if m.Want == wChoices && m.Value == list.Value {
			return appendChoices(dst, choices), true
		}
		return u.value(dst, answers[0], m)
	}), nil
}

// choicesOf returns the choices of an answer; ok is false if it has no list of them.
func choicesOf(answer []byte, scan *body.Scanner) (all []choice, ok bool) {
	list, ok := scan.Find(wChoices)
	if !ok || list.Kind != body.Array {
		return nil, false
	}
	all = make([]choice, 0, list.Count)
	start := int64(-1) // of the last choice
	for _, m := range scan.Members() {
		switch v := m.Value; {
		case m.Want == wChoice && m.Object == list.Value.Start:
			all, start = append(all, choice{raw: answer[v.Start:v.End]}), v.Start
		case m.Want == wIndex && m.Object == start:
			all[len(all)-1].index = body.Span{Start: v.Start - start, End: v.End - start}
		}
	}
	return all, true
}

// appendChoices appends the list of all choices. choices[i][j] is choice i of prompt j.
func appendChoices(out []byte, choices [][]choice) []byte {
	out = append(out, '[')
	n := len(choices)
	for at := range n * len(choices[0]) {
		if at > 0 {
			out = append(out, ',')
		}
		c := choices[at%n][at/n]
		out = append(out, c.raw[:c.index.Start]...)
		if c.index.Len() > 0 {
			out = strconv.AppendInt(out, int64(at), 10)
		}
		out = append(out, c.raw[c.index.End:]...)
	}
	return append(out, ']')
}

// wholeList merges answers that are objects, or lists of one object for each prompt.
func wholeList(answers [][]byte) ([]byte, error) {
	choices := make([][]choice, len(answers))
	size := 0
	var scan body.Scanner
	for i, answer := range answers {
		ok := scan.Scan(listTable, limits, answer) == nil
		switch root := scan.Root(); {
		case ok && root.Kind == body.Object:
			choices[i] = []choice{{raw: answer[root.Value.Start:root.Value.End]}}
		case ok && root.Kind == body.Array:
			for _, m := range scan.Members() {
				choices[i] = append(choices[i], choice{raw: answer[m.Value.Start:m.Value.End]})
			}
		default:
			return nil, fmt.Errorf("merging choice %d: %w", i, errShape)
		}
		if len(choices[i]) != len(choices[0]) {
			return nil, fmt.Errorf("merging choice %d: %w", i, errShape)
		}
		size += len(answer) + len(",")
	}
	return appendChoices(make([]byte, 0, size+len("[]")), choices), nil
}
