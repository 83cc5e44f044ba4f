package plugin

import (
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// ConcurrencyDetector tells from what this picker has in flight how full endpoints are. The count is never late, but others'
// requests are not in it, and only its author knows how many an engine can take. As saturationDetector it has requests of
// negative priority refused while the pool has as many in flight as it may, in prefill or in decode. In a profile it drops
// endpoints that have.
type ConcurrencyDetector struct {
	// ConcurrencyMode says what is counted: requests, the default, tokens of prompts still to be computed, or hybrid, both.
	ConcurrencyMode string `yaml:"concurrencyMode"`
	// MaxConcurrency is how many requests an endpoint may have in flight. Default 100.
	MaxConcurrency int `yaml:"maxConcurrency"`
	// MaxTokenConcurrency is how many tokens an endpoint may have in flight. Default 1000000.
	MaxTokenConcurrency int `yaml:"maxTokenConcurrency"`
	// Headroom is by how much of these a profile lets endpoints have more. Default 0.
	Headroom float64 `yaml:"headroom"`
	// OnAllFull says what a profile does when it would drop all endpoints: refuse, the default, answers 429; keep drops none.
	OnAllFull string `yaml:"onAllFull"`
	// InFlightLoadProducerName names the inflight-load-producer. There is only one count, so the name is only
	// checked. Default "" = whichever there is.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
}

// The values of concurrencyMode.
const (
	countRequests = "requests"
	countTokens   = "tokens"
	countHybrid   = "hybrid"
)

func newConcurrencyDetector() epp.Plugin {
	return &ConcurrencyDetector{ConcurrencyMode: countRequests, MaxConcurrency: 100, MaxTokenConcurrency: 1_000_000,
		OnAllFull: allFullRefuse}
}

// Problems implements epp.Plugin.
func (p *ConcurrencyDetector) Problems(report epp.Report) {
	if modes := []string{countRequests, countTokens, countHybrid}; !slices.Contains(modes, p.ConcurrencyMode) {
		report("concurrencyMode", "must be one of %s, got %q", strings.Join(modes, ", "), p.ConcurrencyMode)
	}
	atLeast(report, "maxConcurrency", p.MaxConcurrency, 1)
	atLeast(report, "maxTokenConcurrency", p.MaxTokenConcurrency, 1)
	checkHeadroom(report, p.Headroom)
	checkAllFull(report, p.OnAllFull)
}

// References implements epp.Referrer.
func (p *ConcurrencyDetector) References() map[string]string {
	return references("inFlightLoadProducerName", p.InFlightLoadProducerName)
}

// Build implements epp.Plugin.
func (p *ConcurrencyDetector) Build(b *epp.Builder) (any, error) {
	if err := check[epp.Charger](b, "inFlightLoadProducerName", p.InFlightLoadProducerName); err != nil {
		return nil, err
	}
	d := concurrencyDetector{limit: 1 + p.Headroom, refuse: p.OnAllFull == allFullRefuse}
	if p.ConcurrencyMode != countTokens {
		d.perRequest = 1 / float64(p.MaxConcurrency)
	}
	if p.ConcurrencyMode != countRequests {
		d.perToken = 1 / float64(p.MaxTokenConcurrency)
	}
	return d, nil
}

type concurrencyDetector struct {
	perRequest, perToken float64 // of what an endpoint may have in flight; 0: it does not count
	limit                float64
	refuse               bool
}

func (d *concurrencyDetector) load(c *epp.Candidate) float64 {
	return max(d.perRequest*float64(c.InFlight.Requests), d.perToken*float64(c.InFlight.Tokens))
}

// Filter implements epp.Filter.
func (d concurrencyDetector) Filter(r *epp.Round, c []epp.Candidate) []epp.Candidate {
	if !sheds(r.Request) {
		return c
	}
	return spare(c, d.refuse, func(c *epp.Candidate) bool { return d.load(c) < d.limit })
}

// Saturation implements epp.Detector. All endpoints may have equally many in flight, so the mean of their shares is the
// share of their sum.
func (d concurrencyDetector) Saturation(_ time.Time, c []epp.Candidate) float64 {
	return mean(c, d.load)
}
