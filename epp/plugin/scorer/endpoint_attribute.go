package scorer

import (
	"math"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// EndpointAttribute rates endpoints by one value of their metrics page, or of their GPUs:
// (value−min)/(max−min), or 1 minus that. An endpoint whose value is not known gets 0.
type EndpointAttribute struct {
	// AttributeKey is the name of the value: the attributeKey of an entry of the extractor's customMetrics.
	AttributeKey string `yaml:"attributeKey"`
	// Producer is core-metrics-extractor, whose customMetrics have attributes, or dcgm-extractor, whose attribute is GPUUtilization.
	// Default "": core-metrics-extractor.
	Producer string `yaml:"producer"`
	// Algorithm says which values are good.
	Algorithm AttributeAlgorithm `yaml:"algorithm"`
}

// AttributeAlgorithm says which values are good.
type AttributeAlgorithm struct {
	// Type is linear_lower_is_better or linear_higher_is_better.
	Type string `yaml:"type"`
	// Normalization says what min and max are.
	Normalization Normalization `yaml:"normalization"`
}

// Normalization is adaptiveRange or fixedRange. Default adaptiveRange.
type Normalization struct {
	// AdaptiveRange takes the lowest and the highest value of the candidates. If all are equal, all score 1. It has no parameters.
	AdaptiveRange *struct{} `yaml:"adaptiveRange"`
	// FixedRange takes these values. Values outside of them count as the nearest one.
	FixedRange *FixedRange `yaml:"fixedRange"`
}

// FixedRange is a range of values.
type FixedRange struct {
	// Min is the lowest value.
	Min float64 `yaml:"min"`
	// Max is the highest value. It must be above min.
	Max float64 `yaml:"max"`
}

// The values of algorithm.type.
const (
	lowerIsBetter  = "linear_lower_is_better"
	higherIsBetter = "linear_higher_is_better"
)

// NewEndpointAttribute returns the parameters with their defaults.
func NewEndpointAttribute() epp.Plugin { return &EndpointAttribute{} }

// Problems implements epp.Plugin.
func (p *EndpointAttribute) Problems(report epp.Report) {
	if p.AttributeKey == "" {
		report("attributeKey", "must not be empty")
	}
	param.AttributeProducer(report, "producer", p.Producer, "attributeKey", p.AttributeKey)
	if a := &p.Algorithm; a.Type != lowerIsBetter && a.Type != higherIsBetter {
		report("algorithm.type", "must be %s or %s, got %q", lowerIsBetter, higherIsBetter, a.Type)
	}
	switch n := &p.Algorithm.Normalization; {
	case n.FixedRange == nil:
	case n.AdaptiveRange != nil:
		report("algorithm.normalization", "adaptiveRange and fixedRange cannot be combined")
	case !(n.FixedRange.Min < n.FixedRange.Max):
		report("algorithm.normalization.fixedRange", "min must be less than max, got %v and %v", n.FixedRange.Min, n.FixedRange.Max)
	}
}

// Build implements epp.Plugin.
func (p *EndpointAttribute) Build(*epp.Builder) (any, error) {
	return attributeScorer{producer: param.ProducerOf(p.Producer), key: p.AttributeKey, higher: p.Algorithm.Type == higherIsBetter, fixed: p.Algorithm.Normalization.FixedRange}, nil
}

type attributeScorer struct {
	producer, key string
	higher        bool
	fixed         *FixedRange // nil: the candidates' own range
}

// Score implements epp.Scorer.
func (s attributeScorer) Score(_ *epp.Round, c []epp.Candidate, scores []float64) {
	low, high := s.bounds(c)
	for i := range c {
		value, known := s.value(&c[i])
		if !known {
			continue
		}
		score := 1.0
		if low < high {
			score = (min(max(value, low), high) - low) / (high - low)
			if !s.higher {
				score = 1 - score
			}
		}
		if s.producer == "" {
			score = trusted(&c[i], score)
		}
		scores[i] = score
	}
}

// fresh reports whether a candidate's value is not too old: other pages than that of the load are forgotten with their age.
func (s attributeScorer) fresh(c *epp.Candidate) bool { return c.Trust > 0 || s.producer != "" }

// value returns a candidate's value; known is false if its page is too old, too.
func (s attributeScorer) value(c *epp.Candidate) (value float64, known bool) {
	value, known = c.Load.Attribute(s.producer, s.key)
	const absurd = 1e300 // the distance of two such values would not be a number
	return value, known && s.fresh(c) && math.Abs(value) < absurd
}

// bounds returns the range of values.
func (s attributeScorer) bounds(c []epp.Candidate) (low, high float64) {
	if s.fixed != nil {
		return s.fixed.Min, s.fixed.Max
	}
	low, high = math.Inf(1), math.Inf(-1)
	for i := range c {
		if value, known := s.value(&c[i]); known {
			low, high = min(low, value), max(high, value)
		}
	}
	return low, high
}
