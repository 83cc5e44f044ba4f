package jinja

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
)

var errOverflow = errors.New("a number does not fit into 64 bits")

// add is Python's +.
func (e *env) add(a, b Value) (Value, error) {
	switch a := a.(type) {
	case string:
		if b, ok := b.(string); ok {
			return a + b, e.copied(len(a) + len(b))
		}
	case *List:
		if b, ok := b.(*List); ok && a.kind == b.kind && a.kind <= isTuple {
			return &List{Items: slices.Concat(a.Items, b.Items), kind: a.kind}, e.step(len(a.Items) + len(b.Items))
		}
	}
	return e.arithmetic("+", a, b)
}

// arithmetic is what Python's operators do with numbers, and * with strings and lists.
func (e *env) arithmetic(op string, a, b Value) (Value, error) {
	i, f, isFloat, ok := number(a)
	j, g, isFloat2, ok2 := number(b)
	switch {
	case op == "*" && ok2 && !isFloat2 && !ok:
		return e.repeat(a, j)
	case op == "*" && ok && !isFloat && !ok2:
		return e.repeat(b, i)
	case !ok || !ok2:
		return nil, fmt.Errorf("%s %s %s is not possible", typeName(a), op, typeName(b))
	case isFloat || isFloat2 || op == "/":
		return floats(op, f, g)
	}
	return ints(op, i, j)
}

var errDivision = errors.New("division by 0")

func floats(op string, f, g float64) (Value, error) {
	switch op {
	case "+":
		return f + g, nil
	case "-":
		return f - g, nil
	case "*":
		return f * g, nil
	case "**":
		return math.Pow(f, g), nil
	}
	if g == 0 {
		return nil, errDivision
	}
	switch op {
	case "//":
		return math.Floor(f / g), nil
	case "%":
		m := math.Mod(f, g)
		if m != 0 && (m < 0) != (g < 0) {
			m += g
		}
		return m, nil
	}
	return f / g, nil
}

func ints(op string, i, j int64) (Value, error) {
	switch op {
	case "+":
		if s := i + j; (s > i) == (j > 0) {
			return s, nil
		}
		return nil, errOverflow
	case "-":
		if s := i - j; (s < i) == (j > 0) {
			return s, nil
		}
		return nil, errOverflow
	case "*":
		return product(i, j)
	case "**":
		if j < 0 {
			return floats(op, float64(i), float64(j))
		}
		out := int64(1)
		for range min(j, 64) {
			v, err := product(out, i)
			if err != nil {
				return nil, err
			}
			out = v.(int64)
		}
		if j > 64 && i != 0 && i != 1 {
			return nil, errOverflow
		}
		return out, nil
	}
	if j == 0 {
		return nil, errDivision
	}
	q, m := i/j, i%j
	if m != 0 && (m < 0) != (j < 0) {
		q, m = q-1, m+j
	}
	if op == "//" {
		return q, nil
	}
	return m, nil
}

func product(i, j int64) (Value, error) {
	high, low := bits.Mul64(uint64(max(i, -i)), uint64(max(j, -j)))
	if high != 0 || low > math.MaxInt64 || i == math.MinInt64 || j == math.MinInt64 {
		return nil, errOverflow
	}
	return i * j, nil
}

// repeat is * of a string or list and a number.
func (e *env) repeat(v Value, n int64) (Value, error) {
	n = max(n, 0)
	switch v := v.(type) {
	case string:
		if n > 0 && int64(len(v)) > int64(e.options.Output)/n {
			return nil, errOutput
		}
		return strings.Repeat(v, int(n)), e.copied(len(v) * int(n))
	case *List:
		if v.kind <= isTuple {
			if n > 0 && int64(len(v.Items)) > int64(e.options.Steps)/n {
				return nil, errSteps
			}
			return &List{Items: slices.Repeat(v.Items, int(n)), kind: v.kind}, e.step(len(v.Items) * int(n))
		}
	}
	return nil, fmt.Errorf("%s cannot be repeated", typeName(v))
}

// compare is one of Python's comparisons.
func (e *env) compare(op string, a, b Value) (bool, error) {
	switch op {
	case "==":
		return equal(a, b), nil
	case "!=":
		return !equal(a, b), nil
	case "in":
		return e.in(a, b)
	case "not in":
		in, err := e.in(a, b)
		return !in, err
	}
	c, err := order(a, b)
	if err != nil {
		return false, err
	}
	switch op {
	case "<":
		return c < 0, nil
	case "<=":
		return c <= 0, nil
	case ">":
		return c > 0, nil
	}
	return c >= 0, nil
}

// order compares numbers, strings and lists of them.
func order(a, b Value) (int, error) {
	if s, ok := a.(string); ok {
		if t, ok := b.(string); ok {
			return strings.Compare(s, t), nil
		}
	}
	i, f, isFloat, ok := number(a)
	j, g, isFloat2, ok2 := number(b)
	if ok && ok2 {
		if isFloat || isFloat2 {
			return cmp.Compare(f, g), nil
		}
		return cmp.Compare(i, j), nil
	}
	x, ok := a.(*List)
	y, ok2 := b.(*List)
	if ok && ok2 && x.kind == y.kind && x.kind <= isTuple {
		for k := range min(len(x.Items), len(y.Items)) {
			if !equal(x.Items[k], y.Items[k]) {
				return order(x.Items[k], y.Items[k])
			}
		}
		return cmp.Compare(len(x.Items), len(y.Items)), nil
	}
	return 0, fmt.Errorf("%s and %s have no order", typeName(a), typeName(b))
}

// in is Python's in.
func (e *env) in(a, b Value) (bool, error) {
	switch b := b.(type) {
	case string:
		s, ok := a.(string)
		if !ok {
			return false, fmt.Errorf("a string can only contain strings, got %s", typeName(a))
		}
		return strings.Contains(b, s), e.copied(len(b))
	case *Dict:
		s, ok := a.(string)
		if !ok {
			switch a.(type) {
			case *List, *Dict:
				return false, fmt.Errorf("%s cannot be a key", typeName(a))
			}
			return false, nil
		}
		_, found := b.Get(s)
		return found, nil
	}
	items, err := e.items(b)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(items, func(v Value) bool { return equal(v, a) }), e.step(len(items))
}
