package jinja

import (
	"strconv"
)

// constants are the names of values.
var constants = map[string]*constant{"true": {true}, "True": {true}, "false": {false}, "False": {false}, "none": {nil}, "None": {nil}}

// tuple reads an expression, or several with commas between them, which are a tuple. With conditions it may have an if.
func (p *parser) tuple(conditions bool) (expr, error) {
	one := func() (expr, error) {
		if conditions {
			return p.expression()
		}
		return p.or()
	}
	first, err := one()
	if err != nil || !p.isOp(",") {
		return first, err
	}
	out := &list{items: []expr{first}, tuple: true}
	for p.takeOp(",") {
		if k := p.next().kind; k == tokPrintEnd || k == tokStatementEnd || p.isOp(")") || p.isName("in") {
			break
		}
		e, err := one()
		if err != nil {
			return nil, err
		}
		out.items = append(out.items, e)
	}
	return out, nil
}

// expression reads an expression, which may be a condition.
func (p *parser) expression() (expr, error) {
	done, err := p.deeper()
	if err != nil {
		return nil, err
	}
	defer done()
	e, err := p.or()
	for err == nil && p.takeName("if") {
		c := &conditional{then: e}
		if c.test, err = p.or(); err != nil {
			return nil, err
		}
		if p.takeName("else") {
			if c.other, err = p.expression(); err != nil {
				return nil, err
			}
		}
		e = c
	}
	return e, err
}

func (p *parser) or() (expr, error) {
	left, err := p.and()
	for err == nil && p.takeName("or") {
		var right expr
		if right, err = p.and(); err == nil {
			left = &either{left, right}
		}
	}
	return left, err
}

func (p *parser) and() (expr, error) {
	left, err := p.not()
	for err == nil && p.takeName("and") {
		var right expr
		if right, err = p.not(); err == nil {
			left = &both{left, right}
		}
	}
	return left, err
}

func (p *parser) not() (expr, error) {
	if !p.takeName("not") {
		return p.comparison()
	}
	done, err := p.deeper()
	if err != nil {
		return nil, err
	}
	defer done()
	of, err := p.not()
	return &unary{"not", of}, err
}

func (p *parser) comparison() (expr, error) {
	first, err := p.additive()
	if err != nil {
		return nil, err
	}
	c := &compare{first: first}
	for {
		op := ""
		switch {
		case p.isOp("==", "!=", "<", "<=", ">", ">="):
			op = p.next().text
			p.at++
		case p.takeName("in"):
			op = "in"
		case p.isName("not") && p.tokens[p.at+1].kind == tokName && p.tokens[p.at+1].text == "in":
			op = "not in"
			p.at += 2
		}
		if op == "" {
			break
		}
		to, err := p.additive()
		if err != nil {
			return nil, err
		}
		c.rest = append(c.rest, comparison{op, to})
	}
	if len(c.rest) == 0 {
		return first, nil
	}
	return c, nil
}

func (p *parser) additive() (expr, error) {
	left, err := p.concat()
	for err == nil && p.isOp("+", "-") {
		op := p.next().text
		p.at++
		var right expr
		if right, err = p.concat(); err != nil {
			return nil, err
		}
		if op == "-" {
			left = &binary{op, left, right}
		} else if s, ok := left.(*sum); ok {
			s.parts = append(s.parts, right)
		} else {
			left = &sum{[]expr{left, right}}
		}
	}
	return left, err
}

func (p *parser) concat() (expr, error) {
	left, err := p.multiplicative()
	if err != nil || !p.isOp("~") {
		return left, err
	}
	c := &concat{[]expr{left}}
	for p.takeOp("~") {
		right, err := p.multiplicative()
		if err != nil {
			return nil, err
		}
		c.parts = append(c.parts, right)
	}
	return c, nil
}

func (p *parser) multiplicative() (expr, error) {
	left, err := p.power()
	for err == nil && p.isOp("*", "/", "//", "%") {
		op := p.next().text
		p.at++
		var right expr
		if right, err = p.power(); err == nil {
			left = &binary{op, left, right}
		}
	}
	return left, err
}

func (p *parser) power() (expr, error) {
	left, err := p.unary(true)
	for err == nil && p.takeOp("**") {
		var right expr
		if right, err = p.unary(true); err == nil {
			left = &binary{"**", left, right}
		}
	}
	return left, err
}

// unary reads a sign and what it applies to, with its filters and tests.
func (p *parser) unary(filters bool) (expr, error) {
	var e expr
	var err error
	if p.isOp("-", "+") {
		op := p.next().text
		p.at++
		done, deep := p.deeper()
		if deep != nil {
			return nil, deep
		}
		e, err = p.unary(false)
		done()
		e = &unary{op, e}
	} else {
		e, err = p.primary()
	}
	if err == nil {
		e, err = p.postfix(e)
	}
	if err == nil && filters {
		e, err = p.suffixes(e)
	}
	return e, err
}

func (p *parser) primary() (expr, error) {
	t := p.next()
	switch t.kind {
	case tokName:
		p.at++
		if c := constants[t.text]; c != nil {
			return c, nil
		}
		return &variable{p.id(t.text), t.text}, nil
	case tokString:
		s := ""
		for p.next().kind == tokString {
			s += p.next().text
			p.at++
		}
		return &constant{s}, nil
	case tokInt:
		i, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			return nil, p.fail("%s does not fit into 64 bits", t.text)
		}
		p.at++
		return &constant{i}, nil
	case tokFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil {
			return nil, p.fail("%s is not a number", t.text)
		}
		p.at++
		return &constant{f}, nil
	}
	done, err := p.deeper()
	if err != nil {
		return nil, err
	}
	defer done()
	switch {
	case p.takeOp("("):
		if p.takeOp(")") {
			return &list{tuple: true}, nil
		}
		e, err := p.tuple(true)
		if err != nil {
			return nil, err
		}
		return e, p.wantOp(")")
	case p.takeOp("["):
		items, err := p.items("]")
		return &list{items: items}, err
	case p.takeOp("{"):
		return p.dict()
	}
	return nil, p.unexpected("an expression")
}

// items reads expressions up to a closing character.
func (p *parser) items(end string) ([]expr, error) {
	var out []expr
	for !p.takeOp(end) {
		if len(out) > 0 {
			if err := p.wantOp(","); err != nil {
				return nil, err
			}
			if p.takeOp(end) {
				break
			}
		}
		e, err := p.expression()
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, nil
}

func (p *parser) dict() (expr, error) {
	d := &dict{}
	for !p.takeOp("}") {
		if len(d.keys) > 0 {
			if err := p.wantOp(","); err != nil {
				return nil, err
			}
			if p.takeOp("}") {
				break
			}
		}
		k, err := p.expression()
		if err != nil {
			return nil, err
		}
		if err := p.wantOp(":"); err != nil {
			return nil, err
		}
		v, err := p.expression()
		if err != nil {
			return nil, err
		}
		d.keys, d.values = append(d.keys, k), append(d.values, v)
	}
	return d, nil
}

// postfix reads members, items and calls of an expression.
func (p *parser) postfix(e expr) (expr, error) {
	for {
		var err error
		switch {
		case p.takeOp("."):
			t := p.next()
			switch t.kind {
			case tokName:
				e = &attribute{e, t.text, methodKinds[t.text]}
			case tokInt:
				i, parse := strconv.ParseInt(t.text, 10, 64)
				if parse != nil {
					return nil, p.fail("%s does not fit into 64 bits", t.text)
				}
				e = &item{e, &constant{i}}
			default:
				return nil, p.unexpected("the name of a member")
			}
			p.at++
		case p.takeOp("["):
			e, err = p.subscript(e)
		case p.isOp("("):
			e, err = p.call(e)
		default:
			return e, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// subscript reads what is in brackets behind an expression.
func (p *parser) subscript(of expr) (expr, error) {
	var parts [3]expr
	n := 0
	for !p.isOp("]") {
		if p.takeOp(":") {
			if n++; n > 2 {
				return nil, p.unexpected(`"]"`)
			}
			continue
		}
		if parts[n] != nil {
			return nil, p.unexpected(`"]"`)
		}
		var err error
		if parts[n], err = p.expression(); err != nil {
			return nil, err
		}
	}
	p.at++
	if n == 0 {
		if parts[0] == nil {
			return nil, p.fail("an index is missing")
		}
		return &item{of, parts[0]}, nil
	}
	return &slice{of, parts[0], parts[1], parts[2]}, nil
}

func (p *parser) call(of expr) (expr, error) {
	c := &call{of: of}
	p.calls = append(p.calls, c)
	return c, p.arguments(&c.args)
}

// arguments reads the arguments of a call with their parentheses.
func (p *parser) arguments(a *callArgs) error {
	if err := p.wantOp("("); err != nil {
		return err
	}
	for n := 0; !p.takeOp(")"); n++ {
		if n > 0 {
			if err := p.wantOp(","); err != nil {
				return err
			}
			if p.takeOp(")") {
				break
			}
		}
		if p.isOp("*", "**") {
			return p.fail("lists of arguments are not supported")
		}
		name := ""
		if t := p.next(); t.kind == tokName && p.tokens[p.at+1].kind == tokOperator && p.tokens[p.at+1].text == "=" {
			name = t.text
			p.at += 2
		}
		v, err := p.expression()
		switch {
		case err != nil:
			return err
		case name != "":
			a.names, a.named = append(a.names, name), append(a.named, v)
		case len(a.names) > 0:
			return p.fail("an argument without a name follows one with a name")
		default:
			a.positional = append(a.positional, v)
		}
	}
	return nil
}

// suffixes reads filters, tests and calls of an expression.
func (p *parser) suffixes(e expr) (expr, error) {
	for {
		var err error
		switch {
		case p.takeOp("|"):
			e, err = p.filter(e)
		case p.takeName("is"):
			e, err = p.test(e)
		case p.isOp("("):
			e, err = p.call(e)
		default:
			return e, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) filter(of expr) (*filtered, error) {
	t := p.next()
	if t.kind != tokName {
		return nil, p.unexpected("the name of a filter")
	}
	f, ok := filters[t.text]
	if !ok {
		return nil, p.fail("the filter %q is not supported", t.text)
	}
	p.at++
	out := &filtered{of: of, name: t.text, filter: f}
	if p.isOp("(") {
		if err := p.arguments(&out.args); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (p *parser) test(of expr) (expr, error) {
	negated := p.takeName("not")
	t := p.next()
	if t.kind != tokName {
		return nil, p.unexpected("the name of a test")
	}
	check, ok := tests[t.text]
	if !ok {
		return nil, p.fail("the test %q is not supported", t.text)
	}
	p.at++
	out := &tested{of: of, test: check}
	next := p.next()
	switch {
	case p.isOp("("):
		if err := p.arguments(&out.args); err != nil {
			return nil, err
		}
	case next.kind == tokName && !p.isName("else", "or", "and"), next.kind == tokString, next.kind == tokInt, next.kind == tokFloat, p.isOp("[", "{"):
		if p.isName("is") {
			return nil, p.fail("a test follows a test")
		}
		arg, err := p.primary()
		if err == nil {
			arg, err = p.postfix(arg)
		}
		if err != nil {
			return nil, err
		}
		out.args.positional = []expr{arg}
	}
	if negated {
		return &unary{"not", out}, nil
	}
	return out, nil
}
