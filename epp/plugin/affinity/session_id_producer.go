package affinity

import (
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// SessionIDProducer remembers to which endpoint each session was sent last, for session-affinity-filter and
// session-affinity-scorer, which name it in sessionIDProducerName. What it remembers survives a reload of the configuration, not a
// restart, and other replicas do not know it.
type SessionIDProducer struct {
	// HeaderName is the request header that names the session. Default "": x-session-id, unless cookieName is set. Only one of
	// the two may be set.
	HeaderName string `yaml:"headerName"`
	// CookieName is the cookie that names the session.
	CookieName string `yaml:"cookieName"`
	// LRUSize is the most sessions that are remembered. Default 1024.
	LRUSize int `yaml:"lruSize"`
	// TTL is how long a session is remembered after its last request. Default 30m.
	TTL time.Duration `yaml:"ttl"`
}

// sessionHeader is the header that names a session by default.
const sessionHeader = "x-session-id"

// NewSessionIDProducer returns the parameters with their defaults.
func NewSessionIDProducer() epp.Plugin {
	return &SessionIDProducer{LRUSize: 1024, TTL: 30 * time.Minute}
}

// Problems implements epp.Plugin.
func (p *SessionIDProducer) Problems(report epp.Report) {
	if p.HeaderName != "" && p.CookieName != "" {
		report("cookieName", "cannot be combined with headerName")
	}
	param.AtLeast(report, "lruSize", p.LRUSize, 1)
	if p.TTL <= 0 {
		report("ttl", "must be more than 0, got %v", p.TTL)
	}
}

// Build implements epp.Plugin.
func (p *SessionIDProducer) Build(b *epp.Builder) (any, error) {
	s := &Sessions{from: headerIdentity{sessionHeader}, bound: keptBindings(b), ttl: p.TTL, size: p.LRUSize}
	switch {
	case p.HeaderName != "":
		s.from = headerIdentity{strings.ToLower(p.HeaderName)}
	case p.CookieName != "":
		s.from = cookieIdentity(p.CookieName)
	}
	return s, nil
}

// keptBindings returns the bindings of the plugin that is built, which survive a reload.
func keptBindings(b *epp.Builder) *bindings {
	return epp.Kept(b.Keep, "endpoints of sessions, by plugin "+b.Name, newBindings)
}

// Sessions knows the endpoints of sessions. It is the instance of a SessionIDProducer.
type Sessions struct {
	from    epp.Identifier
	bound   *bindings
	ttl     time.Duration
	size    int
	profile string // whose endpoint is remembered; "" = that of the first stage
}

// endpoint returns the endpoint of a request's session, nil if there is none.
func (s *Sessions) endpoint(r *epp.Round) *epp.Endpoint {
	session := s.from.Identify(r.Request)
	if session == "" {
		return nil
	}
	return s.bound.get(session, r.Now, s.ttl)
}

// Picked implements epp.PickObserver.
func (s *Sessions) Picked(r *epp.Round, _ []epp.Candidate, d *epp.Decision) {
	session := s.from.Identify(r.Request)
	if e := pickedFor(d, s.profile); session != "" && e != nil {
		s.bound.set(session, e, r.Now, s.ttl, s.size)
	}
}

// pickedFor returns the endpoint that a profile chose, nil if it did not run. "" stands for the profile of the first stage.
func pickedFor(d *epp.Decision, profile string) *epp.Endpoint {
	for i := range d.Picks {
		if profile == "" || d.Picks[i].Row.Profile == profile {
			return d.Picks[i].Endpoints[0]
		}
	}
	return nil
}
