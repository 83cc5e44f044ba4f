package scorer

import "github.com/tandem-serving/tandem/epp"

// KVCacheUtilization prefers engines with free KV cache: the score is the free share. An engine whose use is not
// known gets 0.5; in llm-d it looks idle. Prompts sent since the metrics page was read count too, if the page has the size of
// the cache; llm-d goes by the used share alone. It has no parameters.
type KVCacheUtilization struct{}

// NewKVCacheUtilization returns the parameters with their defaults.
func NewKVCacheUtilization() epp.Plugin { return &KVCacheUtilization{} }

// Problems implements epp.Plugin.
func (*KVCacheUtilization) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*KVCacheUtilization) Build(*epp.Builder) (any, error) {
	return kvCacheUtilizationScorer{}, nil
}

type kvCacheUtilizationScorer struct{}

// Score implements epp.Scorer.
func (kvCacheUtilizationScorer) Score(_ *epp.Round, c []epp.Candidate, scores []float64) {
	for i := range c {
		used, known := c[i].KVUsage()
		switch {
		case !known || used != used: // NaN is no usage
			scores[i] = middle
			continue
		case used < 0:
			used = 0
		case used > 1:
			used = 1
		}
		scores[i] = trusted(&c[i], 1-used)
	}
}
