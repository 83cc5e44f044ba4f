package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxProblems is the most problems of a file that an error lists.
const maxProblems = 50

// problems collects what is wrong with a file.
type problems struct {
	of   string // the object that is being read: kind and name, if they are known
	list []string
	more int // how many more than maxProblems there are
}

func (p *problems) add(text string) {
	if len(p.list) == maxProblems {
		p.more++
		return
	}
	p.list = append(p.list, text)
}

// err returns the problems, one per line, nil if there are none.
func (p *problems) err() error {
	if len(p.list) == 0 {
		return nil
	}
	text := strings.Join(p.list, "\n")
	if p.more > 0 {
		text += fmt.Sprintf("\nand %d more", p.more)
	}
	return errors.New(text)
}

// value is a value at a path of an object.
type value struct {
	to   *problems
	node *yaml.Node // nil: the value is missing
	line int        // of the value, or of the mapping that lacks it
	path string     // "" = the object
}

// there reports whether the value exists. null is missing, as in Kubernetes.
func (v value) there() bool { return v.node != nil && v.node.ShortTag() != "!!null" }

func (v value) problem(format string, args ...any) {
	text := fmt.Sprintf("line %d: ", v.line)
	for _, where := range []string{v.to.of, v.path} {
		if where != "" {
			text += where + ": "
		}
	}
	v.to.add(text + fmt.Sprintf(format, args...))
}

// needs reports whether the value exists, and reports a problem if it does not.
func (v value) needs() bool {
	if !v.there() {
		v.problem("is missing")
		return false
	}
	return true
}

// is reports whether an existing value has a kind. It rejects aliases: Kubernetes' own tools seldom write them, and a file of
// a few lines could expand to gigabytes.
func (v value) is(kind yaml.Kind, want string) bool {
	switch {
	case !v.there():
		return false
	case v.node.Kind == yaml.AliasNode:
		v.problem("aliases are not read here; write out what *%s stands for", v.node.Value)
	case v.node.Kind != kind:
		v.problem("want %s", want)
	default:
		return true
	}
	return false
}

// fields returns the members of a mapping, which must exist and have only known members. A missing member has no node. If the
// value is not a mapping, no problem of its members is reported.
func (v value) fields(known ...string) map[string]value {
	to := v.to
	if !v.needs() || !v.is(yaml.MappingNode, "a mapping") {
		to, v.node = &problems{}, &yaml.Node{}
	}
	all := make(map[string]value, len(known))
	for _, name := range known {
		all[name] = value{to: to, line: v.line, path: v.child(name)}
	}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key := v.node.Content[i]
		field := value{to: to, node: v.node.Content[i+1], line: key.Line, path: v.child(key.Value)}
		switch {
		case !slices.Contains(known, key.Value):
			field.problem("unknown field; there are %s", some(known))
		case all[key.Value].node != nil:
			field.problem("is there twice")
		default:
			all[key.Value] = field
		}
	}
	return all
}

// some lists names, and shortens a long list.
func some(names []string) string {
	const most = 5
	if len(names) > most {
		return strings.Join(names[:most], ", ") + " and others"
	}
	return strings.Join(names, ", ")
}

func (v value) child(name string) string {
	if v.path == "" {
		return name
	}
	return v.path + "." + name
}

// items returns the elements of a list.
func (v value) items() []value {
	if !v.is(yaml.SequenceNode, "a list") {
		return nil
	}
	all := make([]value, len(v.node.Content))
	for i, n := range v.node.Content {
		all[i] = value{to: v.to, node: n, line: n.Line, path: fmt.Sprintf("%s[%d]", v.path, i)}
	}
	return all
}

// text returns a string, "" if it is missing.
func (v value) text() string {
	if !v.is(yaml.ScalarNode, "text") {
		return ""
	}
	if v.node.ShortTag() != "!!str" {
		v.problem("want text; put %s in quotes", v.node.Value)
		return ""
	}
	return v.node.Value
}

// name returns a string that must exist.
func (v value) name() string {
	if !v.needs() {
		return ""
	}
	text := v.text()
	if v.node.Kind == yaml.ScalarNode && v.node.Value == "" {
		v.problem("must not be empty")
	}
	return text
}

// number returns an integer from least to most, or otherwise if it is missing.
func (v value) number(least, most, otherwise int64) int {
	if !v.is(yaml.ScalarNode, "a whole number") {
		return int(otherwise)
	}
	var n int64
	if v.node.ShortTag() != "!!int" || v.node.Decode(&n) != nil || n < least || n > most {
		v.problem("want a whole number from %d to %d, got %s", least, most, v.node.Value)
	}
	return int(n)
}
