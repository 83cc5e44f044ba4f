package jinja

import (
	"fmt"
	"slices"
)

// Template is a parsed template. It may be rendered by several goroutines at once.
type Template struct {
	body    []stmt
	names   []string          // by number
	loop    int               // number of the name loop
	filters map[string]filter // for filters that take others by name
	content bool
}

// maxNested bounds statements and expressions in each other.
const maxNested = 200

// Parse reads a template. Its errors name the line, and what is wrong or not supported.
func Parse(source string) (*Template, error) {
	tokens, err := lex(source)
	if err != nil {
		return nil, fmt.Errorf("reading a chat template: %w", err)
	}
	p := &parser{tokens: tokens, ids: map[string]int{}}
	t := &Template{loop: p.id("loop"), filters: filters}
	if t.body, err = p.body(); err == nil && p.next().kind != tokEnd {
		err = p.fail("%q closes nothing", p.next().text)
	}
	if err != nil {
		return nil, fmt.Errorf("reading a chat template: %w", err)
	}
	t.names = p.names
	t.content = p.loopsOverContent()
	return t, nil
}

// parser reads tokens.
type parser struct {
	tokens []token
	at     int
	ids    map[string]int
	names  []string

	nested int
	inner  int // how many bodies with variables of their own are open
	loops  int // how many of them are loops

	// What loopsOverContent looks at.
	fors   []*forStmt
	owners []*macro // of fors, nil = none
	sets   []*setStmt
	macros []*macro
	calls  []*call
	owner  *macro
}

// id returns the number of a name.
func (p *parser) id(name string) int {
	id, ok := p.ids[name]
	if !ok {
		id = len(p.names)
		p.ids[name] = id
		p.names = append(p.names, name)
	}
	return id
}

func (p *parser) fail(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", p.next().line, fmt.Sprintf(format, args...))
}

func (p *parser) next() token { return p.tokens[p.at] }

// isName reports whether the next token is one of some names.
func (p *parser) isName(names ...string) bool {
	t := p.next()
	return t.kind == tokName && slices.Contains(names, t.text)
}

func (p *parser) isOp(ops ...string) bool {
	t := p.next()
	return t.kind == tokOperator && slices.Contains(ops, t.text)
}

func (p *parser) takeName(name string) bool {
	if p.isName(name) {
		p.at++
		return true
	}
	return false
}

func (p *parser) takeOp(op string) bool {
	if p.isOp(op) {
		p.at++
		return true
	}
	return false
}

func (p *parser) wantOp(op string) error {
	if !p.takeOp(op) {
		return p.unexpected(fmt.Sprintf("%q", op))
	}
	return nil
}

func (p *parser) unexpected(want string) error {
	return p.fail("want %s, got %s", want, p.describe())
}

func (p *parser) describe() string {
	switch t := p.next(); t.kind {
	case tokEnd:
		return "the end of the template"
	case tokText:
		return "text"
	case tokPrint, tokStatement:
		return "a tag"
	case tokPrintEnd, tokStatementEnd:
		return "the end of the tag"
	default:
		return fmt.Sprintf("%q", t.text)
	}
}

// deeper counts what is nested. The caller calls the function that it returns at the end.
func (p *parser) deeper() (done func(), err error) {
	if p.nested++; p.nested > maxNested {
		return nil, p.fail("more than %d statements and expressions in each other", maxNested)
	}
	return func() { p.nested-- }, nil
}

// body reads statements up to one that begins with one of the names, which is left, or to the end.
func (p *parser) body(until ...string) ([]stmt, error) {
	done, err := p.deeper()
	if err != nil {
		return nil, err
	}
	defer done()
	var out []stmt
	for {
		switch t := p.next(); t.kind {
		case tokEnd:
			if len(until) > 0 {
				return nil, p.fail("%q is missing", until[len(until)-1])
			}
			return out, nil
		case tokText:
			p.at++
			out = append(out, textStmt(t.text))
		case tokPrint:
			p.at++
			of, err := p.tuple(true)
			if err != nil {
				return nil, err
			}
			if p.next().kind != tokPrintEnd {
				return nil, p.unexpected("}}")
			}
			p.at++
			out = append(out, printStmt{of})
		default:
			p.at++ // {%
			if len(until) == 0 && p.isName("endif", "endfor", "else", "elif", "endset", "endmacro") || p.isName(until...) {
				return out, nil
			}
			s, err := p.statement()
			if err != nil {
				return nil, err
			}
			if s != nil {
				out = append(out, s)
			}
		}
	}
}

// end reads the end of a statement's tag.
func (p *parser) end() error {
	if p.next().kind != tokStatementEnd {
		return p.unexpected("%}")
	}
	p.at++
	return nil
}

// bodyOf reads the body of a statement, and the tag that ends it.
func (p *parser) bodyOf(last string) ([]stmt, error) {
	if err := p.end(); err != nil {
		return nil, err
	}
	body, err := p.body(last)
	if err != nil {
		return nil, err
	}
	p.at++
	return body, nil
}

// scoped is bodyOf for a body with variables of its own.
func (p *parser) scoped(last string) ([]stmt, error) {
	p.inner++
	defer func() { p.inner-- }()
	body, err := p.bodyOf(last)
	if err != nil {
		return nil, err
	}
	return body, nil
}

// statement reads a statement, whose name is next, with its tags.
func (p *parser) statement() (s stmt, err error) {
	t := p.next()
	if t.kind != tokName {
		return nil, p.unexpected("the name of a statement")
	}
	p.at++
	switch t.text {
	case "if":
		s, err = p.ifs()
	case "for":
		s, err = p.loop()
	case "set":
		s, err = p.set()
	case "macro":
		s, err = p.macro()
	case "call":
		s, err = p.callBlock()
	case "filter":
		s, err = p.filterBlock()
	case "with":
		s, err = p.with()
	case "generation":
		var body []stmt
		body, err = p.scoped("endgeneration")
		s = scopeStmt{body}
	case "break", "continue":
		if p.loops == 0 {
			return nil, p.fail("%s is outside of a loop", t.text)
		}
		s = flowStmt{map[string]error{"break": errBreak, "continue": errContinue}[t.text]}
	default:
		p.at--
		return nil, p.fail("the statement %q is not supported", t.text)
	}
	if err != nil {
		return nil, err
	}
	return s, p.end()
}

func (p *parser) ifs() (stmt, error) {
	s := &ifStmt{}
	for {
		test, err := p.tuple(false)
		if err != nil {
			return nil, err
		}
		if err := p.end(); err != nil {
			return nil, err
		}
		body, err := p.body("elif", "else", "endif")
		if err != nil {
			return nil, err
		}
		s.tests, s.bodies = append(s.tests, test), append(s.bodies, body)
		if p.takeName("elif") {
			continue
		}
		var last []stmt
		if p.takeName("else") {
			if last, err = p.bodyOf("endif"); err != nil {
				return nil, err
			}
		} else {
			p.at++ // endif
		}
		s.bodies = append(s.bodies, last)
		return s, nil
	}
}

func (p *parser) loop() (stmt, error) {
	s := &forStmt{}
	var err error
	if s.target, err = p.target(false); err != nil {
		return nil, err
	}
	if !p.takeName("in") {
		return nil, p.unexpected(`"in"`)
	}
	if s.of, err = p.tuple(false); err != nil {
		return nil, err
	}
	if p.takeName("if") {
		if s.only, err = p.expression(); err != nil {
			return nil, err
		}
	}
	if p.isName("recursive") {
		return nil, p.fail("recursive loops are not supported")
	}
	p.fors, p.owners = append(p.fors, s), append(p.owners, p.owner)
	if err := p.end(); err != nil {
		return nil, err
	}
	p.inner++
	p.loops++
	s.body, err = p.body("else", "endfor")
	p.loops--
	if err == nil {
		if p.takeName("else") {
			s.otherwise, err = p.bodyOf("endfor")
		} else {
			p.at++ // endfor
		}
	}
	p.inner--
	return s, err
}

// target reads names to assign to, or a member of a namespace.
func (p *parser) target(namespaces bool) (target, error) {
	var parts []target
	for {
		one, err := p.oneTarget(namespaces)
		if err != nil {
			return target{}, err
		}
		if !p.takeOp(",") {
			if parts == nil {
				return one, nil
			}
			return target{parts: append(parts, one)}, nil
		}
		parts = append(parts, one)
		if p.isName("in") || p.isOp("=", ")") {
			return target{parts: parts}, nil
		}
	}
}

func (p *parser) oneTarget(namespaces bool) (target, error) {
	if p.takeOp("(") {
		done, err := p.deeper()
		if err != nil {
			return target{}, err
		}
		defer done()
		t, err := p.target(namespaces)
		if err != nil {
			return target{}, err
		}
		return t, p.wantOp(")")
	}
	t := p.next()
	if t.kind != tokName || constants[t.text] != nil {
		return target{}, p.unexpected("a name")
	}
	p.at++
	out := target{id: p.id(t.text), name: t.text}
	if namespaces && p.takeOp(".") {
		if p.next().kind != tokName {
			return target{}, p.unexpected("a name")
		}
		out.field = p.next().text
		p.at++
	}
	return out, nil
}

func (p *parser) set() (stmt, error) {
	to, err := p.target(true)
	if err != nil {
		return nil, err
	}
	if p.takeOp("=") {
		s := &setStmt{target: to}
		if s.to, err = p.tuple(true); err != nil {
			return nil, err
		}
		p.sets = append(p.sets, s)
		return s, nil
	}
	s := &setBlock{target: to}
	if s.filters, err = p.filters(); err != nil {
		return nil, err
	}
	s.body, err = p.scoped("endset")
	return s, err
}

// filters reads filters that apply to a block.
func (p *parser) filters() ([]*filtered, error) {
	var all []*filtered
	for p.takeOp("|") {
		f, err := p.filter(nil)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

// parameters reads the parameters of a macro, if it has parentheses.
func (p *parser) parameters(m *macro) error {
	if !p.takeOp("(") {
		return nil
	}
	for !p.takeOp(")") {
		if len(m.params) > 0 {
			if err := p.wantOp(","); err != nil {
				return err
			}
		}
		t := p.next()
		if t.kind != tokName {
			return p.unexpected("the name of a parameter")
		}
		p.at++
		m.params, m.names = append(m.params, p.id(t.text)), append(m.names, t.text)
		if p.takeOp("=") {
			v, err := p.expression()
			if err != nil {
				return err
			}
			m.defaults = append(m.defaults, v)
		} else if len(m.defaults) > 0 {
			return p.fail("a parameter without a default follows one that has one")
		}
	}
	return nil
}

func (p *parser) macro() (stmt, error) {
	if p.inner > 0 {
		return nil, p.fail("macros in loops, macros and blocks are not supported")
	}
	t := p.next()
	if t.kind != tokName {
		return nil, p.unexpected("the name of a macro")
	}
	p.at++
	m := &macro{id: p.id(t.text), name: t.text, caller: p.id("caller")}
	if err := p.parameters(m); err != nil {
		return nil, err
	}
	p.owner = m
	p.macros = append(p.macros, m)
	loops := p.loops
	p.loops = 0
	var err error
	m.body, err = p.scoped("endmacro")
	p.owner, p.loops = nil, loops
	if err == nil && p.next().kind == tokName { // endmacro may repeat the name
		p.at++
	}
	return m, err
}

func (p *parser) callBlock() (stmt, error) {
	s := &callBlock{macro: macro{name: "caller", caller: p.id("caller")}}
	if err := p.parameters(&s.macro); err != nil {
		return nil, err
	}
	of, err := p.expression()
	if err != nil {
		return nil, err
	}
	c, ok := of.(*call)
	if !ok {
		return nil, p.fail("call needs a call of a macro")
	}
	s.call = c
	loops := p.loops
	p.loops = 0
	s.macro.body, err = p.scoped("endcall")
	p.loops = loops
	return s, err
}

func (p *parser) filterBlock() (stmt, error) {
	first, err := p.filter(nil)
	if err != nil {
		return nil, err
	}
	more, err := p.filters()
	if err != nil {
		return nil, err
	}
	s := &filterBlock{filters: append([]*filtered{first}, more...)}
	s.body, err = p.scoped("endfilter")
	return s, err
}

func (p *parser) with() (stmt, error) {
	s := &withStmt{}
	for p.next().kind != tokStatementEnd {
		if len(s.targets) > 0 {
			if err := p.wantOp(","); err != nil {
				return nil, err
			}
		}
		to, err := p.oneTarget(false)
		if err != nil {
			return nil, err
		}
		if err := p.wantOp("="); err != nil {
			return nil, err
		}
		v, err := p.expression()
		if err != nil {
			return nil, err
		}
		s.targets, s.values = append(s.targets, to), append(s.values, v)
	}
	var err error
	s.body, err = p.scoped("endwith")
	return s, err
}
