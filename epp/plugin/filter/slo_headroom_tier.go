package filter

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// SLOHeadroomTier keeps the candidates that are predicted to serve the request as its client wants by x-llm-d-slo-ttft-ms and
// x-llm-d-slo-tpot-ms. It keeps all if none or all of them are, if the client wants nothing, and where nothing is predicted. A time that the
// client does not name may be any; in llm-d no candidate fits then.
type SLOHeadroomTier struct {
	// EpsilonExploreNeg is how often, 0..1, the filter keeps the other candidates instead, so that what is predicted of them is found out.
	// Default 0.01.
	EpsilonExploreNeg float64 `yaml:"epsilonExploreNeg"`
	// LatencyPredictionInfoProducerName names the predicted-latency-producer. All of a picker predict alike, so the name is only checked.
	// Default "": no check.
	LatencyPredictionInfoProducerName string `yaml:"latencyPredictionInfoProducerName"`
}

// NewSLOHeadroomTier returns the parameters with their defaults.
func NewSLOHeadroomTier() epp.Plugin { return &SLOHeadroomTier{EpsilonExploreNeg: 0.01} }

// Problems implements epp.Plugin.
func (p *SLOHeadroomTier) Problems(report epp.Report) {
	param.Within(report, "epsilonExploreNeg", p.EpsilonExploreNeg, 0, 1)
}

// References implements epp.Referrer.
func (p *SLOHeadroomTier) References() map[string]string {
	return param.References("latencyPredictionInfoProducerName", p.LatencyPredictionInfoProducerName)
}

// Build implements epp.Plugin.
func (p *SLOHeadroomTier) Build(b *epp.Builder) (any, error) {
	if err := param.Check[epp.Predictor](b, "latencyPredictionInfoProducerName", p.LatencyPredictionInfoProducerName); err != nil {
		return nil, err
	}
	return sloHeadroomTier{p.EpsilonExploreNeg}, nil
}

type sloHeadroomTier struct{ explore float64 }

// Filter implements epp.Filter.
func (f sloHeadroomTier) Filter(r *epp.Round, c []epp.Candidate) []epp.Candidate {
	if r.Request.WantedTTFT() == 0 && r.Request.WantedTPOT() == 0 {
		return c
	}
	n := 0
	fits := func(c *epp.Candidate) bool { fits, _ := latency.Fits(r.Request, c); return fits }
	for i := range c {
		if fits(&c[i]) {
			n++
		}
	}
	if n == 0 || n == len(c) {
		return c
	}
	wanted := !(f.explore > 0 && r.Rand.Float64() < f.explore)
	return Keep(c, func(c *epp.Candidate) bool { return fits(c) == wanted })
}
