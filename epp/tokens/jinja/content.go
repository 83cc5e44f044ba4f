package jinja

import "slices"

// LoopsOverContent reports whether the template goes through the parts of a message's content, as engines find out: they then give it lists
// of parts, and otherwise texts. It follows vLLM, which looks for a loop over a message's content, over a parameter of a macro that gets
// one, or over a variable named content.
func (t *Template) LoopsOverContent() bool { return t.content }

func (p *parser) loopsOverContent() bool {
	messages := p.messageNames()
	for i, f := range p.fors {
		if slices.ContainsFunc(messages, func(name string) bool { return reaches(f.of, name, "content") }) {
			return true
		}
		v, ok := f.of.(*variable)
		if !ok {
			continue
		}
		if owner := p.owners[i]; owner == nil && v.name == "content" || owner != nil && p.getsContent(owner, v.name, messages) {
			return true
		}
	}
	return false
}

// messageNames returns the variables of loops over messages, or over a part of them that has another name.
func (p *parser) messageNames() []string {
	lists := []string{"messages"}
	for i := 0; i < len(lists); i++ {
		for _, s := range p.sets {
			if s.target.name != "" && !slices.Contains(lists, s.target.name) && reaches(s.to, lists[i], "") {
				lists = append(lists, s.target.name)
			}
		}
	}
	var names []string
	for _, f := range p.fors {
		if f.target.name != "" && slices.ContainsFunc(lists, func(list string) bool { return reaches(f.of, list, "") }) {
			names = append(names, f.target.name)
		}
	}
	return names
}

// getsContent reports whether a call of a macro gives a parameter a message's content.
func (p *parser) getsContent(m *macro, parameter string, messages []string) bool {
	content := func(x expr) bool {
		return slices.ContainsFunc(messages, func(name string) bool { return reaches(x, name, "content") })
	}
	for _, c := range p.calls {
		if v, ok := c.of.(*variable); !ok || v.name != m.name {
			continue
		}
		for i, x := range c.args.positional {
			if i < len(m.names) && m.names[i] == parameter && content(x) {
				return true
			}
		}
		for i, x := range c.args.named {
			if c.args.names[i] == parameter && content(x) {
				return true
			}
		}
	}
	return false
}

// reaches reports whether an expression is a variable, or with a key a member of it, behind filters, tests and slices.
func reaches(x expr, name, key string) bool {
	switch x := x.(type) {
	case *filtered:
		return x.of != nil && reaches(x.of, name, key)
	case *tested:
		return reaches(x.of, name, key)
	case *slice:
		return reaches(x.of, name, key)
	case *variable:
		return key == "" && x.name == name
	case *attribute:
		return x.name == key && isVariable(x.of, name)
	case *item:
		c, ok := x.key.(*constant)
		return ok && key != "" && c.v == key && isVariable(x.of, name)
	}
	return false
}

func isVariable(x expr, name string) bool {
	v, ok := x.(*variable)
	return ok && v.name == name
}
