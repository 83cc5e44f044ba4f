package affinity

import "github.com/tandem-serving/tandem/epp"

// TopologyExtractor says where endpoints are, by their labels, for topology-affinity-filter and topology-affinity-scorer. A
// configuration that names none gets one. In llm-d the default of hostname is the pod's spec.hostname, which names the pod
// rather than its node; here a label must say it.
type TopologyExtractor struct {
	// Hostname is the label that names an endpoint's host. Default kubernetes.io/hostname, which pods have only if an operator
	// copies it from their node.
	Hostname string `yaml:"hostname"`
	// Rack is the label that names an endpoint's rack, or the domain of its fast links. Default "": racks are not known.
	Rack string `yaml:"rack"`
	// Zone is the label that names an endpoint's zone. Default topology.kubernetes.io/zone.
	Zone string `yaml:"zone"`
	// Region is the label that names an endpoint's region. Default topology.kubernetes.io/region.
	Region string `yaml:"region"`
}

// NewTopologyExtractor returns the parameters with their defaults.
func NewTopologyExtractor() epp.Plugin {
	return &TopologyExtractor{Hostname: "kubernetes.io/hostname", Zone: "topology.kubernetes.io/zone", Region: "topology.kubernetes.io/region"}
}

// Problems implements epp.Plugin.
func (*TopologyExtractor) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (p *TopologyExtractor) Build(*epp.Builder) (any, error) {
	return &Topology{labels: [levels]string{host: p.Hostname, rack: p.Rack, zone: p.Zone, region: p.Region}}, nil
}

// level is how close two endpoints are: the narrowest place that they share. A shared host is closest.
type level int

const (
	host level = iota
	rack
	zone
	region
	levels // how many there are; also: no shared place
)

// levelNames are the names of levels in configurations.
var levelNames = [levels]string{host: "host", rack: "rack", zone: "zone", region: "region"}

// Topology tells how close endpoints are. It is the instance of a TopologyExtractor.
type Topology struct {
	labels [levels]string // "" = places of this level are not known
}

// knows reports whether any place of an endpoint is known.
func (t *Topology) knows(e *epp.Endpoint) bool {
	for _, label := range t.labels {
		if label != "" && e.Labels[label] != "" {
			return true
		}
	}
	return false
}

// shared returns the narrowest place that two endpoints share, levels if there is none. A place that is not known is not shared.
func (t *Topology) shared(a, b *epp.Endpoint) level {
	for l, label := range t.labels {
		if label == "" {
			continue
		}
		if place := a.Labels[label]; place != "" && place == b.Labels[label] {
			return level(l)
		}
	}
	return levels
}

// peer returns the endpoint that candidates should be close to: that of the first stage, nil if this is the first stage or if its
// place is not known.
func (t *Topology) peer(r *epp.Round) *epp.Endpoint {
	if len(r.Before) == 0 || !t.knows(r.Before[0].Endpoint) {
		return nil
	}
	return r.Before[0].Endpoint
}

// topologyProducer is the name of the extractor that is used, and added, if a plugin names none.
const topologyProducer = "topology-extractor"
