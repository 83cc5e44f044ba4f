package dialect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd/dialect"
)

// computedPage is a metrics page of vLLM whose two ranks have computed so many tokens of prompts.
func computedPage(n int, more ...string) string {
	page := declared(append([]string{bySource}, more...)...)
	for rank, tokens := range []int{n, 1000} {
		page += fmt.Sprintf("%s{engine=\"%d\",model_name=\"m\",source=\"local_compute\"} %d.0\n%[1]s{engine=\"%[2]d\",source=\"external_kv_transfer\"} 1e+06\n", bySource, rank, tokens)
	}
	return page
}

// TestTestAlone: what an engine says of a prompt without a hand-off tells whether it computes such prompts, and one that says nothing, or
// whose pages suffice, is not taken for one that does not.
func TestTestAlone(t *testing.T) {
	models := `{"data":[{"id":"m"}]}`
	const withDetails, without = `{"usage":{"prompt_tokens":100,"prompt_tokens_details":{"cached_tokens":%d}}}`, `{"usage":{"prompt_tokens":100,"prompt_tokens_details":null}}`
	for _, c := range []struct {
		name          string
		before, after pages
		status        int // of the answer; 0: the engine is not asked
		answer        string
		want          dialect.Alone
	}{
		{"its usage says that the prompt was computed", pages{"/metrics": computedPage(0), "/v1/models": models}, nil, 200, fmt.Sprintf(withDetails, 0), dialect.ServesAlone},
		{"its usage says that the prompt came from elsewhere", pages{"/metrics": computedPage(0), "/v1/models": models}, nil, 200, fmt.Sprintf(withDetails, 99), dialect.NeverAlone},
		{"its counter says that the prompt was computed", pages{"/metrics": computedPage(7), "/v1/models": models}, pages{"/metrics": computedPage(107)}, 200, without, dialect.ServesAlone},
		{"its counter says that one token was computed", pages{"/metrics": computedPage(7), "/v1/models": models}, pages{"/metrics": computedPage(8)}, 200, without, dialect.NeverAlone},
		{"its counter has those of others, too", pages{"/metrics": computedPage(7), "/v1/models": models}, pages{"/metrics": computedPage(5000)}, 200, without, dialect.ServesAlone},
		{"it is started anew meanwhile", pages{"/metrics": computedPage(7), "/v1/models": models}, pages{"/metrics": computedPage(0)}, 200, without, dialect.AloneUnknown},
		{"it counts nothing", pages{"/metrics": declared("vllm:num_requests_running"), "/v1/models": models}, nil, 200, without, dialect.AloneUnknown},
		{"it refuses the request", pages{"/metrics": computedPage(7), "/v1/models": models}, nil, 404, "", dialect.AloneUnknown},
		{"it answers rubbish", pages{"/metrics": computedPage(7), "/v1/models": models}, nil, 200, "[", dialect.AloneUnknown},
		{"it has an API key", pages{"/metrics": computedPage(7), "/v1/models": "401"}, nil, 0, "", dialect.AloneUnknown},
		{"it has NIXL", pages{"/metrics": computedPage(7, "vllm:nixl_num_descriptors"), "/v1/models": models}, nil, 0, "", dialect.ServesAlone},
		{"it offloads", pages{"/metrics": computedPage(7, "vllm:kv_offload_bytes_total"), "/v1/models": models}, nil, 0, "", dialect.ServesAlone},
		{"SGLang, plain", pages{"/v1/models": owned("sglang"), "/model_info": `{"disaggregation_mode":"null"}`}, nil, 0, "", dialect.ServesAlone},
		{"SGLang, decode", pages{"/v1/models": owned("sglang"), "/model_info": `{"disaggregation_mode":"decode"}`}, nil, 0, "", dialect.NeverAlone},
		{"SGLang, old", pages{"/v1/models": owned("sglang")}, nil, 0, "", dialect.AloneUnknown},
		{"TensorRT-LLM", pages{"/v1/models": owned("tensorrt_llm")}, nil, 0, "", dialect.AloneUnknown},
		{"another engine", pages{}, nil, 0, "", dialect.AloneUnknown},
	} {
		asked := false
		shown := c.before
		alone, err := dialect.TestAlone(t.Context(), func(ctx context.Context, path string) (int, []byte, error) { return shown.get(ctx, path) },
			func(_ context.Context, path string, body []byte) (int, []byte, error) {
				var ask struct {
					Model, Prompt string
					Tokens        int `json:"max_tokens"`
				}
				if err := json.Unmarshal(body, &ask); err != nil || asked || path != "/v1/completions" || ask.Model != "m" || len(ask.Prompt) < 100 || ask.Tokens != 2 {
					t.Errorf("%s: asked for %s %s (%v)", c.name, path, body, err)
				}
				asked = true
				if c.after != nil {
					shown = c.after
				}
				return c.status, []byte(c.answer), nil
			})
		if alone != c.want || asked != (c.status != 0) {
			t.Errorf("%s: %v, %v, asked %v", c.name, alone, err, asked)
		}
		if reads := strings.HasPrefix(c.name, "its") && c.want == dialect.NeverAlone; reads != errors.Is(err, dialect.ErrWrongProtocol) || err != nil && !strings.Contains(err.Error(), "--kv-connector=moriio") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// An engine that does not answer is not called one that serves no request alone.
func TestTestAloneWithoutAnswer(t *testing.T) {
	post := func(context.Context, string, []byte) (int, []byte, error) {
		return 0, nil, errors.New("connection reset")
	}
	for _, p := range []pages{{"/metrics": "broken"}, {"/metrics": computedPage(7), "/v1/models": "broken"}, {"/metrics": computedPage(7), "/v1/models": `{"data":[{"id":"m"}]}`}} {
		if alone, err := dialect.TestAlone(t.Context(), p.get, post); alone != dialect.AloneUnknown || err == nil || errors.Is(err, dialect.ErrWrongProtocol) {
			t.Errorf("%v, %v", alone, err)
		}
	}
}

// Only of engines that tell it themselves, or of which the operator tells it, a request need not find out.
func TestUntold(t *testing.T) {
	told := []string{"sglang", "moriio"} // moriio without --moriio-write-mode
	for _, row := range dialect.Table {
		if got := dialect.Untold(row.New(dialect.Options{})); got == slices.Contains(told, row.Name) {
			t.Errorf("%s: %v", row.Name, got)
		}
	}
	writes, _ := dialect.New("moriio", dialect.Options{MoRIIO: dialect.MoRIIO{Write: true}})
	if !dialect.Untold(writes) {
		t.Error("engines of which prefill writes are taken to do so")
	}
}
