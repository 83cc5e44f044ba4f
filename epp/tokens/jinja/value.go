package jinja

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"
)

// Value is a value of a template: nil (Python's None), bool, int64, float64, string, *List, *Dict, and what only templates make, such as
// functions.
type Value any

// List is a list, or what is like one in Python.
type List struct {
	Items []Value
	kind  listKind
}

type listKind uint8

const (
	isList  listKind = iota
	isTuple          // written with parentheses
	isRange          // it has no text
	isView           // of a dictionary: it cannot be indexed
	isOnce           // an iterator: it has no length, and is empty when it has been used
)

// NewList returns a list.
func NewList(items ...Value) *List { return &List{Items: items} }

// Dict is a dictionary that keeps the order of its members.
type Dict struct {
	keys   []string
	values []Value
	at     map[string]int // where a key is, nil if there are few
	kept   *keptJSON      // nil = its JSON is not kept
}

// keptJSON is what the filter tojson has made of a dictionary.
type keptJSON struct{ atomic.Pointer[madeJSON] }

type madeJSON struct {
	layout layout
	text   string
}

// KeepJSON has what the filter tojson makes of the dictionary kept, for the next template that has it. The dictionary must not be changed any more.
func (d *Dict) KeepJSON() { d.kept = new(keptJSON) }

// fewKeys are found as fast one after the other as in a map.
const fewKeys = 8

func (d *Dict) find(key string) int {
	if d.at != nil {
		if i, ok := d.at[key]; ok {
			return i
		}
		return -1
	}
	return slices.Index(d.keys, key)
}

// Get returns the value of a key.
func (d *Dict) Get(key string) (Value, bool) {
	if i := d.find(key); i >= 0 {
		return d.values[i], true
	}
	return nil, false
}

// Set sets the value of a key, which keeps its place if it has one.
func (d *Dict) Set(key string, v Value) {
	if i := d.find(key); i >= 0 {
		d.values[i] = v
		return
	}
	if d.at != nil {
		d.at[key] = len(d.keys)
	}
	d.keys, d.values = append(d.keys, key), append(d.values, v)
	if d.at == nil && len(d.keys) > fewKeys {
		d.at = make(map[string]int, 2*fewKeys)
		for i, k := range d.keys {
			d.at[k] = i
		}
	}
}

// Delete removes a key and its value.
func (d *Dict) Delete(key string) {
	i := d.find(key)
	if i < 0 {
		return
	}
	d.keys, d.values, d.at = slices.Delete(d.keys, i, i+1), slices.Delete(d.values, i, i+1), nil
}

// Len returns the number of members.
func (d *Dict) Len() int { return len(d.keys) }

// Keys returns the keys in their order. They must not be changed.
func (d *Dict) Keys() []string { return d.keys }

// Copy returns a dictionary with the same values.
func (d *Dict) Copy() *Dict {
	return &Dict{slices.Clone(d.keys), slices.Clone(d.values), maps.Clone(d.at), nil}
}

// What only templates make.
type (
	// missing is the value of what does not exist: it prints as nothing, and is false.
	missing struct{}
	// namespace is a set of variables that loops can change.
	namespace struct{ Dict }
	// method is a method of a value.
	method struct {
		of   Value
		name string
	}
	// function is a global function.
	function struct {
		name string
		call func(e *env, a *arguments) (Value, error)
	}
)

var undefined Value = missing{}

func isUndefined(v Value) bool { _, ok := v.(missing); return ok }

// typeName returns how errors call a value.
func typeName(v Value) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case bool:
		return "a bool"
	case int64:
		return "an int"
	case float64:
		return "a float"
	case string:
		return "a string"
	case *List:
		return [...]string{"a list", "a tuple", "a range", "a view", "an iterator"}[v.kind]
	case *Dict:
		return "a dict"
	case missing:
		return "an undefined value"
	}
	return "an object"
}

// truth is Python's bool().
func truth(v Value) bool {
	switch v := v.(type) {
	case nil, missing:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *List:
		return len(v.Items) > 0 || v.kind == isOnce
	case *Dict:
		return v.Len() > 0
	}
	return true
}

// number returns an int or bool as an int, or a float.
func number(v Value) (i int64, f float64, isFloat, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, 1, false, true
		}
		return 0, 0, false, true
	case int64:
		return v, float64(v), false, true
	case float64:
		return 0, v, true, true
	}
	return 0, 0, false, false
}

// equal is Python's ==.
func equal(a, b Value) bool {
	if s, ok := a.(string); ok {
		t, ok := b.(string)
		return ok && s == t
	}
	i, f, isFloat, ok := number(a)
	j, g, isFloat2, ok2 := number(b)
	if ok || ok2 {
		return ok && ok2 && (!isFloat && !isFloat2 && i == j || (isFloat || isFloat2) && f == g)
	}
	switch a := a.(type) {
	case *List:
		b, ok := b.(*List)
		return ok && (a == b || a.kind == b.kind && a.kind != isOnce && slices.EqualFunc(a.Items, b.Items, equal))
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || a.Len() != b.Len() {
			return false
		}
		for i, key := range a.keys {
			if v, ok := b.Get(key); !ok || !equal(a.values[i], v) {
				return false
			}
		}
		return true
	}
	return a == b
}

// text is Python's str().
func text(v Value) string {
	if s, ok := v.(string); ok {
		return s
	}
	return string(appendText(nil, v))
}

// appendText appends Python's str() of a value.
func appendText(dst []byte, v Value) []byte {
	switch v := v.(type) {
	case string:
		return append(dst, v...)
	case missing:
		return dst
	}
	return appendRepr(dst, v)
}

// appendRepr appends Python's repr() of a value.
func appendRepr(dst []byte, v Value) []byte {
	switch v := v.(type) {
	case nil:
		return append(dst, "None"...)
	case bool:
		if v {
			return append(dst, "True"...)
		}
		return append(dst, "False"...)
	case int64:
		return strconv.AppendInt(dst, v, 10)
	case float64:
		return appendFloat(dst, v)
	case string:
		return appendQuoted(dst, v)
	case missing:
		return append(dst, "Undefined"...)
	case *List:
		open, end := "[", "]"
		if v.kind == isTuple {
			open, end = "(", ")"
			if len(v.Items) == 1 {
				end = ",)"
			}
		}
		dst = append(dst, open...)
		for i, item := range v.Items {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = appendRepr(dst, item)
		}
		return append(dst, end...)
	case *Dict:
		dst = append(dst, '{')
		for i, key := range v.keys {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = appendRepr(append(appendQuoted(dst, key), ": "...), v.values[i])
		}
		return append(dst, '}')
	}
	return append(dst, "<object>"...) // printable refuses what leads here
}

var errUnprintable = errors.New("this value has no text of its own")

// printable reports an error for values whose text names places in memory, or that this package has no text for. depth is that of v in others.
func printable(v Value, depth int) error {
	if depth > maxDepth {
		return errDeep
	}
	items := []Value(nil)
	switch v := v.(type) {
	case nil, bool, int64, float64, string, missing:
		return nil
	case *List:
		if v.kind > isTuple {
			return errUnprintable
		}
		items = v.Items
	case *Dict:
		items = v.values
	default:
		return errUnprintable
	}
	for _, item := range items {
		if err := printable(item, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// appendFloat appends Python's repr() of a float: the shortest digits that stand for it.
func appendFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "nan"...)
	case math.IsInf(f, 1):
		return append(dst, "inf"...)
	case math.IsInf(f, -1):
		return append(dst, "-inf"...)
	}
	if abs := math.Abs(f); abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64) // both have two digits of the exponent at least
	}
	before := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	if !slices.Contains(dst[before:], '.') {
		dst = append(dst, ".0"...)
	}
	return dst
}

// appendQuoted appends Python's repr() of a string.
func appendQuoted(dst []byte, s string) []byte {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	dst = append(dst, quote)
	for _, r := range s {
		switch {
		case r == '\\' || r == rune(quote):
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, `\n`...)
		case r == '\r':
			dst = append(dst, `\r`...)
		case r == '\t':
			dst = append(dst, `\t`...)
		case r == ' ' || unicode.IsGraphic(r) && !unicode.Is(unicode.Zs, r):
			dst = utf8.AppendRune(dst, r)
		case r < 0x100:
			dst = fmt.Appendf(dst, `\x%02x`, r)
		case r < 0x10000:
			dst = fmt.Appendf(dst, `\u%04x`, r)
		default:
			dst = fmt.Appendf(dst, `\U%08x`, r)
		}
	}
	return append(dst, quote)
}

// runeCount returns the length of a string as Python counts it.
func runeCount(s string) int { return utf8.RuneCountInString(s) }

// isASCII reports whether a string's bytes are its characters.
func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
