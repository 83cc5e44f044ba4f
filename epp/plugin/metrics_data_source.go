package plugin

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool"
)

// MetricsDataSource says where and how the metrics pages of the endpoints are read.
type MetricsDataSource struct {
	pool.Source `yaml:",inline"`
}

func newMetricsDataSource() epp.Plugin { return &MetricsDataSource{pool.DefaultSource()} }

// Build implements epp.Plugin.
func (p *MetricsDataSource) Build(*epp.Builder) (any, error) { return p.Source, nil }
