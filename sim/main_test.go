package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout bounds every wait of a test; nothing is expected to take a noticeable part of it.
const testTimeout = 20 * time.Second

// start runs an engine with its ports for the length of the test.
func start(t *testing.T, change ...func(*Config)) *Server {
	t.Helper()
	var cfg Config
	for _, f := range change {
		f(&cfg)
	}
	s, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// reply is an HTTP answer with its body read.
type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) decode(t *testing.T, v any) {
	t.Helper()
	if err := json.Unmarshal(r.body, v); err != nil {
		t.Fatalf("decoding %q: %v", r.body, err)
	}
}

// do sends one request on a connection of its own.
func do(t *testing.T, method, url, body string, header ...string) reply {
	t.Helper()
	r, err := try(t, method, url, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// try is do for requests whose connection may fail.
func try(t *testing.T, method, url, body string, header ...string) (reply, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
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
		return reply{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, data}, err
}

func post(t *testing.T, url string, body any, header ...string) reply {
	t.Helper()
	return do(t, http.MethodPost, url, string(encodeJSON(body)), header...)
}

// completionOf is what tests read of an answer.
type completionOf struct {
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
	Error            *apiError
}

func (c completionOf) tokens() []int { return c.Choices[0].TokenIDs }

// prompt returns n token ids that differ from those of other seeds from the first on.
func prompt(seed, n int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = firstByte + (seed*131+i*7)%(1000)
	}
	return ids
}

// ask is the body of a greedy completion that shows its tokens.
func ask(prompt []int, maxTokens int, params any) map[string]any {
	body := map[string]any{"model": "tiny", "prompt": prompt, "max_tokens": maxTokens, "temperature": 0, "return_token_ids": true}
	if params != nil {
		body["kv_transfer_params"] = params
	}
	return body
}

func complete(t *testing.T, s *Server, body any) completionOf {
	t.Helper()
	r := post(t, s.URL+"/v1/completions", body)
	var c completionOf
	r.decode(t, &c)
	if r.status != http.StatusOK {
		t.Fatalf("status %d: %s", r.status, r.body)
	}
	return c
}

// prefillLeg asks for a hand-off.
var prefillLeg = map[string]any{"do_remote_decode": true}

// prefill runs leg 1 and returns the hand-off.
func prefill(t *testing.T, s *Server, prompt []int) map[string]any {
	t.Helper()
	c := complete(t, s, ask(prompt, 1, prefillLeg))
	var params map[string]any
	d := json.NewDecoder(bytes.NewReader(c.KVTransferParams))
	d.UseNumber()
	if err := d.Decode(&params); err != nil || params == nil {
		t.Fatalf("prefill gave %s", c.KVTransferParams)
	}
	return params
}

// settle waits for a state of the engine, and fails the test if it does not come.
func settle(t *testing.T, s *Server, what string, ok func(State) bool) State {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	st, err := s.Engine.WaitState(ctx, ok)
	if err != nil {
		t.Fatalf("%s did not happen: %v: %+v", what, err, st)
	}
	return st
}

func idle(st State) bool { return st.Blocks.Used == 0 && st.Blocks.Pinned == 0 }

// occupy has a request run for as long as the test does.
func occupy(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	body := ask(prompt(99, 10), 4000, nil)
	body["stream"] = true
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/v1/completions", bytes.NewReader(encodeJSON(body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultTransport.RoundTrip(req) // returns with the headers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		resp.Body.Close()
	})
	settle(t, s, "the start of the long request", func(st State) bool { return st.Blocks.Used > 0 })
}

func model(t *testing.T, name string) Model {
	t.Helper()
	m, err := NamedModel(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
