package queue

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
)

// FCFS orders the requests of a flow by their arrival. It is the default. It has no parameters.
type FCFS struct{}

// NewFCFS returns the parameters with their defaults.
func NewFCFS() epp.Plugin { return &FCFS{} }

// Problems implements epp.Plugin.
func (*FCFS) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*FCFS) Build(*epp.Builder) (any, error) { return flow.FCFS, nil }

// EDF orders the requests of a flow by the end of their time to live: the one that would be refused first goes first. It has no
// parameters.
type EDF struct{}

// NewEDF returns the parameters with their defaults.
func NewEDF() epp.Plugin { return &EDF{} }

// Problems implements epp.Plugin.
func (*EDF) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*EDF) Build(*epp.Builder) (any, error) { return flow.EDF, nil }

// SLODeadline orders the requests of a flow by when their first token is due, after x-llm-d-slo-ttft-ms. Requests without that
// header come last. It has no parameters.
type SLODeadline struct{}

// NewSLODeadline returns the parameters with their defaults.
func NewSLODeadline() epp.Plugin { return &SLODeadline{} }

// Problems implements epp.Plugin.
func (*SLODeadline) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*SLODeadline) Build(*epp.Builder) (any, error) { return flow.SLODeadline, nil }
