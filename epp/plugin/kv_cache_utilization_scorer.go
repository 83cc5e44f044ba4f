package plugin

import "github.com/tandem-serving/tandem/epp"

// KVCacheUtilizationScorer prefers engines with free KV cache: the score is the free share. It has no parameters.
type KVCacheUtilizationScorer struct{}

func newKVCacheUtilizationScorer() epp.Plugin { return &KVCacheUtilizationScorer{} }

// Problems implements epp.Plugin.
func (*KVCacheUtilizationScorer) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*KVCacheUtilizationScorer) Build(*epp.Builder) (any, error) {
	return kvCacheUtilizationScorer{}, nil
}

type kvCacheUtilizationScorer struct{}

// Score implements epp.Scorer.
func (kvCacheUtilizationScorer) Score(_ *epp.Round, c []epp.Candidate, scores []float64) {
	for i := range c {
		used, known := c[i].Load.Signals.Value(epp.KVUsage)
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
