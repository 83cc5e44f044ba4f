package affinity

import (
	"cmp"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// TopologyScorer prefers candidates near the endpoint of the stage before: in a prefill profile, prefill endpoints near the decode
// endpoint. The score is 1 on the same host, 0.2 in the same rack, 0.05 in the same zone, 0.02 in the same region, and else 0:
// about the speeds of the links. Without such an endpoint all scores are 0.
type TopologyScorer struct {
	// TopologyProducerName names the topology-extractor. Default "": topology-extractor.
	TopologyProducerName string `yaml:"topologyProducerName"`
}

// NewTopologyScorer returns the parameters with their defaults.
func NewTopologyScorer() epp.Plugin { return &TopologyScorer{} }

// Problems implements epp.Plugin.
func (*TopologyScorer) Problems(epp.Report) {}

// References implements epp.Referrer.
func (p *TopologyScorer) References() map[string]string {
	return param.References("topologyProducerName", cmp.Or(p.TopologyProducerName, topologyProducer))
}

// Build implements epp.Plugin.
func (p *TopologyScorer) Build(b *epp.Builder) (any, error) {
	t, err := param.Refer[*Topology](b, "topologyProducerName", cmp.Or(p.TopologyProducerName, topologyProducer))
	return topologyScorer{t}, err
}

type topologyScorer struct{ topology *Topology }

// closeness is the score of each level.
var closeness = [levels + 1]float64{host: 1, rack: 0.2, zone: 0.05, region: 0.02}

// Score implements epp.Scorer.
func (s topologyScorer) Score(r *epp.Round, c []epp.Candidate, scores []float64) {
	peer := s.topology.peer(r)
	if peer == nil {
		return
	}
	for i := range c {
		scores[i] = closeness[s.topology.shared(peer, c[i].Endpoint)]
	}
}
