package page

import (
	"bytes"
	"strconv"
)

// series is one line of a metrics page, without the name: the labels as unparsed text, the value and the timestamp.
type series struct {
	labels []byte // between the braces, nil if there are none
	value  float64
	at     float64 // explicit timestamp, in the page's unit
	timed  bool    // the series has a timestamp
}

// parseSeries reads a line after the name of its family. ok is false if the value is not a number or the line is malformed.
// Exemplars are ignored.
func parseSeries(rest []byte) (s series, ok bool) {
	rest = trimLeft(rest)
	if len(rest) > 0 && rest[0] == '{' {
		end := closingBrace(rest)
		if end < 0 {
			return s, false
		}
		s.labels, rest = rest[1:end], rest[end+1:]
	}
	if exemplar := bytes.IndexByte(rest, '#'); exemplar >= 0 {
		rest = rest[:exemplar]
	}
	value, rest := nextField(rest)
	at, rest := nextField(rest)
	if len(trimLeft(rest)) > 0 {
		return s, false
	}
	var err error
	if s.value, err = strconv.ParseFloat(string(value), 64); err != nil {
		return s, false
	}
	if len(at) > 0 {
		s.timed = true
		if s.at, err = strconv.ParseFloat(string(at), 64); err != nil || s.at != s.at {
			return s, false
		}
	}
	return s, true
}

// closingBrace returns the index of the brace that ends the labels at the start of text, -1 if it is missing.
func closingBrace(text []byte) int {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == '}' && !quoted:
			return i
		}
	}
	return -1
}

// closingQuote returns the index of the first quote in text that is not escaped, -1 if there is none.
func closingQuote(text []byte) int {
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}

// nextLabel splits the first label off labels. ok is false if there is none, or it is malformed.
func nextLabel(labels []byte) (name, value, rest []byte, ok bool) {
	labels = bytes.TrimLeft(labels, " \t,")
	equals := bytes.IndexByte(labels, '=')
	if equals < 0 {
		return nil, nil, nil, false
	}
	name, rest = bytes.TrimRight(labels[:equals], " \t"), trimLeft(labels[equals+1:])
	if len(rest) == 0 || rest[0] != '"' {
		return nil, nil, nil, false
	}
	end := closingQuote(rest[1:])
	if end < 0 {
		return nil, nil, nil, false
	}
	return name, rest[1 : end+1], rest[end+2:], true
}

// label returns the value of a label, unescaped. The result may share the bytes of labels.
func label(labels []byte, wanted string) (value []byte, ok bool) {
	for {
		name, value, rest, more := nextLabel(labels)
		switch {
		case !more:
			return nil, false
		case string(name) == wanted:
			return unescape(value), true
		}
		labels = rest
	}
}

// unescape resolves \\, \" and \n, the escapes of label values, and keeps all others as they are.
func unescape(value []byte) []byte {
	if bytes.IndexByte(value, '\\') < 0 {
		return value
	}
	plain := make([]byte, 0, len(value))
	for i := 0; i < len(value); i++ {
		if value[i] == '\\' && i+1 < len(value) {
			switch value[i+1] {
			case 'n':
				plain = append(plain, '\n')
				i++
				continue
			case '\\', '"':
				i++
			}
		}
		plain = append(plain, value[i])
	}
	return plain
}

func nextField(text []byte) (field, rest []byte) {
	text = trimLeft(text)
	if end := bytes.IndexAny(text, " \t"); end >= 0 {
		return text[:end], text[end:]
	}
	return text, nil
}

func trimLeft(text []byte) []byte {
	for len(text) > 0 && (text[0] == ' ' || text[0] == '\t') {
		text = text[1:]
	}
	return text
}
