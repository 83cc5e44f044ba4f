package producer

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// InflightLoad says what load a request adds to its endpoints: one request, from the pick to its end; and the prompt
// tokens that the endpoint has not cached, until the answer begins. If another pod computes the prompt, the tokens are added
// to that pod alone; llm-d adds them to both.
type InflightLoad struct {
	// AddEstimatedOutputTokens adds an estimate of the tokens to be generated; then all tokens count until the request ends.
	// Default false.
	AddEstimatedOutputTokens bool `yaml:"addEstimatedOutputTokens"`
	// OutputRatio is the estimate of tokens to be generated, for each token of the prompt, at most 1000. Default 1.5.
	OutputRatio float64 `yaml:"outputRatio"`
	// MaxEstimatedOutputTokens is the largest estimate, in tokens. Default 0: no limit.
	MaxEstimatedOutputTokens int `yaml:"maxEstimatedOutputTokens"`
	// PrefixMatchInfoProducerName names the producer of cached tokens. Default "": the one named approx-prefix-cache-producer, or
	// else the first of the file.
	PrefixMatchInfoProducerName string `yaml:"prefixMatchInfoProducerName"`
	// SyncCrossReplicaState has replicas of the picker count each other's requests, if the picker's flag --share-with says which there are.
	// With false each counts its own only, and tells the others of none. Default true.
	SyncCrossReplicaState bool `yaml:"syncCrossReplicaState"`
}

// NewInflightLoad returns the parameters with their defaults.
func NewInflightLoad() epp.Plugin {
	return &InflightLoad{OutputRatio: 1.5, SyncCrossReplicaState: true}
}

// Problems implements epp.Plugin.
func (p *InflightLoad) Problems(report epp.Report) {
	param.Within(report, "outputRatio", p.OutputRatio, 0, 1000)
	param.AtLeast(report, "maxEstimatedOutputTokens", p.MaxEstimatedOutputTokens, 0)
}

// References implements epp.Referrer.
func (p *InflightLoad) References() map[string]string {
	return param.References("prefixMatchInfoProducerName", p.PrefixMatchInfoProducerName)
}

// Build implements epp.Plugin.
func (p *InflightLoad) Build(b *epp.Builder) (any, error) {
	matcher, err := param.Matcher(b, p.PrefixMatchInfoProducerName)
	if err != nil {
		return nil, err
	}
	return charger{epp.Charge{
		Output:      p.AddEstimatedOutputTokens,
		OutputRatio: p.OutputRatio,
		MaxOutput:   p.MaxEstimatedOutputTokens,
		Matcher:     matcher,
	}, !p.SyncCrossReplicaState}, nil
}

type charger struct {
	charge epp.Charge
	apart  bool
}

// Charge implements epp.Charger.
func (c charger) Charge() epp.Charge { return c.charge }

// Apart implements epp.Apart.
func (c charger) Apart() bool { return c.apart }
