package sidecar

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/simtest"
	"github.com/tandem-serving/tandem/sim/trtllm"
)

// trtllmOrders are the two orders in which TensorRT-LLM's legs are sent.
var trtllmOrders = []string{"trtllm", "trtllm-generation-first"}

func speaksTRTLLM(connector string) option {
	return set(func(c *Config) { c.Engine.Connector = connector })
}

// trtllmPair is a context and a generation engine. The latter gives up KV that does not come after a moment.
func trtllmPair(t *testing.T) (prefill, decode *server.TRTLLM) {
	t.Helper()
	return simtest.TRTLLM(t), simtest.TRTLLM(t, func(c *trtllm.Config) { c.Times.Transfer = time.Second })
}

func hostPort(url string) string { return strings.TrimPrefix(url, "http://") }

// trtllmText returns the text of a completion that a plain engine gives, and the id of its first token.
func trtllmText(t *testing.T, engine *server.TRTLLM) (text string, first int) {
	t.Helper()
	const body = `{"model":"tiny","prompt":"the quick brown fox","max_tokens":8,"ignore_eos":true%s}`
	text = simtest.Do(t, http.MethodPost, engine.URL+"/v1/completions", fmt.Sprintf(body, "")).TRTLLMAnswered(t).Choices[0].Text
	a := simtest.Do(t, http.MethodPost, engine.URL+"/v1/completions", fmt.Sprintf(body, `,"disaggregated_params":{"request_type":"context_only","disagg_request_id":5}`)).TRTLLMAnswered(t)
	var params struct {
		First []int `json:"first_gen_tokens"`
	}
	if err := json.Unmarshal(a.Choices[0].Params, &params); err != nil {
		t.Fatal(err)
	}
	return text, params.First[0]
}

// A pair answers as a plain engine does, streamed and whole.
func TestTRTLLM(t *testing.T) {
	want, _ := trtllmText(t, simtest.TRTLLM(t))
	for _, connector := range trtllmOrders {
		for _, stream := range []string{"false", "true"} {
			t.Run(connector+", stream "+stream, func(t *testing.T) {
				prefill, decode := trtllmPair(t)
				s := startRig(t, hostPort(decode.URL), speaksTRTLLM(connector))
				r := post(t, s.url+"/v1/completions", `{"model":"tiny","prompt":"the quick brown fox","max_tokens":8,"ignore_eos":true,"stream":`+stream+
					`,"disaggregated_params":{"request_type":"generation_only","ctx_request_id":1}}`, pd.HeaderPrefill, hostPort(prefill.URL))
				r.mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
				if got := completionText(r.body); got != want {
					t.Errorf("%q, want %q: %s", got, want, r.body)
				}
				s.end()
				for _, e := range []*server.TRTLLM{prefill, decode} {
					simtest.WaitForTRTLLM(t, e, "an engine to hold nothing", trtllm.State.Idle)
				}
			})
		}
	}
}

// completionText joins the text of a completion, streamed or whole.
func completionText(body string) (text string) {
	for line := range strings.SplitSeq(body, "\n") {
		var part struct{ Choices []struct{ Text string } }
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &part) == nil && len(part.Choices) > 0 {
			text += part.Choices[0].Text
		}
	}
	return text
}

// A request that ends with its first token is answered at once: no generation engine has to wait for KV that does not come.
func TestTRTLLMEndsWithItsFirstToken(t *testing.T) {
	plain := simtest.TRTLLM(t)
	_, first := trtllmText(t, plain)
	for _, connector := range trtllmOrders {
		for _, stream := range []string{"false", "true"} {
			t.Run(connector+", stream "+stream, func(t *testing.T) {
				prefill := simtest.TRTLLM(t)
				decode := simtest.TRTLLM(t, func(c *trtllm.Config) { c.Times.Transfer = time.Hour })
				s := startRig(t, hostPort(decode.URL), speaksTRTLLM(connector))
				body := fmt.Sprintf(`{"model":"tiny","prompt":"the quick brown fox","max_tokens":8,"ignore_eos":true,"stop_token_ids":[%d],"stream":%s}`, first, stream)
				want := simtest.Do(t, http.MethodPost, plain.URL+"/v1/completions", body)
				r := post(t, s.url+"/v1/completions", body, pd.HeaderPrefill, hostPort(prefill.URL))
				r.mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
				if completionText(r.body) != completionText(string(want.Body)) || !strings.Contains(r.body, `"finish_reason":"stop"`) || strings.Contains(r.body, "context_only") ||
					(stream == "true") != strings.HasSuffix(r.body, "data: [DONE]\n\n") {
					t.Errorf("%s, a plain engine answers %s", r.body, want.Body)
				}
				s.end()
				simtest.WaitForTRTLLM(t, prefill, "the context engine to hold nothing", trtllm.State.Idle)
			})
		}
	}
}

// A transfer that fails is answered with 400 by a generation engine. The client has done nothing wrong.
func TestTRTLLMTransferFails(t *testing.T) {
	want, _ := trtllmText(t, simtest.TRTLLM(t))
	prefill, decode := trtllmPair(t)
	s := startRig(t, hostPort(decode.URL), speaksTRTLLM("trtllm"))
	if err := decode.Faults.Add(fault.Fault{Leg: "decode", Fault: "slow", Arg: "stop", Count: 1}); err != nil {
		t.Fatal(err)
	}
	done := make(chan reply, 1)
	go func() {
		done <- post(t, s.url+"/v1/completions", `{"model":"tiny","prompt":"the quick brown fox","max_tokens":8,"ignore_eos":true}`, pd.HeaderPrefill, hostPort(prefill.URL))
	}()
	ctx, cancel := context.WithTimeout(context.Background(), simtest.Timeout)
	defer cancel()
	if _, err := decode.Engine.WaitState(ctx, func(st trtllm.State) bool { return st.Held > 0 }); err != nil {
		t.Fatal(err)
	}
	prefill.Close()
	decode.Faults.Clear()
	r := <-done
	r.mustBe(t, http.StatusOK, "local;reason=transfer-failed;attempts=1;candidate=0")
	if got := completionText(r.body); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// What the hand-off does not carry is served by the generation engine alone.
func TestTRTLLMLocal(t *testing.T) {
	prefill, decode := trtllmPair(t)
	s := startRig(t, hostPort(decode.URL), speaksTRTLLM("trtllm"))
	for _, body := range []string{`{"model":"tiny","prompt":"x","max_tokens":1,"echo":true}`, `{"model":"tiny","prompt":"x","max_tokens":1,"n":2}`} {
		post(t, s.url+"/v1/completions", body, pd.HeaderPrefill, hostPort(prefill.URL)).mustBe(t, http.StatusOK, "local;reason=not-splittable")
	}
	if st := prefill.Engine.State(); st.Requests != 0 {
		t.Errorf("the context engine got %d requests", st.Requests)
	}
}
