package dialect_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd/dialect"
)

// pages are what an engine answers, by path. Others answer 404.
type pages map[string]string

func (p pages) get(_ context.Context, path string) (status int, answer []byte, err error) {
	switch page, ok := p[path]; {
	case !ok:
		return http.StatusNotFound, nil, nil
	case page == "401":
		return http.StatusUnauthorized, nil, nil
	case page == "broken":
		return 0, nil, errors.New("connection refused")
	default:
		return http.StatusOK, []byte(page), nil
	}
}

// owned is a list of models.
func owned(by string) string {
	return `{"object":"list","data":[{"id":"m","object":"model","owned_by":"` + by + `"}]}`
}

// declared is a metrics page with metrics of these names.
func declared(names ...string) string {
	page := "# HELP python_info x\n"
	for _, name := range names {
		page += "# HELP " + name + " x\n# TYPE " + name + " counter\n" + name + `{model_name="sglang:m"} 0` + "\n"
	}
	return page
}

// The metric by which a page tells that its version shows connectors.
const bySource = "vllm:prompt_tokens_by_source_total"

// TestRecognize: each engine, as its pages show it, is right for some protocols, and wrong for all others.
func TestRecognize(t *testing.T) {
	var all []string
	for _, row := range dialect.Table {
		all = append(all, row.Name)
	}
	vllm := []string{"nixlv2", "nixl-push", "shared-storage", "mooncake", "offloading", "moriio"}
	trtllm := []string{"trtllm", "trtllm-generation-first"}
	for _, c := range []struct {
		name  string
		pages pages
		right []string
	}{
		{"vLLM with NIXL", pages{"/metrics": declared(bySource, "vllm:nixl_num_descriptors")}, []string{"nixlv2", "nixl-push", "shared-storage"}},
		{"vLLM with offloading", pages{"/metrics": declared(bySource, "vllm:kv_offload_bytes_total")}, []string{"offloading", "shared-storage", "mooncake"}},
		{"vLLM with NIXL and files", pages{"/metrics": declared(bySource, "vllm:nixl_num_descriptors"), "/v1/models": "401"}, []string{"nixlv2", "nixl-push", "shared-storage"}},
		{"vLLM with Mooncake, MoRI-IO, or none", pages{"/metrics": declared(bySource)}, []string{"mooncake", "moriio", "shared-storage"}},
		{"vLLM whose page is too old to show a connector", pages{"/metrics": declared("vllm:num_requests_running")}, vllm},
		{"vLLM without statistics", pages{"/metrics": declared(), "/v1/models": owned("vllm")}, vllm},
		{"SGLang", pages{"/metrics": declared("sglang:num_running_reqs")}, []string{"sglang"}},
		{"SGLang without metrics", pages{"/v1/models": owned("sglang")}, []string{"sglang"}},
		{"TensorRT-LLM", pages{"/metrics": "[]", "/v1/models": owned("tensorrt_llm")}, trtllm},
		{"TensorRT-LLM with the metrics of Dynamo", pages{"/metrics": declared("trtllm_request_success_total")}, trtllm},
		{"another engine", pages{"/metrics": declared("tgi_request_count"), "/v1/models": owned("another")}, all},
		{"an engine with an API key and no metrics", pages{"/v1/models": "401"}, all},
		{"a list that is none", pages{"/v1/models": `{"data":{}}`}, all},
		{"no pages", pages{}, all},
	} {
		for _, row := range dialect.Table {
			d, ok := row.New(dialect.Options{}).(dialect.Recognizer)
			if !ok {
				continue
			}
			err := d.Recognize(t.Context(), c.pages.get)
			if fits := slices.Contains(c.right, row.Name); fits != (err == nil) || err != nil && !errors.Is(err, dialect.ErrWrongProtocol) {
				t.Errorf("%s, with %s: %v", c.name, row.Name, err)
			}
			if err != nil && !strings.Contains(err.Error(), "--kv-connector") {
				t.Errorf("%s, with %s: the error does not say what to set: %v", c.name, row.Name, err)
			}
		}
	}
}

// An engine that does not answer is not called wrong.
func TestRecognizeWithoutAnswer(t *testing.T) {
	for _, p := range []pages{{"/metrics": "broken"}, {"/v1/models": "broken"}} {
		for _, row := range dialect.Table {
			if d, ok := row.New(dialect.Options{}).(dialect.Recognizer); ok {
				if err := d.Recognize(t.Context(), p.get); err == nil || errors.Is(err, dialect.ErrWrongProtocol) {
					t.Errorf("%s: %v", row.Name, err)
				}
			}
		}
	}
}

// Every protocol has an engine, and names for it.
func TestNamesOf(t *testing.T) {
	for engine, want := range map[dialect.Engine]string{dialect.SGLang: "sglang", dialect.TRTLLM: "trtllm or trtllm-generation-first"} {
		if got := dialect.NamesOf(engine); got != want {
			t.Errorf("%s: %s", engine, got)
		}
	}
	for _, row := range dialect.Table {
		if got := dialect.NamesOf(row.Engine); !slices.Contains(strings.Split(got, " or "), row.Name) {
			t.Errorf("%s is of %s, which has %s", row.Name, row.Engine, got)
		}
	}
}
