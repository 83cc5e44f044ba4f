package pd_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestAPIOf(t *testing.T) {
	cases := []struct {
		path, name string
		api        pd.API
		splittable bool
	}{
		{"/v1/chat/completions", "chat", pd.APIChat, true},
		{"/v1/completions", "completions", pd.APICompletions, true},
		{"/v1/responses", "responses", pd.APIResponses, true},
		{"/v1/messages", "messages", pd.APIMessages, true},
		{"/inference/v1/generate", "generate", pd.APIGenerate, true},
		{"/v1/embeddings", "embeddings", pd.APIEmbeddings, false},
		{"", "other", pd.APIOther, false},
		{"/", "other", pd.APIOther, false},
		{"/v1/models", "other", pd.APIOther, false},
		{"/v1/completions/", "other", pd.APIOther, false},
		{"/V1/completions", "other", pd.APIOther, false},
		{"/v1/messages/count_tokens", "other", pd.APIOther, false},
	}
	for _, c := range cases {
		got := pd.APIOf(c.path)
		if got != c.api || got.String() != c.name || got.Splittable() != c.splittable {
			t.Errorf("%q: got %s, splittable %v", c.path, got, got.Splittable())
		}
	}
}

func TestGenerateAPIs(t *testing.T) {
	seen := map[string]bool{}
	for _, api := range pd.GenerateAPIs() {
		if pd.APIOf(api.Path()) != api || api.Path() == "" {
			t.Errorf("%s: path %q leads to %s", api, api.Path(), pd.APIOf(api.Path()))
		}
		if seen[api.String()] {
			t.Errorf("two APIs are called %s", api)
		}
		seen[api.String()] = true
	}
	if len(seen) != 6 || pd.APIOther.Path() != "" {
		t.Errorf("have %v, and %q for others", seen, pd.APIOther.Path())
	}
}
