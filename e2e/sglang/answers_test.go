package sglang_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
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
	harness.BothForms(t, func(t *testing.T, stream bool) {
		own := newAsk(pd.APISGLang, 40, 8, stream).with(map[string]any{"return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 2})
		echo := newAsk(pd.APICompletions, 40, 8, stream).with(map[string]any{"echo": true, "logprobs": 2})
		ids := [][]int{(&harness.Fleet{}).Fresh(40), (&harness.Fleet{}).Fresh(9)}
		for name, a := range map[string]ask{
			"generate":                   own,
			"generate, certain ids":      own.with(map[string]any{"token_ids_logprob": []int{301, 302}}),
			"generate for two prompts":   own.with(map[string]any{"input_ids": ids, "logprob_start_len": []int{0, 3}}),
			"completions":                echo,
			"completions of two prompts": echo.with(map[string]any{"prompt": ids}),
			"completions, n 2":           echo.with(map[string]any{"n": 2}),
		} {
			t.Run(name, func(t *testing.T) {
				got, want := logProbs(t, a, f.Front.Addr), logProbs(t, a, e.plain.Address())
				if len(want) < 3 {
					t.Fatalf("the plain engine has %v", want)
				}
				if !alike(got, want) {
					t.Errorf("%v, the plain engine's are %v", got, want)
				}
			})
		}
	})
	f.MustRest(t)
	e.mustRest(t, restWithin)
}

// logProbs returns the lists of log probabilities in an answer, by the number of their prompt or choice, and their names. Those of
// completions are spread over the events of a stream.
func logProbs(t *testing.T, a ask, addr string) map[string][]any {
	t.Helper()
	body, err := json.Marshal(a.members)
	must(t, err)
	resp, err := harness.Client.Post("http://"+addr+a.api.Path(), "application/json", bytes.NewReader(body))
	must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	must(t, err)
	if decision := resp.Header.Get(pd.HeaderDecision); resp.StatusCode != http.StatusOK || decision != "" && !strings.HasPrefix(decision, pd.Remote.String()) {
		t.Fatalf("status %d, decision %q: %s", resp.StatusCode, decision, text)
	}
	all := map[string][]any{}
	for line := range strings.Lines(string(text)) {
		var v any
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &v) == nil {
			collect(all, "", v, a.api == pd.APISGLang)
		}
	}
	return all
}

// collect adds the lists in a JSON value. If whole, each event repeats those of the events before.
func collect(all map[string][]any, of string, v any, whole bool) {
	switch v := v.(type) {
	case []any:
		for i, element := range v {
			collect(all, fmt.Sprint(i), element, whole)
		}
	case map[string]any:
		if index, ok := v["index"]; ok {
			of = fmt.Sprint(index)
		}
		for name, member := range v {
			switch list, ok := member.([]any); {
			case !ok, name == "choices":
				collect(all, of, member, whole)
			case strings.HasSuffix(name, "logprobs") && whole:
				all[of+name] = list
			case strings.HasSuffix(name, "logprobs"), name == "tokens":
				all[of+name] = append(all[of+name], list...)
			}
		}
	}
}

// alike reports whether JSON values are equal but for small differences between numbers: engines add up in another order.
func alike(a, b any) bool {
	switch a := a.(type) {
	case map[string][]any:
		b := b.(map[string][]any)
		for name, list := range a {
			if !alike(list, b[name]) {
				return false
			}
		}
		return len(a) == len(b)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, alike)
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, alike)
	case float64:
		b, ok := b.(float64)
		return ok && math.Abs(a-b) < 1e-3
	}
	return a == b
}
