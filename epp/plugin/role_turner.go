package plugin

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/scale"
)

// RoleTurner gives each pod whose label allows prefill and decode one of these roles at a time, and changes the role of a pod when the pool bears more
// requests so. As a filter of the profiles of prefill and decode it drops the pods that have the other role now. No pod restarts: what runs on
// a pod ends there. There is always a pod of each role, and pods whose label names one role keep it. It goes by lengths of prompts and
// answers, and by times, that Tandem's sidecars report; until there have been enough, pods do both. llm-d has no such plugin.
type RoleTurner struct {
	// TTFTMs is the wanted time to first token, in milliseconds. Default 2000.
	TTFTMs float64 `yaml:"ttftMs"`
	// TPOTMs is the wanted time for each further token, in milliseconds. Default 50.
	TPOTMs float64 `yaml:"tpotMs"`
	// Attainment is the share of the requests that are to meet both, more than 0 and less than 1. Default 0.9.
	Attainment float64 `yaml:"attainment"`
	// Gain is the share by which another split must bear more requests, for three minutes in a row, before a pod changes its role, more than 0 and at most 10.
	// Default 0.1.
	Gain float64 `yaml:"gain"`
}

// newRoleTurner returns the parameters with their defaults.
func newRoleTurner() epp.Plugin {
	return &RoleTurner{TTFTMs: 2000, TPOTMs: 50, Attainment: 0.9, Gain: 0.1}
}

// highestGain bounds gain: more would never be reached.
const highestGain = 10

// Problems implements epp.Plugin.
func (p *RoleTurner) Problems(report epp.Report) {
	for _, one := range []struct {
		field       string
		value, most float64
	}{{"ttftMs", p.TTFTMs, longestGoalMs}, {"tpotMs", p.TPOTMs, longestGoalMs}, {"gain", p.Gain, highestGain}} {
		if !(one.value > 0 && one.value <= one.most) {
			report(one.field, "must be more than 0 and at most %v, got %v", one.most, one.value)
		}
	}
	if !(p.Attainment > 0 && p.Attainment < 1) {
		report("attainment", "must be more than 0 and less than 1, got %v", p.Attainment)
	}
}

// Build implements epp.Plugin. What was learnt of the load, and the roles, outlive a reload.
func (p *RoleTurner) Build(b *epp.Builder) (any, error) {
	c := scale.TurnConfig{
		Objective: scale.Objective{TTFT: fromSeconds(p.TTFTMs / 1000), TPOT: fromSeconds(p.TPOTMs / 1000), Share: p.Attainment},
		Gain:      p.Gain,
	}
	state := epp.Kept(b.Keep, "role-turner", func() *scale.Turns { return new(scale.Turns) })
	return scale.NewTurner(c, state, latency.Of(b), b.Clock(), b.Log), nil
}
