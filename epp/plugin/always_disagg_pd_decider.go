package plugin

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// AlwaysDisaggPDDecider has every prompt computed on another pod. It has no parameters.
type AlwaysDisaggPDDecider struct{}

func newAlwaysDisaggPDDecider() epp.Plugin { return &AlwaysDisaggPDDecider{} }

// Problems implements epp.Plugin.
func (*AlwaysDisaggPDDecider) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*AlwaysDisaggPDDecider) Build(*epp.Builder) (any, error) { return pd.AlwaysRemote{}, nil }
