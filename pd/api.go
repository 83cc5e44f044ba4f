package pd

import "strings"

// API is one generate call of an engine's HTTP interface, such as chat completions.
type API uint8

// The APIs that Tandem distinguishes. APIOther is every call whose body it does not read.
const (
	APIOther API = iota
	APIChat
	APICompletions
	APIResponses
	APIMessages
	APIGenerate
	APIEmbeddings
	APICountTokens
	APISGLang
	APIVLLMGenerate // the gRPC calls of vLLM
	APIVLLMEmbed
	APIVertexChat // the gRPC calls of Vertex AI that carry JSON
	APIVertexRaw
	APIVertexStream
)

var apis = []struct {
	path, name            string
	generates, splittable bool
}{
	APIOther:        {"", "other", false, false},
	APIChat:         {"/v1/chat/completions", "chat", true, true},
	APICompletions:  {"/v1/completions", "completions", true, true},
	APIResponses:    {"/v1/responses", "responses", true, true},
	APIMessages:     {"/v1/messages", "messages", true, true},
	APIGenerate:     {"/inference/v1/generate", "generate", true, true},
	APIEmbeddings:   {"/v1/embeddings", "embeddings", true, false},
	APICountTokens:  {"/v1/messages/count_tokens", "count-tokens", false, false},
	APISGLang:       {"/generate", "sglang", true, true},
	APIVLLMGenerate: {"/vllm.grpc.engine.VllmEngine/Generate", "vllm-grpc", true, false},
	APIVLLMEmbed:    {"/vllm.grpc.engine.VllmEngine/Embed", "vllm-grpc-embed", true, false},
	APIVertexChat:   {"PredictionService/ChatCompletions", "vertex-chat", true, false},
	APIVertexRaw:    {"PredictionService/RawPredict", "vertex-raw", true, false},
	APIVertexStream: {"PredictionService/StreamRawPredict", "vertex-stream", true, false},
}

// PathSidecar is where a sidecar answers GET itself: with SidecarIdentity. Behind no sidecar, an engine answers 404. It tells
// the two apart without a request that engine or sidecar would count.
const (
	PathSidecar     = "/tandem/sidecar"
	SidecarIdentity = `{"component":"sidecar"}`
)

// PathEventSources is where vLLM tells where its data-parallel ranks publish KV events: an object by rank. Sidecars of other engines answer
// it likewise.
const PathEventSources = "/kv_event_sources"

// APIOf returns the API that a URL path belongs to.
func APIOf(path string) API {
	for api, a := range apis {
		if path == a.path {
			return API(api)
		}
	}
	return APIOther
}

// APIs lists the APIs that Tandem reads unless it is told otherwise, in a fixed order. APISGLang is not among them: engines of
// others have the same path. Nor are the calls of gRPC: see GRPCAPIs.
func APIs() []API {
	return []API{APIChat, APICompletions, APIResponses, APIMessages, APIGenerate, APIEmbeddings, APICountTokens}
}

// GenerateAPIs lists those of APIs that Generates reports, in a fixed order.
func GenerateAPIs() []API {
	return []API{APIChat, APICompletions, APIResponses, APIMessages, APIGenerate, APIEmbeddings}
}

// GRPCAPIs lists the calls of gRPC that can be read, in a fixed order.
func GRPCAPIs() []API {
	return []API{APIVLLMGenerate, APIVLLMEmbed, APIVertexChat, APIVertexRaw, APIVertexStream}
}

// IsGRPC reports whether a request or an answer of this content type is gRPC.
func IsGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

// GRPC reports whether the API is a call of gRPC.
func (a API) GRPC() bool { return a >= APIVLLMGenerate && a <= APIVertexStream }

// Path returns the URL path of the API, "" for APIOther. Those of Vertex AI are the end of the path, without the package, whose
// version varies.
func (a API) Path() string { return apis[a].path }

// String names the API in metrics and spans.
func (a API) String() string { return apis[a].name }

// Generates reports whether a request of this API makes an engine compute. Such requests get a P/D mode and a decision, and wait
// for capacity. An engine answers all others at once, however full it is.
func (a API) Generates() bool { return apis[a].generates }

// Splittable reports whether requests of this API may be prefilled on another pod.
func (a API) Splittable() bool { return apis[a].splittable }
