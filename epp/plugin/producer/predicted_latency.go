package producer

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// PredictedLatency predicts for each request and endpoint the time to first token and the time for each further token: what half of such
// requests, and nine of ten, need at most. latency-scorer, slo-headroom-tier-filter, cheapest-variant-filter, latency-slo-admitter and
// cost-pd-decider go by it. It learns in the picker, from how long the parts of each request took, as Tandem's sidecar reports; llm-d asks a
// service of its own, which trains XGBoost. Until there are reports it takes engines for usual GPUs. The time to first token is as if the
// endpoint computed the prompt: of a prefill endpoint it ends with the prompt, and does not have the hand-off.
type PredictedLatency struct {
	// Quantile is the prediction, 0.5 or 0.9, that headrooms are distances from. Default 0.5. llm-d chooses it in its service.
	Quantile float64 `yaml:"quantile"`
	// SLOBufferFactor is by what the wanted time for each further token is multiplied, so that less than 1 keeps a distance. Default 1.
	SLOBufferFactor float64 `yaml:"sloBufferFactor"`
	// PredictInProduce predicts for each request; without it the plugin only learns, and checks what picks expected. Default true.
	PredictInProduce bool `yaml:"predictInProduce"`
	// PrefixMatchInfoProducerName names the producer of cached tokens. Default "": the one named approx-prefix-cache-producer, or
	// else the first of the file.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	// InFlightLoadProducerName names the inflight-load-producer. The picker keeps one count for all plugins, so the name is
	// only checked. Default "": no check.
	InFlightLoadProducerName string `yaml:"inFlightLoadProducerName"`
	// StreamingMode is accepted and ignored: the sidecar tells first tokens and answers apart. Default false.
	StreamingMode bool `yaml:"streamingMode"`
	// EndpointRoleLabel is accepted and ignored: roles are always known. Default "".
	EndpointRoleLabel string `yaml:"endpointRoleLabel"`
	// SamplingMean is accepted and ignored, as in llm-d. Default 1000.
	SamplingMean float64 `yaml:"samplingMean"`
	// MaxDecodeTokenSamplesForPrediction is accepted and ignored, as in llm-d. Default 0.
	MaxDecodeTokenSamplesForPrediction int `yaml:"maxDecodeTokenSamplesForPrediction"`
	// ContextTTL is accepted and ignored: what is kept of a request ends with it. Default 5m.
	ContextTTL string `yaml:"contextTTL"`
	// UseEncoderCacheFeatures is accepted and ignored: predictions do not go by images. Default false.
	UseEncoderCacheFeatures bool `yaml:"useEncoderCacheFeatures"`
	// EncoderCacheMatchInfoProducerName is accepted and ignored, likewise. Default "".
	EncoderCacheMatchInfoProducerName string `yaml:"encoderCacheMatchInfoProducerName"`
}

// NewPredictedLatency returns the parameters with their defaults.
func NewPredictedLatency() epp.Plugin {
	return &PredictedLatency{Quantile: 0.5, SLOBufferFactor: 1, PredictInProduce: true, SamplingMean: 1000, ContextTTL: "5m"}
}

// Problems implements epp.Plugin.
func (p *PredictedLatency) Problems(report epp.Report) {
	if p.Quantile != 0.5 && p.Quantile != 0.9 {
		report("quantile", "must be 0.5 or 0.9, got %v", p.Quantile)
	}
	if !(p.SLOBufferFactor > 0 && p.SLOBufferFactor <= 10) {
		report("sloBufferFactor", "must be more than 0 and at most 10, got %v", p.SLOBufferFactor)
	}
}

// References implements epp.Referrer.
func (p *PredictedLatency) References() map[string]string {
	return param.References("prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName,
		"inFlightLoadProducerName", p.InFlightLoadProducerName)
}

// Build implements epp.Plugin.
func (p *PredictedLatency) Build(b *epp.Builder) (any, error) {
	matcher, err := param.Matcher(b, p.PrefixMatchInfoProducerName)
	if err != nil {
		return nil, err
	}
	if err = param.Check[epp.Charger](b, "inFlightLoadProducerName", p.InFlightLoadProducerName); err != nil {
		return nil, err
	}
	learns := predictor{latency.Of(b)}
	if !p.PredictInProduce {
		return learns, nil
	}
	return &producesLatency{learns, matcher, p.Quantile == 0.9, p.SLOBufferFactor}, nil
}

// predictor learns latencies.
type predictor struct{ *latency.Model }

// Predicts implements epp.Predictor.
func (predictor) Predicts() {}

// Picked implements epp.PickObserver.
func (p predictor) Picked(_ *epp.Round, _ []epp.Candidate, made *epp.Decision) { p.Sent(made) }

// Collect implements prometheus.Collector.
func (p predictor) Collect(ch chan<- prometheus.Metric) { p.Model.Collect(ch) }

// producesLatency is a predictor that sets the signals of package latency.
type producesLatency struct {
	predictor
	matcher epp.Matcher
	careful bool // headrooms go by the 90th percentile
	buffer  float64
}

// Produce implements epp.Producer.
func (p *producesLatency) Produce(r *epp.Round, c []epp.Candidate) {
	found, tokens := r.Found(p.matcher), r.Request.Prompt.Tokens
	ttft, tpot := r.Request.WantedTTFT().Seconds(), r.Request.WantedTPOT().Seconds()*p.buffer
	for i := range c {
		expected := p.Predict(r.Now, &c[i], tokens, min(tokens, found.Of(&c[i])), found.LoadsOf(&c[i]))
		first, further := p.set(&c[i], latency.TTFT50, expected.TTFT), p.set(&c[i], latency.TPOT50, expected.TPOT)
		c[i].Compute(latency.TTFTHeadroom, ttft-first)
		c[i].Compute(latency.TPOTHeadroom, tpot-further)
	}
}

// set sets the signals of two quantiles, which follow each other, and returns the one that headrooms go by.
func (p *producesLatency) set(c *epp.Candidate, half epp.Signal, q epp.Quantiles) float64 {
	c.Compute(half, q.P50.Seconds())
	c.Compute(half+1, q.P90.Seconds())
	if p.careful {
		return q.P90.Seconds()
	}
	return q.P50.Seconds()
}
