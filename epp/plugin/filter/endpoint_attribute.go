package filter

import (
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// EndpointAttribute keeps endpoints by one value of their metrics page, which an entry of the extractor's customMetrics names. The
// algorithms topK and percentile, which newer versions of llm-d have, are not served.
type EndpointAttribute struct {
	// Attribute is the attributeKey of the entry.
	Attribute string `yaml:"attribute"`
	// Producer must be core-metrics-extractor or empty: only its attributes are known.
	Producer string `yaml:"producer"`
	// OnMissing is Pass or Fail: whether endpoints whose value is not known are kept. Default Pass.
	OnMissing string `yaml:"onMissing"`
	// FallbackOnEmpty keeps all endpoints if none would be kept. Default false.
	FallbackOnEmpty bool `yaml:"fallbackOnEmpty"`
	// Algorithm is the condition.
	Algorithm AttributeCondition `yaml:"algorithm"`
}

// AttributeCondition is a condition on a value.
type AttributeCondition struct {
	// Type is threshold or range.
	Type string `yaml:"type"`
	// Threshold is the condition of type threshold.
	Threshold AttributeThreshold `yaml:"threshold"`
	// Range is the condition of type range.
	Range AttributeRange `yaml:"range"`
}

// AttributeThreshold compares a value with another one.
type AttributeThreshold struct {
	// Operator is LessThan, LessThanOrEqual, GreaterThan, GreaterThanOrEqual, Equal or NotEqual.
	Operator string `yaml:"operator"`
	// Value is what an endpoint's value is compared with.
	Value float64 `yaml:"value"`
}

// AttributeRange has values from Min to Max, both included.
type AttributeRange struct {
	// Min is the lowest value that is kept.
	Min float64 `yaml:"min"`
	// Max is the highest value that is kept.
	Max float64 `yaml:"max"`
}

// The values of onMissing and of algorithm.type.
const (
	missingPasses   = "Pass"
	missingFails    = "Fail"
	attributeLimit  = "threshold"
	attributeWithin = "range"
)

// comparisons are the operators of a threshold.
var comparisons = map[string]func(value, limit float64) bool{
	"LessThan":           func(v, limit float64) bool { return v < limit },
	"LessThanOrEqual":    func(v, limit float64) bool { return v <= limit },
	"GreaterThan":        func(v, limit float64) bool { return v > limit },
	"GreaterThanOrEqual": func(v, limit float64) bool { return v >= limit },
	"Equal":              func(v, limit float64) bool { return v == limit },
	"NotEqual":           func(v, limit float64) bool { return v != limit },
}

// NewEndpointAttribute returns the parameters with their defaults.
func NewEndpointAttribute() epp.Plugin { return &EndpointAttribute{OnMissing: missingPasses} }

// Problems implements epp.Plugin.
func (p *EndpointAttribute) Problems(report epp.Report) {
	if p.Attribute == "" {
		report("attribute", "must not be empty")
	}
	param.AttributeProducer(report, "producer", p.Producer)
	if p.OnMissing != missingPasses && p.OnMissing != missingFails {
		report("onMissing", "must be %s or %s, got %q", missingPasses, missingFails, p.OnMissing)
	}
	switch a := &p.Algorithm; a.Type {
	case attributeLimit:
		if _, known := comparisons[a.Threshold.Operator]; !known {
			names := make([]string, 0, len(comparisons))
			for name := range comparisons {
				names = append(names, name)
			}
			slices.Sort(names)
			report("algorithm.threshold.operator", "must be one of %s, got %q", strings.Join(names, ", "), a.Threshold.Operator)
		}
	case attributeWithin:
		if !(a.Range.Min <= a.Range.Max) {
			report("algorithm.range", "min must be at most max, got %v and %v", a.Range.Min, a.Range.Max)
		}
	default:
		report("algorithm.type", "must be %s or %s, got %q", attributeLimit, attributeWithin, a.Type)
	}
}

// Build implements epp.Plugin.
func (p *EndpointAttribute) Build(*epp.Builder) (any, error) {
	f := attributeFilter{key: p.Attribute, missing: p.OnMissing == missingPasses, fallback: p.FallbackOnEmpty}
	if a := p.Algorithm; a.Type == attributeLimit {
		compare := comparisons[a.Threshold.Operator]
		f.keeps = func(value float64) bool { return compare(value, a.Threshold.Value) }
	} else {
		f.keeps = func(value float64) bool { return a.Range.Min <= value && value <= a.Range.Max }
	}
	return f, nil
}

type attributeFilter struct {
	key               string
	keeps             func(value float64) bool
	missing, fallback bool
}

// Filter implements epp.Filter.
func (f attributeFilter) Filter(_ *epp.Round, c []epp.Candidate) []epp.Candidate {
	return spare(c, !f.fallback, func(c *epp.Candidate) bool {
		value, known := c.Load.Attribute(f.key)
		if !known || c.Trust == 0 {
			return f.missing
		}
		return f.keeps(value)
	})
}
