package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// methodNames are the methods that Python's values have. Those that are not supported are errors when they are called; those that would
// change a value are errors in Jinja's sandbox too.
var methodNames = map[string][]string{
	"string": strings.Fields(`capitalize casefold center count encode endswith expandtabs find format format_map index isalnum isalpha isascii
		isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip maketrans partition removeprefix
		removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title translate upper zfill`),
	"list": strings.Fields("append clear copy count extend index insert pop remove reverse sort"),
	"dict": strings.Fields("clear copy fromkeys get items keys pop popitem setdefault update values"),
}

// kinds are types of values.
type kinds uint8

const (
	ofText kinds = 1 << iota
	ofDict
	ofList
	ofTuple
)

// methodKinds says which types have a method.
var methodKinds = func() map[string]kinds {
	all := map[string]kinds{"count": ofTuple, "index": ofTuple}
	for kind, names := range map[kinds][]string{ofText: methodNames["string"], ofDict: methodNames["dict"], ofList: methodNames["list"]} {
		for _, name := range names {
			all[name] |= kind
		}
	}
	return all
}()

// has reports whether a value has a method that these types have.
func (k kinds) has(v Value) bool {
	if k == 0 {
		return false
	}
	switch v := v.(type) {
	case string:
		return k&ofText != 0
	case *Dict:
		return k&ofDict != 0
	case *List:
		return v.kind == isList && k&ofList != 0 || v.kind == isTuple && k&ofTuple != 0
	}
	return false
}

var errMethod = errors.New("is not supported")

// method calls a method of a value.
func (e *env) method(of Value, name string, a *arguments) (Value, error) {
	switch of := of.(type) {
	case string:
		if err := e.copied(len(of)); err != nil {
			return nil, err
		}
		return e.textMethod(of, name, a)
	case *Dict:
		return e.dictMethod(of, name, a)
	case *List:
		return e.listMethod(of, name, a)
	case *loop:
		return e.loopMethod(of, name, a)
	}
	return nil, errMethod
}

func (e *env) dictMethod(d *Dict, name string, a *arguments) (Value, error) {
	if name == "get" {
		p, err := a.bind("key", "default")
		if err != nil {
			return nil, err
		}
		if key, ok := p[0].(string); ok {
			if v, ok := d.Get(key); ok {
				return v, nil
			}
		} else if p[0] == unset {
			return nil, errors.New("wants a key")
		}
		if p[1] == unset {
			return nil, nil
		}
		return p[1], nil
	}
	if err := a.none(); err != nil {
		return nil, err
	}
	if err := e.step(d.Len()); err != nil {
		return nil, err
	}
	switch name {
	case "items":
		return &List{Items: pairs(d), kind: isView}, nil
	case "keys":
		items, err := e.items(d)
		return &List{Items: items, kind: isView}, err
	case "values":
		return &List{Items: d.values, kind: isView}, nil
	case "copy":
		return d.Copy(), nil
	}
	return nil, errMethod
}

func (e *env) listMethod(l *List, name string, a *arguments) (Value, error) {
	if err := e.step(len(l.Items)); err != nil {
		return nil, err
	}
	switch name {
	case "copy":
		return &List{Items: slices.Clone(l.Items)}, a.none()
	case "count", "index":
		p, err := a.bind("value")
		if err != nil || p[0] == unset {
			return nil, errors.New("wants a value")
		}
		n := int64(0)
		for i, v := range l.Items {
			if equal(v, p[0]) {
				if name == "index" {
					return int64(i), nil
				}
				n++
			}
		}
		if name == "index" {
			return nil, errors.New("the value is not in the list")
		}
		return n, nil
	}
	return nil, errMethod
}

func (e *env) loopMethod(l *loop, name string, a *arguments) (Value, error) {
	if len(a.positional) == 0 || len(a.names) > 0 {
		return nil, errors.New("wants values")
	}
	if name == "cycle" {
		return a.positional[l.at%len(a.positional)], nil
	}
	now := &List{Items: a.positional, kind: isTuple}
	changed := l.last == nil || !equal(l.last, now)
	l.last = now
	return changed, nil
}

// strip is Python's strip, of the sides that are asked for.
func strip(s string, chars Value, left, right bool) (Value, error) {
	is := isSpace
	switch c := chars.(type) {
	case string:
		is = func(r rune) bool { return strings.ContainsRune(c, r) }
	default:
		if chars != unset && chars != nil {
			return nil, fmt.Errorf("wants a string, got %s", typeName(chars))
		}
	}
	if left {
		s = strings.TrimLeftFunc(s, is)
	}
	if right {
		s = strings.TrimRightFunc(s, is)
	}
	return s, nil
}

// replace is Python's replace; n < 0 = all.
func (e *env) replace(s, old, with string, n int64) (Value, error) {
	count := int64(strings.Count(s, old))
	if n >= 0 {
		count = min(count, n)
	}
	size := int64(len(s)) + count*int64(len(with)-len(old))
	if size > int64(e.options.Output) {
		return nil, errOutput
	}
	return strings.Replace(s, old, with, int(count)), e.copied(len(s) + int(size))
}

// textMethods are the methods of strings without those of their own below.
var textMethods = map[string]func(s string) (Value, error){
	"isalnum": all(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
	"isalpha": all(unicode.IsLetter), "isspace": all(isSpace), "isdigit": all(unicode.IsDigit), "isdecimal": all(unicode.IsDigit),
	"lower": ascii(strings.ToLower), "upper": ascii(strings.ToUpper), "title": ascii(title),
	"capitalize": ascii(func(s string) string {
		return strings.ToUpper(s[:min(1, len(s))]) + strings.ToLower(s[min(1, len(s)):])
	}),
	"islower": ascii2(func(s string) bool { return s == strings.ToLower(s) && s != strings.ToUpper(s) }),
	"isupper": ascii2(func(s string) bool { return s == strings.ToUpper(s) && s != strings.ToLower(s) }),
	"isascii": func(s string) (Value, error) { return isASCII(s), nil },
}

var errLetters = errors.New("other letters than ASCII are not supported")

// all is true of strings that have nothing but some characters, and one at least.
func all(is func(rune) bool) func(string) (Value, error) {
	return func(s string) (Value, error) {
		return s != "" && strings.IndexFunc(s, func(r rune) bool { return !is(r) }) < 0, nil
	}
}

// ascii refuses letters whose cases Go and Python have differently.
func ascii(change func(string) string) func(string) (Value, error) {
	return func(s string) (Value, error) {
		if !isASCII(s) {
			return nil, errLetters
		}
		return change(s), nil
	}
}

func ascii2(is func(string) bool) func(string) (Value, error) {
	return func(s string) (Value, error) {
		if !isASCII(s) {
			return nil, errLetters
		}
		return is(s), nil
	}
}

func title(s string) string {
	out := []byte(strings.ToLower(s))
	inside := false
	for i, c := range out {
		letter := c >= 'a' && c <= 'z'
		if letter && !inside {
			out[i] = c - 'a' + 'A'
		}
		inside = letter
	}
	return string(out)
}

func (e *env) textMethod(s, name string, a *arguments) (Value, error) {
	if f := textMethods[name]; f != nil {
		if err := a.none(); err != nil {
			return nil, err
		}
		return f(s)
	}
	switch name {
	case "strip", "lstrip", "rstrip":
		p, err := a.bind("chars")
		if err != nil {
			return nil, err
		}
		return strip(s, p[0], name != "rstrip", name != "lstrip")
	case "split", "rsplit":
		return e.split(s, name == "rsplit", a)
	case "splitlines":
		var items []Value
		for _, line := range splitLines(s) {
			items = append(items, line)
		}
		return &List{Items: items}, a.none()
	case "startswith", "endswith":
		return affix(s, name == "startswith", a)
	case "join":
		if len(a.positional) != 1 || len(a.names) > 0 {
			return nil, errors.New("wants a list")
		}
		items, err := e.items(a.positional[0])
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(items, func(v Value) bool { _, ok := v.(string); return !ok }) {
			return nil, errors.New("wants strings")
		}
		return join(e, &List{Items: items}, &arguments{positional: []Value{s}})
	case "replace":
		p, err := a.bind("old", "new", "count")
		old, ok := p[0].(string)
		with, ok2 := p[1].(string)
		n, err2 := whole(p[2], -1)
		if err != nil || err2 != nil || !ok || !ok2 {
			return nil, errors.New("wants two strings, and a number")
		}
		return e.replace(s, old, with, n)
	}
	return e.findMethod(s, name, a)
}

// findMethod are the methods that look for another string.
func (e *env) findMethod(s, name string, a *arguments) (Value, error) {
	p, err := a.bind("sub")
	sub, ok := p[0].(string)
	if err != nil || !ok {
		return nil, errMethod
	}
	switch name {
	case "find", "rfind", "index", "rindex":
		i := strings.Index(s, sub)
		if name[0] == 'r' {
			i = strings.LastIndex(s, sub)
		}
		switch {
		case i >= 0:
			return int64(runeCount(s[:i])), nil
		case strings.HasSuffix(name, "find"):
			return int64(-1), nil
		}
		return nil, errors.New("the string is not there")
	case "count":
		return int64(strings.Count(s, sub)), nil
	case "removeprefix":
		return strings.TrimPrefix(s, sub), nil
	case "removesuffix":
		return strings.TrimSuffix(s, sub), nil
	case "partition", "rpartition":
		if sub == "" {
			return nil, errors.New("wants a string that is not empty")
		}
		parts := [3]string{s, "", ""}
		i := strings.Index(s, sub)
		if name[0] == 'r' {
			parts, i = [3]string{"", "", s}, strings.LastIndex(s, sub)
		}
		if i >= 0 {
			parts = [3]string{s[:i], sub, s[i+len(sub):]}
		}
		return &List{Items: []Value{parts[0], parts[1], parts[2]}, kind: isTuple}, nil
	}
	return nil, errMethod
}

// affix is startswith and endswith, of a string or several.
func affix(s string, prefix bool, a *arguments) (Value, error) {
	p, err := a.bind("prefix")
	if err != nil {
		return nil, err
	}
	options := []Value{p[0]}
	if l, ok := p[0].(*List); ok && l.kind == isTuple {
		options = l.Items
	}
	for _, option := range options {
		o, ok := option.(string)
		if !ok {
			return nil, fmt.Errorf("wants a string, got %s", typeName(option))
		}
		if prefix && strings.HasPrefix(s, o) || !prefix && strings.HasSuffix(s, o) {
			return true, nil
		}
	}
	return false, nil
}

// split is Python's split, or from the right its rsplit.
func (e *env) split(s string, right bool, a *arguments) (Value, error) {
	p, err := a.bind("sep", "maxsplit")
	if err != nil {
		return nil, err
	}
	n, err := whole(p[1], -1)
	if err != nil {
		return nil, err
	}
	var parts []string
	separator, ok := p[0].(string)
	switch {
	case !ok && p[0] != unset && p[0] != nil:
		return nil, fmt.Errorf("wants a string, got %s", typeName(p[0]))
	case !ok && n >= 0, ok && separator == "":
		return nil, errMethod
	case !ok:
		parts = strings.FieldsFunc(s, isSpace)
	case right && n >= 0:
		for ; n > 0; n-- {
			i := strings.LastIndex(s, separator)
			if i < 0 {
				break
			}
			parts = append(parts, s[i+len(separator):])
			s = s[:i]
		}
		parts = append(parts, s)
		slices.Reverse(parts)
	case n >= 0:
		parts = strings.SplitN(s, separator, int(min(n, int64(len(s))))+1)
	default:
		parts = strings.Split(s, separator)
	}
	items := make([]Value, len(parts))
	for i, part := range parts {
		items[i] = part
	}
	return &List{Items: items}, e.step(len(items))
}

// splitLines is Python's splitlines.
func splitLines(s string) []string {
	var out []string
	for s != "" {
		i := strings.IndexFunc(s, func(r rune) bool {
			return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
		})
		if i < 0 {
			return append(out, s)
		}
		_, size := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			size = 2
		}
		out = append(out, s[:i])
		s = s[i+size:]
	}
	return out
}
