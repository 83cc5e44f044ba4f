package dialect_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
)

// trtllmAnswerOf is the answer to a context leg that ended for a reason. Its ids do not fit into a float64.
func trtllmAnswerOf(finish, id string) string {
	return fmt.Sprintf(`{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"a\u00e9","logprobs":null,"finish_reason":%q,"stop_reason":null,`+
		`"message":{"role":"assistant","content":"a\u00e9","tool_calls":[]},`+
		`"disaggregated_params":{"request_type" : "context_only","first_gen_tokens":[7],"ctx_request_id":9007199254740993,"encoded_opaque_state":"b3Bh",`+
		`"draft_tokens":null,"disagg_request_id":%s,"ctx_dp_rank":0,"ctx_usage":null,"later":1.0}}],`+
		`"usage":{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2}},"prompt_token_ids":[5, 6,7]}`, finish, id)
}

// trtllmID returns the id of the request that a leg names.
func trtllmID(leg []byte) string {
	var body struct {
		Params struct {
			ID json.RawMessage `json:"disagg_request_id"`
		} `json:"disaggregated_params"`
	}
	if json.Unmarshal(leg, &body) != nil {
		return ""
	}
	return string(body.Params.ID)
}

// trtllmContext is a context engine that hands over.
func trtllmContext(leg []byte) []byte { return []byte(trtllmAnswerOf("not_finished", trtllmID(leg))) }

func trtllmAttempt(t testing.TB, d dialect.Dialect, api pd.API, in string) dialect.Attempt {
	t.Helper()
	a, err := d.Attempt(t.Context(), trtllmRequest(t, d, api, in), pd.Target{Host: "10.0.0.7", Port: 8000})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func trtllmRequest(t testing.TB, d dialect.Dialect, api pd.API, in string) *request.Request {
	t.Helper()
	var scan body.Scanner
	table := dialect.Members(d)
	if err := scan.Scan(table.Members(), body.Limits{}, []byte(in)); err != nil {
		t.Fatal(err)
	}
	b := &body.Body{}
	b.Append([]byte(in))
	return table.Request(api, b, &scan)
}

// What the engine wrote goes back as it wrote it, but for the type of the request and its usage.
func TestTRTLLMLegs(t *testing.T) {
	const usage = `{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2}}`
	d, _ := dialect.New("trtllm", dialect.Options{})
	for _, c := range []struct {
		api              pd.API
		in, prefill, ids string // ids: where decode gets those of the prompt
	}{
		{pd.APICompletions, `{"model":"m","prompt":"x","max_tokens":9,"disaggregated_params":{"request_type":"generation_only"}}`,
			`{"model":"m","prompt":"x","max_tokens":9,"disaggregated_params":PARAMS}`, `{"model":"m","prompt":[5, 6,7],"max_tokens":9,`},
		{pd.APIChat, `{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true},"prompt_token_ids_b64":"AA=="}`,
			`{"model":"m","messages":[],"stream":false,"disaggregated_params":PARAMS}`,
			`{"model":"m","messages":[],"stream":true,"stream_options":{"include_usage":true},`},
	} {
		a := trtllmAttempt(t, d, c.api, c.in)
		l, err := a.Prefill()
		prefill := text(t, l, err)
		id := trtllmID([]byte(prefill))
		if want := strings.ReplaceAll(c.prefill, "PARAMS", `{"request_type":"context_only","disagg_request_id":`+id+`}`); prefill != want {
			t.Errorf("context leg %s, want %s", prefill, want)
		}
		h, err := a.Accept(trtllmContext([]byte(prefill)))
		if err != nil {
			t.Fatal(err)
		}
		l, err = h.Decode()
		decode := text(t, l, err)
		params := `{"request_type" : "generation_only","first_gen_tokens":[7],"ctx_request_id":9007199254740993,"encoded_opaque_state":"b3Bh","draft_tokens":null,` +
			`"disagg_request_id":` + id + `,"ctx_dp_rank":0,"ctx_usage":` + usage + `,"later":1.0}`
		if !strings.HasPrefix(decode, c.ids) || !strings.Contains(decode, `"disaggregated_params":`+params) ||
			c.api == pd.APIChat && !strings.Contains(decode, `"prompt_token_ids":[5, 6,7]`) || strings.Contains(decode, "b64") {
			t.Errorf("generation leg %s", decode)
		}
		if n, ok := h.(dialect.UsageCorrector).Cached(); ok {
			t.Errorf("corrects %d tokens of an engine that takes the usage", n)
		}
		path, b := h.(dialect.RequestReleaser).ReleaseRequest()
		if want := `{"model":"tandem-release","max_tokens":1,"prompt":[5, 6,7],"disaggregated_params":` + params + `}`; path != "/v1/completions" || string(b) != want {
			t.Errorf("release %s %s", path, b)
		}
	}
}

// Older engines refuse the member ctx_usage, so the sidecar corrects the usage itself.
func TestTRTLLMWithoutUsage(t *testing.T) {
	d, _ := dialect.New("trtllm", dialect.Options{})
	a := trtllmAttempt(t, d, pd.APICompletions, `{"model":"m","prompt":"x"}`)
	l, err := a.Prefill()
	h, err := a.Accept([]byte(strings.Replace(string(trtllmContext([]byte(text(t, l, err)))), `"ctx_usage":null,`, "", 1)))
	if err != nil {
		t.Fatal(err)
	}
	l, err = h.Decode()
	if decode := text(t, l, err); strings.Contains(decode, "ctx_usage") {
		t.Errorf("generation leg %s", decode)
	}
	if n, ok := h.(dialect.UsageCorrector).Cached(); n != 2 || !ok {
		t.Errorf("%d tokens, %v", n, ok)
	}
}

// A request that ends with its first token is answered by the context engine.
func TestTRTLLMFinished(t *testing.T) {
	for _, name := range []string{"trtllm", "trtllm-generation-first"} {
		d, _ := dialect.New(name, dialect.Options{Ask: engineSays})
		for _, c := range []struct {
			name string
			api  pd.API
			in   string
			want string
		}{
			{"whole", pd.APICompletions, `{"model":"m","prompt":"x"}`, `{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"a\u00e9","logprobs":null,` +
				`"finish_reason":"stop","stop_reason":null,"message":{"role":"assistant","content":"a\u00e9","tool_calls":[]},"disaggregated_params":null}],` +
				`"usage":{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":2}},"prompt_token_ids":null}`},
			{"streamed", pd.APICompletions, `{"model":"m","prompt":"x","stream":true}`, `data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,` +
				`"text":"a\u00e9","logprobs":null,"finish_reason":"stop","stop_reason":null}]}` + "\n\ndata: [DONE]\n\n"},
			{"chat, streamed with usage", pd.APIChat, `{"model":"m","messages":[],"stream":true,"stream_options":{}}`, `data: {"id":"cmpl-1","object":"chat.completion.chunk","created":1,"model":"m",` +
				`"choices":[{"index":0,"delta":{"role":"assistant","content":"a\u00e9"},"logprobs":null,"finish_reason":"stop","stop_reason":null}]}` + "\n\n" +
				`data: {"id":"cmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":3,"total_tokens":4,"completion_tokens":1,` +
				`"prompt_tokens_details":{"cached_tokens":2}}}` + "\n\ndata: [DONE]\n\n"},
		} {
			a := trtllmAttempt(t, d, c.api, c.in)
			h, err := a.Accept([]byte(trtllmAnswerOf("stop", "7")))
			f, ok := h.(dialect.Finisher)
			if err != nil || !ok {
				t.Fatalf("%s, %s: %v, %v", name, c.name, h, err)
			}
			got := string(f.Answer())
			if c.api == pd.APIChat {
				got = strings.Replace(got, `"text":"a\u00e9",`, "", 1) // the example has the members of both APIs
			}
			if got != c.want {
				t.Errorf("%s, %s:\n%s, want\n%s", name, c.name, got, c.want)
			}
			_, byRequest := h.(dialect.RequestReleaser)
			if _, byCancel := h.(dialect.Releaser); byRequest || byCancel {
				t.Errorf("%s: nothing is handed over, and it is released", name)
			}
		}
	}
}

// Ids are of 64 bits, and above those that engines give their own requests.
func TestTRTLLMIDs(t *testing.T) {
	d, _ := dialect.New("trtllm", dialect.Options{})
	for range 100 {
		l, err := trtllmAttempt(t, d, pd.APICompletions, `{"prompt":"x"}`).Prefill()
		var id int64
		if _, err := fmt.Sscan(trtllmID([]byte(text(t, l, err))), &id); err != nil || id < 1<<42 {
			t.Fatalf("%d, %v", id, err)
		}
	}
}

func TestTRTLLMServers(t *testing.T) {
	for _, c := range []struct{ name, info, want string }{
		{"a list", `{"disaggregated_params":{"ctx_dp_rank":3,"ctx_info_endpoint":["tcp://10.0.0.7:5555"],"request_type":"x"}}`, `,"ctx_dp_rank":3,"ctx_info_endpoint":"tcp://10.0.0.7:5555"}`},
		{"what later versions add", `{"disaggregated_params":{"ctx_info_endpoint":"tcp://10.0.0.7:5555","a b":[1.0]}}`, `,"a b":[1.0],"ctx_info_endpoint":"tcp://10.0.0.7:5555"}`},
		{"the C++ transceiver", `{"disaggregated_params":{}}`, ""},
		{"several endpoints", `{"disaggregated_params":{"ctx_info_endpoint":["tcp://a:1","tcp://b:2"]}}`, ""},
		{"no endpoint", `{"disaggregated_params":{"ctx_info_endpoint":"10.0.0.7:5555"}}`, ""},
		{"another engine", `{"version":"0.5.23"}`, ""},
		{"no JSON", `<html>`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, _ := dialect.New("trtllm-generation-first", dialect.Options{Ask: func(context.Context, pd.Target, string) ([]byte, error) { return []byte(c.info), nil }})
			a, err := d.Attempt(t.Context(), trtllmRequest(t, d, pd.APICompletions, `{"prompt":"x"}`), pd.Target{Host: "10.0.0.7", Port: 8000})
			if c.want == "" {
				if err == nil {
					t.Fatal("there is an attempt")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			l, err := a.Prefill()
			id := trtllmID([]byte(text(t, l, err)))
			l, err = a.(dialect.Rendezvous).Handoff().Decode()
			if got, want := text(t, l, err), `{"prompt":"x","disaggregated_params":{"request_type":"generation_only","ctx_request_id":`+id+`,"disagg_request_id":`+id+`,"schedule_style":1`+c.want+`}`; got != want {
				t.Errorf("generation leg %s, want %s", got, want)
			}
		})
	}
}

// A context engine that was started anew may listen at another port.
func TestTRTLLMAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		d, _ := dialect.New("trtllm-generation-first", dialect.Options{Ask: func(ctx context.Context, p pd.Target, path string) ([]byte, error) {
			asked++
			return engineSays(ctx, p, path)
		}})
		attempt := func(want int) dialect.Attempt {
			t.Helper()
			a := trtllmAttempt(t, d, pd.APICompletions, `{"prompt":"x"}`)
			if asked != want {
				t.Fatalf("asked %d times, want %d", asked, want)
			}
			return a
		}
		attempt(1)
		if _, err := attempt(1).Accept([]byte(`{"error":"x"}`)); err == nil {
			t.Fatal("accepted an error")
		}
		attempt(2)
		time.Sleep(5 * time.Second) // less than any engine takes to start
		attempt(3)
	})
}

func TestTRTLLMOwnFailures(t *testing.T) {
	d, _ := dialect.New("trtllm", dialect.Options{})
	for answer, own := range map[string]bool{
		`{"object":"error","message":"Error in kv cache transfer for generation requests","type":"BadRequestError","param":null,"code":400}`: true,
		`{"object":"error","message":"top_p must be in (0, 1]","type":"BadRequestError","param":null,"code":400}`:                            false,
		`{"error":"kv cache transfer"}`: false,
		`<html>`:                        false,
	} {
		if got := d.(dialect.StatusReader).OwnFailure([]byte(answer)); got != own {
			t.Errorf("%s: %v", answer, got)
		}
	}
}

func TestTRTLLMPaths(t *testing.T) {
	d, _ := dialect.New("trtllm", dialect.Options{})
	for call, want := range map[[2]string]bool{
		{"GET", "/v1/models"}: true, {"HEAD", "/health"}: true, {"GET", "/v1/responses/resp_1"}: true, {"DELETE", "/v1/responses/resp_1"}: true,
		{"POST", "/release_memory"}: false, {"POST", "/update_weights"}: false, {"POST", "/kv_cache_events"}: false, {"GET", "/perf_metrics"}: false,
		{"GET", "/server_info"}: false, {"GET", "/v1/responses/resp_1/../x"}: false, {"POST", "/v1/models"}: false,
	} {
		if got := d.(dialect.PathLimiter).Passes(call[0], call[1]); got != want {
			t.Errorf("%v: %v", call, got)
		}
	}
}

func TestTRTLLMEcho(t *testing.T) {
	d, _ := dialect.New("trtllm", dialect.Options{})
	for in, want := range map[string]request.Fit{`{"prompt":"x","echo":true}`: request.FitLocal, `{"prompt":"x"}`: request.FitSplit} {
		if fit, _ := dialect.Fit(d, trtllmRequest(t, d, pd.APICompletions, in)); fit != want {
			t.Errorf("%s has fit %d", in, fit)
		}
	}
}

func TestTRTLLMUnreachable(t *testing.T) {
	d, _ := dialect.New("trtllm-generation-first", dialect.Options{Ask: func(context.Context, pd.Target, string) ([]byte, error) { return nil, errors.New("refused") }})
	if _, err := d.Attempt(t.Context(), trtllmRequest(t, d, pd.APIChat, `{"messages":[]}`), pd.Target{Host: "10.0.0.7", Port: 8000}); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
}

// BenchmarkTRTLLM is what a remote request costs the dialect: both legs, and the answer between them with the ids of the prompt.
func BenchmarkTRTLLM(b *testing.B) {
	for _, tokens := range []int{1 << 8, 32 << 10} {
		b.Run(fmt.Sprintf("%d tokens", tokens), func(b *testing.B) {
			d, _ := dialect.New("trtllm", dialect.Options{})
			a := trtllmAttempt(b, d, pd.APICompletions, `{"model":"m","prompt":"`+strings.Repeat("It was ", tokens)+`","max_tokens":300,"stream":true}`)
			l, err := a.Prefill()
			answer := []byte(strings.Replace(string(trtllmContext([]byte(text(b, l, err)))), "[5, 6,7]", "["+strings.Repeat("31337,", tokens-1)+"7]", 1))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := a.Prefill(); err != nil {
					b.Fatal(err)
				}
				h, err := a.Accept(answer)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := h.Decode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
