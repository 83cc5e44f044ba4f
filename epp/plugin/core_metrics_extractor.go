package plugin

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool/page"
)

// CoreMetricsExtractor says which values of a metrics page are read, for each kind of engine.
type CoreMetricsExtractor struct {
	page.Extractor `yaml:",inline"`
}

func newCoreMetricsExtractor() epp.Plugin { return &CoreMetricsExtractor{page.DefaultExtractor()} }

// Build implements epp.Plugin.
func (p *CoreMetricsExtractor) Build(*epp.Builder) (any, error) { return p.Extractor, nil }
