package page

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// metricSpec names the series of one value: a family, and labels its series must have.
type metricSpec struct {
	family string
	labels []labelMatch
}

// labelMatch requires a label to have a value.
type labelMatch struct{ name, value string }

var (
	familyName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	labelName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
)

// parseSpec reads family{l1=v1,l2="v2"}, as llm-d writes it. The labels, and quotes around their values, are optional.
func parseSpec(text string) (metricSpec, error) {
	family, rest, braced := strings.Cut(strings.TrimSpace(text), "{")
	family = strings.TrimSpace(family)
	if !familyName.MatchString(family) {
		return metricSpec{}, fmt.Errorf("%q is no metric name", family)
	}
	m := metricSpec{family: family}
	if !braced {
		return m, nil
	}
	for {
		rest = strings.TrimLeft(rest, " \t")
		if rest == "}" {
			return m, nil
		}
		match, after, err := parseMatch(rest)
		if err != nil {
			return metricSpec{}, err
		}
		m.labels = append(m.labels, match)
		after = strings.TrimLeft(after, " \t")
		if rest = strings.TrimPrefix(after, ","); rest == after && after != "}" {
			return metricSpec{}, fmt.Errorf("the label %q is followed by %q, want a comma or a closing brace", match.name, after)
		}
	}
}

// parseMatch reads one name=value.
func parseMatch(text string) (m labelMatch, rest string, err error) {
	name, rest, ok := strings.Cut(text, "=")
	if name = strings.TrimSpace(name); !ok {
		return m, "", fmt.Errorf("%q is no label: want name=value and a closing brace", text)
	}
	if strings.HasSuffix(name, "!") || strings.HasPrefix(rest, "~") {
		return m, "", fmt.Errorf("the label %q is not matched by =, the only operator there is", strings.TrimRight(name, "! "))
	}
	if !labelName.MatchString(name) {
		return m, "", fmt.Errorf("%q is no label name", name)
	}
	m.name, rest = name, strings.TrimLeft(rest, " \t")
	if strings.HasPrefix(rest, `"`) {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return m, "", fmt.Errorf("the value of label %q has no closing quote", name)
		}
		m.value, err = strconv.Unquote(quoted)
		return m, rest[len(quoted):], err
	}
	end := strings.IndexAny(rest, ",}")
	if end < 0 {
		return m, "", fmt.Errorf("the labels have no closing brace")
	}
	m.value = strings.TrimSpace(rest[:end])
	return m, rest[end:], nil
}

// matches reports whether a series has all the labels.
func (m *metricSpec) matches(labels []byte) bool {
	for _, want := range m.labels {
		if value, _ := label(labels, want.name); string(value) != want.value {
			return false
		}
	}
	return true
}
