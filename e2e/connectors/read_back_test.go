package connectors_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/pd"
)

// readBackLease is longer than the five seconds before its end in which no engine reads back, by far.
const readBackLease = 20 * time.Second

const (
	turns        = 10 // of completions; chats have chatTurns, because their decode engines have little of an answer
	chatTurns    = 4
	newTokens    = 60 // of a turn's question
	answerTokens = 90 // of its answer, which the prefill engine has not computed
	blockSize    = 32
)

// testTurns has conversations of ten turns, with and without --read-back, and prints how many tokens each turn's engines compute. What the
// decode engine has the prefill engine reads, but for the last block at most.
func testTurns(t *testing.T, p *pair) {
	for _, api := range []pd.API{pd.APICompletions, pd.APIChat} {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			t.Run(api.String(), func(t *testing.T) {
				computed := map[string][]int{}
				for name, flags := range map[string][]string{"with": {"--read-back", "--pod-ip=127.0.0.1"}, "without": nil} {
					prefill, decode := p.converse(t, api, stream, p.sidecar(t, p.decode.Address(), flags...))
					fmt.Printf("       %s, stream %t, %s: prefill computes %v, decode %v\n", api, stream, name, prefill, decode)
					for i := 1; i < len(prefill); i++ {
						computed[name] = append(computed[name], prefill[i])
						if decode[i] > blockSize {
							t.Errorf("%s, turn %d: decode computes %d tokens", name, i, decode[i])
						}
					}
				}
				for i, with := range computed["with"] {
					without, gain := computed["without"][i], 0
					if api == pd.APICompletions {
						gain = answerTokens - blockSize
					}
					if with > without-gain+blockSize {
						t.Errorf("turn %d: prefill computes %d tokens, without reading back %d", i+1, with, without)
					}
				}
			})
		})
	}
	p.mustRest(t, restWithin)
}

// converse has a conversation by way of a sidecar, and returns how many tokens of each turn's prompt each engine has computed. The picker's
// part is to say how much the decode engine has: whole blocks of the last turn's prompt and answer.
func (p *pair) converse(t *testing.T, api pd.API, stream bool, sidecar string) (prefill, decode []int) {
	t.Helper()
	c := newCall(api, newTokens, answerTokens, stream)
	messages := []any{map[string]any{"role": "user", "content": c.Text}}
	if api == pd.APIChat {
		c.Prompt = p.tokenize(t, messages)
	}
	has := 0
	for range map[pd.API]int{pd.APICompletions: turns, pd.APIChat: chatTurns}[api] {
		if api == pd.APIChat {
			c.Members = map[string]any{"messages": messages}
		}
		c.Header = map[string]string{pd.HeaderPlan: "remote;id=0123456789abcdef;reason=uncached;strict=0;epp=1"}
		if has > 0 {
			c.Header[pd.HeaderPlan] += fmt.Sprintf(";source-tokens=%d", has)
			c.Header[pd.HeaderSource] = "127.0.0.1:8000"
		}
		before := [2]float64{fromSource(t, p.prefill, "local_compute"), fromSource(t, p.decode, "local_compute")}
		got, want := harness.MustSend(t, c.Remote(p.prefill.Address()), sidecar, realengine.Model), p.want(t, c)
		mustEqual(t, c, got, want)
		mustBe(t, got, pd.Remote)
		p.mustRest(t, restWithin)
		prefill = append(prefill, int(fromSource(t, p.prefill, "local_compute")-before[0]))
		decode = append(decode, int(fromSource(t, p.decode, "local_compute")-before[1]))
		fresh := newCall(pd.APICompletions, newTokens, 0, false)
		messages = append(messages, map[string]any{"role": "assistant", "content": want.Texts[0]}, map[string]any{"role": "user", "content": fresh.Text})
		known := append(slices.Clone(c.Prompt), want.Tokens[:answerTokens-1]...) // the last token has no KV cache yet
		if c.Prompt = append(append(c.Prompt, want.Tokens...), fresh.Prompt...); api == pd.APIChat {
			// The template may make other tokens of the answer's text than the engine has generated.
			c.Prompt = p.tokenize(t, messages)
		}
		has = 0
		for has < min(len(known), len(c.Prompt)) && known[has] == c.Prompt[has] {
			has++
		}
		has = has / blockSize * blockSize
	}
	return prefill, decode
}

// tokenize returns the token ids of a conversation.
func (p *pair) tokenize(t *testing.T, messages []any) []int {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": realengine.Model, "messages": messages})
	must(t, err)
	resp, err := harness.Client.Post("http://"+p.plain.Address()+"/tokenize", "application/json", bytes.NewReader(body))
	must(t, err)
	defer resp.Body.Close()
	var answer struct{ Tokens []int }
	must(t, json.NewDecoder(resp.Body).Decode(&answer))
	if len(answer.Tokens) == 0 {
		t.Fatalf("the plain engine tokenizes nothing: %s", resp.Status)
	}
	return answer.Tokens
}

// testUnread has a prefill leg refused after the decode engine has lent its blocks: they are free at once.
func testUnread(t *testing.T, p *pair) {
	s := p.sidecar(t, p.decode.Address(), "--read-back", "--pod-ip=127.0.0.1")
	c := newCall(pd.APICompletions, 1000, 8, false)
	harness.MustSend(t, c, p.decode.Address(), realengine.Model)
	c.Header = map[string]string{pd.HeaderSource: "127.0.0.1:8000", pd.HeaderPlan: "remote;id=0123456789abcdef;reason=uncached;strict=0;epp=1;source-tokens=960"}
	c.Members = map[string]any{"logit_bias": map[string]any{"99999": 1}} // which both engines refuse after they have read the parameters
	got := harness.MustSend(t, c.Remote(p.prefill.Address()), s, realengine.Model)
	if got.Status/100 != 4 {
		t.Errorf("status %d", got.Status)
	}
	p.mustRest(t, restWithin)
}
