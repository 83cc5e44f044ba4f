package jinja

import (
	"errors"
	"fmt"
	"strings"
)

func (x *constant) eval(*env) (Value, error) { return x.v, nil }

func (x *variable) eval(e *env) (Value, error) {
	if err := e.step(0); err != nil {
		return nil, err
	}
	if v := e.vars[x.id]; v != unset {
		return v, nil
	}
	return undefined, nil
}

var errUndefined = errors.New("an undefined value is used")

func (x *attribute) eval(e *env) (Value, error) {
	of, err := x.of.eval(e)
	if err != nil {
		return nil, err
	}
	return e.attribute(of, x.name, x.methods)
}

// attribute is Jinja's way to a member by a point: a method comes before an item.
func (e *env) attribute(of Value, name string, methods kinds) (Value, error) {
	switch of := of.(type) {
	case missing:
		return nil, fmt.Errorf("%w: it has no %s", errUndefined, name)
	case *loop:
		return of.get(name), nil
	case *namespace:
		if v, ok := of.Get(name); ok {
			return v, nil
		}
		return undefined, nil
	}
	if methods.has(of) {
		return &method{of, name}, nil
	}
	if d, ok := of.(*Dict); ok {
		if v, ok := d.Get(name); ok {
			return v, nil
		}
	}
	return undefined, nil
}

func (x *item) eval(e *env) (Value, error) {
	of, err := x.of.eval(e)
	if err != nil {
		return nil, err
	}
	key, err := x.key.eval(e)
	if err != nil {
		return nil, err
	}
	return e.item(of, key)
}

// item is Jinja's way to a member by brackets: an item comes before a method.
func (e *env) item(of, key Value) (Value, error) {
	if isUndefined(of) {
		return nil, fmt.Errorf("%w: it has no items", errUndefined)
	}
	name, isText := key.(string)
	i, _, isFloat, isNumber := number(key)
	isNumber = isNumber && !isFloat
	switch of := of.(type) {
	case *Dict:
		if v, ok := of.Get(name); ok && isText {
			return v, nil
		}
	case *List:
		if n := int64(len(of.Items)); isNumber && of.kind <= isRange {
			if i < 0 {
				i += n
			}
			if i >= 0 && i < n {
				return of.Items[i], nil
			}
		}
	case string:
		if isNumber {
			if err := e.copied(len(of)); err != nil {
				return nil, err
			}
			n := int64(runeCount(of))
			if i < 0 {
				i += n
			}
			if i >= 0 && i < n {
				if n == int64(len(of)) {
					return of[i : i+1], nil
				}
				return string([]rune(of)[i]), nil
			}
		}
	}
	if isText {
		switch of.(type) {
		case *loop, *namespace:
			return e.attribute(of, name, 0)
		}
		if methodKinds[name].has(of) {
			return &method{of, name}, nil
		}
	}
	return undefined, nil
}

func (x *slice) eval(e *env) (Value, error) {
	of, err := x.of.eval(e)
	if err != nil {
		return nil, err
	}
	var parts [3]*int64
	for k, part := range [3]expr{x.from, x.to, x.step} {
		if part == nil {
			continue
		}
		v, err := part.eval(e)
		if err != nil {
			return nil, err
		}
		if v == nil {
			continue
		}
		i, _, isFloat, ok := number(v)
		if !ok || isFloat {
			return nil, fmt.Errorf("a part of a slice must be an int, got %s", typeName(v))
		}
		parts[k] = &i
	}
	switch of := of.(type) {
	case string:
		if err := e.copied(len(of)); err != nil {
			return nil, err
		}
		if isASCII(of) && (parts[2] == nil || *parts[2] == 1) {
			from, to, _ := bounds(parts, int64(len(of)))
			return of[from:max(from, to)], nil
		}
		runes := []rune(of)
		var b strings.Builder
		err := each(parts, int64(len(runes)), func(i int64) { b.WriteRune(runes[i]) })
		return b.String(), err
	case *List:
		if of.kind <= isRange {
			out := &List{Items: make([]Value, 0, size(parts, int64(len(of.Items)))), kind: of.kind}
			err := each(parts, int64(len(of.Items)), func(i int64) { out.Items = append(out.Items, of.Items[i]) })
			if err == nil {
				err = e.step(len(out.Items) / 8)
			}
			return out, err
		}
	}
	if isUndefined(of) {
		return nil, errUndefined
	}
	return undefined, nil
}

// bounds returns where a slice of n items begins, and before which it ends.
func bounds(parts [3]*int64, n int64) (from, to, step int64) {
	step = 1
	if parts[2] != nil {
		step = *parts[2]
	}
	low, high := int64(0), n
	if step < 0 {
		low, high = -1, n-1
	}
	at := func(p *int64, otherwise int64) int64 {
		if p == nil {
			return otherwise
		}
		i := *p
		if i < 0 {
			i += n
		}
		return min(max(i, low), high)
	}
	if step < 0 {
		return at(parts[0], high), at(parts[1], low), step
	}
	return at(parts[0], low), at(parts[1], high), step
}

// size returns how many of n items a slice has.
func size(parts [3]*int64, n int64) int64 {
	from, to, step := bounds(parts, n)
	switch {
	case step > 0 && from < to:
		return (to-from-1)/step + 1
	case step < 0 && from > to:
		return (from-to-1)/-step + 1
	}
	return 0
}

func each(parts [3]*int64, n int64, item func(int64)) error {
	from, to, step := bounds(parts, n)
	if step == 0 {
		return errors.New("the step of a slice must not be 0")
	}
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		item(i)
	}
	return nil
}

// fewParts of a sum need no memory of their own.
const fewParts = 8

// values evaluates parts. all says whether all of them are strings, of n bytes together.
func values(e *env, parts []expr, out []Value) (_ []Value, n int, all bool, err error) {
	all = true
	for _, part := range parts {
		v, err := part.eval(e)
		if err != nil {
			return nil, 0, false, err
		}
		s, ok := v.(string)
		all = all && ok
		n += len(s)
		out = append(out, v)
	}
	return out, n, all, nil
}

func (x *sum) eval(e *env) (Value, error) {
	var few [fewParts]Value
	parts, n, all, err := values(e, x.parts, few[:0])
	if err != nil {
		return nil, err
	}
	return e.sum(parts, n, all)
}

func (e *env) sum(parts []Value, n int, all bool) (Value, error) {
	if all {
		var b strings.Builder
		b.Grow(n)
		for _, part := range parts {
			b.WriteString(part.(string))
		}
		return b.String(), e.copied(n)
	}
	out := parts[0]
	for _, part := range parts[1:] {
		var err error
		if out, err = e.add(out, part); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// print writes the sum without making it, if it is a text.
func (x *sum) print(e *env) error {
	var few [fewParts]Value
	parts, n, all, err := values(e, x.parts, few[:0])
	if err != nil {
		return err
	}
	if all {
		for _, part := range parts {
			e.out = append(e.out, part.(string)...)
		}
		return e.wrote(n)
	}
	v, err := e.sum(parts, n, all)
	if err != nil {
		return err
	}
	return e.print(v)
}

func (x *concat) eval(e *env) (Value, error) {
	var few [fewParts]Value
	parts, _, _, err := values(e, x.parts, few[:0])
	if err != nil {
		return nil, err
	}
	var out []byte
	for _, part := range parts {
		if err := printable(part, 0); err != nil {
			return nil, err
		}
		out = appendText(out, part)
	}
	return string(out), e.copied(len(out))
}

func (x *binary) eval(e *env) (Value, error) {
	left, err := x.left.eval(e)
	if err != nil {
		return nil, err
	}
	right, err := x.right.eval(e)
	if err != nil {
		return nil, err
	}
	return e.arithmetic(x.op, left, right)
}

func (x *unary) eval(e *env) (Value, error) {
	v, err := x.of.eval(e)
	if err != nil {
		return nil, err
	}
	if x.op == "not" {
		return !truth(v), nil
	}
	i, f, isFloat, ok := number(v)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s of %s", x.op, typeName(v))
	case isFloat && x.op == "-":
		return -f, nil
	case isFloat:
		return f, nil
	case x.op == "-":
		return -i, nil
	}
	return i, nil
}

func (x *both) eval(e *env) (Value, error) {
	v, err := x.left.eval(e)
	if err != nil || !truth(v) {
		return v, err
	}
	return x.right.eval(e)
}

func (x *either) eval(e *env) (Value, error) {
	v, err := x.left.eval(e)
	if err != nil || truth(v) {
		return v, err
	}
	return x.right.eval(e)
}

func (x *compare) eval(e *env) (Value, error) {
	left, err := x.first.eval(e)
	if err != nil {
		return nil, err
	}
	for _, c := range x.rest {
		right, err := c.to.eval(e)
		if err != nil {
			return nil, err
		}
		ok, err := e.compare(c.op, left, right)
		if err != nil || !ok {
			return false, err
		}
		left = right
	}
	return true, nil
}

func (x *conditional) eval(e *env) (Value, error) {
	v, err := x.test.eval(e)
	if err != nil {
		return nil, err
	}
	if truth(v) {
		return x.then.eval(e)
	}
	if x.other == nil {
		return undefined, nil
	}
	return x.other.eval(e)
}

func (x *list) eval(e *env) (Value, error) {
	items, _, _, err := values(e, x.items, make([]Value, 0, len(x.items)))
	if err != nil {
		return nil, err
	}
	out := &List{Items: items}
	if x.tuple {
		out.kind = isTuple
	}
	return out, e.step(len(items))
}

func (x *dict) eval(e *env) (Value, error) {
	out := &Dict{}
	for i := range x.keys {
		k, err := x.keys[i].eval(e)
		if err != nil {
			return nil, err
		}
		v, err := x.values[i].eval(e)
		if err != nil {
			return nil, err
		}
		key, ok := k.(string)
		if !ok {
			return nil, fmt.Errorf("keys that are no strings are not supported, got %s", typeName(k))
		}
		out.Set(key, v)
	}
	return out, e.step(out.Len())
}

// arguments are the values of a call's arguments.
type arguments struct {
	positional []Value
	names      []string
	named      []Value
}

// noArguments are those of a call without any. They are not changed.
var noArguments arguments

func (a *callArgs) eval(e *env) (*arguments, error) {
	if len(a.positional) == 0 && len(a.named) == 0 {
		return &noArguments, nil
	}
	out := &arguments{names: a.names}
	var err error
	if len(a.positional) > 0 {
		if out.positional, _, _, err = values(e, a.positional, make([]Value, 0, len(a.positional))); err != nil {
			return nil, err
		}
	}
	if len(a.named) > 0 {
		out.named, _, _, err = values(e, a.named, make([]Value, 0, len(a.named)))
	}
	return out, err
}

// maxParameters is the most that a filter or method has.
const maxParameters = 4

// bind returns the values of parameters, unset where there is none.
func (a *arguments) bind(parameters ...string) (out [maxParameters]Value, err error) {
	for i := range out {
		out[i] = unset
	}
	if len(a.positional) > len(parameters) {
		return out, fmt.Errorf("takes %d arguments, got %d", len(parameters), len(a.positional))
	}
	copy(out[:], a.positional)
next:
	for k, name := range a.names {
		for i, p := range parameters {
			if p == name && out[i] == unset {
				out[i] = a.named[k]
				continue next
			}
		}
		return out, fmt.Errorf("takes no argument %s", name)
	}
	return out, nil
}

func (x *call) eval(e *env) (Value, error) {
	if err := e.step(0); err != nil {
		return nil, err
	}
	m, ok := x.of.(*attribute)
	if !ok {
		of, err := x.of.eval(e)
		if err != nil {
			return nil, err
		}
		a, err := x.args.eval(e)
		if err != nil {
			return nil, err
		}
		return e.invoke(of, a)
	}
	of, err := m.of.eval(e)
	if err != nil {
		return nil, err
	}
	isMethod := m.methods.has(of)
	if !isMethod {
		if of, err = e.attribute(of, m.name, m.methods); err != nil {
			return nil, err
		}
	}
	a, err := x.args.eval(e)
	if err != nil {
		return nil, err
	}
	if isMethod {
		return e.call(of, m.name, a)
	}
	return e.invoke(of, a)
}

// call calls a method of a value.
func (e *env) call(of Value, name string, a *arguments) (Value, error) {
	v, err := e.method(of, name, a)
	if err != nil {
		return nil, fmt.Errorf("calling %s: %w", name, err)
	}
	return v, nil
}

// invoke calls what can be called.
func (e *env) invoke(of Value, a *arguments) (Value, error) {
	switch f := of.(type) {
	case *function:
		return f.call(e, a)
	case *method:
		return e.call(f.of, f.name, a)
	case missing:
		return nil, fmt.Errorf("%w: it cannot be called", errUndefined)
	}
	return nil, fmt.Errorf("%s cannot be called", typeName(of))
}

func (x *filtered) eval(e *env) (Value, error) {
	v, err := x.of.eval(e)
	if err != nil {
		return nil, err
	}
	return x.apply(e, v)
}

func (x *filtered) apply(e *env, v Value) (Value, error) {
	if err := e.step(0); err != nil {
		return nil, err
	}
	a, err := x.args.eval(e)
	if err != nil {
		return nil, err
	}
	out, err := x.filter(e, v, a)
	if err != nil {
		return nil, fmt.Errorf("filter %s: %w", x.name, err)
	}
	return out, nil
}

func (x *tested) eval(e *env) (Value, error) {
	v, err := x.of.eval(e)
	if err != nil {
		return nil, err
	}
	a, err := x.args.eval(e)
	if err != nil {
		return nil, err
	}
	if len(a.names) > 0 {
		return nil, errors.New("arguments of tests by name are not supported")
	}
	return x.test(e, v, a.positional)
}

// items returns what a loop over a value goes through. An iterator is empty then.
func (e *env) items(v Value) ([]Value, error) {
	switch v := v.(type) {
	case *List:
		items := v.Items
		if v.kind == isOnce {
			v.Items = nil
		}
		return items, e.step(0)
	case *Dict:
		out := make([]Value, v.Len())
		for i, key := range v.keys {
			out[i] = key
		}
		return out, e.step(len(out))
	case string:
		var out []Value
		for _, r := range v {
			out = append(out, string(r))
		}
		return out, e.step(len(out))
	case missing:
		return nil, nil
	}
	return nil, fmt.Errorf("%s cannot be iterated over", typeName(v))
}
