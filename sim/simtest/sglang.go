package simtest

import (
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"testing"

	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/sglang"
)

// SGLang runs an SGLang engine with its ports for the length of the test.
func SGLang(t *testing.T, mode sglang.Mode, change ...func(*sglang.Config)) *server.SGLang {
	t.Helper()
	cfg := sglang.Config{Mode: mode}
	for _, f := range change {
		f(&cfg)
	}
	s, err := server.StartSGLang(cfg)
	return started(t, s, err)
}

// Pair is a prefill and a decode engine.
type Pair struct{ Prefill, Decode *server.SGLang }

// SGLangPair runs a pair for the length of the test.
func SGLangPair(t *testing.T, change ...func(*sglang.Config)) Pair {
	t.Helper()
	return Pair{SGLang(t, sglang.Prefill, change...), SGLang(t, sglang.Decode, change...)}
}

// Meet returns the members that a body needs for a hand-off in a bootstrap room of a prefill engine.
func Meet(prefill *server.SGLang, room uint64) map[string]any {
	host, port, _ := net.SplitHostPort(prefill.Bootstrap)
	n, _ := strconv.Atoi(port)
	return map[string]any{"bootstrap_host": host, "bootstrap_port": n, "bootstrap_room": room}
}

// Send sends a body to both engines at once, and returns their answers.
func (p Pair) Send(t *testing.T, path string, body any) (prefill, decode Reply) {
	t.Helper()
	done := make(chan Reply, 1)
	go func() { done <- Post(t, p.Prefill.URL+path, body) }()
	decode = Post(t, p.Decode.URL+path, body)
	return <-done, decode
}

// Rests waits until neither engine holds anything.
func (p Pair) Rests(t *testing.T) {
	t.Helper()
	WaitForSGLang(t, p.Prefill, "prefill to hold nothing", sglang.State.Idle)
	WaitForSGLang(t, p.Decode, "decode to hold nothing", sglang.State.Idle)
}

// WaitForSGLang waits for a state of the engine, and fails the test if it does not come. what names it in the failure.
func WaitForSGLang(t *testing.T, s *server.SGLang, what string, ok func(sglang.State) bool) sglang.State {
	t.Helper()
	return waitFor(t, s.Engine, what, ok)
}

// Generated has the members of an answer of /generate that tests read.
type Generated struct {
	Text      string
	OutputIDs []int `json:"output_ids"`
	MetaInfo  struct {
		ID           string
		PromptTokens int `json:"prompt_tokens"`
		CachedTokens int `json:"cached_tokens"`
		FinishReason struct {
			Type, Message string
			Length        int
		} `json:"finish_reason"`
		DPRank *int `json:"dp_rank"`
	} `json:"meta_info"`
}

// Decoded reads an answer of /generate, and fails the test if it is an error.
func (r Reply) Decoded(t *testing.T) (g Generated) {
	t.Helper()
	if r.Status != http.StatusOK || json.Unmarshal(r.Body, &g) != nil {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	return g
}

// Generate returns the body of a greedy request to /generate.
func Generate(prompt []int, tokens int, members ...map[string]any) map[string]any {
	body := map[string]any{"input_ids": prompt, "sampling_params": map[string]any{"temperature": 0, "max_new_tokens": tokens, "ignore_eos": true}}
	for _, m := range members {
		for name, v := range m {
			body[name] = v
		}
	}
	return body
}
