package plugin

import (
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// TestParsers: which APIs each parser has read.
func TestParsers(t *testing.T) {
	openAI := []pd.API{pd.APIChat, pd.APICompletions, pd.APIResponses, pd.APIEmbeddings}
	for typ, want := range map[string][]pd.API{
		"openai-parser":      openAI,
		"anthropic-parser":   {pd.APIMessages, pd.APICountTokens},
		"vllmhttp-parser":    append([]pd.API{pd.APIGenerate}, openAI...),
		"sglanghttp-parser":  {pd.APISGLang},
		"vllmgrpc-parser":    {pd.APIVLLMGenerate, pd.APIVLLMEmbed},
		"vertexai-parser":    {pd.APIVertexChat, pd.APIVertexRaw, pd.APIVertexStream},
		"passthrough-parser": nil,
	} {
		if got := build[epp.Parser](t, typ, "").Parses(); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", typ, got, want)
		}
	}
}

// TestUsualParsers: without a list, what the parsers of llm-d's default are for is read.
func TestUsualParsers(t *testing.T) {
	var all []pd.API
	for _, typ := range []string{"openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser"} {
		all = append(all, build[epp.Parser](t, typ, "").Parses()...)
	}
	listed := epp.NewAPISet(all...)
	for _, api := range slices.Concat(pd.APIs(), []pd.API{pd.APISGLang}, pd.GRPCAPIs()) {
		if usual := epp.APISet(0).Has(api); usual != listed.Has(api) {
			t.Errorf("%s: read %v without a list, %v with llm-d's default", api, usual, !usual)
		}
	}
}
