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
func (p *StaticUsageLimit) Build(*epp.Builder) (any, error) {
	return flow.Usage{Ceiling: p.Threshold}, nil
}

// PriorityHoldback keeps capacity for higher priorities: the lower a priority, the less full may the pool be when its requests
// pass. Priorities that count are 0, those of priorityBands, and those that had requests in the last 10 minutes.
type PriorityHoldback struct {
	// MinCeiling is the saturation of the pool from which requests of the lowest priority wait: at least 0, and below maxCeiling.
	// It must be given.
	MinCeiling *float64 `yaml:"minCeiling"`
	// MaxCeiling is the saturation from which those of the highest priority wait, at most 1, which is a full pool. Default 1.
	MaxCeiling float64 `yaml:"maxCeiling"`
	// Domain says how the priorities between these get theirs: rank, in equal steps; or value, in proportion to their numbers.
	// Default rank.
	Domain string `yaml:"domain"`
	// Shape is linear, the only one that there is.
	Shape string `yaml:"shape"`
}

// The values of domain and shape.
const (
	domainRank  = "rank"
	domainValue = "value"
	shapeLinear = "linear"
)

// NewPriorityHoldback returns the parameters with their defaults.
func NewPriorityHoldback() epp.Plugin {
	return &PriorityHoldback{MaxCeiling: 1, Domain: domainRank, Shape: shapeLinear}
}

// Problems implements epp.Plugin.
func (p *PriorityHoldback) Problems(report epp.Report) {
	if p.Domain != domainRank && p.Domain != domainValue {
		report("domain", "must be %s or %s, got %q", domainRank, domainValue, p.Domain)
	}
	if p.Shape != shapeLinear {
		report("shape", "must be %s, got %q", shapeLinear, p.Shape)
	}
	if !(p.MaxCeiling > 0 && p.MaxCeiling <= 1) {
		report("maxCeiling", "must be above 0 and at most 1, got %v", p.MaxCeiling)
	}
	switch {
	case p.MinCeiling == nil:
		report("minCeiling", "must be given")
	case !(*p.MinCeiling >= 0 && *p.MinCeiling < p.MaxCeiling):
		report("minCeiling", "must be at least 0 and below maxCeiling, %v, got %v", p.MaxCeiling, *p.MinCeiling)
	}
}

// Build implements epp.Plugin.
func (p *PriorityHoldback) Build(*epp.Builder) (any, error) {
	return flow.Usage{Policy: flow.Holdback, Ceiling: p.MaxCeiling, Least: *p.MinCeiling, ByValue: p.Domain == domainValue}, nil
}

// SoftReflectiveCeiling slows lower priorities down the fuller the pool is, and never stops them before it is full. From a saturation
// of one half for the lowest priority, and of more for those above it, one of its requests passes for every saturation /
// (1 - saturation) looks for capacity. The highest priority waits only while the pool is full. It has no parameters.
type SoftReflectiveCeiling struct{}

// NewSoftReflectiveCeiling returns the parameters with their defaults.
func NewSoftReflectiveCeiling() epp.Plugin { return &SoftReflectiveCeiling{} }

// Problems implements epp.Plugin.
func (*SoftReflectiveCeiling) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*SoftReflectiveCeiling) Build(*epp.Builder) (any, error) {
	return flow.Usage{Policy: flow.SoftReflective}, nil
}
