package scorer

import (
	"math"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// Latency rates candidates by predicted-latency-producer. If some are predicted to serve the request as its client wants by
// x-llm-d-slo-ttft-ms and x-llm-d-slo-tpot-ms, it rates these by how far they stay below that, and others 0. If none is, and if the client wants
// nothing, the lowest predicted times are best: first of idle candidates, then of those that miss only the time for further tokens, then only
// the time to first token. Times of both kinds are spread from 0 to 1 over the candidates, and weighed. Where nothing is predicted, it rates
// by free KV cache, queue and prefix cache.
type Latency struct {
	// TTFTWeight is the weight of the time to first token. Default 0.8.
	TTFTWeight float64 `yaml:"ttftWeight"`
	// TPOTWeight is the weight of the time for each further token. Default 0.2.
	TPOTWeight float64 `yaml:"tpotWeight"`
	// HeadroomSelectionStrategy says which of the candidates that fit is best: least, the one that fits just so, which leaves others free for
	// what comes; most, the one that stays furthest below. Default least.
	HeadroomSelectionStrategy string `yaml:"headroomSelectionStrategy"`
	// CompositeKVWeight is the weight of the free KV cache where nothing is predicted. Default 1.
	CompositeKVWeight float64 `yaml:"compositeKVWeight"`
	// CompositeQueueWeight is the weight of the queue there. Default 1.
	CompositeQueueWeight float64 `yaml:"compositeQueueWeight"`
	// CompositePrefixWeight is the weight of the cached share of the prompt there. Default 1.
	CompositePrefixWeight float64 `yaml:"compositePrefixWeight"`
	// PrefixMatchInfoProducerName names the producer of cached tokens. Default "": the one named approx-prefix-cache-producer, or
	// else the first of the file.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	// LatencyPredictionInfoProducerName names the predicted-latency-producer. All of a picker predict alike, so the name is only checked.
	// Default "": no check.
	LatencyPredictionInfoProducerName string `yaml:"latencyPredictionInfoProducerName"`
}

// Values of headroomSelectionStrategy.
const (
	leastHeadroom = "least"
	mostHeadroom  = "most"
)

// NewLatency returns the parameters with their defaults.
func NewLatency() epp.Plugin {
	return &Latency{TTFTWeight: 0.8, TPOTWeight: 0.2, HeadroomSelectionStrategy: leastHeadroom, CompositeKVWeight: 1, CompositeQueueWeight: 1, CompositePrefixWeight: 1}
}

// Problems implements epp.Plugin.
func (p *Latency) Problems(report epp.Report) {
	for _, w := range []struct {
		field  string
		weight float64
	}{{"ttftWeight", p.TTFTWeight}, {"tpotWeight", p.TPOTWeight}, {"compositeKVWeight", p.CompositeKVWeight},
		{"compositeQueueWeight", p.CompositeQueueWeight}, {"compositePrefixWeight", p.CompositePrefixWeight}} {
		if !(w.weight >= 0) || math.IsInf(w.weight, 1) {
			report(w.field, "must be a number that is not negative, got %v", w.weight)
		}
	}
	if !(p.TTFTWeight+p.TPOTWeight > 0) {
		report("ttftWeight", "or tpotWeight must be more than 0")
	}
	if s := p.HeadroomSelectionStrategy; s != leastHeadroom && s != mostHeadroom {
		report("headroomSelectionStrategy", "must be %s or %s, got %q", leastHeadroom, mostHeadroom, s)
	}
}

// References implements epp.Referrer.
func (p *Latency) References() map[string]string {
	return param.References("prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName,
		"latencyPredictionInfoProducerName", p.LatencyPredictionInfoProducerName)
}

// Build implements epp.Plugin.
func (p *Latency) Build(b *epp.Builder) (any, error) {
	matcher, err := param.Matcher(b, p.PrefixMatchInfoProducerName)
	if err != nil {
		return nil, err
	}
	if err := param.Check[epp.Predictor](b, "latencyPredictionInfoProducerName", p.LatencyPredictionInfoProducerName); err != nil {
		return nil, err
	}
	composite := p.CompositeKVWeight + p.CompositeQueueWeight + p.CompositePrefixWeight
	if composite == 0 {
		composite = 1 // all are rated 0
	}
	return latencyScorer{matcher: matcher, ttft: p.TTFTWeight, tpot: p.TPOTWeight, most: p.HeadroomSelectionStrategy == mostHeadroom,
		kv: p.CompositeKVWeight / composite, queue: p.CompositeQueueWeight / composite, prefix: p.CompositePrefixWeight / composite}, nil
}

type latencyScorer struct {
	matcher           epp.Matcher
	ttft, tpot        float64
	most              bool
	kv, queue, prefix float64 // add up to 1
}

// tier is how good a candidate is before its times are looked at; the lowest is best.
type tier uint8

// The tiers.
const (
	fitsWanted tier = iota
	idleMisses
	missesTPOT
	missesTTFT
	missesBoth
	notPredicted
)

// tierOf returns the tier of a candidate. Where the client wants nothing, predictions miss both times.
func tierOf(r *epp.Request, c *epp.Candidate) tier {
	ttft, known := c.Value(latency.TTFTHeadroom)
	tpot, also := c.Value(latency.TPOTHeadroom)
	wantsTTFT, wantsTPOT := r.WantedTTFT() > 0, r.WantedTPOT() > 0
	switch late, slow := ttft < 0 && (wantsTTFT || !wantsTPOT), tpot < 0 && (wantsTPOT || !wantsTTFT); {
	case !known || !also:
		return notPredicted
	case !late && !slow:
		return fitsWanted
	case c.InFlight.Requests == 0:
		return idleMisses
	case !late:
		return missesTPOT
	case !slow:
		return missesTTFT
	}
	return missesBoth
}

// Score implements epp.Scorer.
func (s latencyScorer) Score(r *epp.Round, c []epp.Candidate, scores []float64) {
	best := notPredicted
	for i := range c {
		best = min(best, tierOf(r.Request, &c[i]))
	}
	if best == notPredicted {
		s.composite(r, c, scores)
		return
	}
	var first, further span
	for i := range c {
		if tierOf(r.Request, &c[i]) == best {
			first.add(headroom(&c[i], latency.TTFTHeadroom))
			further.add(headroom(&c[i], latency.TPOTHeadroom))
		}
	}
	ttft, tpot := first.weight(s.ttft), further.weight(s.tpot)
	for i := range c {
		if tierOf(r.Request, &c[i]) != best {
			continue // 0
		}
		if ttft+tpot == 0 {
			scores[i] = 1 // all of them are equal
			continue
		}
		score := (ttft*first.at(headroom(&c[i], latency.TTFTHeadroom)) + tpot*further.at(headroom(&c[i], latency.TPOTHeadroom))) / (ttft + tpot)
		if best == fitsWanted && !s.most {
			score = 1 - score
		}
		scores[i] = score
	}
}

func headroom(c *epp.Candidate, of epp.Signal) float64 { v, _ := c.Value(of); return v }

// span is the lowest and the highest of some values.
type span struct {
	low, high float64
	any       bool
}

func (s *span) add(v float64) {
	if !s.any {
		s.low, s.high, s.any = v, v, true
		return
	}
	s.low, s.high = min(s.low, v), max(s.high, v)
}

// weight returns a weight, or 0 if all values are equal.
func (s *span) weight(w float64) float64 {
	if s.high > s.low {
		return w
	}
	return 0
}

// at returns where a value is, from 0 for the lowest to 1 for the highest.
func (s *span) at(v float64) float64 {
	if s.high > s.low {
		return max(0, min((v-s.low)/(s.high-s.low), 1))
	}
	return 0
}

// composite rates candidates of which nothing is predicted.
func (s latencyScorer) composite(r *epp.Round, c []epp.Candidate, scores []float64) {
	queueScorer{}.Score(r, c, scores)
	found := r.Found(s.matcher)
	var free [1]float64
	for i := range c {
		kvCacheUtilizationScorer{}.Score(r, c[i:i+1], free[:])
		cached := 0.0
		if found.Whole > 0 {
			cached = max(0, min(float64(found.Of(&c[i]))/float64(found.Whole), 1))
		}
		scores[i] = s.queue*scores[i] + s.kv*free[0] + s.prefix*cached
	}
}
