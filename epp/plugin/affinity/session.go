package affinity

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// SessionAffinity is how a request tells its session, for session-affinity-filter and session-affinity-scorer.
type SessionAffinity struct {
	// Strategy is encoded_endpoint_header or session_id. With encoded_endpoint_header, the default, each answer has a header with
	// the endpoint's name in base64, which the client sends back with the next request of its session. With session_id the
	// client names its session, and the picker remembers where it was sent last.
	Strategy string `yaml:"strategy"`
	// ProfileName is the profile whose endpoint is told to the client, or remembered. Default "": that of the first stage,
	// decode. For prefill, list a second plugin with profileName prefill, and another header.
	ProfileName string `yaml:"profileName"`
	// EncodedEndpointHeaderConfig is for the strategy encoded_endpoint_header.
	EncodedEndpointHeaderConfig EndpointHeader `yaml:"encodedEndpointHeaderConfig"`
	// SessionIDConfig is for the strategy session_id.
	SessionIDConfig SessionID `yaml:"sessionIdConfig"`
	// SessionIDProducerName names a session-id-producer, which then says what the session is and remembers its endpoint,
	// whatever the strategy. Default "": none.
	SessionIDProducerName string `yaml:"sessionIDProducerName"`
	// HeaderName is an older place of encodedEndpointHeaderConfig.header.
	HeaderName string `yaml:"headerName"`
}

// EndpointHeader says which header carries the endpoint's name.
type EndpointHeader struct {
	// Header is the header of requests and answers. Default x-session-token.
	Header string `yaml:"header"`
}

// SessionID says which session a request belongs to, and how long its endpoint is remembered.
type SessionID struct {
	// Sources say where a request names its session. The first that has a value counts. Default: the header x-session-id.
	Sources []SessionSource `yaml:"sources"`
	// EvictionTTLSeconds is how many seconds a session is remembered after its last request. Default 300.
	EvictionTTLSeconds float64 `yaml:"evictionTtlSeconds"`
	// EvictionSweepSeconds is accepted and ignored: sessions are forgotten when their time is over, without a sweep.
	EvictionSweepSeconds float64 `yaml:"evictionSweepSeconds"`
}

// SessionSource is one place where a request may name its session: a header, or what another plugin knows.
type SessionSource struct {
	// Header is a request header.
	Header string `yaml:"header"`
	// Attribute is the name of an agent-identity plugin.
	Attribute string `yaml:"attribute"`
}

// The values of strategy, and the most sessions that are remembered: each takes about 150 bytes.
const (
	byHeader     = "encoded_endpoint_header"
	bySession    = "session_id"
	mostSessions = 1 << 20
)

func newSessionAffinity() SessionAffinity {
	return SessionAffinity{Strategy: byHeader, EncodedEndpointHeaderConfig: EndpointHeader{"x-session-token"},
		SessionIDConfig: SessionID{EvictionTTLSeconds: 300, EvictionSweepSeconds: 10}}
}

// Problems implements epp.Plugin.
func (p *SessionAffinity) Problems(report epp.Report) {
	if p.Strategy != byHeader && p.Strategy != bySession {
		report("strategy", "must be %s or %s, got %q", byHeader, bySession, p.Strategy)
	}
	if p.EncodedEndpointHeaderConfig.Header == "" {
		report("encodedEndpointHeaderConfig.header", "must not be empty")
	}
	for i, s := range p.SessionIDConfig.Sources {
		if (s.Header == "") == (s.Attribute == "") {
			report(fmt.Sprintf("sessionIdConfig.sources[%d]", i), "must have either header or attribute")
		}
	}
	if ttl := p.SessionIDConfig.EvictionTTLSeconds; !(ttl > 0 && ttl < 1e9) {
		report("sessionIdConfig.evictionTtlSeconds", "must be more than 0 and less than 1e9, got %v", ttl)
	}
}

// References implements epp.Referrer.
func (p *SessionAffinity) References() map[string]string {
	refs := param.References("sessionIDProducerName", p.SessionIDProducerName)
	if p.Strategy == bySession {
		for i, s := range p.SessionIDConfig.Sources {
			if s.Attribute != "" {
				refs[attributeField(i)] = s.Attribute
			}
		}
	}
	return refs
}

func attributeField(i int) string { return fmt.Sprintf("sessionIdConfig.sources[%d].attribute", i) }

// bound finds the endpoint to which a request's session is bound.
type bound interface {
	// find returns the index of the candidate that is that endpoint, -1 if none is.
	find(r *epp.Round, c []epp.Candidate) (at int)
}

// build makes what finds the endpoint of a session.
func (p *SessionAffinity) build(b *epp.Builder) (bound, error) {
	switch {
	case p.SessionIDProducerName != "":
		producer, err := param.Refer[*Sessions](b, "sessionIDProducerName", p.SessionIDProducerName)
		return reading{producer}, err
	case p.Strategy == byHeader:
		header := p.EncodedEndpointHeaderConfig.Header
		if p.HeaderName != "" {
			header = p.HeaderName
		}
		return tokens{header: strings.ToLower(header), profile: p.ProfileName}, nil
	}
	from := identities{}
	for i, source := range p.SessionIDConfig.Sources {
		if source.Header != "" {
			from = append(from, headerIdentity{strings.ToLower(source.Header)})
			continue
		}
		identifier, err := param.Refer[epp.Identifier](b, attributeField(i), source.Attribute)
		if err != nil {
			return nil, err
		}
		from = append(from, identifier)
	}
	if len(from) == 0 {
		from = append(from, headerIdentity{sessionHeader})
	}
	ttl := time.Duration(p.SessionIDConfig.EvictionTTLSeconds * float64(time.Second))
	return remembering{&Sessions{from: from, bound: keptBindings(b), ttl: ttl, size: mostSessions, profile: p.ProfileName}}, nil
}

// reading goes by the sessions of a session-id-producer.
type reading struct{ sessions *Sessions }

func (s reading) find(r *epp.Round, c []epp.Candidate) int {
	if e := s.sessions.endpoint(r); e != nil {
		for i := range c {
			if c[i].Is(e) {
				return i
			}
		}
	}
	return -1
}

// remembering goes by sessions of its own, and learns them.
type remembering struct{ *Sessions }

func (s remembering) find(r *epp.Round, c []epp.Candidate) int { return reading{s.Sessions}.find(r, c) }

// tokens goes by the name of the endpoint that the client got with an answer, and tells it to the client.
type tokens struct{ header, profile string }

// maxToken bounds the token that is read: a namespace and a name have at most 63 and 253 bytes.
const maxToken = 512

func (s tokens) find(r *epp.Round, c []epp.Candidate) int {
	token := r.Request.Header(s.header)
	if token == "" || len(token) > maxToken {
		return -1
	}
	var buffer [maxToken]byte
	n, err := base64.StdEncoding.Decode(buffer[:], append(make([]byte, 0, maxToken), token...))
	if err != nil {
		return -1
	}
	for i := range c {
		namespace := c[i].Namespace
		if named := buffer[:n]; len(named) == len(namespace)+1+len(c[i].Name) && string(named[:len(namespace)]) == namespace &&
			named[len(namespace)] == '/' && string(named[len(namespace)+1:]) == c[i].Name {
			return i
		}
	}
	return -1
}

// Stamp implements epp.Stamper.
func (s tokens) Stamp(a *epp.Answer, set func(name, value string)) {
	e := a.By
	if s.profile != "" && s.profile != a.Decision.Picks[0].Row.Profile {
		e = pickedFor(a.Decision, s.profile)
	}
	if e != nil {
		set(s.header, base64.StdEncoding.EncodeToString([]byte(e.String())))
	}
}
