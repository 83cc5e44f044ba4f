package parser

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// VertexAI has Vertex AI's calls of gRPC read that carry JSON: ChatCompletions, RawPredict and StreamRawPredict of PredictionService.
// Such requests are not split, and keep their model: messages are passed on as they came. RawPredict and StreamRawPredict may carry a
// body of any API; llm-d reads it as one of the responses API. It has no parameters.
type VertexAI struct{}

// NewVertexAI returns the parameters with their defaults.
func NewVertexAI() epp.Plugin { return &VertexAI{} }

// Problems implements epp.Plugin.
func (*VertexAI) Problems(epp.Report) {}

// Build implements epp.Plugin.
func (*VertexAI) Build(*epp.Builder) (any, error) {
	return apis{pd.APIVertexChat, pd.APIVertexRaw, pd.APIVertexStream}, nil
}
