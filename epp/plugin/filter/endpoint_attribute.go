package filter

import (
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// EndpointAttribute keeps endpoints by one value of their metrics page, or of their GPUs: those whose value meets a condition, or is
// among the best.
type EndpointAttribute struct {
	// Attribute is the name of the value: the attributeKey of an entry of customMetrics.
	Attribute string `yaml:"attribute"`
	// Producer is core-metrics-extractor, whose customMetrics have attributes, or dcgm-extractor, whose attribute is GPUUtilization.
	// Default "": core-metrics-extractor.
	Producer string `yaml:"producer"`
	// OnMissing is Pass or Fail: whether endpoints whose value is not known are kept. Default Pass.
	OnMissing string `yaml:"onMissing"`
	// FallbackOnEmpty keeps all endpoints if none would be kept. Default false.
	FallbackOnEmpty bool `yaml:"fallbackOnEmpty"`
	// Algorithm says which values are kept.
	Algorithm AttributeCondition `yaml:"algorithm"`
}

// AttributeCondition says which values are kept.
type AttributeCondition struct {
	// Type is threshold, range, topK or percentile.
	Type string `yaml:"type"`
	// Threshold is the condition of type threshold.
	Threshold AttributeThreshold `yaml:"threshold"`
	// Range is the condition of type range.
	Range AttributeRange `yaml:"range"`
	// TopK is the choice of type topK.
	TopK AttributeTopK `yaml:"topK"`
	// Percentile is the choice of type percentile.
	Percentile AttributePercentile `yaml:"percentile"`
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

// AttributeTopK has the best values, so many of them. Ties are broken at random.
type AttributeTopK struct {
	// K is how many endpoints are kept of those whose value is known.
	K int `yaml:"k"`
	// HigherIsBetter says that the highest values are best. Default true.
	HigherIsBetter bool `yaml:"higherIsBetter"`
}

// AttributePercentile has the values up to a percentile of the candidates' values, or from it on. The percentile P of n values is the
// one at place P/100 × n, rounded up, of the values in rising order.
type AttributePercentile struct {
	// Percentile is from 0 to 100.
	Percentile float64 `yaml:"percentile"`
	// HigherIsBetter says that the values from the percentile on are kept, and otherwise those up to it. Default true.
	HigherIsBetter bool `yaml:"higherIsBetter"`
}

// The values of onMissing and of algorithm.type.
const (
	missingPasses   = "Pass"
	missingFails    = "Fail"
	attributeLimit  = "threshold"
	attributeWithin = "range"
	attributeTop    = "topK"
	attributeShare  = "percentile"
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
func NewEndpointAttribute() epp.Plugin {
	return &EndpointAttribute{OnMissing: missingPasses,
		Algorithm: AttributeCondition{TopK: AttributeTopK{HigherIsBetter: true}, Percentile: AttributePercentile{HigherIsBetter: true}}}
}

// Problems implements epp.Plugin.
func (p *EndpointAttribute) Problems(report epp.Report) {
	if p.Attribute == "" {
		report("attribute", "must not be empty")
	}
	param.AttributeProducer(report, "producer", p.Producer, "attribute", p.Attribute)
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
	case attributeTop:
		param.AtLeast(report, "algorithm.topK.k", a.TopK.K, 1)
	case attributeShare:
		param.Within(report, "algorithm.percentile.percentile", a.Percentile.Percentile, 0, 100)
	default:
		report("algorithm.type", "must be one of %s, %s, %s, %s, got %q", attributeLimit, attributeWithin, attributeTop, attributeShare, a.Type)
	}
}

// Build implements epp.Plugin.
func (p *EndpointAttribute) Build(*epp.Builder) (any, error) {
	value := attribute{producer: param.ProducerOf(p.Producer), key: p.Attribute, missing: p.OnMissing == missingPasses, fallback: p.FallbackOnEmpty}
	switch a := p.Algorithm; a.Type {
	case attributeLimit:
		compare := comparisons[a.Threshold.Operator]
		return attributeFilter{value, func(v float64) bool { return compare(v, a.Threshold.Value) }}, nil
	case attributeWithin:
		return attributeFilter{value, func(v float64) bool { return a.Range.Min <= v && v <= a.Range.Max }}, nil
	case attributeTop:
		return attributeRank{attribute: value, higher: a.TopK.HigherIsBetter, few: true,
			last: func(n int) int { return min(a.TopK.K, n) }}, nil
	}
	a := p.Algorithm.Percentile
	return attributeRank{attribute: value, higher: a.HigherIsBetter, last: func(n int) int {
		place := max(int(math.Ceil(a.Percentile*float64(n)/100)), 1)
		if a.HigherIsBetter {
			place = n + 1 - place
		}
		return place
	}}, nil
}

// attribute is a value of endpoints, and what becomes of those that do not have it.
type attribute struct {
	producer, key     string
	missing, fallback bool
}

// of returns a candidate's value. It is not known if the page of the load is too old; other pages are forgotten with their age.
func (a *attribute) of(c *epp.Candidate) (value float64, known bool) {
	value, known = c.Load.Attribute(a.producer, a.key)
	return value, known && (c.Trust > 0 || a.producer != "")
}

// attributeFilter keeps values that meet a condition.
type attributeFilter struct {
	attribute
	keeps func(value float64) bool
}

// Filter implements epp.Filter.
func (f attributeFilter) Filter(_ *epp.Round, c []epp.Candidate) []epp.Candidate {
	return spare(c, !f.fallback, func(c *epp.Candidate) bool {
		value, known := f.of(c)
		if !known {
			return f.missing
		}
		return f.keeps(value)
	})
}

// attributeRank keeps the best values.
type attributeRank struct {
	attribute
	higher bool            // values are better
	few    bool            // of several that are as good as the last one, only as many are kept as there are places
	last   func(n int) int // the place, from 1, of the last of n values that is kept, the best one first
}

// rankedValues are the values of candidates.
var rankedValues = sync.Pool{New: func() any { return new([]float64) }}

// Filter implements epp.Filter.
func (f attributeRank) Filter(r *epp.Round, c []epp.Candidate) []epp.Candidate {
	values := rankedValues.Get().(*[]float64)
	defer rankedValues.Put(values)
	*values = (*values)[:0]
	for i := range c {
		if value, known := f.of(&c[i]); known {
			*values = append(*values, value)
		}
	}
	n := len(*values)
	if n == 0 {
		return spare(c, !f.fallback, func(*epp.Candidate) bool { return f.missing })
	}
	slices.Sort(*values)
	place := f.last(n)
	cutoff := (*values)[place-1]
	if f.higher {
		cutoff = (*values)[n-place]
	}
	ties, places := 0, place // how many are as good as the last one, and how many places are left for them
	for _, v := range *values {
		if v == cutoff {
			ties++
		} else if f.better(v, cutoff) {
			places--
		}
	}
	return Keep(c, func(c *epp.Candidate) bool {
		value, known := f.of(c)
		switch {
		case !known:
			return f.missing
		case value != cutoff || !f.few:
			return value == cutoff || f.better(value, cutoff)
		}
		kept := r.Rand.IntN(ties) < places // as many in the end as there are places
		ties--
		if kept {
			places--
		}
		return kept
	})
}

// better reports whether a value is better than another.
func (f attributeRank) better(a, b float64) bool {
	if f.higher {
		return a > b
	}
	return a < b
}
