package affinity

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/filter"
	"github.com/tandem-serving/tandem/epp/plugin/param"
)

// TopologyFilter keeps candidates that share a host, rack, zone or region with the endpoint of the stage before: in a prefill
// profile, prefill endpoints near the decode endpoint. It keeps all if there is no such endpoint, if its place is not known, or if no
// candidate is near. In llm-d it can also be in the decode profile with stageOrder prefill-first; here decode always comes first.
type TopologyFilter struct {
	// MinAffinity is the widest place that must be shared: host, rack, zone or region. Default host.
	MinAffinity string `yaml:"minAffinity"`
	// TopologyProducerName names the topology-extractor. Default "": topology-extractor.
	TopologyProducerName string `yaml:"topologyProducerName"`
}

// NewTopologyFilter returns the parameters with their defaults.
func NewTopologyFilter() epp.Plugin { return &TopologyFilter{MinAffinity: levelNames[host]} }

// Problems implements epp.Plugin.
func (p *TopologyFilter) Problems(report epp.Report) {
	if !slices.Contains(levelNames[:], p.MinAffinity) {
		report("minAffinity", "must be one of %s, got %q", strings.Join(levelNames[:], ", "), p.MinAffinity)
	}
}

// References implements epp.Referrer.
func (p *TopologyFilter) References() map[string]string {
	return param.References("topologyProducerName", cmp.Or(p.TopologyProducerName, topologyProducer))
}

// Build implements epp.Plugin.
func (p *TopologyFilter) Build(b *epp.Builder) (any, error) {
	t, err := param.Refer[*Topology](b, "topologyProducerName", cmp.Or(p.TopologyProducerName, topologyProducer))
	return topologyFilter{topology: t, widest: level(slices.Index(levelNames[:], p.MinAffinity))}, err
}

type topologyFilter struct {
	topology *Topology
	widest   level
}

// Filter implements epp.Filter.
func (f topologyFilter) Filter(r *epp.Round, c []epp.Candidate) []epp.Candidate {
	peer := f.topology.peer(r)
	if peer == nil {
		return c
	}
	near := func(c *epp.Candidate) bool { return f.topology.shared(peer, c.Endpoint) <= f.widest }
	for i := range c {
		if near(&c[i]) {
			return filter.Keep(c, near)
		}
	}
	return c
}
