package filter

import (
	"fmt"
	"regexp"
	"strings"
)

// Selector is a label selector in the form of Kubernetes' command line, such as app=x,zone in (a, b),!old.
type Selector struct{ conditions labelFilter }

// selectorTerm is one condition of a selector: a name, and what its value must be.
var selectorTerm = regexp.MustCompile(`^\s*(!?)\s*([^\s!=,()]+)\s*(?:(==?|!=)\s*([^\s!=,()]*)|\s(in|notin)\s*\(([^()]*)\))?\s*(?:,|$)`)

// ParseSelector reads a selector.
func ParseSelector(text string) (Selector, error) {
	var s Selector
	for rest := text; ; {
		term := selectorTerm.FindStringSubmatch(rest)
		if term == nil || term[1] != "" && term[3]+term[5] != "" {
			return Selector{}, fmt.Errorf("%q is no label selector: at %q want a condition like a=b, a!=b, a, !a, a in (b, c) or a notin (b)", text, rest)
		}
		s.conditions = append(s.conditions, termCondition(term))
		rest = rest[len(term[0]):]
		if rest == "" && !strings.HasSuffix(term[0], ",") {
			return s, nil
		}
	}
}

// termCondition returns the condition of a term that selectorTerm has matched.
func termCondition(term []string) condition {
	c := condition{key: term[2]}
	switch {
	case term[1] == "!":
		c.listed, c.absent = true, true
	case term[3] == "!=":
		c.values, c.absent = []string{term[4]}, true
	case term[3] != "":
		c.values, c.listed = []string{term[4]}, true
	case term[5] != "":
		c.listed, c.absent = term[5] == "in", term[5] == "notin"
		for value := range strings.SplitSeq(term[6], ",") {
			c.values = append(c.values, strings.TrimSpace(value))
		}
	}
	return c
}

// Matches reports whether labels meet all conditions.
func (s Selector) Matches(labels map[string]string) bool {
	for i := range s.conditions {
		if !s.conditions[i].fits(labels) {
			return false
		}
	}
	return true
}
