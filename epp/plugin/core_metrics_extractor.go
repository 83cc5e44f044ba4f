package plugin

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool"
)

// CoreMetricsExtractor says which values of a metrics page are read, for each kind of engine.
type CoreMetricsExtractor struct {
	pool.Extractor `yaml:",inline"`
}

func newCoreMetricsExtractor() epp.Plugin { return &CoreMetricsExtractor{pool.DefaultExtractor()} }

// Build implements epp.Plugin.
func (p *CoreMetricsExtractor) Build(*epp.Builder) (any, error) { return p.Extractor, nil }
