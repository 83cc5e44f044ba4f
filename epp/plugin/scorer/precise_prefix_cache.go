package scorer

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/producer"
)

// PrecisePrefixCache is a precise-prefix-cache-producer and a prefix-cache-scorer that reads it, in one: the score is the share of the prompt
// that the endpoint has cached. It has the parameters of the producer.
type PrecisePrefixCache struct {
	producer.PrecisePrefixCache `yaml:",inline"`
}

// NewPrecisePrefixCache returns the parameters with their defaults.
func NewPrecisePrefixCache() epp.Plugin {
	return &PrecisePrefixCache{*producer.DefaultPrecisePrefixCache()}
}

// Build implements epp.Plugin.
func (p *PrecisePrefixCache) Build(b *epp.Builder) (any, error) {
	m, err := p.Matcher(b)
	if err != nil {
		return nil, err
	}
	s := &precisePrefixCache{PreciseMatcher: m}
	s.Self, s.scorer = s, prefixCacheScorer{matcher: s}
	return s, nil
}

// precisePrefixCache is a matcher, and a scorer that reads it.
type precisePrefixCache struct {
	*producer.PreciseMatcher
	scorer prefixCacheScorer
}

// Score implements epp.Scorer.
func (p *precisePrefixCache) Score(r *epp.Round, c []epp.Candidate, scores []float64) {
	p.scorer.Score(r, c, scores)
}
