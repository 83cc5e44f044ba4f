package plugin

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// PrefillFilter keeps endpoints whose role label allows prefill. It drops endpoints without the label. It has no parameters.
type PrefillFilter struct{}

func newPrefillFilter() epp.Plugin { return &PrefillFilter{} }

// Problems implements epp.Plugin.
func (*PrefillFilter) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*PrefillFilter) Build(*epp.Builder) (any, error) { return roleFilter(pd.RolePrefill), nil }
