package simtest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/pyjson"
	"github.com/tandem-serving/tandem/sim/server"
)

// The messages of the real engine's errors.
const (
	// EngineDead is the message of requests that end with the engine.
	EngineDead = "EngineCore encountered an issue. See stack trace (above) for the root cause."
	// InternalError is the message of requests whose KV could not be read.
	InternalError = "Internal server error"
)

// Reply is an HTTP answer with its body read.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// Decode reads the body as JSON.
func (r Reply) Decode(t *testing.T, v any) {
	t.Helper()
	if err := json.Unmarshal(r.Body, v); err != nil {
		t.Fatalf("decoding %q: %v", r.Body, err)
	}
}

// Do sends one request on a connection of its own. header has names and values in turn.
func Do(t *testing.T, method, url, body string, header ...string) Reply {
	t.Helper()
	r, err := Try(t, method, url, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Try is Do for requests whose connection may fail.
func Try(t *testing.T, method, url, body string, header ...string) (Reply, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return Reply{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return Reply{resp.StatusCode, resp.Header, data}, err
}

// Post sends a body as JSON.
func Post(t *testing.T, url string, body any, header ...string) Reply {
	t.Helper()
	return Do(t, http.MethodPost, url, string(pyjson.Encode(body)), header...)
}

// Completion has the members of an answer that tests read.
type Completion struct {
	ID      string
	Choices []struct {
		Index        int
		Text         string
		FinishReason string `json:"finish_reason"`
		StopReason   any    `json:"stop_reason"`
		TokenIDs     []int  `json:"token_ids"`
	}
	Usage struct {
		PromptTokens        int `json:"prompt_tokens"`
		CompletionTokens    int `json:"completion_tokens"`
		PromptTokensDetails struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	KVTransferParams json.RawMessage `json:"kv_transfer_params"`
	Error            *struct{ Message string }
}

// Tokens returns the token ids of the first choice.
func (c Completion) Tokens() []int { return c.Choices[0].TokenIDs }

// Prompt returns n token ids. Prompts of different seeds differ from the first token on.
func Prompt(seed, n int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = model.FirstByte + (seed*131+i*7)%(1000)
	}
	return ids
}

// Greedy returns the body of a greedy completion whose answer has its token ids. params are its kv_transfer_params, if not nil.
func Greedy(prompt []int, maxTokens int, params any) map[string]any {
	body := map[string]any{"model": "tiny", "prompt": prompt, "max_tokens": maxTokens, "temperature": 0, "return_token_ids": true}
	if params != nil {
		body["kv_transfer_params"] = params
	}
	return body
}

// Streamed makes a body ask for a stream.
func Streamed(body map[string]any) map[string]any {
	body["stream"] = true
	return body
}

// Complete sends a completion, and fails the test if the answer is an error.
func Complete(t *testing.T, s *server.Server, body any) Completion {
	t.Helper()
	r := Post(t, s.URL+"/v1/completions", body)
	var c Completion
	r.Decode(t, &c)
	if r.Status != http.StatusOK {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	return c
}

// PrefillLeg is the kv_transfer_params that ask for a hand-off.
var PrefillLeg = map[string]any{"do_remote_decode": true}

// Prefill runs a prefill leg and returns its hand-off.
func Prefill(t *testing.T, s *server.Server, prompt []int) map[string]any {
	t.Helper()
	c := Complete(t, s, Greedy(prompt, 1, PrefillLeg))
	var params map[string]any
	d := json.NewDecoder(bytes.NewReader(c.KVTransferParams))
	d.UseNumber()
	if err := d.Decode(&params); err != nil || params == nil {
		t.Fatalf("prefill answered with the hand-off %s", c.KVTransferParams)
	}
	return params
}

// MetricsPage returns the engine's metrics page.
func MetricsPage(t *testing.T, s *server.Server) string {
	t.Helper()
	return string(Do(t, http.MethodGet, s.URL+"/metrics", "").Body)
}

// Occupy starts a request that runs until the test ends, and returns when it has blocks.
func Occupy(t *testing.T, s *server.Server) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	resp, err := http.DefaultTransport.RoundTrip(completionRequest(ctx, t, s, Streamed(Greedy(Prompt(99, 10), 4000, nil)))) // returns with the headers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		resp.Body.Close()
	})
	WaitForState(t, s, "the start of the long request", func(st sim.State) bool { return st.Blocks.Used > 0 })
}

// Leave sends a request, and cancels it when the engine is in a state.
func Leave(t *testing.T, s *server.Server, body any, when func(sim.State) bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	req := completionRequest(ctx, t, s, body)
	go func() {
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err == nil {
			resp.Body.Close()
		}
		ended <- err
	}()
	WaitForState(t, s, "the request", when)
	cancel()
	if err := <-ended; err == nil {
		t.Error("the request was answered before its client could leave")
	}
}

func completionRequest(ctx context.Context, t *testing.T, s *server.Server, body any) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/completions", bytes.NewReader(pyjson.Encode(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	return req
}
