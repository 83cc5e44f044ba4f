package picker

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// Random picks candidates at random, whatever their totals.
type Random struct {
	// MaxNumOfEndpoints is how many endpoints are picked. The proxy tries the next one if one cannot be reached. Default 1.
	MaxNumOfEndpoints int `yaml:"maxNumOfEndpoints"`
}

// NewRandom returns the parameters with their defaults.
func NewRandom() epp.Plugin { return &Random{MaxNumOfEndpoints: 1} }

// Correct implements epp.Corrector.
func (p *Random) Correct(warn epp.Report) {
	param.Correct(warn, "maxNumOfEndpoints", &p.MaxNumOfEndpoints, p.MaxNumOfEndpoints > 0, 1)
}

// Problems implements epp.Plugin.
func (*Random) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (p *Random) Build(*epp.Builder) (any, error) {
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
