package affinity

import "github.com/tandem-serving/tandem/epp"

// SessionFilter keeps only the endpoint that a request's session was sent to before. It keeps all candidates if the session has no
// endpoint, or if that is no candidate any more or refuses connections.
type SessionFilter struct {
	SessionAffinity `yaml:",inline"`
}

// NewSessionFilter returns the parameters with their defaults.
func NewSessionFilter() epp.Plugin { return &SessionFilter{newSessionAffinity()} }

// Build implements epp.Plugin.
func (p *SessionFilter) Build(b *epp.Builder) (any, error) {
	found, err := p.build(b)
	f := sessionFilter{found}
	switch s := found.(type) {
	case remembering:
		return learningFilter{f, s.Sessions}, err
	case tokens:
		return stampingFilter{f, s}, err
	}
	return f, err
}

type sessionFilter struct{ bound bound }

// Filter implements epp.Filter.
func (f sessionFilter) Filter(r *epp.Round, c []epp.Candidate) []epp.Candidate {
	at := f.bound.find(r, c)
	if at < 0 || c[at].Load.Unreachable {
		return c
	}
	c[0] = c[at]
	return c[:1]
}

// learningFilter is a sessionFilter that remembers sessions.
type learningFilter struct {
	sessionFilter
	epp.PickObserver
}

// stampingFilter is a sessionFilter that tells clients their endpoint.
type stampingFilter struct {
	sessionFilter
	epp.Stamper
}
