package plugin

import "github.com/tandem-serving/tandem/epp"

// RunningRequestsSizeScorer prefers engines with few running requests: (max−n)/(max−min) over the candidates whose number is
// known, and 1 if all are equal. It has no parameters.
type RunningRequestsSizeScorer struct{}

func newRunningRequestsSizeScorer() epp.Plugin { return &RunningRequestsSizeScorer{} }

// Problems implements epp.Plugin.
func (*RunningRequestsSizeScorer) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*RunningRequestsSizeScorer) Build(*epp.Builder) (any, error) {
	return runningRequestsSizeScorer{}, nil
}

type runningRequestsSizeScorer struct{}

// Score implements epp.Scorer.
func (runningRequestsSizeScorer) Score(_ *epp.Round, c []epp.Candidate, scores []float64) {
	fewestFirst(c, scores, epp.Running)
}
