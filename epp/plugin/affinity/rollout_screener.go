package affinity

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/filter"
)

// RolloutScreener has all stages of a request served by one revision of a DisaggregatedSet, because a prefill pod and a decode pod of
// different revisions may not understand each other's KV cache. It chooses a revision for each request, in proportion to the pods
// of the revisions, among those that have pods of every required role. If no revision has, requests are refused with 503. It needs
// no place in a profile. Pods that are not ready are no endpoints, so they do not count.
type RolloutScreener struct {
	// Scope says which endpoints belong to the set.
	Scope RolloutScope `yaml:"scope"`
	// HeaderSelectors compare labels with headers of the request.
	HeaderSelectors []HeaderSelector `yaml:"headerSelectors"`
	// RevisionGating says how a revision is chosen.
	RevisionGating RevisionGating `yaml:"revisionGating"`
}

// RolloutScope says which endpoints belong to a DisaggregatedSet.
type RolloutScope struct {
	// LabelSelector is a Kubernetes label selector, such as disaggregatedset.x-k8s.io/name=my-set. The others are not sent
	// requests unless the mode is disabled.
	LabelSelector string `yaml:"labelSelector"`
}

// HeaderSelector compares a label with a header of the request, and sets that header of the answer to the label of the endpoint that
// it comes from.
type HeaderSelector struct {
	// Name tells it from others in messages.
	Name string `yaml:"name"`
	// HeaderName is the header of requests and answers.
	HeaderName string `yaml:"headerName"`
	// LabelKey is the label of endpoints.
	LabelKey string `yaml:"labelKey"`
	// Mode is strict or prefer. strict keeps only endpoints whose label is the header's value, if the request has the header.
	// prefer keeps all: header-label-affinity-scorer prefers them.
	Mode string `yaml:"mode"`
}

// RevisionGating says how the revision of a request is chosen.
type RevisionGating struct {
	// Mode is max-role, sum or disabled. max-role weighs a revision by its pods of the role that has most pods in all
	// revisions, sum by its pods of all required roles. disabled chooses no revision: only header selectors count.
	Mode string `yaml:"mode"`
	// RequireRoles are the roles of which a revision must have a pod. They are needed unless the mode is disabled.
	RequireRoles RequiredRoles `yaml:"requireRoles"`
	// RequiredRoles is another place of requireRoles.values.
	RequiredRoles []string `yaml:"requiredRoles"`
	// RevisionLabelKey is the label that names an endpoint's revision. Default disaggregatedset.x-k8s.io/revision.
	RevisionLabelKey string `yaml:"revisionLabelKey"`
	// RoleLabelKey is the label that names an endpoint's role. Default disaggregatedset.x-k8s.io/role.
	RoleLabelKey string `yaml:"roleLabelKey"`
	// RevisionHeaderName is a header for the revision: the same as a strict header selector of that label. Default "": none.
	RevisionHeaderName string `yaml:"revisionHeaderName"`
}

// RequiredRoles are the roles that a revision needs.
type RequiredRoles struct {
	// Values are the roles, as in the label.
	Values []string `yaml:"values"`
}

// The modes.
const (
	gateByMaxRole = "max-role"
	gateBySum     = "sum"
	gateDisabled  = "disabled"
	selectStrict  = "strict"
	selectPrefer  = "prefer"
)

// NewRolloutScreener returns the parameters with their defaults.
func NewRolloutScreener() epp.Plugin {
	const set = "disaggregatedset.x-k8s.io/"
	return &RolloutScreener{RevisionGating: RevisionGating{RevisionLabelKey: set + "revision", RoleLabelKey: set + "role"}}
}

// Problems implements epp.Plugin.
func (p *RolloutScreener) Problems(report epp.Report) {
	if p.Scope.LabelSelector == "" {
		report("scope.labelSelector", "must not be empty")
	} else if _, err := filter.ParseSelector(p.Scope.LabelSelector); err != nil {
		report("scope.labelSelector", "%v", err)
	}
	for i, s := range p.HeaderSelectors {
		at := fmt.Sprintf("headerSelectors[%d]", i)
		if s.HeaderName == "" || s.LabelKey == "" {
			report(at, "must have a headerName and a labelKey")
		}
		if s.Mode != selectStrict && s.Mode != selectPrefer {
			report(at+".mode", "must be %s or %s, got %q", selectStrict, selectPrefer, s.Mode)
		}
	}
	gating := &p.RevisionGating
	if modes := []string{gateByMaxRole, gateBySum, gateDisabled}; !slices.Contains(modes, gating.Mode) {
		report("revisionGating.mode", "must be one of %s, got %q", strings.Join(modes, ", "), gating.Mode)
	} else if gating.Mode != gateDisabled && len(p.roles()) == 0 {
		report("revisionGating.requireRoles.values", "must not be empty with mode %s", gating.Mode)
	}
	if gating.RevisionLabelKey == "" || gating.RoleLabelKey == "" {
		report("revisionGating", "revisionLabelKey and roleLabelKey must not be empty")
	}
}

func (p *RolloutScreener) roles() []string {
	return slices.Concat(p.RevisionGating.RequireRoles.Values, p.RevisionGating.RequiredRoles)
}

// Build implements epp.Plugin.
func (p *RolloutScreener) Build(*epp.Builder) (any, error) {
	scope, err := filter.ParseSelector(p.Scope.LabelSelector)
	gating := &p.RevisionGating
	s := &rolloutScreener{scope: scope, mode: gating.Mode, roles: p.roles(), revisionLabel: gating.RevisionLabelKey, roleLabel: gating.RoleLabelKey}
	for _, h := range p.HeaderSelectors {
		s.headers = append(s.headers, headerSelector{strings.ToLower(h.HeaderName), h.LabelKey, h.Mode == selectStrict})
	}
	if name := gating.RevisionHeaderName; name != "" {
		s.headers = append(s.headers, headerSelector{strings.ToLower(name), gating.RevisionLabelKey, true})
	}
	return s, err
}

type rolloutScreener struct {
	scope                    filter.Selector
	headers                  []headerSelector
	mode                     string
	roles                    []string
	revisionLabel, roleLabel string
}

type headerSelector struct {
	header, label string
	strict        bool
}

// Screen implements epp.Screener.
func (s *rolloutScreener) Screen(r *epp.Round, c []epp.Candidate) []epp.Candidate {
	var chosen string
	if s.mode != gateDisabled {
		shares := revisionShares.Get().(*shares)
		defer revisionShares.Put(shares)
		shares.count(s, c)
		// A strict header names the revision: then it is not chosen, but it must have all roles.
		if asked := s.askedRevision(r.Request); asked != "" && shares.covers(asked) {
			chosen = asked
		} else if asked == "" {
			chosen = shares.choose(s, r.Rand)
		}
		if chosen == "" {
			return c[:0]
		}
	}
	return filter.Keep(c, func(c *epp.Candidate) bool {
		if s.mode != gateDisabled && (c.Labels[s.revisionLabel] != chosen || !s.scope.Matches(c.Labels)) {
			return false
		}
		for i := range s.headers {
			h := &s.headers[i]
			if value := r.Request.Header(h.header); h.strict && value != "" && c.Labels[h.label] != value {
				return false
			}
		}
		return true
	})
}

// askedRevision returns the revision that a strict header names, "" if there is none.
func (s *rolloutScreener) askedRevision(r *epp.Request) string {
	for i := range s.headers {
		if h := &s.headers[i]; h.strict && h.label == s.revisionLabel {
			if value := r.Header(h.header); value != "" {
				return value
			}
		}
	}
	return ""
}

// Stamp implements epp.Stamper.
func (s *rolloutScreener) Stamp(a *epp.Answer, set func(name, value string)) {
	for i := range s.headers {
		if value := a.By.Labels[s.headers[i].label]; value != "" {
			set(s.headers[i].header, value)
		}
	}
}

// shares are the pods of each revision, by role, while a revision is chosen.
type shares struct {
	roles     int
	revisions []string
	pods      []int // of the revision i and the role j at i×roles+j
}

var revisionShares = sync.Pool{New: func() any { return new(shares) }}

// count counts the pods of all revisions.
func (x *shares) count(s *rolloutScreener, c []epp.Candidate) {
	x.roles, x.revisions, x.pods = len(s.roles), x.revisions[:0], x.pods[:0]
	for i := range c {
		revision, role := c[i].Labels[s.revisionLabel], slices.Index(s.roles, c[i].Labels[s.roleLabel])
		if revision == "" || role < 0 || !s.scope.Matches(c[i].Labels) {
			continue
		}
		at := slices.Index(x.revisions, revision)
		if at < 0 {
			at = len(x.revisions)
			x.revisions = append(x.revisions, revision)
			for range x.roles {
				x.pods = append(x.pods, 0)
			}
		}
		x.pods[at*x.roles+role]++
	}
}

// of returns the pods of a revision, by role.
func (x *shares) of(revision int) []int { return x.pods[revision*x.roles : (revision+1)*x.roles] }

// covers reports whether a revision has a pod of every role.
func (x *shares) covers(revision string) bool {
	at := slices.Index(x.revisions, revision)
	return at >= 0 && !slices.Contains(x.of(at), 0)
}

// choose chooses among the revisions that have a pod of every role, in proportion to their weights; "" if there is none.
func (x *shares) choose(s *rolloutScreener, rng *rand.Rand) string {
	dominant := x.dominant()
	weight := func(i int) (sum int) {
		pods := x.of(i)
		switch {
		case slices.Contains(pods, 0):
			return 0
		case s.mode == gateByMaxRole:
			return pods[dominant]
		}
		for _, n := range pods {
			sum += n
		}
		return sum
	}
	total := 0
	for i := range x.revisions {
		total += weight(i)
	}
	if total == 0 {
		return ""
	}
	lot := rng.IntN(total)
	for i := range x.revisions {
		if lot -= weight(i); lot < 0 {
			return x.revisions[i]
		}
	}
	return ""
}

// dominant returns the role with most pods in all revisions that have every role; the first one of several.
func (x *shares) dominant() (role int) {
	most := -1
	for j := range x.roles {
		sum := 0
		for i := range x.revisions {
			if pods := x.of(i); !slices.Contains(pods, 0) {
				sum += pods[j]
			}
		}
		if sum > most {
			role, most = j, sum
		}
	}
	return role
}
