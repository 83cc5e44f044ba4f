package scorer

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// TokenLoad prefers endpoints with few prompt tokens to compute, including those of this request: 1 − (tokens in flight
// + tokens of this prompt that the endpoint has not cached) / queueThresholdTokens, at least 0.
type TokenLoad struct {
	// QueueThresholdTokens is how many tokens give a score of 0. Default 4194304: 128 prompts of 32 Ki tokens.
	QueueThresholdTokens int `yaml:"queueThresholdTokens"`
	// InFlightLoadProducerName names the inflight-load-producer. The picker keeps one count for all plugins, so the name is
	// only checked. Default "": no check.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
}

// NewTokenLoad returns the parameters with their defaults.
func NewTokenLoad() epp.Plugin { return &TokenLoad{QueueThresholdTokens: queueThresholdTokens} }

const queueThresholdTokens = 4 << 20

// Correct implements epp.Corrector.
func (p *TokenLoad) Correct(warn epp.Report) {
	param.Correct(warn, "queueThresholdTokens", &p.QueueThresholdTokens, p.QueueThresholdTokens > 0, queueThresholdTokens)
}

// Problems implements epp.Plugin.
func (*TokenLoad) Problems(epp.Report) {}

// References implements epp.Referrer.
func (p *TokenLoad) References() map[string]string {
	return param.References("inFlightLoadProducerName", p.InFlightLoadProducerName)
}

// Build implements epp.Plugin.
func (p *TokenLoad) Build(b *epp.Builder) (any, error) {
	if err := param.Check[epp.Charger](b, "inFlightLoadProducerName", p.InFlightLoadProducerName); err != nil {
		return nil, err
	}
	return tokenLoadScorer{threshold: float64(p.QueueThresholdTokens)}, nil
}

type tokenLoadScorer struct{ threshold float64 }

// Score implements epp.Scorer.
func (s tokenLoadScorer) Score(r *epp.Round, c []epp.Candidate, scores []float64) {
	prompt, found := r.Request.Prompt.Tokens, r.Found(r.Charged)
	for i := range c {
		tokens := float64(c[i].InFlight.Tokens) + float64(max(prompt-found.Of(&c[i]), 0))
		scores[i] = max(1-tokens/s.threshold, 0)
	}
}
