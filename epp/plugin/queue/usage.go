package queue

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
)

// StaticUsageLimit lets requests pass while the saturation of the pool is below a threshold, the same for all priorities.
type StaticUsageLimit struct {
	// Threshold is the saturation from which requests wait. 1 is a full pool. Default 1.
	Threshold float64 `yaml:"threshold"`
}

// NewStaticUsageLimit returns the parameters with their defaults.
func NewStaticUsageLimit() epp.Plugin { return &StaticUsageLimit{Threshold: 1} }

// Problems implements epp.Plugin.
func (p *StaticUsageLimit) Problems(report epp.Report) {
	const most = 10 // more than any pool is filled on purpose
	if !(p.Threshold > 0 && p.Threshold <= most) {
		report("threshold", "must be above 0 and at most %d, got %v", most, p.Threshold)
	}
}

// Build implements epp.Plugin.
func (p *StaticUsageLimit) Build(*epp.Builder) (any, error) { return flow.Ceiling(p.Threshold), nil }
