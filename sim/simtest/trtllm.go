package simtest

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/trtllm"
)

// TRTLLM runs an engine of TensorRT-LLM with its ports for the length of the test.
func TRTLLM(t *testing.T, change ...func(*trtllm.Config)) *server.TRTLLM {
	t.Helper()
	var cfg trtllm.Config
	for _, f := range change {
		f(&cfg)
	}
	s, err := server.StartTRTLLM(cfg)
	return started(t, s, err)
}

// WaitForTRTLLM waits for a state of the engine, and fails the test if it does not come. what names it in the failure.
func WaitForTRTLLM(t *testing.T, s *server.TRTLLM, what string, ok func(trtllm.State) bool) trtllm.State {
	t.Helper()
	return waitFor(t, s.Engine, what, ok)
}

// TRTLLMAnswer has the members of an answer to a completion that tests read. Params and PromptIDs are as they were written.
type TRTLLMAnswer struct {
	Choices []struct {
		Text         string
		FinishReason string          `json:"finish_reason"`
		Params       json.RawMessage `json:"disaggregated_params"`
	}
	Usage struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	PromptIDs json.RawMessage `json:"prompt_token_ids"`
}

// TRTLLMAnswered reads an answer to a completion, and fails the test if it is an error.
func (r Reply) TRTLLMAnswered(t *testing.T) (a TRTLLMAnswer) {
	t.Helper()
	if r.Status != http.StatusOK || json.Unmarshal(r.Body, &a) != nil || len(a.Choices) != 1 {
		t.Fatalf("status %d: %s", r.Status, r.Body)
	}
	return a
}
