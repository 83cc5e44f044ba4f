package scorer

import "github.com/tandem-serving/tandem/epp"

// Queue prefers engines with few waiting requests: (max−n)/(max−min) over the candidates whose queue is known, and 1 if
// all are equal. An engine whose queue is not known gets 0.5; in llm-d it looks idle. Requests sent since the metrics page was
// read wait too, as far as the engine was never seen to run so many at once; llm-d goes by the page alone. It has no parameters.
type Queue struct{}

// NewQueue returns the parameters with their defaults.
func NewQueue() epp.Plugin { return &Queue{} }

// Problems implements epp.Plugin.
func (*Queue) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*Queue) Build(*epp.Builder) (any, error) { return queueScorer{}, nil }

type queueScorer struct{}

// Score implements epp.Scorer.
func (queueScorer) Score(_ *epp.Round, c []epp.Candidate, scores []float64) {
	fewestFirst(c, scores, (*epp.Candidate).Waiting)
}
