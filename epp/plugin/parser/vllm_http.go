package parser

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// VLLMHTTP has vLLM's own call with token ids read, /inference/v1/generate, and all calls of openai-parser. It has no parameters.
type VLLMHTTP struct{}

// NewVLLMHTTP returns the parameters with their defaults.
func NewVLLMHTTP() epp.Plugin { return &VLLMHTTP{} }

// Problems implements epp.Plugin.
func (*VLLMHTTP) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*VLLMHTTP) Build(*epp.Builder) (any, error) {
	return apis(append([]pd.API{pd.APIGenerate}, openAI...)), nil
}
