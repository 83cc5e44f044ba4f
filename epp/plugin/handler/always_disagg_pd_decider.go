package handler

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// AlwaysDisaggPDDecider chooses remote prefill for every prompt. It has no parameters.
type AlwaysDisaggPDDecider struct{}

// NewAlwaysDisaggPDDecider returns the parameters with their defaults.
func NewAlwaysDisaggPDDecider() epp.Plugin { return &AlwaysDisaggPDDecider{} }

// Problems implements epp.Plugin.
func (*AlwaysDisaggPDDecider) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*AlwaysDisaggPDDecider) Build(*epp.Builder) (any, error) { return alwaysRemote{}, nil }

// alwaysRemote is the epp.Decider that does not look at the request.
type alwaysRemote struct{}

// Decide implements epp.Decider.
func (alwaysRemote) Decide(*epp.Alternatives) epp.Ruling {
	return epp.Ruling{Verdict: pd.Remote, Reason: pd.Always}
}
