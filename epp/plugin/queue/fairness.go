package queue

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
)

// GlobalStrict serves the requests of a band as if they were one flow: the first in the band's order goes next. It is the
// default. It has no parameters.
type GlobalStrict struct{}

// NewGlobalStrict returns the parameters with their defaults.
func NewGlobalStrict() epp.Plugin { return &GlobalStrict{} }

// Problems implements epp.Plugin.
func (*GlobalStrict) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*GlobalStrict) Build(*epp.Builder) (any, error) { return flow.GlobalStrict, nil }

// RoundRobin gives each flow with waiting requests one request in turn. It has no parameters.
type RoundRobin struct{}

// NewRoundRobin returns the parameters with their defaults.
func NewRoundRobin() epp.Plugin { return &RoundRobin{} }

// Problems implements epp.Plugin.
func (*RoundRobin) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*RoundRobin) Build(*epp.Builder) (any, error) { return flow.RoundRobin, nil }

// ProgramAware prefers the flow whose requests got the fewest prompt tokens lately: after one minute tokens count half. In llm-d
// it also weighs how long flows have waited, and has parameters for the weights; here it has none.
type ProgramAware struct{}

// NewProgramAware returns the parameters with their defaults.
func NewProgramAware() epp.Plugin { return &ProgramAware{} }

// Problems implements epp.Plugin.
func (*ProgramAware) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*ProgramAware) Build(*epp.Builder) (any, error) { return flow.LeastAttained, nil }

// ServedTokens gives all flows with waiting requests equal shares of the prompt tokens that are let pass, however large their
// requests are. A flow that was idle gets no credit for it. llm-d has no such plugin. It has no parameters.
type ServedTokens struct{}

// NewServedTokens returns the parameters with their defaults.
func NewServedTokens() epp.Plugin { return &ServedTokens{} }

// Problems implements epp.Plugin.
func (*ServedTokens) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*ServedTokens) Build(*epp.Builder) (any, error) { return flow.ServedTokens, nil }
