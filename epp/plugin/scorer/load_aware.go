package scorer

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// LoadAware prefers engines with a short queue: 0.5 × (1 − waiting/threshold), and 0 from the threshold on. The best score is
// 0.5, so it weighs half as much as other scorers of the same weight. An engine whose queue is not known gets 0.25; in llm-d it
// looks idle. Requests sent since the metrics page was read wait too, as queue-scorer counts them; llm-d goes by the page alone.
type LoadAware struct {
	// Threshold is how many waiting requests give a score of 0. Default 128.
	Threshold int `yaml:"threshold"`
}

const queueThreshold = 128

// NewLoadAware returns the parameters with their defaults.
func NewLoadAware() epp.Plugin { return &LoadAware{Threshold: queueThreshold} }

// Correct implements epp.Corrector.
func (p *LoadAware) Correct(warn epp.Report) {
	param.Correct(warn, "threshold", &p.Threshold, p.Threshold > 0, queueThreshold)
}

// Problems implements epp.Plugin.
func (*LoadAware) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (p *LoadAware) Build(*epp.Builder) (any, error) { return loadAware(p.Threshold), nil }

type loadAware float64

// Score implements epp.Scorer.
func (s loadAware) Score(_ *epp.Round, c []epp.Candidate, scores []float64) {
	const best, unknown = 0.5, 0.25
	for i := range c {
		scores[i] = unknown
		if waiting, known := c[i].Waiting(); known {
			score := best * (1 - min(waiting/float64(s), 1))
			scores[i] += c[i].Trust * (score - unknown)
		}
	}
}
