package filter

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Decode keeps endpoints whose role label allows decode, and endpoints without the label. It has no parameters.
type Decode struct{}

// NewDecode returns the parameters with their defaults.
func NewDecode() epp.Plugin { return &Decode{} }

// Problems implements epp.Plugin.
func (*Decode) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*Decode) Build(*epp.Builder) (any, error) { return roleFilter(pd.RoleDecode), nil }

// roleFilter keeps endpoints that serve a stage.
type roleFilter pd.Role

// Filter implements epp.Filter.
func (f roleFilter) Filter(_ *epp.Round, c []epp.Candidate) []epp.Candidate {
	return Keep(c, func(c *epp.Candidate) bool { return c.Role.Has(pd.Role(f)) })
}

// Keep moves the wanted candidates to the front, in their order, and returns only these.
func Keep(c []epp.Candidate, wanted func(*epp.Candidate) bool) []epp.Candidate {
	n := 0
	for i := range c {
		if !wanted(&c[i]) {
			continue
		}
		if n != i {
			c[n] = c[i]
		}
		n++
	}
	return c[:n]
}
