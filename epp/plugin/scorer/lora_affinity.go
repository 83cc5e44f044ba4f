package scorer

import (
	"slices"

	"github.com/tandem-serving/tandem/epp"
)

// LoRAAffinity prefers engines that have the request's LoRA adapter loaded: 1.0 if it is loaded, 0.8 if the engine can
// load one more, 0.6 if it waits to be loaded, else 0, also if its page names no adapters. It has no parameters.
type LoRAAffinity struct{}

// NewLoRAAffinity returns the parameters with their defaults.
func NewLoRAAffinity() epp.Plugin { return &LoRAAffinity{} }

// Problems implements epp.Plugin.
func (*LoRAAffinity) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*LoRAAffinity) Build(*epp.Builder) (any, error) { return loraAffinityScorer{}, nil }

type loraAffinityScorer struct{}

// Score implements epp.Scorer.
func (loraAffinityScorer) Score(r *epp.Round, c []epp.Candidate, scores []float64) {
	for i := range c {
		if l := c[i].Load.LoRA; l != nil {
			scores[i] = trusted(&c[i], loraAffinity(l, r.Request.Model))
		}
	}
}

func loraAffinity(l *epp.LoRA, adapter string) float64 {
	switch {
	case slices.Contains(l.Running, adapter):
		return 1
	case len(l.Running)+len(l.Waiting) < l.Max:
		return 0.8
	case slices.Contains(l.Waiting, adapter):
		return 0.6
	}
	return 0
}
