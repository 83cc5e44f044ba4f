package parser

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// VLLMGRPC has vLLM's calls of gRPC read, Generate and Embed of vllm.grpc.engine.VllmEngine, with text or token ids. Such requests are
// not split. Parameters of a transfer and ranks that a client sets are refused; llm-d passes them on. It has no parameters.
type VLLMGRPC struct{}

// NewVLLMGRPC returns the parameters with their defaults.
func NewVLLMGRPC() epp.Plugin { return &VLLMGRPC{} }

// Problems implements epp.Plugin.
func (*VLLMGRPC) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*VLLMGRPC) Build(*epp.Builder) (any, error) {
	return apis{pd.APIVLLMGenerate, pd.APIVLLMEmbed}, nil
}
