package filter

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/plugin/param"
	"github.com/tandem-serving/tandem/pd"
)

// LatencySLOAdmitter refuses requests of negative priority that no endpoint is predicted to serve as their client wants by
// x-llm-d-slo-ttft-ms and x-llm-d-slo-tpot-ms. It refuses none without these headers, while nothing is predicted, and while an endpoint is
// idle or uses less than 2 % of its KV cache. It takes effect by being in plugins, and needs no place in a profile. Refused requests are
// answered with 429. Of a pool that splits requests, the endpoints that decode must fit, or one that decodes must generate as fast as wanted and
// one that prefills compute the prompt in time; in llm-d any endpoint of the pool does.
type LatencySLOAdmitter struct {
	// LatencyPredictionInfoProducerName names the predicted-latency-producer. All of a picker predict alike, so the name is only checked.
	// Default "": no check.
	LatencyPredictionInfoProducerName string `yaml:"latencyPredictionInfoProducerName"`
}

// NewLatencySLOAdmitter returns the parameters with their defaults.
func NewLatencySLOAdmitter() epp.Plugin { return &LatencySLOAdmitter{} }

// Problems implements epp.Plugin.
func (*LatencySLOAdmitter) Problems(epp.Report) {}

// References implements epp.Referrer.
func (p *LatencySLOAdmitter) References() map[string]string {
	return param.References("latencyPredictionInfoProducerName", p.LatencyPredictionInfoProducerName)
}

// Build implements epp.Plugin.
func (p *LatencySLOAdmitter) Build(b *epp.Builder) (any, error) {
	if err := param.Check[epp.Predictor](b, "latencyPredictionInfoProducerName", p.LatencyPredictionInfoProducerName); err != nil {
		return nil, err
	}
	return latencySLOAdmitter{}, nil
}

type latencySLOAdmitter struct{}

// cold is the used share of a KV cache below which an endpoint is taken to have hardly served, as in llm-d.
const cold = 0.02

// Admits implements epp.Admitter.
func (latencySLOAdmitter) Admits(r *epp.Round, c []epp.Candidate) bool {
	ttft, tpot := r.Request.WantedTTFT() > 0, r.Request.WantedTPOT() > 0
	if r.Request.Priority >= 0 || !ttft && !tpot {
		return true
	}
	predicted, generates, computes := false, false, false
	for i := range c {
		one := &c[i]
		first, known := one.Value(latency.TTFTHeadroom)
		further, _ := one.Value(latency.TPOTHeadroom)
		prompt := known && (!ttft || first >= 0)
		answer := known && (!tpot || further >= 0)
		switch decodes := one.Role.Has(pd.RoleDecode); {
		case decodes && (prompt && answer || idle(one)):
			return true
		case decodes:
			generates = generates || answer
		case one.Role.Has(pd.RolePrefill):
			computes = computes || prompt || idle(one)
		}
		predicted = predicted || known
	}
	return !predicted || generates && computes
}

// idle reports whether an endpoint can take a request at once for certain, whatever is predicted.
func idle(c *epp.Candidate) bool {
	if c.Trust == 0 {
		return false
	}
	running, runs := c.Running()
	used, uses := c.KVUsage()
	return runs && running == 0 || uses && used < cold
}
