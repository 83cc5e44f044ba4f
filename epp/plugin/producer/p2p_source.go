package producer

import (
	"iter"
	"math"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
	"github.com/tandem-serving/tandem/pd"
)

// P2PSource names for a request the endpoint that has most of its prompt cached, if the one that computes the prompt lacks enough of it,
// so that the engine fetches the blocks from there and does not compute them. The engines need a peer-to-peer tier, such as that of vLLM's
// OffloadingConnector, and the sidecars must pull: see their flag --enable-p2p-pull. An endpoint whose metrics page is too old to be
// trusted, or that refuses connections, is not named.
type P2PSource struct {
	// PrefixMatchInfoProducerName names the producer of cached tokens. Default "": the one named approx-prefix-cache-producer, or
	// else the first of the file. precise-prefix-cache-producer is the better one, because a pull for blocks that are not there costs
	// some 60 ms.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	// MinCachedTokenDelta is how many tokens of the prompt the named endpoint must have that the other one lacks. Measure from which
	// length a pull is quicker than computing: some thousand on GPUs. Default 1.
	MinCachedTokenDelta int `yaml:"minCachedTokenDelta"`
	// PrefillProfileName is the profile that picks what computes the prompt of requests that are split; the first endpoint computes
	// that of others. Default prefill. If no profile has this name, the profile of the stage that computes prompts is taken.
	PrefillProfileName string `yaml:"prefillProfileName"`
	// CostModel compares what a pull saves with what it costs, once the difference is large enough. Default: none.
	CostModel *PullCost `yaml:"costModel"`
}

// PullCost is the measured cost of pulls.
type PullCost struct {
	// PrefillMicrosecondsPerToken is the time in which one token is computed, in microseconds. Required.
	PrefillMicrosecondsPerToken float64 `yaml:"prefillMicrosecondsPerToken"`
	// TransferMicrosecondsPerToken is the time in which the blocks of one token arrive, in microseconds. It must be less. Required.
	TransferMicrosecondsPerToken float64 `yaml:"transferMicrosecondsPerToken"`
	// TransferFixedMs is what every pull costs, in milliseconds. Default 0.
	TransferFixedMs float64 `yaml:"transferFixedMs"`
	// SourceWaitMs is what a busy source adds, in milliseconds. Default 0.
	SourceWaitMs float64 `yaml:"sourceWaitMs"`
	// RequeueMs is what a busy endpoint that computes the prompt adds, in milliseconds: the request waits there once more. Default 0.
	RequeueMs float64 `yaml:"requeueMs"`
	// FleetWeight is what the time is worth that other requests of a busy endpoint gain, as a part of that time. Default 0.
	FleetWeight float64 `yaml:"fleetWeight"`
	// BusyQueueThreshold is from how many waiting requests on an endpoint is busy. Default 1.
	BusyQueueThreshold *int `yaml:"busyQueueThreshold"`
}

// sourceSlack is by how many tokens sources may have less than the best and still share its work: a block of llm-d's usual length.
const sourceSlack = 64

// NewP2PSource returns the parameters with their defaults.
func NewP2PSource() epp.Plugin {
	return &P2PSource{MinCachedTokenDelta: 1, PrefillProfileName: "prefill"}
}

// Problems implements epp.Plugin.
func (p *P2PSource) Problems(report epp.Report) {
	param.AtLeast(report, "minCachedTokenDelta", p.MinCachedTokenDelta, 1)
	c := p.CostModel
	if c == nil {
		return
	}
	if !(c.PrefillMicrosecondsPerToken > 0) {
		report("costModel.prefillMicrosecondsPerToken", "must be more than 0, got %v", c.PrefillMicrosecondsPerToken)
	}
	if !(c.TransferMicrosecondsPerToken > 0) {
		report("costModel.transferMicrosecondsPerToken", "must be more than 0, got %v", c.TransferMicrosecondsPerToken)
	}
	if c.TransferMicrosecondsPerToken >= c.PrefillMicrosecondsPerToken && c.PrefillMicrosecondsPerToken > 0 {
		report("costModel.transferMicrosecondsPerToken", "must be less than prefillMicrosecondsPerToken, %v: no pull would pay", c.PrefillMicrosecondsPerToken)
	}
	for _, v := range []struct {
		field string
		value float64
	}{{"transferFixedMs", c.TransferFixedMs}, {"sourceWaitMs", c.SourceWaitMs}, {"requeueMs", c.RequeueMs}, {"fleetWeight", c.FleetWeight}} {
		if !(v.value >= 0) {
			report("costModel."+v.field, "must not be negative, got %v", v.value)
		}
	}
	if c.BusyQueueThreshold != nil {
		param.AtLeast(report, "costModel.busyQueueThreshold", *c.BusyQueueThreshold, 1)
	}
}

// References implements epp.Referrer.
func (p *P2PSource) References() map[string]string {
	return param.References("prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName)
}

// Build implements epp.Plugin.
func (p *P2PSource) Build(b *epp.Builder) (any, error) {
	matcher, err := param.Matcher(b, p.PrefixMatchInfoProducerName)
	if err != nil {
		return nil, err
	}
	f := &findsSource{matcher: matcher, delta: p.MinCachedTokenDelta, profile: p.PrefillProfileName}
	if c := p.CostModel; c != nil {
		f.cost = &pullCost{prefill: c.PrefillMicrosecondsPerToken * 1e-6, transfer: c.TransferMicrosecondsPerToken * 1e-6, fixed: c.TransferFixedMs * 1e-3,
			wait: c.SourceWaitMs * 1e-3, requeue: c.RequeueMs * 1e-3, fleet: c.FleetWeight, busy: 1}
		if c.BusyQueueThreshold != nil {
			f.cost.busy = float64(*c.BusyQueueThreshold)
		}
	}
	return f, nil
}

// findsSource is an epp.SourceFinder.
type findsSource struct {
	matcher epp.Matcher
	delta   int // tokens
	profile string
	cost    *pullCost // nil: the difference decides
}

// pullCost is PullCost in seconds.
type pullCost struct{ prefill, transfer, fixed, wait, requeue, fleet, busy float64 }

// Source implements epp.SourceFinder.
func (f *findsSource) Source(r *epp.Round, all []epp.Candidate, d *epp.Decision) (source *epp.Endpoint, tokens int) {
	found := r.Found(f.matcher)
	computes := candidate(all, f.computes(d))
	if computes == nil {
		return nil, 0
	}
	has, best := found.Of(computes), 0
	for c := range sources(all, computes) {
		best = max(best, found.Of(c))
	}
	if best < has+f.delta {
		return nil, 0
	}
	var chosen *epp.Candidate
	if f.cost == nil {
		chosen = draw(r, all, computes, func(c *epp.Candidate) float64 {
			if found.Of(c) <= best-sourceSlack {
				return 0
			}
			return 1 / (1 + waiting(c))
		})
	} else {
		least := f.cost.least(all, computes, best, found)
		chosen = draw(r, all, computes, func(c *epp.Candidate) float64 {
			if f.cost.of(c, best-found.Of(c)) > least+sourceSlack*f.cost.prefill {
				return 0
			}
			return 1
		})
	}
	lead := 0
	if chosen != nil {
		lead = found.Of(chosen) - has
	}
	if lead < f.delta || f.cost != nil && !f.cost.pays(lead, chosen, computes) {
		return nil, 0
	}
	return chosen.Endpoint, found.Of(chosen)
}

// computes returns the endpoint that computes the prompt.
func (f *findsSource) computes(d *epp.Decision) *epp.Endpoint {
	at := d.Picks[0].Endpoints[0]
	for i := range d.Picks {
		if row := d.Picks[i].Row; row.Profile == f.profile {
			return d.Picks[i].Endpoints[0]
		} else if row.Computes {
			at = d.Picks[i].Endpoints[0]
		}
	}
	return at
}

// candidate returns the candidate that is an endpoint, nil if none is.
func candidate(all []epp.Candidate, e *epp.Endpoint) *epp.Candidate {
	for i := range all {
		if all[i].Endpoint == e {
			return &all[i]
		}
	}
	return nil
}

// sources yields the candidates that are alive, as far as is known, and have blocks of prompts, but for the one that computes this prompt.
func sources(all []epp.Candidate, computes *epp.Candidate) iter.Seq[*epp.Candidate] {
	return func(yield func(*epp.Candidate) bool) {
		for i := range all {
			c := &all[i]
			if c != computes && !c.Load.Unreachable && c.Trust > 0 && c.Role != pd.RoleEncode && !yield(c) {
				return
			}
		}
	}
}

// waiting returns how many requests wait on an endpoint.
func waiting(c *epp.Candidate) float64 {
	n, _ := c.Waiting()
	return n
}

// draw returns one of the sources, at random by weight; nil if all weights are 0.
func draw(r *epp.Round, all []epp.Candidate, computes *epp.Candidate, weight func(*epp.Candidate) float64) (chosen *epp.Candidate) {
	sum := 0.0
	for c := range sources(all, computes) {
		if w := weight(c); w > 0 {
			if sum += w; chosen == nil || r.Rand.Float64()*sum < w {
				chosen = c
			}
		}
	}
	return chosen
}

// of returns what a source costs that has less tokens than the best one, in seconds.
func (p *pullCost) of(source *epp.Candidate, less int) float64 {
	cost := float64(less) * (p.prefill - p.transfer)
	if waiting(source) >= p.busy {
		cost += p.wait
	}
	return cost
}

// least returns the cost of the cheapest source.
func (p *pullCost) least(all []epp.Candidate, computes *epp.Candidate, best int, found epp.Matches) (least float64) {
	least = math.Inf(1)
	for c := range sources(all, computes) {
		least = min(least, p.of(c, best-found.Of(c)))
	}
	return least
}

// pays reports whether a pull of tokens saves more than it costs.
func (p *pullCost) pays(tokens int, source, computes *epp.Candidate) bool {
	n := float64(tokens)
	gain, cost := n*(p.prefill-p.transfer), p.fixed
	if waiting(source) >= p.busy {
		cost += p.wait
	}
	if waiting(computes) >= p.busy {
		gain += p.fleet * n * p.prefill
		cost += p.requeue
	}
	return gain > cost
}
