package plugin

import "github.com/tandem-serving/tandem/epp"

// ActiveRequestScorer prefers endpoints with few requests in flight, as this picker counts them, without delay: 1 for an idle
// endpoint, else (max−n)/max × maxBusyScore, where max is the highest count among the candidates.
type ActiveRequestScorer struct {
	// IdleThreshold is the most requests in flight with which an endpoint still counts as idle. Default 0.
	IdleThreshold int `yaml:"idleThreshold"`
	// MaxBusyScore is the highest score of an endpoint that is not idle, 0..1. Default 1.0.
	MaxBusyScore float64 `yaml:"maxBusyScore"`
	// InFlightLoadProducerName names the inflight-load-producer. The picker keeps one count for all plugins, so the name is
	// only checked. Default "": no check.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
	// RequestTimeout is accepted for older configurations, and ignored, as in llm-d.
	RequestTimeout string `yaml:"requestTimeout"`
}

func newActiveRequestScorer() epp.Plugin { return &ActiveRequestScorer{MaxBusyScore: 1} }

// Problems implements epp.Plugin.
func (p *ActiveRequestScorer) Problems(report epp.Report) {
	atLeast(report, "idleThreshold", p.IdleThreshold, 0)
	within(report, "maxBusyScore", p.MaxBusyScore, 0, 1)
}

// References implements epp.Referrer.
func (p *ActiveRequestScorer) References() map[string]string {
	return references("inFlightLoadProducerName", p.InFlightLoadProducerName)
}

// Build implements epp.Plugin.
func (p *ActiveRequestScorer) Build(b *epp.Builder) (any, error) {
	if err := check[epp.Charger](b, "inFlightLoadProducerName", p.InFlightLoadProducerName); err != nil {
		return nil, err
	}
	return activeRequestScorer{idle: p.IdleThreshold, maxBusy: p.MaxBusyScore}, nil
}

type activeRequestScorer struct {
	idle    int
	maxBusy float64
}

// Score implements epp.Scorer.
func (s activeRequestScorer) Score(_ *epp.Round, c []epp.Candidate, scores []float64) {
	most := 0
	for i := range c {
		most = max(most, c[i].InFlight.Requests)
	}
	for i := range c {
		n := c[i].InFlight.Requests
		if n <= s.idle {
			scores[i] = 1
			continue
		}
		scores[i] = float64(most-n) / float64(most) * s.maxBusy
	}
}
