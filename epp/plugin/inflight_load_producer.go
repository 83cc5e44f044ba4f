package plugin

import "github.com/tandem-serving/tandem/epp"

// InflightLoadProducer says how a request is charged to the endpoints it is sent to, from the pick to its end: as one
// request, and as the tokens of its prompt that are not cached there, until the answer begins. If the prompt is computed on
// another pod, its tokens are charged to that one alone.
type InflightLoadProducer struct {
	// AddEstimatedOutputTokens charges the tokens to be generated too; then all tokens stay charged until the request ends.
	// Default false.
	AddEstimatedOutputTokens bool `yaml:"addEstimatedOutputTokens"`
	// OutputRatio estimates the tokens to be generated: so many for each token of the prompt, at most 1000. Default 1.5.
	OutputRatio float64 `yaml:"outputRatio"`
	// MaxEstimatedOutputTokens bounds the estimate. Default 0: no bound.
	MaxEstimatedOutputTokens int `yaml:"maxEstimatedOutputTokens"`
	// PrefixMatchInfoProducerName names the producer that knows the caches. There is only one index, so the name
	// is only checked. Default "" = whichever there is.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	// SyncCrossReplicaState is accepted and ignored: replicas do not tell each other their counts. Default true.
	SyncCrossReplicaState bool `yaml:"syncCrossReplicaState"`
}

func newInflightLoadProducer() epp.Plugin {
	return &InflightLoadProducer{OutputRatio: 1.5, SyncCrossReplicaState: true}
}

// Problems implements epp.Plugin.
func (p *InflightLoadProducer) Problems(report epp.Report) {
	within(report, "outputRatio", p.OutputRatio, 0, 1000)
	atLeast(report, "maxEstimatedOutputTokens", p.MaxEstimatedOutputTokens, 0)
}

// References implements epp.Referrer.
func (p *InflightLoadProducer) References() map[string]string {
	return references("prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName)
}

// Build implements epp.Plugin.
func (p *InflightLoadProducer) Build(b *epp.Builder) (any, error) {
	if err := check[epp.Matcher](b, "prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName); err != nil {
		return nil, err
	}
	return charger{
		Output:      p.AddEstimatedOutputTokens,
		OutputRatio: p.OutputRatio,
		MaxOutput:   p.MaxEstimatedOutputTokens,
	}, nil
}

type charger epp.Charge

// Charge implements epp.Charger.
func (c charger) Charge() epp.Charge { return epp.Charge(c) }
