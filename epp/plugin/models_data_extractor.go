package plugin

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool/page"
)

// ModelsDataExtractor reads which models, adapters included, each endpoint serves. /debug/endpoints shows them. No plugin of this picker
// goes by them; in newer versions of llm-d they answer GET /v1/models.
type ModelsDataExtractor struct{}

func newModelsDataExtractor() epp.Plugin { return &ModelsDataExtractor{} }

// Problems implements epp.Plugin.
func (*ModelsDataExtractor) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*ModelsDataExtractor) Build(*epp.Builder) (any, error) { return page.Models{}, nil }
