package plugin

import "github.com/tandem-serving/tandem/epp"

// PrefixCacheScorer prefers endpoints that have the prompt's beginning in their prefix cache:
// w × min(1, cached/matchLengthScaleTokens)² + (1−w) × cached/matchable, with w = matchLengthWeight.
type PrefixCacheScorer struct {
	// PrefixMatchInfoProducerName names the producer that knows the caches. There is only one index, so the name
	// is only checked. Default "" = whichever there is.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	// MatchLengthWeight is how much the length of the match counts, 0..1, beside its share of the prompt. Default 0: the
	// share alone.
	MatchLengthWeight float64 `yaml:"matchLengthWeight"`
	// MatchLengthScaleTokens is the match, in tokens, that gives the full score for length. Default 8192.
	MatchLengthScaleTokens int `yaml:"matchLengthScaleTokens"`
}

func newPrefixCacheScorer() epp.Plugin { return &PrefixCacheScorer{MatchLengthScaleTokens: 8192} }

// Problems implements epp.Plugin.
func (p *PrefixCacheScorer) Problems(report epp.Report) {
	within(report, "matchLengthWeight", p.MatchLengthWeight, 0, 1)
	atLeast(report, "matchLengthScaleTokens", p.MatchLengthScaleTokens, 1)
}

// References implements epp.Referrer.
func (p *PrefixCacheScorer) References() map[string]string {
	return references("prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName)
}

// Build implements epp.Plugin.
func (p *PrefixCacheScorer) Build(b *epp.Builder) (any, error) {
	if err := check[epp.Matcher](b, "prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName); err != nil {
		return nil, err
	}
	return prefixCacheScorer{weight: p.MatchLengthWeight, scale: float64(p.MatchLengthScaleTokens)}, nil
}

type prefixCacheScorer struct{ weight, scale float64 }

// Score implements epp.Scorer.
func (s prefixCacheScorer) Score(r *epp.Round, c []epp.Candidate, scores []float64) {
	whole := float64(matchable(&r.Request.Prompt))
	if whole <= 0 {
		return
	}
	for i := range c {
		cached := float64(max(c[i].Cached, 0))
		length := min(cached/s.scale, 1)
		scores[i] = s.weight*length*length + (1-s.weight)*min(cached/whole, 1)
	}
}

// matchable is how many tokens of a prompt a prefix cache may hold at most: those of its hashed blocks. Without blocks it
// is all of them.
func matchable(p *epp.Prompt) int {
	if blocks := len(p.Blocks) * p.BlockTokens; blocks > 0 {
		return min(blocks, p.Tokens)
	}
	return p.Tokens
}
