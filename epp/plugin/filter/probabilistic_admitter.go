package filter

import (
	"math"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// ProbabilisticAdmitter refuses requests of negative priority at random, the more of them the fuller the endpoints are: with the
// probability min(k × saturation^power, 1). The saturation is the mean over all endpoints that the request may go to of the larger
// of waiting requests / queueDepthThreshold and KV cache used / kvCacheUtilThreshold. It takes effect by being in plugins, and needs
// no place in a profile. Refused requests are answered with 429. An endpoint whose load is not known counts as full; in llm-d it
// looks idle until its metrics were read, and keeps its last load when they cannot be read any more.
type ProbabilisticAdmitter struct {
	// QueueDepthThreshold is how many waiting requests make an endpoint full. Default 5.
	QueueDepthThreshold int `yaml:"queueDepthThreshold"`
	// KVCacheUtilThreshold is the used share of the KV cache that makes an endpoint full. Default 0.8.
	KVCacheUtilThreshold float64 `yaml:"kvCacheUtilThreshold"`
	// Power is how steeply the probability grows with the saturation. Default 5.
	Power float64 `yaml:"power"`
	// K is the probability at a saturation of 1, before it is limited to 1. Default 300: all such requests are refused from a
	// saturation of 0.32.
	K float64 `yaml:"k"`
}

// NewProbabilisticAdmitter returns the parameters with their defaults.
func NewProbabilisticAdmitter() epp.Plugin {
	return &ProbabilisticAdmitter{QueueDepthThreshold: 5, KVCacheUtilThreshold: 0.8, Power: 5, K: 300}
}

// Problems implements epp.Plugin.
func (p *ProbabilisticAdmitter) Problems(report epp.Report) {
	param.AtLeast(report, "queueDepthThreshold", p.QueueDepthThreshold, 1)
	for _, f := range []struct {
		field string
		value float64
	}{{"kvCacheUtilThreshold", p.KVCacheUtilThreshold}, {"power", p.Power}, {"k", p.K}} {
		if !(f.value > 0) || math.IsInf(f.value, 1) {
			report(f.field, "must be a number above 0, got %v", f.value)
		}
	}
}

// Build implements epp.Plugin.
func (p *ProbabilisticAdmitter) Build(*epp.Builder) (any, error) {
	return probabilisticAdmitter{queue: float64(p.QueueDepthThreshold), kv: p.KVCacheUtilThreshold, power: p.Power, k: p.K}, nil
}

type probabilisticAdmitter struct{ queue, kv, power, k float64 }

// Admits implements epp.Admitter.
func (a probabilisticAdmitter) Admits(r *epp.Round, c []epp.Candidate) bool {
	if r.Request.Priority >= 0 || len(c) == 0 {
		return true
	}
	saturation := mean(c, func(c *epp.Candidate) float64 {
		if c.Trust == 0 {
			return 1
		}
		waiting, _ := c.Load.Signals.Value(epp.Waiting)
		used, _ := c.Load.Signals.Value(epp.KVUsage)
		return max(waiting/a.queue, used/a.kv)
	})
	return r.Rand.Float64() >= a.k*math.Pow(saturation, a.power)
}
