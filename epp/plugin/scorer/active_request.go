package scorer

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// ActiveRequest prefers endpoints with few requests in flight, as this picker counts them, without delay: 1 for an idle
// endpoint, else (max−n)/max × maxBusyScore, where max is the highest count among the candidates.
type ActiveRequest struct {
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

// NewActiveRequest returns the parameters with their defaults.
func NewActiveRequest() epp.Plugin { return &ActiveRequest{MaxBusyScore: 1} }

// Correct implements epp.Corrector.
func (p *ActiveRequest) Correct(warn epp.Report) {
	param.Correct(warn, "idleThreshold", &p.IdleThreshold, p.IdleThreshold >= 0, 0)
	param.Correct(warn, "maxBusyScore", &p.MaxBusyScore, p.MaxBusyScore >= 0 && p.MaxBusyScore <= 1, 1)
}

// Problems implements epp.Plugin.
func (*ActiveRequest) Problems(epp.Report) {}

// References implements epp.Referrer.
func (p *ActiveRequest) References() map[string]string {
	return param.References("inFlightLoadProducerName", p.InFlightLoadProducerName)
}

// Build implements epp.Plugin.
func (p *ActiveRequest) Build(b *epp.Builder) (any, error) {
	if err := param.Check[epp.Charger](b, "inFlightLoadProducerName", p.InFlightLoadProducerName); err != nil {
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
