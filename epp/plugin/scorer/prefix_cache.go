package scorer

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// PrefixCache prefers endpoints that have the prompt's beginning in their prefix cache:
// w × min(1, cached/matchLengthScaleTokens)² + (1−w) × cached/matchable, with w = matchLengthWeight. A cached token that the engine must load,
// from the host's memory or a disk, counts as much as it saves: the time of computing it on that endpoint, as it was measured there, less the
// time of loading it.
type PrefixCache struct {
	// PrefixMatchInfoProducerName names the producer of cached tokens. Default "": the one named approx-prefix-cache-producer, or
	// else the first of the file.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	// MatchLengthWeight is the weight, 0..1, of the number of cached tokens; the rest is the weight of their share of the
	// prompt. Default 0: only the share counts.
	MatchLengthWeight float64 `yaml:"matchLengthWeight"`
	// MatchLengthScaleTokens is how many cached tokens give the full score for length. Default 8192.
	MatchLengthScaleTokens int `yaml:"matchLengthScaleTokens"`
}

// NewPrefixCache returns the parameters with their defaults.
func NewPrefixCache() epp.Plugin { return &PrefixCache{MatchLengthScaleTokens: 8192} }

// Problems implements epp.Plugin.
func (p *PrefixCache) Problems(report epp.Report) {
	param.Within(report, "matchLengthWeight", p.MatchLengthWeight, 0, 1)
	if p.MatchLengthWeight > 0 { // otherwise the scale is not used
		param.AtLeast(report, "matchLengthScaleTokens", p.MatchLengthScaleTokens, 1)
	}
}

// References implements epp.Referrer.
func (p *PrefixCache) References() map[string]string {
	return param.References("prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName)
}

// Build implements epp.Plugin.
func (p *PrefixCache) Build(b *epp.Builder) (any, error) {
	matcher, err := param.Matcher(b, p.PrefixMatchInfoProducerName)
	if err != nil {
		return nil, err
	}
	return prefixCacheScorer{matcher: matcher, weight: p.MatchLengthWeight, scale: float64(p.MatchLengthScaleTokens)}, nil
}

type prefixCacheScorer struct {
	matcher       epp.Matcher
	weight, scale float64
}

// Score implements epp.Scorer.
func (s prefixCacheScorer) Score(r *epp.Round, c []epp.Candidate, scores []float64) {
	found := r.Found(s.matcher)
	whole := float64(found.Whole)
	if whole <= 0 {
		return
	}
	valuer, _ := found.Matcher.(epp.Valuer)
	for i := range c {
		cached := float64(found.Of(&c[i]))
		if loads := found.LoadsOf(&c[i]); valuer != nil && loads != (epp.Loads{}) {
			cached = valuer.Value(&c[i], int(cached), loads).Tokens
		}
		if cached <= 0 {
			continue
		}
		scores[i] = (1 - s.weight) * min(cached/whole, 1)
		if s.weight > 0 {
			length := min(cached/s.scale, 1)
			scores[i] += s.weight * length * length
		}
	}
}
