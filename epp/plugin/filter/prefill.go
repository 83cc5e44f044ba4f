package filter

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Prefill keeps endpoints whose role label allows prefill. It drops endpoints without the label. It has no parameters.
type Prefill struct{}

// NewPrefill returns the parameters with their defaults.
func NewPrefill() epp.Plugin { return &Prefill{} }

// Problems implements epp.Plugin.
func (*Prefill) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*Prefill) Build(*epp.Builder) (any, error) { return roleFilter(pd.RolePrefill), nil }
