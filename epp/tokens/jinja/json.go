package jinja

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds lists in lists, of JSON and of what templates make.
const maxDepth = 100

// Decode reads JSON as Python's json.loads does. Of members with the same name the last one counts. Numbers that do not fit into 64 bits
// and strings with half a surrogate pair are errors.
func Decode(data []byte) (Value, error) { return DecodeItems(data, nil) }

// Items remembers items of lists that were read, so that they need not be read again.
type Items interface {
	// Find returns what Add returned for an item of the same text; nil = nothing.
	Find(text []byte) Value
	// Add tells of an item that was read: an object. What it returns takes the place of the item in the list. text is only valid during the
	// call.
	Add(text []byte, item *Dict) Value
}

// DecodeItems is Decode of an object, some of whose members are lists of objects that are remembered: known has them by the names of the members.
func DecodeItems(data []byte, known map[string]Items) (Value, error) {
	d := decoder{data: data, members: known}
	v, err := d.value(0)
	if err == nil {
		if d.space(); d.at < len(d.data) {
			err = errJSON
		}
	}
	if err != nil {
		return nil, fmt.Errorf("reading JSON at byte %d: %w", d.at, err)
	}
	return v, nil
}

var (
	errJSON    = errors.New("it is not JSON")
	errDeep    = fmt.Errorf("there are more than %d lists in lists", maxDepth)
	errNumber  = errors.New("a number does not fit into 64 bits")
	errText    = errors.New("a string is not Unicode text")
	errControl = errors.New("a string has a control character")
)

type decoder struct {
	data    []byte
	at      int
	members map[string]Items // of the outermost object, whose items are known
	known   Items            // of the member of the outermost object that is read now, nil = none are
}

func (d *decoder) space() {
	for d.at < len(d.data) && (d.data[d.at] == ' ' || d.data[d.at] == '\n' || d.data[d.at] == '\t' || d.data[d.at] == '\r') {
		d.at++
	}
}

// take skips spaces and a character, if it is the next one.
func (d *decoder) take(c byte) bool {
	d.space()
	if d.at < len(d.data) && d.data[d.at] == c {
		d.at++
		return true
	}
	return false
}

func (d *decoder) word(w string, v Value) (Value, error) {
	if !bytes.HasPrefix(d.data[d.at:], []byte(w)) {
		return nil, errJSON
	}
	d.at += len(w)
	return v, nil
}

func (d *decoder) value(depth int) (Value, error) {
	if depth > maxDepth {
		return nil, errDeep
	}
	d.space()
	if d.at >= len(d.data) {
		return nil, errJSON
	}
	switch d.data[d.at] {
	case '{':
		d.at++
		return d.object(depth)
	case '[':
		d.at++
		return d.list(depth)
	case '"':
		return d.text()
	case 't':
		return d.word("true", true)
	case 'f':
		return d.word("false", false)
	case 'n':
		return d.word("null", nil)
	}
	return d.number()
}

func (d *decoder) object(depth int) (Value, error) {
	out := &Dict{}
	if d.take('}') {
		return out, nil
	}
	for {
		if d.space(); d.at >= len(d.data) || d.data[d.at] != '"' {
			return nil, errJSON
		}
		key, err := d.text()
		if err != nil {
			return nil, err
		}
		if !d.take(':') {
			return nil, errJSON
		}
		if depth == 0 {
			d.known = d.members[key]
		}
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		out.Set(key, v)
		if d.take('}') {
			return out, nil
		}
		if !d.take(',') {
			return nil, errJSON
		}
	}
}

func (d *decoder) list(depth int) (Value, error) {
	out := &List{}
	item := d.value
	if d.known != nil && depth == 1 {
		item = d.item
		out.Items = make([]Value, 0, usualItems)
	}
	if d.take(']') {
		return out, nil
	}
	for {
		v, err := item(depth + 1)
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, v)
		if d.take(']') {
			return out, nil
		}
		if !d.take(',') {
			return nil, errJSON
		}
	}
}

// usualItems is for how many known items there is memory from the beginning.
const usualItems = 32

// item reads an item of a list whose items are known.
//
// The text of a known item was read as a whole object before, and reading an object ends with its last brace whatever follows. So what was
// read then is what reading the same bytes here would return: objectLength need not be right for this, it only guesses where to compare.
func (d *decoder) item(depth int) (Value, error) {
	d.space()
	start := d.at
	if n := objectLength(d.data[start:]); n > 0 {
		if v := d.known.Find(d.data[start : start+n]); v != nil {
			d.at += n
			return v, nil
		}
	}
	v, err := d.value(depth)
	if object, ok := v.(*Dict); ok && err == nil {
		v = d.known.Add(d.data[start:d.at], object)
	}
	return v, err
}

// objectLength returns how long the object is that data begins with (bytes), 0 if data begins with none. What is no JSON may have any length.
func objectLength(data []byte) int {
	if len(data) == 0 || data[0] != '{' {
		return 0
	}
	open := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{', '[':
			open++
		case '}', ']':
			if open--; open == 0 {
				return i + 1
			}
		case '"':
			n := stringLength(data[i:])
			if n == 0 {
				return 0
			}
			i += n - 1
		}
	}
	return 0
}

// stringLength returns how long the string is that data begins with, with its quotes (bytes), 0 if it does not end.
func stringLength(data []byte) int {
	for i := 1; ; i++ {
		n := bytes.IndexByte(data[i:], '"')
		if n < 0 {
			return 0
		}
		i += n
		escapes := 0
		for data[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
}

func (d *decoder) number() (Value, error) {
	start, float := d.at, false
	for d.at < len(d.data) && strings.IndexByte("+-.0123456789Ee", d.data[d.at]) >= 0 {
		float = float || strings.IndexByte(".Ee", d.data[d.at]) >= 0
		d.at++
	}
	s := d.data[start:d.at]
	if !validNumber(s) {
		return nil, errJSON
	}
	if !float {
		if i, err := strconv.ParseInt(string(s), 10, 64); err == nil {
			return i, nil
		}
		return nil, errNumber
	}
	f, err := strconv.ParseFloat(string(s), 64)
	if err != nil || math.IsInf(f, 0) {
		return nil, errNumber
	}
	return f, nil
}

// validNumber reports whether a text of digits, signs, points and exponents is a number in JSON.
func validNumber(s []byte) bool {
	digits := func() bool {
		n := 0
		for n < len(s) && s[n] >= '0' && s[n] <= '9' {
			n++
		}
		s = s[n:]
		return n > 0
	}
	s = bytes.TrimPrefix(s, []byte("-"))
	if len(s) > 1 && s[0] == '0' && s[1] >= '0' && s[1] <= '9' || !digits() {
		return false
	}
	if len(s) > 0 && s[0] == '.' {
		if s = s[1:]; !digits() {
			return false
		}
	}
	if len(s) > 0 && s[0]|0x20 == 'e' {
		if s = s[1:]; len(s) > 0 && (s[0] == '+' || s[0] == '-') {
			s = s[1:]
		}
		if !digits() {
			return false
		}
	}
	return len(s) == 0
}

// stops are the bytes at which reading a string stops: its end, escapes, and control characters.
var stops = func() (stops [256]bool) {
	for c := range ' ' {
		stops[c] = true
	}
	stops['"'], stops['\\'] = true, true
	return stops
}()

// text reads a string, whose opening quote is next.
func (d *decoder) text() (string, error) {
	d.at++
	start := d.at
	escaped := false
	for d.at < len(d.data) {
		c := d.data[d.at]
		d.at++
		switch {
		case !stops[c]:
		case c == '"':
			raw := d.data[start : d.at-1]
			if !utf8.Valid(raw) {
				return "", errText
			}
			if !escaped {
				return string(raw), nil
			}
			return unescapeAll(raw)
		case c == '\\':
			escaped = true
			d.at++
		default:
			return "", errControl
		}
	}
	return "", errJSON
}

// unescapeAll returns the text of a string, of which raw is what is between the quotes.
func unescapeAll(raw []byte) (string, error) {
	out := make([]byte, 0, len(raw))
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return string(append(out, raw...)), nil
		}
		out = append(out, raw[:i]...)
		var err error
		if out, raw, err = unescape(out, raw[i:]); err != nil {
			return "", err
		}
	}
}

// unescape appends the character of the escape at the beginning of rest, and returns what follows it.
func unescape(out, rest []byte) (longer, after []byte, err error) {
	switch c := rest[1]; c {
	case '"', '\\', '/':
		return append(out, c), rest[2:], nil
	case 'b':
		return append(out, '\b'), rest[2:], nil
	case 'f':
		return append(out, '\f'), rest[2:], nil
	case 'n':
		return append(out, '\n'), rest[2:], nil
	case 'r':
		return append(out, '\r'), rest[2:], nil
	case 't':
		return append(out, '\t'), rest[2:], nil
	case 'u':
		r := unit(rest)
		n := 6
		if utf16.IsSurrogate(r) {
			r, n = utf16.DecodeRune(r, unit(rest[6:])), 12
			if r == utf8.RuneError {
				return nil, nil, errText
			}
		}
		if r < 0 {
			return nil, nil, errJSON
		}
		return utf8.AppendRune(out, r), rest[n:], nil
	}
	return nil, nil, errJSON
}

// unit returns the number of an escape such as \u0041, -1 if there is none.
func unit(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}

// layout is how JSON is written.
type layout struct {
	ascii      bool
	sorted     bool
	indent     string // with lines: what one level is moved by
	lines      bool
	comma, end string // between items, and between a key and its value
}

// appendJSON appends what Python's json.dumps writes.
func (l *layout) appendJSON(dst []byte, v Value, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, errDeep
	}
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case int64:
		return strconv.AppendInt(dst, v, 10), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			break
		}
		return appendFloat(dst, v), nil
	case string:
		return l.appendString(dst, v), nil
	case *List:
		if v.kind > isTuple {
			break
		}
		return l.appendItems(dst, '[', ']', len(v.Items), depth, func(dst []byte, i int) ([]byte, error) {
			return l.appendJSON(dst, v.Items[i], depth+1)
		})
	case *Dict:
		order := v.keys
		if l.sorted {
			order = slices.Sorted(slices.Values(v.keys))
		}
		return l.appendItems(dst, '{', '}', v.Len(), depth, func(dst []byte, i int) ([]byte, error) {
			value, _ := v.Get(order[i])
			return l.appendJSON(append(l.appendString(dst, order[i]), l.end...), value, depth+1)
		})
	}
	return nil, fmt.Errorf("tojson: %s cannot be written as JSON", typeName(v))
}

func (l *layout) appendItems(dst []byte, open, end byte, n, depth int, item func(dst []byte, i int) ([]byte, error)) ([]byte, error) {
	dst = append(dst, open)
	for i := range n {
		if i > 0 {
			dst = append(dst, l.comma...)
		}
		dst = l.line(dst, depth+1)
		var err error
		if dst, err = item(dst, i); err != nil {
			return nil, err
		}
	}
	if n > 0 {
		dst = l.line(dst, depth)
	}
	return append(dst, end), nil
}

// line begins a new line, if there are lines.
func (l *layout) line(dst []byte, depth int) []byte {
	if !l.lines {
		return dst
	}
	dst = append(dst, '\n')
	for range depth {
		dst = append(dst, l.indent...)
	}
	return dst
}

func (l *layout) appendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for len(s) > 0 {
		n := strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' || l.ascii && r >= 0x7f })
		if n < 0 {
			dst = append(dst, s...)
			break
		}
		dst = append(dst, s[:n]...)
		r, size := utf8.DecodeRuneInString(s[n:])
		s = s[n+size:]
		switch r {
		case '"', '\\':
			dst = append(dst, '\\', byte(r))
		case '\b':
			dst = append(dst, `\b`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		default:
			for _, u := range utf16.AppendRune(nil, r) {
				dst = append(dst, '\\', 'u', hex[u>>12], hex[u>>8&15], hex[u>>4&15], hex[u&15])
			}
		}
	}
	return append(dst, '"')
}
