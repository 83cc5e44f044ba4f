package trtllm_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/simtest"
	"github.com/tandem-serving/tandem/sim/trtllm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const completions = "/v1/completions"

// body is a greedy request for so many tokens, with further members.
func body(prompt []int, tokens int, params any) map[string]any {
	b := map[string]any{"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true}
	if params != nil {
		b["disaggregated_params"] = params
	}
	return b
}

// id does not fit into a float64.
const id = 1<<53 + 1

func contextOnly(number int64) map[string]any {
	return map[string]any{"request_type": "context_only", "disagg_request_id": number}
}

// generation returns the parameters of the generation leg that follows a context leg.
func generation(t *testing.T, answer simtest.TRTLLMAnswer) json.RawMessage {
	t.Helper()
	raw := string(answer.Choices[0].Params)
	if !strings.Contains(raw, `"request_type":"context_only"`) {
		t.Fatalf("hand-off %s", raw)
	}
	return json.RawMessage(strings.Replace(raw, "context_only", "generation_only", 1))
}

func idle(t *testing.T, engines ...*server.TRTLLM) {
	t.Helper()
	for _, e := range engines {
		simtest.WaitForTRTLLM(t, e, "an engine to hold nothing", trtllm.State.Idle)
	}
}

// TestTokensOfAPair: a pair generates what a plain engine does, in both orders of the legs.
func TestTokensOfAPair(t *testing.T) {
	plain, context, gen := simtest.TRTLLM(t), simtest.TRTLLM(t), simtest.TRTLLM(t)
	for i, n := range []int{1, 31, 32, 33, 1000} {
		prompt := simtest.Prompt(i, n)
		want := simtest.Post(t, plain.URL+completions, body(prompt, 8, nil)).TRTLLMAnswered(t)

		first := simtest.Post(t, context.URL+completions, body(prompt, 8, contextOnly(id+int64(i)))).TRTLLMAnswered(t)
		if c := first.Choices[0]; c.FinishReason != "not_finished" || first.Usage.CompletionTokens != 1 || !strings.HasPrefix(want.Choices[0].Text, c.Text) ||
			!strings.Contains(string(c.Params), `"ctx_request_id":9007199254740993`) && i == 0 {
			t.Errorf("the context engine answers %+v", first)
		}
		got := simtest.Post(t, gen.URL+completions, body(prompt, 8, generation(t, first))).TRTLLMAnswered(t)
		if got.Choices[0].Text != want.Choices[0].Text || got.Usage.CompletionTokens != 8 {
			t.Errorf("%d tokens: a pair generates %q, a plain engine %q", n, got.Choices[0].Text, want.Choices[0].Text)
		}

		number := int64(id + 1000 + i)
		done := make(chan simtest.Reply, 1)
		go func() {
			params := contextOnly(number)
			params["schedule_style"] = 1
			done <- simtest.Post(t, context.URL+completions, body(prompt, 8, params))
		}()
		got = simtest.Post(t, gen.URL+completions, body(prompt, 8, map[string]any{"request_type": "generation_only", "ctx_request_id": number, "disagg_request_id": number,
			"schedule_style": 1, "ctx_info_endpoint": "tcp://" + context.Engine.Endpoint()})).TRTLLMAnswered(t)
		(<-done).TRTLLMAnswered(t)
		if got.Choices[0].Text != want.Choices[0].Text {
			t.Errorf("%d tokens, generation first: a pair generates %q, a plain engine %q", n, got.Choices[0].Text, want.Choices[0].Text)
		}
	}
	idle(t, context, gen, plain)
	if st := gen.Engine.State(); st.ForeignReads != 0 || st.KVBytesRead == 0 {
		t.Errorf("the generation engine has read %+v", st)
	}
}

// A context leg that ends with its first token hands nothing over.
func TestFinishedByTheFirstToken(t *testing.T) {
	context := simtest.TRTLLM(t)
	prompt := simtest.Prompt(1, 40)
	b := body(prompt, 8, contextOnly(id))
	first := simtest.Post(t, context.URL+completions, b).TRTLLMAnswered(t)
	var params struct {
		First []int `json:"first_gen_tokens"`
	}
	if json.Unmarshal(first.Choices[0].Params, &params) != nil || len(params.First) != 1 {
		t.Fatalf("hand-off %s", first.Choices[0].Params)
	}
	b["stop_token_ids"], b["disaggregated_params"] = params.First, contextOnly(id+1)
	ended := simtest.Post(t, context.URL+completions, b).TRTLLMAnswered(t)
	if c := ended.Choices[0]; c.FinishReason != "stop" {
		t.Errorf("the context engine answers %+v", ended)
	}
	if st := context.Engine.State(); st.Kept != 1 {
		t.Errorf("it holds %+v, want the hand-off of the first request only", st)
	}
}

// Blocks that no generation engine reads are kept until the time-out, whatever the client does.
func TestUnreadBlocksExpire(t *testing.T) {
	context := simtest.TRTLLM(t, func(c *trtllm.Config) { c.Times.Transfer = 50 * time.Millisecond })
	simtest.Post(t, context.URL+completions, body(simtest.Prompt(1, 40), 8, contextOnly(id))).TRTLLMAnswered(t)
	st := simtest.WaitForTRTLLM(t, context, "the blocks to expire", trtllm.State.Idle)
	if st.Expired != 1 {
		t.Errorf("%+v", st)
	}
}

// A generation leg whose KV does not come fails after the time-out, with a status that blames the client.
func TestTransferThatDoesNotCome(t *testing.T) {
	context := simtest.TRTLLM(t)
	gen := simtest.TRTLLM(t, func(c *trtllm.Config) { c.Times.Transfer = 50 * time.Millisecond })
	state := context.Engine.OpaqueState()
	params := map[string]any{"request_type": "generation_only", "ctx_request_id": id, "disagg_request_id": id, "first_gen_tokens": []int{7}, "encoded_opaque_state": state}
	r := simtest.Post(t, gen.URL+completions, body(simtest.Prompt(1, 40), 8, params))
	if want := `{"object":"error","message":"Error in kv cache transfer for generation requests","type":"BadRequestError","param":null,"code":400}`; r.Status != http.StatusBadRequest || string(r.Body) != want {
		t.Errorf("status %d: %s, want %s", r.Status, r.Body, want)
	}
	idle(t, gen)
}

// A client that has left is noticed at the next look. Its context leg is freed if it waits, and kept if it has finished.
func TestClientLeaves(t *testing.T) {
	engine := simtest.TRTLLM(t, func(c *trtllm.Config) { c.Times.Poll = 10 * time.Millisecond })
	params := contextOnly(id)
	params["schedule_style"] = 1
	ctx, leave := context.WithCancel(context.Background())
	text, err := json.Marshal(body(simtest.Prompt(1, 40), 8, params))
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, engine.URL+completions, strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if resp, err := http.DefaultTransport.RoundTrip(req); err == nil {
			resp.Body.Close()
		}
	}()
	simtest.WaitForTRTLLM(t, engine, "the context leg to wait for a generation engine", func(st trtllm.State) bool { return st.Unasked == 1 })
	leave()
	<-ended
	idle(t, engine)
}

// The engine refuses what it does not know, and what would be no hand-off.
func TestRefusals(t *testing.T) {
	engine := simtest.TRTLLM(t)
	prompt := simtest.Prompt(1, 40)
	for name, c := range map[string]struct {
		change map[string]any
		want   string
	}{
		"a member of another engine": {map[string]any{"kv_transfer_params": map[string]any{}}, `'extra_forbidden', 'loc': ('body', 'kv_transfer_params')`},
		"an unknown parameter":       {map[string]any{"disaggregated_params": map[string]any{"request_type": "context_only", "x": 1}}, `('body', 'disaggregated_params', 'x')`},
		"no id":                      {map[string]any{"disaggregated_params": map[string]any{"request_type": "context_only"}}, "disagg_request_id"},
		"another type":               {map[string]any{"disaggregated_params": map[string]any{"request_type": "prefill"}}, "Unknown request type: prefill"},
		"no type":                    {map[string]any{"disaggregated_params": map[string]any{}}, "Field required"},
		"an id that is a float":      {map[string]any{"disaggregated_params": json.RawMessage(`{"request_type":"context_only","disagg_request_id":9.007199254740993e15}`)}, "int_type"},
		"a context leg that streams": {map[string]any{"disaggregated_params": contextOnly(id), "stream": true}, "cannot be streamed"},
		"no state":                   {map[string]any{"disaggregated_params": map[string]any{"request_type": "generation_only", "ctx_request_id": id}}, "Context phase params"},
		"several choices":            {map[string]any{"disaggregated_params": contextOnly(id), "n": 2}, "one sequence"},
		"stream options":             {map[string]any{"stream_options": map[string]any{}}, "only be defined when stream is true"},
		"an id out of range":         {map[string]any{"prompt": []int{1 << 30}}, "Token ID out of range"},
		"no tokens":                  {map[string]any{"max_tokens": 0}, "max_tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			b := body(prompt, 8, nil)
			for member, v := range c.change {
				b[member] = v
			}
			if r := simtest.Post(t, engine.URL+completions, b); r.Status != http.StatusBadRequest || !strings.Contains(string(r.Body), c.want) {
				t.Errorf("status %d: %s, want %s", r.Status, r.Body, c.want)
			}
		})
	}
	idle(t, engine)
}

// The pages that other programs read.
func TestPages(t *testing.T) {
	engine := simtest.TRTLLM(t)
	for path, want := range map[string]string{
		"/v1/models": `"owned_by":"tensorrt_llm"`, "/version": `{"version":"1.2.0"}`, "/metrics": "[]", "/health": "",
		"/server_info":        `{"disaggregated_params":{"ctx_dp_rank":0,"ctx_info_endpoint":["tcp://` + engine.Engine.Endpoint() + `"]}}`,
		"/prometheus/metrics": `trtllm_kv_cache_tokens_per_block{engine_type="undefined",model_name="undefined"} 32.0`,
	} {
		if r := simtest.Do(t, http.MethodGet, engine.URL+path, ""); r.Status != http.StatusOK || !strings.Contains(string(r.Body), want) {
			t.Errorf("%s: %d %s, want %s", path, r.Status, r.Body, want)
		}
	}
}

// A stream that fails after its headers breaks off without an event.
func TestStreamFails(t *testing.T) {
	gen := simtest.TRTLLM(t, func(c *trtllm.Config) { c.Times.Transfer = 50 * time.Millisecond })
	context := simtest.TRTLLM(t)
	state := context.Engine.OpaqueState()
	b := body(simtest.Prompt(1, 40), 8, map[string]any{"request_type": "generation_only", "ctx_request_id": id, "disagg_request_id": id, "first_gen_tokens": []int{7},
		"encoded_opaque_state": state})
	b["stream"] = true
	text, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := simtest.Try(t, http.MethodPost, gen.URL+completions, string(text)); err == nil || len(r.Body) > 0 {
		t.Errorf("status %d: %s", r.Status, r.Body)
	}
}

// Faults choose legs by what their parameters say.
func TestFaults(t *testing.T) {
	engine := simtest.TRTLLM(t)
	if err := engine.Faults.Add(fault.Fault{Leg: "prefill", Fault: "status", Arg: "503"}); err != nil {
		t.Fatal(err)
	}
	if r := simtest.Post(t, engine.URL+completions, body(simtest.Prompt(1, 40), 2, contextOnly(id))); r.Status != http.StatusServiceUnavailable {
		t.Errorf("a context leg gets %d %s", r.Status, r.Body)
	}
	simtest.Post(t, engine.URL+completions, body(simtest.Prompt(1, 40), 2, nil)).TRTLLMAnswered(t)
}
