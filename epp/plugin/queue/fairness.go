package queue

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
	"github.com/tandem-serving/tandem/epp/plugin/param"
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
// first. In llm-d, las also prefers a flow the longer its first request has waited. turn-priority counts requests that did not wait when they
// have ended; llm-d when they start.
type ProgramAware struct {
	// Strategy says what is fair: las (the flow with the least service is next); turn-priority (the flow with the most requests so
	// far is next); drr (flows with waiting requests get equal shares, as with served-tokens-fairness-policy); or rr (they get one
	// request in turn). Default las.
	Strategy string `yaml:"strategy"`
	// LASHalfLifeSeconds is the time after which service counts half. 0 = lasDecayFactor says it. Default 60.
	LASHalfLifeSeconds *float64 `yaml:"lasHalfLifeSeconds"`
	// ServiceHalfLifeSeconds is the older name of lasHalfLifeSeconds.
	ServiceHalfLifeSeconds *float64 `yaml:"serviceHalfLifeSeconds"`
	// LASDecayFactor is what service counts after one second, if it is set and lasHalfLifeSeconds is not.
	LASDecayFactor *float64 `yaml:"lasDecayFactor"`
	// TurnPriorityTimeWeight is how many requests one second of waiting counts as with turn-priority. Default 0.05.
	TurnPriorityTimeWeight float64 `yaml:"turnPriorityTimeWeight"`
	// TurnPriorityInactivitySeconds is how long a flow may be without requests that start or end until its next one counts as its
	// first. 0 = for ever. Default 120.
	TurnPriorityInactivitySeconds float64 `yaml:"turnPriorityInactivitySeconds"`
	// EvictionTTLSeconds is how long the service of a flow without requests is remembered. Default 3600.
	EvictionTTLSeconds float64 `yaml:"evictionTtlSeconds"`
	// EvictionSweepSeconds is ignored: flows are forgotten when others have requests.
	EvictionSweepSeconds float64 `yaml:"evictionSweepSeconds"`
	// LASWeightService is ignored: only service counts.
	LASWeightService float64 `yaml:"lasWeightService"`
	// LASWeightHeadWait is ignored, too.
	LASWeightHeadWait float64 `yaml:"lasWeightHeadWait"`
	// WeightService is the older name of lasWeightService.
	WeightService float64 `yaml:"weightService"`
	// WeightServiceHeadWait is the older name of lasWeightHeadWait.
	WeightServiceHeadWait float64 `yaml:"weightServiceHeadWait"`
}

// The values of strategy.
const (
	strategyLAS  = "las"
	strategyTurn = "turn-priority"
	strategyDRR  = "drr"
	strategyRR   = "rr"
)

// longest bounds the times of ProgramAware: a year.
const longest = 365 * 24 * 60 * 60

const defaultHalfLife = 60 // seconds

// NewProgramAware returns the parameters with their defaults: those that are ignored have llm-d's.
func NewProgramAware() epp.Plugin {
	return &ProgramAware{Strategy: strategyLAS, EvictionTTLSeconds: 3600, EvictionSweepSeconds: 300, TurnPriorityTimeWeight: 0.05,
		TurnPriorityInactivitySeconds: 120, LASWeightService: 0.8, LASWeightHeadWait: 0.2, WeightService: 0.8, WeightServiceHeadWait: 0.2}
}

// Problems implements epp.Plugin.
func (p *ProgramAware) Problems(report epp.Report) {
	if all := []string{strategyLAS, strategyTurn, strategyDRR, strategyRR}; !slices.Contains(all, p.Strategy) {
		report("strategy", "must be one of %s, got %q", strings.Join(all, ", "), p.Strategy)
	}
	times := map[string]float64{"evictionTtlSeconds": p.EvictionTTLSeconds}
	for name, given := range map[string]*float64{"serviceHalfLifeSeconds": p.ServiceHalfLifeSeconds, "lasHalfLifeSeconds": p.LASHalfLifeSeconds} {
		if given != nil && *given != 0 {
			times[name] = *given
		}
	}
	if p.TurnPriorityInactivitySeconds != 0 {
		times["turnPriorityInactivitySeconds"] = p.TurnPriorityInactivitySeconds
	}
	for name, seconds := range times {
		if !(seconds > 0 && seconds <= longest) {
			report(name, "must be above 0 and at most %d, got %v", longest, seconds)
		}
	}
	if f := p.LASDecayFactor; f != nil && !(*f > 0 && *f <= 1) {
		report("lasDecayFactor", "must be above 0 and at most 1, got %v", *f)
	}
	param.AtLeast(report, "turnPriorityTimeWeight", p.TurnPriorityTimeWeight, 0)
}

// Build implements epp.Plugin.
func (p *ProgramAware) Build(*epp.Builder) (any, error) {
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	keep := seconds(p.EvictionTTLSeconds)
	switch p.Strategy {
	case strategyTurn:
		return flow.Depth{PerSecond: p.TurnPriorityTimeWeight, Idle: seconds(p.TurnPriorityInactivitySeconds), Keep: keep}, nil
	case strategyDRR:
		return flow.ServedTokens, nil
	case strategyRR:
		return flow.RoundRobin, nil
	}
	return flow.Attained{HalfLife: seconds(p.halfLife()), Keep: keep}, nil
}

// halfLife returns the seconds after which service counts half.
func (p *ProgramAware) halfLife() float64 {
	for _, given := range []*float64{p.LASHalfLifeSeconds, p.ServiceHalfLifeSeconds} {
		if given != nil && *given > 0 {
			return *given
		}
	}
	if f := p.LASDecayFactor; f != nil {
		return min(longest, math.Ln2/-math.Log(*f)) // a factor of 1 is never forgotten
	}
	return defaultHalfLife
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
