package reporter

import (
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/headroom"
)

// SLOHeadroom measures how far below their goals the times of online requests stay, and tells it to the clients of requests of negative
// priority, in the header x-tandem-headroom of their answers: the batch server sends fewer requests when it becomes low. Goals are those that
// clients name by x-llm-d-slo-ttft-ms and x-llm-d-slo-tpot-ms, or the parameters. It needs Tandem's sidecars, whose reports have the times. It
// takes effect by being in plugins, and needs no place in a profile. llm-d has no such plugin.
type SLOHeadroom struct {
	// TTFTMs is the goal for the time to first token of requests whose client names none, in milliseconds. Default 0: they have none.
	TTFTMs float64 `yaml:"ttftMs"`
	// TPOTMs is the goal for each further token, likewise. Default 0.
	TPOTMs float64 `yaml:"tpotMs"`
	// Attainment is the share of the requests that are to keep their goals, more than 0 and less than 1. Default 0.99.
	Attainment float64 `yaml:"attainment"`
	// WindowSeconds is for how long a request counts, at least 1. Default 10.
	WindowSeconds float64 `yaml:"windowSeconds"`
}

// NewSLOHeadroom returns the parameters with their defaults.
func NewSLOHeadroom() epp.Plugin { return &SLOHeadroom{Attainment: 0.99, WindowSeconds: 10} }

// Bounds of parameters.
const (
	longestGoalMs = 3_600_000
	longestWindow = 3_600
)

// Problems implements epp.Plugin.
func (p *SLOHeadroom) Problems(report epp.Report) {
	for field, value := range map[string]float64{"ttftMs": p.TTFTMs, "tpotMs": p.TPOTMs} {
		if !(value >= 0 && value <= longestGoalMs) {
			report(field, "must be from 0 to %d, got %v", longestGoalMs, value)
		}
	}
	if !(p.Attainment > 0 && p.Attainment < 1) {
		report("attainment", "must be more than 0 and less than 1, got %v", p.Attainment)
	}
	if !(p.WindowSeconds >= 1 && p.WindowSeconds <= longestWindow) {
		report("windowSeconds", "must be from 1 to %d, got %v", longestWindow, p.WindowSeconds)
	}
}

// Build implements epp.Plugin. What was seen of requests outlives a reload.
func (p *SLOHeadroom) Build(b *epp.Builder) (any, error) {
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	state := epp.Kept(b.Keep, "slo-headroom", func() *headroom.State { return new(headroom.State) })
	return headroom.New(headroom.Config{TTFT: seconds(p.TTFTMs / 1000), TPOT: seconds(p.TPOTMs / 1000), Share: p.Attainment, Window: seconds(p.WindowSeconds)},
		state, b.Clock()), nil
}
