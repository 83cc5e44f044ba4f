package affinity

import (
	"fmt"
	"strings"

	"github.com/tandem-serving/tandem/epp"
)

// AgentIdentity reads the session of an agent from the headers that agents send. With flowControl a session is one flow, unless its
// client sends a fairness id. session-affinity-filter and session-affinity-scorer can go by it, too.
type AgentIdentity struct {
	// AdditionalSessionHeaders are headers that are read before the known ones, which are x-claude-code-session-id,
	// x-session-affinity, session-id and session_id. The first that has a value counts.
	AdditionalSessionHeaders []string `yaml:"additionalSessionHeaders"`
}

// agentHeaders are the headers in which agents send their session.
var agentHeaders = []string{"x-claude-code-session-id", "x-session-affinity", "session-id", "session_id"}

// NewAgentIdentity returns the parameters with their defaults.
func NewAgentIdentity() epp.Plugin { return &AgentIdentity{} }

// Problems implements epp.Plugin.
func (p *AgentIdentity) Problems(report epp.Report) {
	for i, name := range p.AdditionalSessionHeaders {
		if name == "" {
			report(fmt.Sprintf("additionalSessionHeaders[%d]", i), "must not be empty")
		}
	}
}

// Build implements epp.Plugin.
func (p *AgentIdentity) Build(*epp.Builder) (any, error) {
	var headers headerIdentity
	for _, name := range p.AdditionalSessionHeaders {
		headers = append(headers, strings.ToLower(name))
	}
	return agentSession{append(headers, agentHeaders...)}, nil
}

// agentSession is the session of an agent.
type agentSession struct{ headerIdentity }

// NamesFlows implements epp.FlowNamer.
func (agentSession) NamesFlows() {}

// headerIdentity is the first of these headers that has a value.
type headerIdentity []string

// Identify implements epp.Identifier.
func (h headerIdentity) Identify(r *epp.Request) string {
	for _, name := range h {
		if value := r.Header(name); value != "" {
			return value
		}
	}
	return ""
}

// cookieIdentity is the value of a cookie.
type cookieIdentity string

// Identify implements epp.Identifier.
func (name cookieIdentity) Identify(r *epp.Request) string {
	for pair := range strings.SplitSeq(r.Header("cookie"), ";") {
		if key, value, ok := strings.Cut(strings.TrimSpace(pair), "="); ok && key == string(name) {
			return value
		}
	}
	return ""
}

// identities are several identifiers. The first that knows a request counts.
type identities []epp.Identifier

// Identify implements epp.Identifier.
func (all identities) Identify(r *epp.Request) string {
	for _, one := range all {
		if id := one.Identify(r); id != "" {
			return id
		}
	}
	return ""
}
