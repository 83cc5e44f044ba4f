package filter

import (
	"fmt"
	"slices"

	"github.com/tandem-serving/tandem/epp"
)

// LabelSelector keeps endpoints whose labels match a Kubernetes label selector: all of matchLabels and all of
// matchExpressions. An empty selector matches every endpoint. The parameters of the older plugin by-label are accepted
// instead of a selector.
type LabelSelector struct {
	// MatchLabels are labels that an endpoint must have, with exactly these values.
	MatchLabels map[string]string `yaml:"matchLabels"`
	// MatchExpressions are conditions on labels, all of which an endpoint must meet.
	MatchExpressions []LabelExpression `yaml:"matchExpressions"`
	// Label is a parameter of by-label: the label that an endpoint must have.
	Label string `yaml:"label"`
	// ValidValues is a parameter of by-label: the values of the label with which an endpoint is kept.
	ValidValues []string `yaml:"validValues"`
	// AllowsNoLabel is a parameter of by-label: whether endpoints without the label are kept. Default false.
	AllowsNoLabel bool `yaml:"allowsNoLabel"`
}

// LabelExpression is one condition on a label.
type LabelExpression struct {
	// Key is the name of the label.
	Key string `yaml:"key"`
	// Operator is In, NotIn, Exists or DoesNotExist. NotIn matches endpoints without the label too.
	Operator string `yaml:"operator"`
	// Values are the values for In and NotIn. Exists and DoesNotExist take none.
	Values []string `yaml:"values"`
}

// NewLabelSelector returns the parameters with their defaults.
func NewLabelSelector() epp.Plugin { return &LabelSelector{} }

// Problems implements epp.Plugin.
func (p *LabelSelector) Problems(report epp.Report) {
	for key := range p.MatchLabels {
		if key == "" {
			report("matchLabels", "a label has no name")
		}
	}
	for i, e := range p.MatchExpressions {
		e.problems(func(field, format string, args ...any) {
			report(fmt.Sprintf("matchExpressions[%d].%s", i, field), format, args...)
		})
	}
	old := p.Label != "" || len(p.ValidValues) > 0 || p.AllowsNoLabel
	switch {
	case !old:
	case len(p.MatchLabels) > 0 || len(p.MatchExpressions) > 0:
		report("label", "label, validValues and allowsNoLabel cannot be combined with matchLabels and matchExpressions")
	case p.Label == "":
		report("label", "must not be empty if validValues or allowsNoLabel is set")
	case len(p.ValidValues) == 0 && !p.AllowsNoLabel:
		report("validValues", "must not be empty without allowsNoLabel: no endpoint would be left")
	}
}

func (e *LabelExpression) problems(report epp.Report) {
	if e.Key == "" {
		report("key", "must not be empty")
	}
	switch e.Operator {
	case "In", "NotIn":
		if len(e.Values) == 0 {
			report("values", "must not be empty with %s", e.Operator)
		}
	case "Exists", "DoesNotExist":
		if len(e.Values) > 0 {
			report("values", "must be empty with %s", e.Operator)
		}
	default:
		report("operator", "must be In, NotIn, Exists or DoesNotExist, got %q", e.Operator)
	}
}

// Build implements epp.Plugin.
func (p *LabelSelector) Build(*epp.Builder) (any, error) {
	var f labelFilter
	for key, value := range p.MatchLabels {
		f = append(f, condition{key: key, values: []string{value}, listed: true})
	}
	for _, e := range p.MatchExpressions {
		f = append(f, e.condition())
	}
	if p.Label != "" {
		f = append(f, condition{key: p.Label, values: p.ValidValues, listed: true, absent: p.AllowsNoLabel})
	}
	return f, nil
}

func (e *LabelExpression) condition() condition {
	switch e.Operator {
	case "In":
		return condition{key: e.Key, values: e.Values, listed: true}
	case "NotIn":
		return condition{key: e.Key, values: e.Values, absent: true}
	case "Exists":
		return condition{key: e.Key}
	default: // DoesNotExist
		return condition{key: e.Key, listed: true, absent: true}
	}
}

// labelFilter keeps endpoints that meet all conditions.
type labelFilter []condition

// condition is met by a label whose value is among values, or is not, and by an absent label if that is allowed.
type condition struct {
	key            string
	values         []string
	listed, absent bool
}

func (d *condition) fits(labels map[string]string) bool {
	value, ok := labels[d.key]
	if !ok {
		return d.absent
	}
	return slices.Contains(d.values, value) == d.listed
}

// Filter implements epp.Filter.
func (f labelFilter) Filter(_ *epp.Round, c []epp.Candidate) []epp.Candidate {
	return Keep(c, func(c *epp.Candidate) bool {
		for i := range f {
			if !f[i].fits(c.Labels) {
				return false
			}
		}
		return true
	})
}
