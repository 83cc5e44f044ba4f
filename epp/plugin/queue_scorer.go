package plugin

import "github.com/tandem-serving/tandem/epp"

// QueueScorer prefers engines with few waiting requests: (max−n)/(max−min) over the candidates whose queue is known, and 1 if
// all are equal. It has no parameters.
type QueueScorer struct{}

func newQueueScorer() epp.Plugin { return &QueueScorer{} }

// Problems implements epp.Plugin.
func (*QueueScorer) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*QueueScorer) Build(*epp.Builder) (any, error) { return queueScorer{}, nil }

type queueScorer struct{}

// Score implements epp.Scorer.
func (queueScorer) Score(_ *epp.Round, c []epp.Candidate, scores []float64) {
	fewestFirst(c, scores, epp.Waiting)
}
