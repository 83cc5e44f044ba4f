package parser

import "github.com/tandem-serving/tandem/epp"

// Passthrough has nothing read. Where no listed parser is for a call, it is passed on in any case; llm-d refuses it unless this plugin is
// listed too. It has no parameters.
type Passthrough struct{}

// NewPassthrough returns the parameters with their defaults.
func NewPassthrough() epp.Plugin { return &Passthrough{} }

// Problems implements epp.Plugin.
func (*Passthrough) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*Passthrough) Build(*epp.Builder) (any, error) { return apis{}, nil }
