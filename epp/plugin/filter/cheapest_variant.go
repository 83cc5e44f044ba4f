package filter

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// CheapestVariant keeps the candidates of the cheapest variant that is predicted to serve the request as its client wants: of a pool with
// several Deployments of one model, on other GPUs or with other quantizations, the cheapest that has at least one such candidate. Of its
// candidates it keeps those that are predicted to. If no variant has any, all candidates stay, and the scorers decide. Variants that cost the
// same count as one. What is predicted is the time to first token and the time for each further one, by predicted-latency-producer. It
// computes the time to first token as if the candidate computed the prompt, so in the decode profile of a pool with prefill pods predictions
// may be [tpot]. In a prefill profile the time to first token alone counts. llm-d has no such plugin.
type CheapestVariant struct {
	// VariantLabel is the label of pods that names their variant. Default llm-d.ai/variant, by which llm-d's autoscaler knows them.
	VariantLabel string `yaml:"variantLabel"`
	// Costs are what a pod of each variant costs for an hour, in any unit that is the same for all. Pods without the label, and those of a
	// variant that is not here, count as being as dear as the dearest. Default: none; then costLabel counts.
	Costs map[string]float64 `yaml:"costs"`
	// CostLabel is the label of pods that says what they cost, in place of costs. Pods without it, or with another value than a number, count
	// as being as dear as the dearest candidate. Default without costs: llm-d.ai/variant-cost, which pods of VariantAutoscaling objects count
	// as having.
	CostLabel string `yaml:"costLabel"`
	// TTFTMs is the wanted time to first token, in milliseconds, of requests that do not name one by x-llm-d-slo-ttft-ms. Default 2000.
	TTFTMs float64 `yaml:"ttftMs"`
	// TPOTMs is the wanted time for each further token, in milliseconds, of requests that do not name one by x-llm-d-slo-tpot-ms.
	// Default 50.
	TPOTMs float64 `yaml:"tpotMs"`
	// Headroom is the share of a wanted time, from 0 and below 1, by which a prediction must be lower. Default 0.
	Headroom float64 `yaml:"headroom"`
	// Quantile is the prediction, 0.5 or 0.9, that must not exceed what is wanted. Default 0.9: nine of ten requests are expected to take
	// less.
	Quantile float64 `yaml:"quantile"`
	// Predictions are those that count: ttft, tpot, or both. Default both.
	Predictions []string `yaml:"predictions"`
	// LatencyPredictionInfoProducerName names the predicted-latency-producer. All of a picker predict alike, so the name is only checked.
	// Default "": no check.
	LatencyPredictionInfoProducerName string `yaml:"latencyPredictionInfoProducerName"`
}

// Values of predictions.
const (
	ofTTFT = "ttft"
	ofTPOT = "tpot"
)

// NewCheapestVariant returns the parameters with their defaults.
func NewCheapestVariant() epp.Plugin {
	return &CheapestVariant{VariantLabel: epp.VariantLabel, TTFTMs: 2000, TPOTMs: 50, Quantile: 0.9, Predictions: []string{ofTTFT, ofTPOT}}
}

// longestWanted bounds wanted times.
const longestWanted = time.Hour

// Problems implements epp.Plugin.
func (p *CheapestVariant) Problems(report epp.Report) {
	switch {
	case p.CostLabel != "" && len(p.Costs) > 0:
		report("costLabel", "cannot be combined with costs")
	case p.VariantLabel == "":
		report("variantLabel", "must not be empty")
	}
	for variant, cost := range p.Costs {
		if !possibleCost(cost) {
			report("costs", "%s must cost a number that is not negative, got %v", variant, cost)
		}
	}
	for _, goal := range []struct {
		field string
		ms    float64
	}{{"ttftMs", p.TTFTMs}, {"tpotMs", p.TPOTMs}} {
		if !(goal.ms > 0 && goal.ms <= float64(longestWanted/time.Millisecond)) {
			report(goal.field, "must be more than 0 and at most an hour in milliseconds, got %v", goal.ms)
		}
	}
	if !(p.Headroom >= 0 && p.Headroom < 1) {
		report("headroom", "must be from 0 and below 1, got %v", p.Headroom)
	}
	if p.Quantile != 0.5 && p.Quantile != 0.9 {
		report("quantile", "must be 0.5 or 0.9, got %v", p.Quantile)
	}
	if len(p.Predictions) == 0 {
		report("predictions", "must not be empty")
	}
	for i, of := range p.Predictions {
		if of != ofTTFT && of != ofTPOT {
			report(fmt.Sprintf("predictions[%d]", i), "must be %s or %s, got %q", ofTTFT, ofTPOT, of)
		}
	}
}

// possibleCost reports whether pods can cost so much.
func possibleCost(cost float64) bool { return cost >= 0 && !math.IsInf(cost, 1) }

// References implements epp.Referrer.
func (p *CheapestVariant) References() map[string]string {
	return param.References("latencyPredictionInfoProducerName", p.LatencyPredictionInfoProducerName)
}

// Build implements epp.Plugin.
func (p *CheapestVariant) Build(b *epp.Builder) (any, error) {
	if err := param.Check[epp.Predictor](b, "latencyPredictionInfoProducerName", p.LatencyPredictionInfoProducerName); err != nil {
		return nil, err
	}
	label := p.CostLabel
	if len(p.Costs) == 0 {
		label = cmp.Or(label, epp.VariantCostLabel)
	}
	f := &cheapestVariantFilter{variantLabel: p.VariantLabel, costLabel: label, costs: p.Costs, share: 1 - p.Headroom,
		ttft: p.TTFTMs / 1000, tpot: p.TPOTMs / 1000, quantile: "p90", first: latency.TTFT90, further: latency.TPOT90,
		byTTFT: slices.Contains(p.Predictions, ofTTFT), byTPOT: slices.Contains(p.Predictions, ofTPOT)}
	if p.Quantile == 0.5 {
		f.quantile, f.first, f.further = "p50", latency.TTFT50, latency.TPOT50
	}
	for _, cost := range p.Costs {
		f.dearest = max(f.dearest, cost)
	}
	return f, nil
}

type cheapestVariantFilter struct {
	variantLabel, costLabel string
	costs                   map[string]float64 // unused with a costLabel
	dearest                 float64            // of costs
	ttft, tpot              float64            // wanted by requests that do not say it, in seconds
	share                   float64            // of a wanted time that predictions may take
	quantile                string             // as explanations name it
	first, further          epp.Signal         // predictions
	byTTFT, byTPOT          bool               // which of them count
}

// bounds are what predictions must not exceed, in seconds.
type bounds struct{ first, further float64 }

// bounds returns those of a request. A prediction that does not count has none.
func (f *cheapestVariantFilter) bounds(r *epp.Round) bounds {
	b := bounds{math.Inf(1), math.Inf(1)}
	prefills := r.Stage == epp.StagePrefill
	if f.byTTFT || prefills {
		b.first = f.share * cmp.Or(r.Request.WantedTTFT().Seconds(), f.ttft)
	}
	if f.byTPOT && !prefills {
		b.further = f.share * cmp.Or(r.Request.WantedTPOT().Seconds(), f.tpot)
	}
	return b
}

// meets reports whether a candidate is predicted to stay within bounds. One that cannot be reached looks idle, and serves no request.
func (f *cheapestVariantFilter) meets(c *epp.Candidate, b bounds) bool {
	first, known := c.Value(f.first)
	further, also := c.Value(f.further)
	return known && also && first <= b.first && further <= b.further && !c.Load.Unreachable
}

// cost returns what a candidate costs; ok is false if that is not known.
func (f *cheapestVariantFilter) cost(c *epp.Candidate) (cost float64, ok bool) {
	if f.costLabel == "" {
		cost, ok = f.costs[c.Labels[f.variantLabel]]
		return cost, ok
	}
	label := c.Labels[f.costLabel]
	if label == "" {
		return 0, false
	}
	cost, err := strconv.ParseFloat(label, 64)
	return cost, err == nil && possibleCost(cost)
}

// most returns what candidates count as costing of which it is not known.
func (f *cheapestVariantFilter) most(c []epp.Candidate) float64 {
	dearest := f.dearest
	if f.costLabel != "" {
		for i := range c {
			if cost, ok := f.cost(&c[i]); ok {
				dearest = max(dearest, cost)
			}
		}
	}
	return dearest
}

// costOr returns what a candidate costs, or else as much as the dearest.
func (f *cheapestVariantFilter) costOr(c *epp.Candidate, dearest float64) float64 {
	if cost, ok := f.cost(c); ok {
		return cost
	}
	return dearest
}

// Filter implements epp.Filter.
func (f *cheapestVariantFilter) Filter(r *epp.Round, c []epp.Candidate) []epp.Candidate {
	b, dearest := f.bounds(r), f.most(c)
	cheapest := math.Inf(1)
	for i := range c {
		if cost := f.costOr(&c[i], dearest); cost < cheapest && f.meets(&c[i], b) {
			cheapest = cost
		}
	}
	if math.IsInf(cheapest, 1) {
		return c
	}
	return Keep(c, func(c *epp.Candidate) bool { return f.costOr(c, dearest) == cheapest && f.meets(c, b) })
}

// Explain implements epp.Explainer.
func (f *cheapestVariantFilter) Explain(r *epp.Round, all, left []epp.Candidate, dropped *epp.Candidate) string {
	dearest := f.most(all)
	own, chosen := f.costOr(dropped, dearest), f.costOr(&left[0], dearest)
	if own > chosen {
		return fmt.Sprintf("%s; %s has a pod that is predicted to do what is wanted", f.name(dropped, own), f.name(&left[0], chosen))
	}
	return fmt.Sprintf("%s: %s", f.name(dropped, own), f.exceeded(dropped, f.bounds(r)))
}

// name names a candidate's variant with what it costs.
func (f *cheapestVariantFilter) name(c *epp.Candidate, cost float64) string {
	name := "no variant"
	if variant := c.Labels[f.variantLabel]; variant != "" {
		name = fmt.Sprintf("variant %q", variant)
	}
	if _, known := f.cost(c); !known {
		return fmt.Sprintf("%s at the highest cost, %v", name, cost)
	}
	return fmt.Sprintf("%s at %v", name, cost)
}

// exceeded says which predictions of a candidate exceed their bounds.
func (f *cheapestVariantFilter) exceeded(c *epp.Candidate, b bounds) string {
	first, known := c.Value(f.first)
	further, also := c.Value(f.further)
	switch {
	case c.Load.Unreachable:
		return "it cannot be reached"
	case !known || !also:
		return "nothing is predicted of it"
	}
	var all []string
	if first > b.first {
		all = append(all, fmt.Sprintf("first token after %v (%s), at most %v is wanted", rounded(first), f.quantile, rounded(b.first)))
	}
	if further > b.further {
		all = append(all, fmt.Sprintf("%v for each further token (%s), at most %v is wanted", rounded(further), f.quantile, rounded(b.further)))
	}
	return strings.Join(all, ", and ")
}

// rounded returns a time for people to read.
func rounded(seconds float64) time.Duration {
	d := time.Duration(seconds * float64(time.Second))
	if d >= time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(100 * time.Microsecond)
}
