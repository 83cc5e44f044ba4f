package scorer

import "github.com/tandem-serving/tandem/epp"

// RunningRequestsSize prefers engines with few running requests: (max−n)/(max−min) over the candidates whose number is
// known, and 1 if all are equal. An engine whose number is not known gets 0.5; in llm-d it looks idle. Requests sent since the
// metrics page was read count too; llm-d goes by the page alone. It has no parameters.
type RunningRequestsSize struct{}

// NewRunningRequestsSize returns the parameters with their defaults.
func NewRunningRequestsSize() epp.Plugin { return &RunningRequestsSize{} }

// Problems implements epp.Plugin.
func (*RunningRequestsSize) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*RunningRequestsSize) Build(*epp.Builder) (any, error) {
	return runningRequestsSizeScorer{}, nil
}

type runningRequestsSizeScorer struct{}

// Score implements epp.Scorer.
func (runningRequestsSizeScorer) Score(_ *epp.Round, c []epp.Candidate, scores []float64) {
	fewestFirst(c, scores, (*epp.Candidate).Running)
}
