package sglang_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/answer"
	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// restWithin is the promised time after which nothing is left of a request, if all engines are alive.
const restWithin = 2 * time.Second

// testByHand proves the engines, and what this suite knows of their protocol, without anything of Tandem between.
func testByHand(t *testing.T, e *engines) {
	for _, api := range apis {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			for _, n := range []int{3, 15, 16, 17, 100, 1000} { // around the borders of pages
				t.Run(fmt.Sprint(api, n), func(t *testing.T) {
					a := newAsk(api, n, 8, stream)
					want := a.at(t, e.plain.Address())
					got, err := a.byHand(harness.Within(t), e.prefill, e.decode)
					if err != nil {
						t.Fatal(err)
					}
					mustEqual(t, a, got, want)
				})
			}
		})
	}
	e.mustRest(t, restWithin)
}

// testAnswers sends a request of every API through the whole stack, twice: the second time prefill has pages of its prompt.
func testAnswers(t *testing.T, e *engines) {
	f := newStack(t, e, e.prefill)
	for _, api := range apis {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			for _, n := range []int{3, 16, 200, 1000} {
				t.Run(fmt.Sprint(api, n), func(t *testing.T) {
					a := newAsk(api, n, 8, stream)
					for range 2 {
						got := a.at(t, f.Front.Addr)
						mustEqual(t, a, got, a.at(t, e.plain.Address()))
						mustBe(t, got, pd.Remote)
					}
				})
			}
		})
	}
	f.MustRest(t)
	e.mustRest(t, restWithin)
}

// mustBe fails unless a request was served in this way.
func mustBe(t *testing.T, got answer.Answer, want pd.Verdict) {
	t.Helper()
	if got.Decision.Verdict != want {
		t.Errorf("decision %v, want %v", got.Decision, want)
	}
}

// testRanks has prefill engines with two ranks: which of them computes a prompt must be the same for both legs.
func testRanks(t *testing.T, e *engines) {
	s := startSidecar(t, e.decode.Address())
	for _, api := range apis {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			for range 4 { // a rank each, and both if chosen at random
				a := newAsk(api, 100, 8, stream)
				got := a.from(e.ranked.Address()).at(t, s.Addr("http"))
				mustEqual(t, a, got, a.at(t, e.plain.Address()))
				mustBe(t, got, pd.Remote)
			}
		})
	}
	e.mustRest(t, restWithin)
}

// several are requests with more than one answer.
func several(stream bool) map[string]ask {
	completions, chat, generate := newAsk(pd.APICompletions, 60, 8, stream), newAsk(pd.APIChat, 60, 8, stream), newAsk(pd.APISGLang, 60, 8, stream)
	ids := func(lengths ...int) (prompts [][]int) {
		for _, n := range lengths {
			prompts = append(prompts, (&harness.Fleet{}).Fresh(n))
		}
		return prompts
	}
	sampling := func(more string, value any) map[string]any {
		return map[string]any{"sampling_params": map[string]any{"max_new_tokens": 8, "temperature": 0, "ignore_eos": true, more: value}}
	}
	return map[string]ask{
		"completions of two prompts":   completions.with(map[string]any{"prompt": ids(40, 90)}),
		"completions of three prompts": completions.with(map[string]any{"prompt": ids(90, 3, 200)}),
		"completions of two texts":     completions.with(map[string]any{"prompt": []string{harness.Words(5), harness.Words(9)}}),
		"generate for two prompts":     generate.with(map[string]any{"input_ids": ids(40, 90)}),
		"completions, n 2":             completions.with(map[string]any{"n": 2}),
		"completions, n 1":             completions.with(map[string]any{"n": 1}),
		"chat, n 3":                    chat.with(map[string]any{"n": 3}),
		"generate, n 2":                generate.with(sampling("n", 2)),
	}
}

// testSeveral has batches and several choices. Choices of an engine without temperature are all the same, so that they can be
// compared.
func testSeveral(t *testing.T, e *engines) {
	f := newStack(t, e, e.prefill)
	harness.BothForms(t, func(t *testing.T, stream bool) {
		for name, a := range several(stream) {
			t.Run(name, func(t *testing.T) {
				got, want := a.at(t, f.Front.Addr), a.at(t, e.plain.Address())
				want.Tokens, got.Tokens = nil, nil // in the order in which they came
				mustEqual(t, a, got, want)
				mustBe(t, got, pd.Remote)
			})
		}
	})
	f.MustRest(t)
	e.mustRest(t, restWithin)
}

// testInputLogProbs asks for the log probabilities of the prompt, which only prefill has.
func testInputLogProbs(t *testing.T, e *engines) {
	f := newStack(t, e, e.prefill)
	a := newAsk(pd.APISGLang, 40, 8, false).with(map[string]any{"return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 2})
	got, want := a.at(t, f.Front.Addr), a.at(t, e.plain.Address())
	mustEqual(t, a, got, want)
	mustBe(t, got, pd.Remote)
	for _, member := range []string{"input_token_logprobs", "output_token_logprobs", "input_top_logprobs", "output_top_logprobs"} {
		had, should := logProbs(t, got, member), logProbs(t, want, member)
		if len(should) == 0 || !reflect.DeepEqual(had, should) {
			t.Errorf("%s: %v, the plain engine's are %v", member, had, should)
		}
	}
	e.mustRest(t, restWithin)
}

// logProbs returns the tokens of such a list, and how likely they were to four digits: sums in another order differ behind that.
func logProbs(t *testing.T, a answer.Answer, member string) []string {
	t.Helper()
	var whole struct {
		Meta map[string]json.RawMessage `json:"meta_info"`
	}
	var list []any
	if err := json.Unmarshal([]byte(a.Body), &whole); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(whole.Meta[member], &list); err != nil {
		t.Fatalf("%s: %v in %s", member, err, whole.Meta[member])
	}
	return rounded(list)
}

// rounded returns the numbers in nested lists, with four digits.
func rounded(list []any) (all []string) {
	for _, v := range list {
		switch v := v.(type) {
		case []any:
			all = append(all, rounded(v)...)
		case float64:
			all = append(all, fmt.Sprintf("%.4f", v))
		default:
			all = append(all, fmt.Sprint(v))
		}
	}
	return all
}
