package jinja

import (
	"fmt"
	"strings"
)

// test says whether something is true of a value.
type test func(e *env, v Value, args []Value) (Value, error)

// tests are those of Jinja that are supported.
var tests = map[string]test{
	"boolean":     plainTest(func(v Value) bool { _, ok := v.(bool); return ok }),
	"callable":    plainTest(callable),
	"defined":     plainTest(func(v Value) bool { return !isUndefined(v) }),
	"undefined":   plainTest(isUndefined),
	"none":        plainTest(func(v Value) bool { return v == nil }),
	"true":        plainTest(func(v Value) bool { return v == true }),
	"false":       plainTest(func(v Value) bool { return v == false }),
	"integer":     plainTest(func(v Value) bool { _, ok := v.(int64); return ok }),
	"float":       plainTest(func(v Value) bool { _, ok := v.(float64); return ok }),
	"number":      plainTest(func(v Value) bool { _, _, _, ok := number(v); return ok }),
	"string":      plainTest(func(v Value) bool { _, ok := v.(string); return ok }),
	"mapping":     plainTest(func(v Value) bool { _, ok := v.(*Dict); return ok }),
	"iterable":    plainTest(iterable),
	"sequence":    plainTest(sequence),
	"lower":       plainTest(func(v Value) bool { s := text(v); return s == strings.ToLower(s) && s != strings.ToUpper(s) }),
	"upper":       plainTest(func(v Value) bool { s := text(v); return s == strings.ToUpper(s) && s != strings.ToLower(s) }),
	"even":        remainderTest(func(i, _ int64) bool { return i%2 == 0 }, 0),
	"odd":         remainderTest(func(i, _ int64) bool { return i%2 != 0 }, 0),
	"divisibleby": remainderTest(func(i, j int64) bool { return j != 0 && i%j == 0 }, 1),
	"sameas":      sameAs,
	"in":          compareTest("in"),
	"eq":          compareTest("=="), "equalto": compareTest("=="),
	"ne": compareTest("!="),
	"lt": compareTest("<"), "lessthan": compareTest("<"),
	"le": compareTest("<="),
	"gt": compareTest(">"), "greaterthan": compareTest(">"),
	"ge": compareTest(">="),
}

func wantArgs(args []Value, n int) error {
	if len(args) != n {
		return fmt.Errorf("a test takes %d arguments, got %d", n, len(args))
	}
	return nil
}

func plainTest(is func(Value) bool) test {
	return func(_ *env, v Value, args []Value) (Value, error) { return is(v), wantArgs(args, 0) }
}

func remainderTest(is func(i, j int64) bool, n int) test {
	return func(_ *env, v Value, args []Value) (Value, error) {
		if err := wantArgs(args, n); err != nil {
			return nil, err
		}
		numbers := [2]int64{}
		for k, v := range append([]Value{v}, args...) {
			i, _, isFloat, ok := number(v)
			if !ok || isFloat {
				return nil, fmt.Errorf("a test of ints is applied to %s", typeName(v))
			}
			numbers[k] = i
		}
		return is(numbers[0], numbers[1]), nil
	}
}

func compareTest(op string) test {
	return func(e *env, v Value, args []Value) (Value, error) {
		if err := wantArgs(args, 1); err != nil {
			return nil, err
		}
		return e.compare(op, v, args[0])
	}
}

func callable(v Value) bool {
	switch v.(type) {
	case *function, *method:
		return true
	}
	return false
}

func iterable(v Value) bool {
	switch v.(type) {
	case string, *List, *Dict, missing:
		return true
	}
	return false
}

func sequence(v Value) bool {
	switch v := v.(type) {
	case string, *Dict, missing:
		return true
	case *List:
		return v.kind <= isRange
	}
	return false
}

// sameAs is Python's is, of values for which that is certain.
func sameAs(_ *env, v Value, args []Value) (Value, error) {
	if err := wantArgs(args, 1); err != nil {
		return nil, err
	}
	switch args[0].(type) {
	case nil, bool, *List, *Dict:
		return v == args[0], nil
	}
	return nil, fmt.Errorf("the test sameas is not supported for %s", typeName(args[0]))
}
