package picker

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// MaxScore picks the candidates with the highest totals. Ties are broken at random.
type MaxScore struct {
	// MaxNumOfEndpoints is how many endpoints are picked, best first. The proxy tries the next one if one cannot be reached.
	// Default 1.
	MaxNumOfEndpoints int `yaml:"maxNumOfEndpoints"`
}

// NewMaxScore returns the parameters with their defaults.
func NewMaxScore() epp.Plugin { return &MaxScore{MaxNumOfEndpoints: 1} }

// Correct implements epp.Corrector.
func (p *MaxScore) Correct(warn epp.Report) {
	param.Correct(warn, "maxNumOfEndpoints", &p.MaxNumOfEndpoints, p.MaxNumOfEndpoints > 0, 1)
}

// Problems implements epp.Plugin.
func (*MaxScore) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (p *MaxScore) Build(*epp.Builder) (any, error) {
	return maxScorePicker(p.MaxNumOfEndpoints), nil
}

type maxScorePicker int

// Endpoints implements epp.Picker.
func (p maxScorePicker) Endpoints() int { return int(p) }

// Pick implements epp.Picker.
func (maxScorePicker) Pick(r *epp.Round, totals []float64, n int, dst []int) []int {
	return best(dst, len(totals), n, ranking{r.Rand.Uint64(), func(i int) float64 { return totals[i] }})
}
