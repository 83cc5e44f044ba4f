package plugin

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// DecodeFilter keeps endpoints whose role label allows decode, and endpoints without the label. It has no parameters.
type DecodeFilter struct{}

func newDecodeFilter() epp.Plugin { return &DecodeFilter{} }

// Problems implements epp.Plugin.
func (*DecodeFilter) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*DecodeFilter) Build(*epp.Builder) (any, error) { return roleFilter(pd.RoleDecode), nil }

// roleFilter keeps endpoints that serve a stage.
type roleFilter pd.Role

// Filter implements epp.Filter.
func (f roleFilter) Filter(_ *epp.Round, c []epp.Candidate) []epp.Candidate {
	return keep(c, func(c *epp.Candidate) bool { return c.Role.Has(pd.Role(f)) })
}

// keep moves the wanted candidates to the front, in their order, and returns only these.
func keep(c []epp.Candidate, wanted func(*epp.Candidate) bool) []epp.Candidate {
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
