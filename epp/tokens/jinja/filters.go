package jinja

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// filter makes a value of another.
type filter func(e *env, v Value, a *arguments) (Value, error)

// filters are those of Jinja that are supported.
var filters = map[string]filter{
	"abs": abs, "capitalize": textFilter("capitalize"), "count": length, "d": otherwise, "default": otherwise, "dictsort": dictSort,
	"first": first, "float": toFloat, "indent": indent, "int": toInt, "items": itemsOf, "join": join, "last": last, "length": length,
	"list": listOf, "lower": textFilter("lower"), "map": mapped, "max": extreme(1), "min": extreme(-1), "reject": pick(false, false),
	"rejectattr": pick(false, true), "replace": replace, "reverse": reverse, "round": round, "safe": safe, "select": pick(true, false),
	"selectattr": pick(true, true), "sort": sorted, "string": toText, "sum": total, "title": textFilter("title"), "tojson": toJSON,
	"trim": trim, "unique": unique, "upper": textFilter("upper"),
}

// once returns an iterator, as most filters of lists do.
func once(items []Value) *List { return &List{Items: items, kind: isOnce} }

func soft(v Value) (string, error) { return text(v), printable(v, 0) }

func (a *arguments) none() error {
	_, err := a.bind()
	return err
}

// boolean returns a bool argument.
func boolean(v Value, otherwise bool) bool {
	if v == unset {
		return otherwise
	}
	return truth(v)
}

// whole returns an int argument.
func whole(v Value, otherwise int64) (int64, error) {
	if v == unset || v == nil {
		return otherwise, nil
	}
	i, _, isFloat, ok := number(v)
	if !ok || isFloat {
		return 0, fmt.Errorf("wants an int, got %s", typeName(v))
	}
	return i, nil
}

// textFilter is a filter that does what a method of strings does.
func textFilter(name string) filter {
	return func(e *env, v Value, a *arguments) (Value, error) {
		s, err := soft(v)
		if err != nil {
			return nil, err
		}
		return e.method(s, name, a)
	}
}

func abs(_ *env, v Value, a *arguments) (Value, error) {
	i, f, isFloat, ok := number(v)
	if !ok {
		return nil, fmt.Errorf("of %s", typeName(v))
	}
	if isFloat {
		return math.Abs(f), a.none()
	}
	return max(i, -i), a.none()
}

func length(e *env, v Value, a *arguments) (Value, error) {
	switch v := v.(type) {
	case string:
		if err := e.copied(len(v)); err != nil {
			return nil, err
		}
		return int64(runeCount(v)), a.none()
	case *List:
		if v.kind != isOnce {
			return int64(len(v.Items)), a.none()
		}
	case *Dict:
		return int64(v.Len()), a.none()
	case missing:
		return int64(0), a.none()
	}
	return nil, fmt.Errorf("%s has no length", typeName(v))
}

func otherwise(_ *env, v Value, a *arguments) (Value, error) {
	p, err := a.bind("default_value", "boolean")
	if err != nil {
		return nil, err
	}
	if isUndefined(v) || boolean(p[1], false) && !truth(v) {
		if p[0] == unset {
			return "", nil
		}
		return p[0], nil
	}
	return v, nil
}

func first(e *env, v Value, a *arguments) (Value, error) {
	items, err := e.items(v)
	if err != nil || a.none() != nil {
		return nil, cmp.Or(err, a.none())
	}
	if len(items) == 0 {
		return undefined, nil
	}
	if l, ok := v.(*List); ok && l.kind == isOnce {
		l.Items = items[1:]
	}
	return items[0], nil
}

func last(e *env, v Value, a *arguments) (Value, error) {
	if l, ok := v.(*List); ok && l.kind == isOnce {
		return nil, errors.New("of an iterator")
	}
	items, err := e.items(v)
	if err != nil || a.none() != nil {
		return nil, cmp.Or(err, a.none())
	}
	if len(items) == 0 {
		return undefined, nil
	}
	return items[len(items)-1], nil
}

func listOf(e *env, v Value, a *arguments) (Value, error) {
	items, err := e.items(v)
	if err != nil {
		return nil, err
	}
	return &List{Items: slices.Clone(items)}, cmp.Or(a.none(), e.step(len(items)))
}

func itemsOf(e *env, v Value, a *arguments) (Value, error) {
	switch v := v.(type) {
	case missing:
		return once(nil), a.none()
	case *Dict:
		return once(pairs(v)), cmp.Or(a.none(), e.step(v.Len()))
	}
	return nil, fmt.Errorf("of %s", typeName(v))
}

func pairs(d *Dict) []Value {
	out := make([]Value, d.Len())
	for i, key := range d.keys {
		out[i] = &List{Items: []Value{key, d.values[i]}, kind: isTuple}
	}
	return out
}

// attributeOf returns what makes the value of a path such as a.b of an item.
func (e *env) attributeOf(path Value) (func(Value) (Value, error), error) {
	if path == unset || path == nil {
		return func(v Value) (Value, error) { return v, nil }, nil
	}
	if i, ok := path.(int64); ok {
		return func(v Value) (Value, error) { return e.item(v, i) }, nil
	}
	name, ok := path.(string)
	if !ok {
		return nil, fmt.Errorf("an attribute must be a name, got %s", typeName(path))
	}
	var parts []Value
	for part := range strings.SplitSeq(name, ".") {
		if i, err := strconv.ParseInt(part, 10, 64); err == nil {
			parts = append(parts, i)
		} else {
			parts = append(parts, part)
		}
	}
	return func(v Value) (Value, error) {
		for _, part := range parts {
			var err error
			if v, err = e.item(v, part); err != nil {
				return nil, err
			}
		}
		return v, nil
	}, nil
}

func join(e *env, v Value, a *arguments) (Value, error) {
	p, err := a.bind("d", "attribute")
	if err != nil {
		return nil, err
	}
	separator := ""
	if p[0] != unset {
		if separator, err = soft(p[0]); err != nil {
			return nil, err
		}
	}
	of, err := e.attributeOf(p[1])
	if err != nil {
		return nil, err
	}
	items, err := e.items(v)
	if err != nil {
		return nil, err
	}
	parts := make([]string, len(items))
	n := 0
	for i, item := range items {
		if item, err = of(item); err != nil {
			return nil, err
		}
		if parts[i], err = soft(item); err != nil {
			return nil, err
		}
		if n += len(parts[i]) + len(separator); n > e.options.Output {
			return nil, errOutput
		}
	}
	return strings.Join(parts, separator), e.copied(n)
}

func trim(e *env, v Value, a *arguments) (Value, error) {
	p, err := a.bind("chars")
	if err != nil {
		return nil, err
	}
	s, err := soft(v)
	if err != nil {
		return nil, err
	}
	return strip(s, p[0], true, true)
}

func replace(e *env, v Value, a *arguments) (Value, error) {
	p, err := a.bind("old", "new", "count")
	if err != nil {
		return nil, err
	}
	var texts [3]string
	for i, v := range [3]Value{v, p[0], p[1]} {
		if v == unset {
			return nil, errors.New("wants two texts")
		}
		if texts[i], err = soft(v); err != nil {
			return nil, err
		}
	}
	n, err := whole(p[2], -1)
	if err != nil {
		return nil, err
	}
	return e.replace(texts[0], texts[1], texts[2], n)
}

func reverse(e *env, v Value, a *arguments) (Value, error) {
	if s, ok := v.(string); ok {
		runes := []rune(s)
		slices.Reverse(runes)
		return string(runes), cmp.Or(a.none(), e.copied(len(s)))
	}
	items, err := e.items(v)
	if err != nil {
		return nil, err
	}
	items = slices.Clone(items)
	slices.Reverse(items)
	return once(items), cmp.Or(a.none(), e.step(len(items)))
}

func safe(_ *env, v Value, a *arguments) (Value, error) {
	s, ok := v.(string)
	if !ok {
		return nil, fmt.Errorf("of %s is not supported", typeName(v))
	}
	return s, a.none()
}

func toText(e *env, v Value, a *arguments) (Value, error) {
	s, err := soft(v)
	return s, cmp.Or(err, a.none(), e.copied(len(s)))
}

func toInt(_ *env, v Value, a *arguments) (Value, error) {
	p, err := a.bind("default")
	if err != nil {
		return nil, err
	}
	if i, f, isFloat, ok := number(v); ok && !isFloat {
		return i, nil
	} else if ok && math.Abs(f) < 1<<62 {
		return int64(f), nil
	}
	if s, ok := v.(string); ok {
		s = trimSpace(s)
		if i, err := strconv.ParseInt(s, 10, 64); err == nil {
			return i, nil
		} else if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) < 1<<62 {
			return int64(f), nil
		}
	}
	if p[0] == unset {
		return int64(0), nil
	}
	return p[0], nil
}

func toFloat(_ *env, v Value, a *arguments) (Value, error) {
	p, err := a.bind("default")
	if err != nil {
		return nil, err
	}
	if _, f, _, ok := number(v); ok {
		return f, nil
	}
	if s, ok := v.(string); ok {
		if f, err := strconv.ParseFloat(trimSpace(s), 64); err == nil {
			return f, nil
		}
	}
	if p[0] == unset {
		return 0.0, nil
	}
	return p[0], nil
}

func round(_ *env, v Value, a *arguments) (Value, error) {
	p, err := a.bind("precision", "method")
	if err != nil {
		return nil, err
	}
	digits, err := whole(p[0], 0)
	_, f, isFloat, ok := number(v)
	if err != nil || !ok || digits < 0 || digits > 15 {
		return nil, cmp.Or(err, fmt.Errorf("of %s is not supported", typeName(v)))
	}
	if !isFloat && p[1] == unset {
		return v, nil
	}
	scale := math.Pow(10, float64(digits))
	switch p[1] {
	case unset, Value("common"): // Python rounds the decimal value, and halves to the even digit
		out, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(digits), 64), 64)
		return out, err
	case Value("ceil"):
		return math.Ceil(f*scale) / scale, nil
	case Value("floor"):
		return math.Floor(f*scale) / scale, nil
	}
	return nil, errors.New("method must be common, ceil or floor")
}

func indent(e *env, v Value, a *arguments) (Value, error) {
	p, err := a.bind("width", "first", "blank")
	if err != nil {
		return nil, err
	}
	s, ok := v.(string)
	if !ok {
		return nil, fmt.Errorf("of %s", typeName(v))
	}
	by, ok := p[0].(string)
	if !ok {
		n, err := whole(p[0], 4)
		if err != nil || n < 0 || n > 100 {
			return nil, cmp.Or(err, errors.New("width must be from 0 to 100"))
		}
		by = strings.Repeat(" ", int(n))
	}
	lines := splitLines(s + "\n")
	var b strings.Builder
	for i, line := range lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		if i == 0 && boolean(p[1], false) || i > 0 && (line != "" || boolean(p[2], false)) {
			b.WriteString(by)
		}
		b.WriteString(line)
		if b.Len() > e.options.Output {
			return nil, errOutput
		}
	}
	return b.String(), e.copied(b.Len())
}

func toJSON(e *env, v Value, a *arguments) (Value, error) {
	p, err := a.bind("ensure_ascii", "indent", "separators", "sort_keys")
	if err != nil {
		return nil, err
	}
	l := layout{ascii: boolean(p[0], false), sorted: boolean(p[3], false), comma: ", ", end: ": "}
	switch width := p[1].(type) {
	case string:
		l.lines, l.indent, l.comma = true, width, ","
	case int64:
		if width > 100 {
			return nil, errors.New("indent must be at most 100")
		}
		l.lines, l.indent, l.comma = true, strings.Repeat(" ", int(max(width, 0))), ","
	default:
		if p[1] != unset && p[1] != nil {
			return nil, fmt.Errorf("indent must be an int, got %s", typeName(p[1]))
		}
	}
	if p[2] != unset && p[2] != nil {
		two, ok := p[2].(*List)
		if !ok || len(two.Items) != 2 {
			return nil, errors.New("separators must be two strings")
		}
		comma, ok := two.Items[0].(string)
		end, ok2 := two.Items[1].(string)
		if !ok || !ok2 {
			return nil, errors.New("separators must be two strings")
		}
		l.comma, l.end = comma, end
	}
	d, _ := v.(*Dict)
	if d != nil && d.kept != nil {
		if made := d.kept.Load(); made != nil && made.layout == l {
			return made.text, e.wrote(len(made.text))
		}
	}
	out, err := l.appendJSON(nil, v, 0)
	if err != nil {
		return nil, err
	}
	text := string(out)
	if d != nil && d.kept != nil {
		d.kept.Store(&madeJSON{l, text})
	}
	return text, e.wrote(len(text))
}
