package affinity

import "github.com/tandem-serving/tandem/epp"

// SessionScorer prefers the endpoint that a request's session was sent to before: 1 for it, 0 for the others, and 0 for all if the
// session has no endpoint.
type SessionScorer struct {
	SessionAffinity `yaml:",inline"`
}

// NewSessionScorer returns the parameters with their defaults.
func NewSessionScorer() epp.Plugin { return &SessionScorer{newSessionAffinity()} }

// Build implements epp.Plugin.
func (p *SessionScorer) Build(b *epp.Builder) (any, error) {
	found, err := p.build(b)
	scorer := sessionScorer{found}
	switch s := found.(type) {
	case remembering:
		return learningScorer{scorer, s.Sessions}, err
	case tokens:
		return stampingScorer{scorer, s}, err
	}
	return scorer, err
}

type sessionScorer struct{ bound bound }

// Score implements epp.Scorer.
func (s sessionScorer) Score(r *epp.Round, c []epp.Candidate, scores []float64) {
	if at := s.bound.find(r, c); at >= 0 {
		scores[at] = 1
	}
}

// learningScorer is a sessionScorer that remembers sessions.
type learningScorer struct {
	sessionScorer
	epp.PickObserver
}

// stampingScorer is a sessionScorer that tells clients their endpoint.
type stampingScorer struct {
	sessionScorer
	epp.Stamper
}
