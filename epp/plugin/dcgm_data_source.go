package plugin

import (
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool"
)

// DCGMDataSource says where and how the pages of NVIDIA's DCGM exporters are read, which report on the endpoints' GPUs. In llm-d an
// interval of 0 is that of metrics pages; here the pages are read every second, and exporters measure every 30 seconds unless they
// are told otherwise.
type DCGMDataSource struct {
	pool.Source `yaml:",inline"`
	// UseNodeAddress reads the exporter of the endpoint's node, as a DaemonSet runs it, in place of one in the pod. The node of an
	// endpoint from a file is not known. Default false.
	UseNodeAddress bool `yaml:"useNodeAddress"`
}

const dcgmPort = 9400

func newDCGMDataSource() epp.Plugin {
	p := &DCGMDataSource{Source: pool.DefaultSource()}
	p.Port = dcgmPort
	return p
}

// Build implements epp.Plugin.
func (p *DCGMDataSource) Build(*epp.Builder) (any, error) {
	return pool.FurtherSource{Source: p.Source, Node: p.UseNodeAddress, Usual: time.Second}, nil
}
