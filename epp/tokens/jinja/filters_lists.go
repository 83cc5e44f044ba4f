package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// mapped is the filter map: a member of each item, or a filter applied to it.
func mapped(e *env, v Value, a *arguments) (Value, error) {
	items, err := e.items(v)
	if err != nil {
		return nil, err
	}
	each, err := e.mapping(a)
	if err != nil {
		return nil, err
	}
	out := make([]Value, len(items))
	for i, item := range items {
		if err := e.step(0); err != nil {
			return nil, err
		}
		if out[i], err = each(item); err != nil {
			return nil, err
		}
	}
	return once(out), nil
}

func (e *env) mapping(a *arguments) (func(Value) (Value, error), error) {
	if len(a.positional) == 0 {
		p, err := a.bind("attribute", "default")
		if err != nil {
			return nil, err
		}
		of, err := e.attributeOf(p[0])
		if err != nil || p[0] == unset {
			return nil, errors.New("wants an attribute or a filter")
		}
		return func(v Value) (Value, error) {
			out, err := of(v)
			if err == nil && isUndefined(out) && p[1] != unset {
				out = p[1]
			}
			return out, err
		}, nil
	}
	name, _ := a.positional[0].(string)
	f, ok := e.t.filters[name]
	if !ok {
		return nil, fmt.Errorf("the filter %q is not supported", name)
	}
	rest := &arguments{a.positional[1:], a.names, a.named}
	return func(v Value) (Value, error) { return f(e, v, rest) }, nil
}

// pick is select, or with keep false reject: of items, or with members true of those with a member, that pass a test.
func pick(keep, members bool) filter {
	return func(e *env, v Value, a *arguments) (Value, error) {
		items, err := e.items(v)
		if err != nil {
			return nil, err
		}
		args := a.positional
		path := Value(unset)
		if members {
			if len(args) == 0 {
				return nil, errors.New("wants the name of a member")
			}
			path, args = args[0], args[1:]
		}
		of, err := e.attributeOf(path)
		if err != nil {
			return nil, err
		}
		passes := func(v Value) (Value, error) { return v, nil }
		if len(args) > 0 {
			name, _ := args[0].(string)
			t, ok := tests[name]
			if !ok {
				return nil, fmt.Errorf("the test %q is not supported", name)
			}
			passes = func(v Value) (Value, error) { return t(e, v, args[1:]) }
		}
		var out []Value
		for _, item := range items {
			if err := e.step(0); err != nil {
				return nil, err
			}
			member, err := of(item)
			if err != nil {
				return nil, err
			}
			pass, err := passes(member)
			if err != nil {
				return nil, err
			}
			if truth(pass) == keep {
				out = append(out, item)
			}
		}
		return once(out), nil
	}
}

// sortKeys returns the values by which items are sorted or told apart.
func (e *env) sortKeys(items []Value, path Value, caseSensitive bool) ([]Value, error) {
	of, err := e.attributeOf(path)
	if err != nil {
		return nil, err
	}
	keys := make([]Value, len(items))
	for i, item := range items {
		if keys[i], err = of(item); err != nil {
			return nil, err
		}
		if s, ok := keys[i].(string); ok && !caseSensitive {
			if !isASCII(s) {
				return nil, errors.New("other letters than ASCII are not supported")
			}
			keys[i] = strings.ToLower(s)
		}
	}
	return keys, e.step(8 * len(items))
}

// sortBy sorts items by their keys; of equal ones the order stays.
func sortBy(items, keys []Value, reverse bool) ([]Value, error) {
	places := make([]int, len(items))
	for i := range places {
		places[i] = i
	}
	var failed error
	slices.SortStableFunc(places, func(i, j int) int {
		c, err := order(keys[i], keys[j])
		if err != nil {
			failed = err
		}
		if reverse {
			return -c
		}
		return c
	})
	out := make([]Value, len(items))
	for i, place := range places {
		out[i] = items[place]
	}
	return out, failed
}

func sorted(e *env, v Value, a *arguments) (Value, error) {
	p, err := a.bind("reverse", "case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	items, err := e.items(v)
	if err != nil {
		return nil, err
	}
	if s, ok := p[2].(string); ok && strings.Contains(s, ",") {
		return nil, errors.New("several attributes are not supported")
	}
	keys, err := e.sortKeys(items, p[2], boolean(p[1], false))
	if err != nil {
		return nil, err
	}
	out, err := sortBy(items, keys, boolean(p[0], false))
	return &List{Items: out}, err
}

func dictSort(e *env, v Value, a *arguments) (Value, error) {
	p, err := a.bind("case_sensitive", "by", "reverse")
	if err != nil {
		return nil, err
	}
	d, ok := v.(*Dict)
	if !ok {
		return nil, fmt.Errorf("of %s", typeName(v))
	}
	by := map[Value]int64{unset: 0, "key": 0, "value": 1}
	place, ok := by[p[1]]
	if !ok {
		return nil, errors.New("by must be key or value")
	}
	items := pairs(d)
	keys, err := e.sortKeys(items, place, boolean(p[0], false))
	if err != nil {
		return nil, err
	}
	out, err := sortBy(items, keys, boolean(p[2], false))
	return &List{Items: out}, err
}

func unique(e *env, v Value, a *arguments) (Value, error) {
	p, err := a.bind("case_sensitive", "attribute")
	if err != nil {
		return nil, err
	}
	items, err := e.items(v)
	if err != nil {
		return nil, err
	}
	keys, err := e.sortKeys(items, p[1], boolean(p[0], false))
	if err != nil {
		return nil, err
	}
	var out, seen []Value
	for i, key := range keys {
		if err := e.step(len(seen)); err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(seen, func(v Value) bool { return equal(v, key) }) {
			seen, out = append(seen, key), append(out, items[i])
		}
	}
	return once(out), nil
}

// extreme is max for 1, and min for -1.
func extreme(sign int) filter {
	return func(e *env, v Value, a *arguments) (Value, error) {
		p, err := a.bind("case_sensitive", "attribute")
		if err != nil {
			return nil, err
		}
		items, err := e.items(v)
		if err != nil {
			return nil, err
		}
		keys, err := e.sortKeys(items, p[1], boolean(p[0], false))
		if err != nil || len(items) == 0 {
			return undefined, err
		}
		best := 0
		for i := range keys {
			c, err := order(keys[i], keys[best])
			if err != nil {
				return nil, err
			}
			if c*sign > 0 {
				best = i
			}
		}
		return items[best], nil
	}
}

func total(e *env, v Value, a *arguments) (Value, error) {
	p, err := a.bind("attribute", "start")
	if err != nil {
		return nil, err
	}
	of, err := e.attributeOf(p[0])
	if err != nil {
		return nil, err
	}
	items, err := e.items(v)
	if err != nil {
		return nil, err
	}
	out := Value(int64(0))
	if p[1] != unset {
		out = p[1]
	}
	for _, item := range items {
		if item, err = of(item); err != nil {
			return nil, err
		}
		if _, isText := item.(string); isText {
			return nil, errors.New("of strings")
		}
		if out, err = e.add(out, item); err != nil {
			return nil, err
		}
	}
	return out, nil
}
