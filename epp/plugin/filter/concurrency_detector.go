package filter

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// ConcurrencyDetector measures how full endpoints are by the requests that pickers have in flight there. This picker's own count
// at once; those of other replicas count as far as these tell them (--share-with). The operator has to know how many an engine can
// take. As saturationDetector it has requests of negative priority refused while all prefill endpoints, or all decode endpoints,
// together have as many in flight as they may. In a profile it drops each endpoint that has as many as it may.
type ConcurrencyDetector struct {
	// ConcurrencyMode says what is counted: requests (the default), tokens (of prompts still to be computed), or hybrid
	// (both).
	ConcurrencyMode string `yaml:"concurrencyMode"`
	// MaxConcurrency is how many requests an endpoint may have in flight. Default 100.
	MaxConcurrency int `yaml:"maxConcurrency"`
	// MaxTokenConcurrency is how many tokens an endpoint may have in flight. Default 1000000.
	MaxTokenConcurrency int `yaml:"maxTokenConcurrency"`
	// Headroom is the share of these limits by which an endpoint may exceed them in a profile: with 0.2, up to 120 %, rounded
	// down to whole requests and tokens. Default 0.
	Headroom float64 `yaml:"headroom"`
	// OnAllFull says what a profile does when it would drop all endpoints: refuse, the default, answers 429; keep drops none.
	OnAllFull string `yaml:"onAllFull"`
	// InFlightLoadProducerName names the inflight-load-producer. The picker keeps one count for all plugins, so the name is
	// only checked. Default "": no check.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
}

// The values of concurrencyMode.
const (
	countRequests = "requests"
	countTokens   = "tokens"
	countHybrid   = "hybrid"
)

// NewConcurrencyDetector returns the parameters with their defaults.
func NewConcurrencyDetector() epp.Plugin {
	return &ConcurrencyDetector{ConcurrencyMode: countRequests, MaxConcurrency: 100, MaxTokenConcurrency: 1_000_000,
		OnAllFull: allFullRefuse}
}

// Problems implements epp.Plugin.
func (p *ConcurrencyDetector) Problems(report epp.Report) {
	if modes := []string{countRequests, countTokens, countHybrid}; !slices.Contains(modes, p.ConcurrencyMode) {
		report("concurrencyMode", "must be one of %s, got %q", strings.Join(modes, ", "), p.ConcurrencyMode)
	}
	param.AtLeast(report, "maxConcurrency", p.MaxConcurrency, 1)
	param.AtLeast(report, "maxTokenConcurrency", p.MaxTokenConcurrency, 1)
	checkHeadroom(report, p.Headroom)
	checkAllFull(report, p.OnAllFull)
}

// References implements epp.Referrer.
func (p *ConcurrencyDetector) References() map[string]string {
	return param.References("inFlightLoadProducerName", p.InFlightLoadProducerName)
}

// Build implements epp.Plugin.
func (p *ConcurrencyDetector) Build(b *epp.Builder) (any, error) {
	if err := param.Check[epp.Charger](b, "inFlightLoadProducerName", p.InFlightLoadProducerName); err != nil {
		return nil, err
	}
	d := concurrencyDetector{requests: math.MaxInt, tokens: math.MaxInt, refuse: p.OnAllFull == allFullRefuse}
	if p.ConcurrencyMode != countTokens {
		d.perRequest, d.requests = 1/float64(p.MaxConcurrency), withHeadroom(p.MaxConcurrency, p.Headroom)
	}
	if p.ConcurrencyMode != countRequests {
		d.perToken, d.tokens = 1/float64(p.MaxTokenConcurrency), withHeadroom(p.MaxTokenConcurrency, p.Headroom)
	}
	return d, nil
}

type concurrencyDetector struct {
	perRequest, perToken float64 // share of the limit that one request or token takes; 0 = not counted
	requests, tokens     int     // in flight, from which a profile drops an endpoint
	refuse               bool
}

// withHeadroom returns a limit that is exceeded by the headroom, rounded down.
func withHeadroom(limit int, headroom float64) int {
	if most := float64(limit) * (1 + headroom); most < math.MaxInt {
		return int(most)
	}
	return math.MaxInt
}

func (d *concurrencyDetector) load(c *epp.Candidate) float64 {
	return max(d.perRequest*float64(c.InFlight.Requests), d.perToken*float64(c.InFlight.Tokens))
}

// Filter implements epp.Filter.
func (d concurrencyDetector) Filter(r *epp.Round, c []epp.Candidate) []epp.Candidate {
	if !sheds(r.Request) {
		return c
	}
	return spare(c, d.refuse, func(c *epp.Candidate) bool {
		return c.InFlight.Requests < d.requests && c.InFlight.Tokens < d.tokens
	})
}

// Immediate implements epp.ImmediateDetector.
func (concurrencyDetector) Immediate() {}

// Step implements epp.StepDetector.
func (d concurrencyDetector) Step(c []epp.Candidate) float64 {
	if d.perToken > 0 {
		return 1 / float64(len(c)) // prompts have any length
	}
	return d.perRequest / float64(len(c))
}

// Saturation implements epp.Detector. All endpoints have the same limit, so the mean of their loads is the load of the stage.
func (d concurrencyDetector) Saturation(_ time.Time, c []epp.Candidate) float64 {
	return mean(c, d.load)
}
