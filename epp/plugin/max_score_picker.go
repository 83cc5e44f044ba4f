package plugin

import "github.com/tandem-serving/tandem/epp"

// MaxScorePicker picks the candidates with the highest totals. Ties are broken at random.
type MaxScorePicker struct {
	// MaxNumOfEndpoints is how many endpoints are picked, best first. The proxy tries the next one if one cannot be reached.
	// Default 1.
	MaxNumOfEndpoints int `yaml:"maxNumOfEndpoints"`
}

func newMaxScorePicker() epp.Plugin { return &MaxScorePicker{MaxNumOfEndpoints: 1} }

// Problems implements epp.Plugin.
func (p *MaxScorePicker) Problems(report epp.Report) {
	atLeast(report, "maxNumOfEndpoints", p.MaxNumOfEndpoints, 1)
}

// Build implements epp.Plugin.
func (p *MaxScorePicker) Build(*epp.Builder) (any, error) {
	return maxScorePicker(p.MaxNumOfEndpoints), nil
}

type maxScorePicker int

// Endpoints implements epp.Picker.
func (p maxScorePicker) Endpoints() int { return int(p) }

// Pick implements epp.Picker.
func (maxScorePicker) Pick(r *epp.Round, totals []float64, n int, dst []int) []int {
	return best(dst, len(totals), n, ranking{r.Rand.Uint64(), func(i int) float64 { return totals[i] }})
}
