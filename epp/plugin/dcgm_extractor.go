package plugin

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool/page"
)

// DCGMExtractor reads how busy an endpoint's GPUs are: DCGM_FI_DEV_GPU_UTIL of the busiest one, as 0 to 1. Series with the label pod are
// those of that pod. endpoint-attribute-filter and endpoint-attribute-scorer read the value as the attribute GPUUtilization of the
// producer dcgm-extractor.
type DCGMExtractor struct{}

func newDCGMExtractor() epp.Plugin { return &DCGMExtractor{} }

// Problems implements epp.Plugin.
func (*DCGMExtractor) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*DCGMExtractor) Build(*epp.Builder) (any, error) { return page.GPU{}, nil }
