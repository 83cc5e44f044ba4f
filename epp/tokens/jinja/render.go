package jinja

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Options bound a rendering.
type Options struct {
	// Steps is how much work it may be: about one for each expression that is evaluated, and for each 64 bytes that are copied.
	Steps int
	// Output is how long the text may become (bytes), with all that is not printed in the end.
	Output int
	// Now is the time for strftime_now.
	Now time.Time
}

// Raised is the error of a template that refuses what it is given, by raise_exception.
type Raised struct{ Message string }

// Error implements error.
func (r *Raised) Error() string { return "the chat template refuses: " + r.Message }

var (
	errSteps    = errors.New("the chat template takes too many steps")
	errOutput   = errors.New("the chat template makes too much text")
	errCalls    = errors.New("macros call each other too deeply")
	errBreak    = errors.New("break")
	errContinue = errors.New("continue")
)

// Append renders the template and appends the text to dst. Variables that the template does not use are ignored. The values of variables
// are not changed. ctx ends a rendering early.
func (t *Template) Append(ctx context.Context, dst []byte, variables map[string]Value, o Options) ([]byte, error) {
	e := env{t: t, ctx: ctx, vars: make([]Value, len(t.names)), options: o, out: dst}
	for id, name := range t.names {
		e.vars[id] = unset
		if v, ok := variables[name]; ok {
			e.vars[id] = v
		} else if f := globals[name]; f != nil {
			e.vars[id] = f
		}
	}
	if err := e.run(t.body); err != nil {
		return dst, err
	}
	return e.out, nil
}

// unset stands for a variable or an argument without a value.
var unset Value = new(struct{ byte })

// env is what a rendering knows.
type env struct {
	t       *Template
	ctx     context.Context // of this call of Append
	options Options

	vars  []Value // by number of the name
	undo  []saved // what variables were outside of the scopes that are open
	scope int     // where in undo the innermost scope begins
	deep  int     // scopes that are open
	calls int     // macros that are open

	out     []byte
	written int
	steps   int
}

// saved is the value of a variable outside of a scope.
type saved struct {
	id int
	v  Value
}

// step counts work.
func (e *env) step(n int) error {
	before := e.steps
	e.steps += 1 + n
	if e.steps > e.options.Steps {
		return errSteps
	}
	if before>>12 != e.steps>>12 && e.ctx.Err() != nil {
		return context.Cause(e.ctx)
	}
	return nil
}

// copied counts work on a text.
func (e *env) copied(bytes int) error { return e.step(bytes / 64) }

// wrote counts output.
func (e *env) wrote(bytes int) error {
	if e.written += bytes; e.written > e.options.Output {
		return errOutput
	}
	return e.copied(bytes)
}

// print writes a value.
func (e *env) print(v Value) error {
	if s, ok := v.(string); ok {
		e.out = append(e.out, s...)
		return e.wrote(len(s))
	}
	if err := printable(v, 0); err != nil {
		return err
	}
	before := len(e.out)
	e.out = appendText(e.out, v)
	return e.wrote(len(e.out) - before)
}

// enter opens a scope. leave, with what it returns, closes it.
func (e *env) enter() (outer int) {
	outer, e.scope = e.scope, len(e.undo)
	e.deep++
	return outer
}

func (e *env) leave(outer int) {
	for len(e.undo) > e.scope {
		last := e.undo[len(e.undo)-1]
		e.vars[last.id] = last.v
		e.undo = e.undo[:len(e.undo)-1]
	}
	e.scope = outer
	e.deep--
}

// set sets a variable of the innermost scope.
func (e *env) set(id int, v Value) {
	if e.deep > 0 {
		known := false
		for _, s := range e.undo[e.scope:] {
			known = known || s.id == id
		}
		if !known {
			e.undo = append(e.undo, saved{id, e.vars[id]})
		}
	}
	e.vars[id] = v
}

// assign sets what a target stands for.
func (e *env) assign(t *target, v Value) error {
	switch {
	case t.field != "":
		ns, ok := e.vars[t.id].(*namespace)
		if !ok {
			return fmt.Errorf("setting %s.%s: %s is no namespace", t.name, t.field, t.name)
		}
		ns.Set(t.field, v)
	case t.parts != nil:
		items, err := e.items(v)
		if err != nil {
			return err
		}
		if len(items) != len(t.parts) {
			return fmt.Errorf("there are %d values for %d names", len(items), len(t.parts))
		}
		for i := range t.parts {
			if err := e.assign(&t.parts[i], items[i]); err != nil {
				return err
			}
		}
	default:
		e.set(t.id, v)
	}
	return nil
}

func (e *env) run(body []stmt) error {
	for _, s := range body {
		if err := s.exec(e); err != nil {
			return err
		}
	}
	return nil
}

// capture runs a body in a scope of its own, and returns what it writes.
func (e *env) capture(body []stmt) (string, error) {
	outer := e.enter()
	defer e.leave(outer)
	return e.collect(body)
}

func (e *env) collect(body []stmt) (string, error) {
	out := e.out
	e.out = nil
	err := e.run(body)
	captured := e.out
	e.out = out
	return string(captured), err
}

func (s textStmt) exec(e *env) error {
	e.out = append(e.out, s...)
	return e.wrote(len(s))
}

func (s printStmt) exec(e *env) error {
	if parts, ok := s.of.(*sum); ok {
		return parts.print(e)
	}
	v, err := s.of.eval(e)
	if err != nil {
		return err
	}
	return e.print(v)
}

func (s *ifStmt) exec(e *env) error {
	for i, t := range s.tests {
		v, err := t.eval(e)
		if err != nil {
			return err
		}
		if truth(v) {
			return e.run(s.bodies[i])
		}
	}
	return e.run(s.bodies[len(s.tests)])
}

func (s *forStmt) exec(e *env) error {
	v, err := s.of.eval(e)
	if err != nil {
		return err
	}
	items, err := e.items(v)
	if err != nil {
		return err
	}
	if s.only != nil {
		if items, err = s.filter(e, items); err != nil {
			return err
		}
	}
	if len(items) == 0 {
		outer := e.enter()
		defer e.leave(outer)
		return e.run(s.otherwise)
	}
	l := &loop{items: items}
	for ; l.at < len(items); l.at++ {
		if err := e.step(0); err != nil {
			return err
		}
		outer := e.enter()
		e.set(e.t.loop, l)
		err := e.assign(&s.target, items[l.at])
		if err == nil {
			err = e.run(s.body)
		}
		e.leave(outer)
		switch {
		case errors.Is(err, errBreak):
			return nil
		case err != nil && !errors.Is(err, errContinue):
			return err
		}
	}
	return nil
}

// filter returns the items for which the loop's condition is true.
func (s *forStmt) filter(e *env, items []Value) ([]Value, error) {
	var out []Value
	for _, v := range items {
		outer := e.enter()
		err := e.assign(&s.target, v)
		var keep Value
		if err == nil {
			keep, err = s.only.eval(e)
		}
		e.leave(outer)
		if err != nil {
			return nil, err
		}
		if truth(keep) {
			out = append(out, v)
		}
	}
	return out, nil
}

func (s *setStmt) exec(e *env) error {
	v, err := s.to.eval(e)
	if err != nil {
		return err
	}
	return e.assign(&s.target, v)
}

func (s *setBlock) exec(e *env) error {
	text, err := e.capture(s.body)
	if err != nil {
		return err
	}
	v, err := e.apply(s.filters, text)
	if err != nil {
		return err
	}
	return e.assign(&s.target, v)
}

func (e *env) apply(filters []*filtered, v Value) (Value, error) {
	for _, f := range filters {
		var err error
		if v, err = f.apply(e, v); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (s *filterBlock) exec(e *env) error {
	text, err := e.capture(s.body)
	if err != nil {
		return err
	}
	v, err := e.apply(s.filters, text)
	if err != nil {
		return err
	}
	return e.print(v)
}

func (s *withStmt) exec(e *env) error {
	values := make([]Value, len(s.values))
	for i, x := range s.values {
		var err error
		if values[i], err = x.eval(e); err != nil {
			return err
		}
	}
	outer := e.enter()
	defer e.leave(outer)
	for i := range s.targets {
		if err := e.assign(&s.targets[i], values[i]); err != nil {
			return err
		}
	}
	return e.run(s.body)
}

func (s scopeStmt) exec(e *env) error {
	outer := e.enter()
	defer e.leave(outer)
	return e.run(s.body)
}

func (s flowStmt) exec(*env) error { return s.err }

// maxCalls bounds macros that call each other.
const maxCalls = 50

func (s *macro) exec(e *env) error {
	e.set(s.id, &function{s.name, func(e *env, a *arguments) (Value, error) { return s.call(e, e.outermost(), a) }})
	return nil
}

// outermost returns the variables as they are outside of all scopes, where macros are defined.
func (e *env) outermost() []Value {
	vars := append([]Value(nil), e.vars...)
	for i := len(e.undo) - 1; i >= 0; i-- {
		vars[e.undo[i].id] = e.undo[i].v
	}
	return vars
}

// call runs a macro with variables of its own, and returns what it writes.
func (s *macro) call(e *env, vars []Value, a *arguments) (Value, error) {
	if e.calls++; e.calls > maxCalls {
		return nil, errCalls
	}
	defer func() { e.calls-- }()
	if err := e.step(len(vars)); err != nil {
		return nil, err
	}
	outside := *e
	defer func() { e.vars, e.undo, e.scope, e.deep = outside.vars, outside.undo, outside.scope, outside.deep }()
	e.vars, e.undo, e.scope, e.deep = vars, nil, 0, 1
	e.set(s.caller, unset)
	for i, name := range a.names {
		if name == "caller" {
			e.set(s.caller, a.named[i])
			a.names, a.named = append(a.names[:i:i], a.names[i+1:]...), append(a.named[:i:i], a.named[i+1:]...)
			break
		}
	}
	if err := s.bind(e, a); err != nil {
		return nil, err
	}
	return e.collect(s.body)
}

// bind gives a macro's parameters their values.
func (s *macro) bind(e *env, a *arguments) error {
	if len(a.positional) > len(s.params) {
		return fmt.Errorf("%s takes %d arguments, got %d", s.name, len(s.params), len(a.positional))
	}
	used := 0
	for i, id := range s.params {
		v := Value(unset)
		if i < len(a.positional) {
			v = a.positional[i]
		}
		for k, name := range a.names {
			if name == s.names[i] {
				if v != unset {
					return fmt.Errorf("%s has two values for %s", s.name, name)
				}
				v = a.named[k]
				used++
			}
		}
		if first := len(s.params) - len(s.defaults); v == unset && i >= first {
			var err error
			if v, err = s.defaults[i-first].eval(e); err != nil {
				return err
			}
		}
		e.set(id, v)
	}
	if used < len(a.names) {
		return fmt.Errorf("%s has no parameter of the name of one of its arguments", s.name)
	}
	return nil
}

func (s *callBlock) exec(e *env) error {
	block := &function{"caller", nil}
	vars := append([]Value(nil), e.vars...)
	block.call = func(e *env, a *arguments) (Value, error) { return s.macro.call(e, append([]Value(nil), vars...), a) }
	of, err := s.call.of.eval(e)
	if err != nil {
		return err
	}
	a, err := s.call.args.eval(e)
	if err != nil {
		return err
	}
	v, err := e.invoke(of, &arguments{a.positional, append(slices.Clip(a.names), "caller"), append(slices.Clip(a.named), Value(block))})
	if err != nil {
		return err
	}
	return e.print(v)
}

// loop is the variable loop.
type loop struct {
	items []Value
	at    int
	last  Value // of changed, nil before the first call
}

func (l *loop) get(name string) Value {
	n, i := int64(len(l.items)), int64(l.at)
	switch name {
	case "index":
		return i + 1
	case "index0":
		return i
	case "revindex":
		return n - i
	case "revindex0":
		return n - i - 1
	case "first":
		return i == 0
	case "last":
		return i == n-1
	case "length":
		return n
	case "depth":
		return int64(1)
	case "depth0":
		return int64(0)
	case "previtem":
		if i > 0 {
			return l.items[i-1]
		}
	case "nextitem":
		if i+1 < n {
			return l.items[i+1]
		}
	case "cycle", "changed":
		return &method{l, name}
	}
	return undefined
}
