package queue

import (
	"slices"
	"strings"
	"time"

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

// ProgramAware prefers the flow that was served least lately, in tokens: those of prompts count once, those of answers twice. What a
// request will have cost is estimated by its prompt and the flow's last answers, and corrected when it has ended. Ties go to the request that came
// first. In llm-d a flow is also preferred the longer its first request has waited.
type ProgramAware struct {
	// Strategy says what is fair: las (the flow with the least service is next); drr (flows with waiting requests get equal shares,
	// as with served-tokens-fairness-policy); or rr (they get one request in turn). Default las.
	Strategy string `yaml:"strategy"`
	// ServiceHalfLifeSeconds is the time after which service counts half. Default 60.
	ServiceHalfLifeSeconds float64 `yaml:"serviceHalfLifeSeconds"`
	// EvictionTTLSeconds is how long the service of a flow without requests is remembered. Default 3600.
	EvictionTTLSeconds float64 `yaml:"evictionTtlSeconds"`
	// EvictionSweepSeconds is ignored: flows are forgotten when others have requests.
	EvictionSweepSeconds float64 `yaml:"evictionSweepSeconds"`
	// WeightService is ignored: only service counts.
	WeightService float64 `yaml:"weightService"`
	// WeightServiceHeadWait is ignored, too.
	WeightServiceHeadWait float64 `yaml:"weightServiceHeadWait"`
}

// The values of strategy.
const (
	strategyLAS = "las"
	strategyDRR = "drr"
	strategyRR  = "rr"
)

// longest bounds the times of ProgramAware: a year.
const longest = 365 * 24 * 60 * 60

// NewProgramAware returns the parameters with their defaults: those that are ignored have llm-d's.
func NewProgramAware() epp.Plugin {
	return &ProgramAware{Strategy: strategyLAS, ServiceHalfLifeSeconds: 60, EvictionTTLSeconds: 3600, EvictionSweepSeconds: 300,
		WeightService: 0.8, WeightServiceHeadWait: 0.2}
}

// Problems implements epp.Plugin.
func (p *ProgramAware) Problems(report epp.Report) {
	if all := []string{strategyLAS, strategyDRR, strategyRR}; !slices.Contains(all, p.Strategy) {
		report("strategy", "must be one of %s, got %q", strings.Join(all, ", "), p.Strategy)
	}
	for name, seconds := range map[string]float64{"serviceHalfLifeSeconds": p.ServiceHalfLifeSeconds, "evictionTtlSeconds": p.EvictionTTLSeconds} {
		if !(seconds > 0 && seconds <= longest) {
			report(name, "must be above 0 and at most %d, got %v", longest, seconds)
		}
	}
}

// Build implements epp.Plugin.
func (p *ProgramAware) Build(*epp.Builder) (any, error) {
	switch p.Strategy {
	case strategyDRR:
		return flow.ServedTokens, nil
	case strategyRR:
		return flow.RoundRobin, nil
	}
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	return flow.Attained{HalfLife: seconds(p.ServiceHalfLifeSeconds), Keep: seconds(p.EvictionTTLSeconds)}, nil
}

// ServedTokens gives all flows with waiting requests equal shares of the tokens of requests that waited, however large these are.
// Tokens of prompts count once, those of answers twice, as in program-aware-fairness. A flow that was idle gets no credit
// for it. llm-d has no such plugin. It has no parameters.
type ServedTokens struct{}

// NewServedTokens returns the parameters with their defaults.
func NewServedTokens() epp.Plugin { return &ServedTokens{} }

// Problems implements epp.Plugin.
func (*ServedTokens) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*ServedTokens) Build(*epp.Builder) (any, error) { return flow.ServedTokens, nil }
