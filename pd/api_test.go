package pd_test

import (
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestAPIOf(t *testing.T) {
	cases := []struct {
		path, name            string
		api                   pd.API
		generates, splittable bool
	}{
		{"/v1/chat/completions", "chat", pd.APIChat, true, true},
		{"/v1/completions", "completions", pd.APICompletions, true, true},
		{"/v1/responses", "responses", pd.APIResponses, true, true},
		{"/v1/messages", "messages", pd.APIMessages, true, true},
		{"/inference/v1/generate", "generate", pd.APIGenerate, true, true},
		{"/v1/embeddings", "embeddings", pd.APIEmbeddings, true, false},
		{"/generate", "sglang", pd.APISGLang, true, true},
		{"/vllm.grpc.engine.VllmEngine/Generate", "vllm-grpc", pd.APIVLLMGenerate, true, false},
		{"/vllm.grpc.engine.VllmEngine/Embed", "vllm-grpc-embed", pd.APIVLLMEmbed, true, false},
		{"/vllm.grpc.engine.VllmEngine/GetModelInfo", "other", pd.APIOther, false, false},
		{"", "other", pd.APIOther, false, false},
		{"/", "other", pd.APIOther, false, false},
		{"/v1/models", "other", pd.APIOther, false, false},
		{"/v1/completions/", "other", pd.APIOther, false, false},
		{"/V1/completions", "other", pd.APIOther, false, false},
		{"/v1/messages/count_tokens", "count-tokens", pd.APICountTokens, false, false},
	}
	for _, c := range cases {
		got := pd.APIOf(c.path)
		if got != c.api || got.String() != c.name || got.Generates() != c.generates || got.Splittable() != c.splittable {
			t.Errorf("%q: got %s, generates %v, splittable %v", c.path, got, got.Generates(), got.Splittable())
		}
	}
}

func TestAPIs(t *testing.T) {
	seen := map[string]bool{}
	var generate []pd.API
	for _, api := range pd.APIs() {
		if api.Generates() {
			generate = append(generate, api)
		}
		if pd.APIOf(api.Path()) != api || api.Path() == "" {
			t.Errorf("%s: path %q leads to %s", api, api.Path(), pd.APIOf(api.Path()))
		}
		if seen[api.String()] {
			t.Errorf("two APIs are called %s", api)
		}
		seen[api.String()] = true
	}
	if !slices.Equal(generate, pd.GenerateAPIs()) {
		t.Errorf("%v generate, and the list is %v", generate, pd.GenerateAPIs())
	}
	if len(seen) != 7 || pd.APIOther.Path() != "" {
		t.Errorf("have %v, and %q for others", seen, pd.APIOther.Path())
	}
}

func TestGRPCAPIs(t *testing.T) {
	for _, api := range append(pd.APIs(), pd.APIOther, pd.APISGLang) {
		if api.GRPC() {
			t.Errorf("%s is a call of gRPC", api)
		}
	}
	for _, api := range pd.GRPCAPIs() {
		if !api.GRPC() || !api.Generates() || api.Splittable() {
			t.Errorf("%s: gRPC %v, generates %v, splittable %v", api, api.GRPC(), api.Generates(), api.Splittable())
		}
	}
	for contentType, want := range map[string]bool{"application/grpc": true, "application/grpc+proto": true, "application/grpc;charset=x": true,
		"application/grpc-web": false, "application/json": false, "": false} {
		if pd.IsGRPC(contentType) != want {
			t.Errorf("%q is gRPC: %v", contentType, !want)
		}
	}
}
