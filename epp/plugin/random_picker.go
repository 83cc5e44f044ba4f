package plugin

import "github.com/tandem-serving/tandem/epp"

// RandomPicker picks candidates at random, whatever their totals.
type RandomPicker struct {
	// MaxNumOfEndpoints is how many endpoints are picked. The proxy tries the next one if one cannot be reached. Default 1.
	MaxNumOfEndpoints int `yaml:"maxNumOfEndpoints"`
}

func newRandomPicker() epp.Plugin { return &RandomPicker{MaxNumOfEndpoints: 1} }

// Problems implements epp.Plugin.
func (p *RandomPicker) Problems(report epp.Report) {
	atLeast(report, "maxNumOfEndpoints", p.MaxNumOfEndpoints, 1)
}

// Build implements epp.Plugin.
func (p *RandomPicker) Build(*epp.Builder) (any, error) {
	return randomPicker(p.MaxNumOfEndpoints), nil
}

type randomPicker int

// Endpoints implements epp.Picker.
func (p randomPicker) Endpoints() int { return int(p) }

// Draws implements epp.Drawer.
func (randomPicker) Draws() {}

// Pick implements epp.Picker.
func (randomPicker) Pick(r *epp.Round, totals []float64, n int, dst []int) []int {
	return best(dst, len(totals), n, ranking{r.Rand.Uint64(), func(int) float64 { return 0 }})
}
