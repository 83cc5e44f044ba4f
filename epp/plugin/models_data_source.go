package plugin

import (
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool"
)

// ModelsDataSource says where and how the endpoints' lists of models are read. In llm-d an interval of 0 is that of metrics pages; here
// the lists are read every 10 seconds.
type ModelsDataSource struct {
	pool.Source `yaml:",inline"`
}

func newModelsDataSource() epp.Plugin {
	p := &ModelsDataSource{pool.DefaultSource()}
	p.Path = "/v1/models"
	return p
}

// Build implements epp.Plugin.
func (p *ModelsDataSource) Build(*epp.Builder) (any, error) {
	return pool.FurtherSource{Source: p.Source, Usual: 10 * time.Second}, nil
}
