package filter

import (
	"cmp"
	"math"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// PrefixCacheAffinity keeps only the candidates that have the prompt in their prefix cache, unless the best of
// them would answer much later than the best of the others. It estimates the time to the first token as prompt tokens in
// flight / peakPrefillThroughput. If no candidate has the prompt, it keeps all. It is for profiles whose endpoints compute prompts:
// endpoints that only decode have no prompt tokens in flight, so each of them would seem to answer in time.
type PrefixCacheAffinity struct {
	// AffinityThreshold is the share of the prompt, 0..1, from which a candidate counts as having it cached. 0 switches the filter off.
	// Default 0.80.
	AffinityThreshold float64 `yaml:"affinityThreshold"`
	// ExplorationProbability is how often, 0..1, the filter keeps all candidates, so that others cache prompts too. Default 0.
	ExplorationProbability float64 `yaml:"explorationProbability"`
	// MaxTTFTPenaltyMs is how many milliseconds later than the best of the others the best candidate with the prompt may answer. 0 = no
	// limit. Default 18000.
	MaxTTFTPenaltyMs float64 `yaml:"maxTTFTPenaltyMs"`
	// MaxTokensInFlightPenalty is how many more prompt tokens in flight the best candidate with the prompt may have. It is the older form
	// of maxTTFTPenaltyMs; if both are set, the lower one counts. 0 = no limit. Default 0.
	MaxTokensInFlightPenalty float64 `yaml:"maxTokensInFlightPenalty"`
	// TTFTSource says how the time to the first token is estimated: prefillThroughput, or latencyPredictor, the median that
	// predicted-latency-producer predicts. Default prefillThroughput.
	TTFTSource string `yaml:"ttftSource"`
	// PeakPrefillThroughput is how many tokens per second one endpoint prefills. Measure it: the tokens of one prefill chunk
	// / the median TTFT of one chunk. Default 15928, llm-d's figure for Qwen3-32B on two H100.
	PeakPrefillThroughput float64 `yaml:"peakPrefillThroughput"`
	// PrefixMatchInfoProducerName names the producer of cached tokens. Default "": the one named approx-prefix-cache-producer, or
	// else the first of the file.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	// LatencyPredictionInfoProducerName names the predicted-latency-producer, with ttftSource latencyPredictor. Default "": the one of that name.
	LatencyPredictionInfoProducerName string `yaml:"latencyPredictionInfoProducerName"`
	// InFlightLoadProducerName names the inflight-load-producer. The picker keeps one count for all plugins, so the name is
	// only checked. Default "": no check.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
}

// Values of ttftSource.
const (
	prefillThroughput = "prefillThroughput"
	latencyPredictor  = "latencyPredictor"
)

// usualPredictor is the name of the predictor if none is named.
const usualPredictor = "predicted-latency-producer"

// NewPrefixCacheAffinity returns the parameters with their defaults.
func NewPrefixCacheAffinity() epp.Plugin {
	return &PrefixCacheAffinity{
		AffinityThreshold:     0.80,
		MaxTTFTPenaltyMs:      18000,
		TTFTSource:            prefillThroughput,
		PeakPrefillThroughput: 15928,
	}
}

// Problems implements epp.Plugin.
func (p *PrefixCacheAffinity) Problems(report epp.Report) {
	param.Within(report, "affinityThreshold", p.AffinityThreshold, 0, 1)
	param.Within(report, "explorationProbability", p.ExplorationProbability, 0, 1)
	param.AtLeast(report, "maxTTFTPenaltyMs", p.MaxTTFTPenaltyMs, 0)
	param.AtLeast(report, "maxTokensInFlightPenalty", p.MaxTokensInFlightPenalty, 0)
	if p.TTFTSource != latencyPredictor && p.MaxTTFTPenaltyMs > 0 && !(p.PeakPrefillThroughput > 0) {
		report("peakPrefillThroughput", "must be more than 0 tokens per second, got %v", p.PeakPrefillThroughput)
	}
	switch {
	case p.TTFTSource != prefillThroughput && p.TTFTSource != latencyPredictor:
		report("ttftSource", "must be %s or %s, got %q", prefillThroughput, latencyPredictor, p.TTFTSource)
	case p.TTFTSource == latencyPredictor && p.MaxTokensInFlightPenalty > 0:
		report("maxTokensInFlightPenalty", "is in tokens: with ttftSource %s use maxTTFTPenaltyMs", latencyPredictor)
	}
}

// References implements epp.Referrer.
func (p *PrefixCacheAffinity) References() map[string]string {
	predictor := ""
	if p.TTFTSource == latencyPredictor {
		predictor = cmp.Or(p.LatencyPredictionInfoProducerName, usualPredictor)
	}
	return param.References("prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName,
		"inFlightLoadProducerName", p.InFlightLoadProducerName, "latencyPredictionInfoProducerName", predictor)
}

// Build implements epp.Plugin.
func (p *PrefixCacheAffinity) Build(b *epp.Builder) (any, error) {
	matcher, err := param.Matcher(b, p.PrefixMatchInfoProducerName)
	if err != nil {
		return nil, err
	}
	if err = param.Check[epp.Charger](b, "inFlightLoadProducerName", p.InFlightLoadProducerName); err != nil {
		return nil, err
	}
	f := prefixCacheAffinityFilter{matcher: matcher, threshold: p.AffinityThreshold, explore: p.ExplorationProbability, maxMore: math.Inf(1)}
	if p.TTFTSource == latencyPredictor {
		if err = param.Check[epp.Predictor](b, "latencyPredictionInfoProducerName", cmp.Or(p.LatencyPredictionInfoProducerName, usualPredictor)); err != nil {
			return nil, err
		}
		f.predicted = true
		if p.MaxTTFTPenaltyMs > 0 {
			f.maxMore = p.MaxTTFTPenaltyMs / 1000
		}
		return f, nil
	}
	if p.MaxTTFTPenaltyMs > 0 {
		f.maxMore = p.MaxTTFTPenaltyMs / 1000 * p.PeakPrefillThroughput
	}
	if p.MaxTokensInFlightPenalty > 0 {
		f.maxMore = min(f.maxMore, p.MaxTokensInFlightPenalty)
	}
	return f, nil
}

// prefixCacheAffinityFilter compares tokens, not times, unless times are predicted: the throughput is the same for all candidates.
type prefixCacheAffinityFilter struct {
	matcher            epp.Matcher
	threshold, explore float64
	predicted          bool    // by times
	maxMore            float64 // tokens, or seconds
}

// Filter implements epp.Filter.
func (f prefixCacheAffinityFilter) Filter(r *epp.Round, c []epp.Candidate) []epp.Candidate {
	found := r.Found(f.matcher)
	whole := float64(found.Whole)
	if len(c) < 2 || f.threshold == 0 || whole <= 0 || f.explore > 0 && r.Rand.Float64() < f.explore {
		return c
	}
	hasPrompt := func(c *epp.Candidate) bool { return float64(found.Of(c))/whole >= f.threshold }
	with, without := math.Inf(1), math.Inf(1) // the lowest counts of tokens in flight, or times
	for i := range c {
		wait := float64(c[i].InFlight.Tokens)
		if f.predicted {
			wait, _ = c[i].Value(latency.TTFT50)
		}
		if hasPrompt(&c[i]) {
			with = min(with, wait)
		} else {
			without = min(without, wait)
		}
	}
	if math.IsInf(with, 1) || with-without > f.maxMore {
		return c
	}
	return Keep(c, hasPrompt)
}
