package picker

import (
	"math"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// WeightedRandom draws candidates without replacement, with chances in proportion to their totals. Candidates with a
// total of 0 come after all others.
type WeightedRandom struct {
	// MaxNumOfEndpoints is how many endpoints are drawn. The proxy tries the next one if one cannot be reached. Default 1.
	MaxNumOfEndpoints int `yaml:"maxNumOfEndpoints"`
}

// NewWeightedRandom returns the parameters with their defaults.
func NewWeightedRandom() epp.Plugin { return &WeightedRandom{MaxNumOfEndpoints: 1} }

// Correct implements epp.Corrector.
func (p *WeightedRandom) Correct(warn epp.Report) {
	param.Correct(warn, "maxNumOfEndpoints", &p.MaxNumOfEndpoints, p.MaxNumOfEndpoints > 0, 1)
}

// Problems implements epp.Plugin.
func (*WeightedRandom) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (p *WeightedRandom) Build(*epp.Builder) (any, error) {
	return weightedRandomPicker(p.MaxNumOfEndpoints), nil
}

type weightedRandomPicker int

// Endpoints implements epp.Picker.
func (p weightedRandomPicker) Endpoints() int { return int(p) }

// Draws implements epp.Drawer.
func (weightedRandomPicker) Draws() {}

// Pick implements epp.Picker. It is the A-Res sampling of Efraimidis and Spirakis: the highest of U^(1/total), U uniform,
// are drawn. The logarithm of that ranks the same and does not run out of digits.
func (weightedRandomPicker) Pick(r *epp.Round, totals []float64, n int, dst []int) []int {
	seed := r.Rand.Uint64()
	return best(dst, len(totals), n, ranking{seed, func(i int) float64 {
		if !(totals[i] > 0) {
			return math.Inf(-1)
		}
		u := (float64(lot(seed, i)>>11) + 0.5) / (1 << 53) // never 0 or 1
		return math.Log(u) / totals[i]
	}})
}
