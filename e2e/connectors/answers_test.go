package connectors_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/answer"
	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/vllm"
	"github.com/tandem-serving/tandem/pd"
)

// restWithin is the promised time after which nothing is left of a request, if both engines are alive.
const restWithin = 2 * time.Second

// newCall returns a call with a prompt of about n tokens that no engine has seen.
func newCall(api pd.API, n, tokens int, stream bool) harness.Call {
	return harness.Call{API: api, Stream: stream, Prompt: (&harness.Fleet{}).Fresh(n), Text: strconv.FormatUint(rand.Uint64(), 10) + harness.Words(n/16), Tokens: tokens}
}

// sidecar starts one in front of a decode engine.
func (p *pair) sidecar(t *testing.T, decode string, flags ...string) string {
	t.Helper()
	return harness.StartSidecar(t, decode, append(p.flags, flags...)...).Addr("http")
}

// want is the plain engine's answer.
func (p *pair) want(t *testing.T, c harness.Call) answer.Answer {
	t.Helper()
	want := harness.MustSend(t, c, p.plain.Address(), realengine.Model)
	if want.Status != http.StatusOK || want.Failed != "" || len(want.Texts) == 0 {
		t.Fatalf("the plain engine answers %d %s%s", want.Status, want.Failed, want.Body)
	}
	return want
}

// mustEqual fails unless an answer is complete and says what the plain engine says.
func mustEqual(t *testing.T, c harness.Call, got, want answer.Answer) {
	t.Helper()
	harness.MustMatch(t, got, c.Stream, want.Tokens)
	if !reflect.DeepEqual(got.Texts, want.Texts) || got.Finish != want.Finish {
		t.Fatalf("%q %s, the plain engine says %q %s (decision %v)", got.Texts, got.Finish, want.Texts, want.Finish, got.Decision)
	}
}

// bill returns the counts of a usage.
func bill(t *testing.T, a answer.Answer) string {
	t.Helper()
	var usage map[string]any
	must(t, json.Unmarshal(a.Usage, &usage))
	input, _ := usage["input_tokens"].(float64)
	created, _ := usage["cache_creation_input_tokens"].(float64) // of messages, which count them as input if they are corrected
	return fmt.Sprint("cached ", a.Cached, " prompt ", usage["prompt_tokens"], input+created, " answer ", usage["completion_tokens"], usage["output_tokens"])
}

func mustBe(t *testing.T, got answer.Answer, want pd.Verdict) {
	t.Helper()
	if got.Decision.Verdict != want {
		t.Errorf("decision %v, want %v", got.Decision, want)
	}
}

// transferred returns how many tokens of prompts an engine has not computed because a connector brought them.
func transferred(t *testing.T, e *realengine.Engine) float64 {
	t.Helper()
	return fromSource(t, e, "external_kv_transfer")
}

// fromSource returns how many tokens of prompts an engine has got from a source, as its metrics name it.
func fromSource(t *testing.T, e *realengine.Engine, source string) (n float64) {
	t.Helper()
	resp, err := harness.Client.Get("http://" + e.Address() + "/metrics")
	must(t, err)
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	must(t, err)
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "vllm:prompt_tokens_by_source_total{") && strings.Contains(line, `source="`+source+`"`) {
			v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			must(t, err)
			n += v
		}
	}
	return n
}

// testAnswers sends calls of every API, twice: the second time prefill has blocks of the prompt.
func testAnswers(t *testing.T, p *pair) {
	s := p.sidecar(t, p.decode.Address())
	for _, api := range harness.SplitAPIs() {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			for _, n := range []int{3, 31, 32, 33, 64, 100, 1000, 3000} { // around the borders of blocks, and more than a step
				t.Run(fmt.Sprint(api, n), func(t *testing.T) {
					c := newCall(api, n, 8, stream)
					for try := range 2 {
						before := transferred(t, p.decode)
						got, want := harness.MustSend(t, c.Remote(p.prefill.Address()), s, realengine.Model), p.want(t, c)
						mustEqual(t, c, got, want)
						mustBe(t, got, pd.Remote)
						if moved := transferred(t, p.decode) - before; try == 0 && n >= 100 && moved < 32 {
							t.Errorf("decode got %v tokens of the prompt from prefill", moved)
						}
						stores := p.engines.Connector == vllm.Files || p.engines.Connector == vllm.Offloading || p.engines.Second == vllm.Offloading // which have other borders than a cache
						if got, want := bill(t, got), bill(t, want); got != want && (try == 0 || !stores) {
							t.Errorf("usage %s, the plain engine's is %s", got, want)
						}
					}
				})
			}
		})
	}
	fmt.Printf("       %s: decode has got %v tokens of prompts from prefill\n", p.name, transferred(t, p.decode))
	p.mustRest(t, restWithin)
}

// testSeveral has requests that one hand-off does not carry: they are served by decode alone.
func testSeveral(t *testing.T, p *pair) {
	s := p.sidecar(t, p.decode.Address())
	harness.BothForms(t, func(t *testing.T, stream bool) {
		f := &harness.Fleet{}
		for name, members := range map[string]map[string]any{
			"two prompts": {"prompt": [][]int{f.Fresh(40), f.Fresh(90)}},
			"n 2":         {"n": 2, "temperature": 1},
		} {
			t.Run(name, func(t *testing.T) {
				c := newCall(pd.APICompletions, 60, 8, stream)
				c.Members = members
				got, want := harness.MustSend(t, c.Remote(p.prefill.Address()), s, realengine.Model), p.want(t, c)
				if sampled := members["temperature"] != nil; len(got.Texts) != 2 || !sampled && !reflect.DeepEqual(got.Texts, want.Texts) {
					t.Errorf("%q, the plain engine says %q", got.Texts, want.Texts)
				}
				mustBe(t, got, pd.Local)
			})
		}
	})
	p.mustRest(t, restWithin)
}

// testFirstToken has requests that end with their first token, for which a prefill engine would hand nothing over.
func testFirstToken(t *testing.T, p *pair) {
	s := p.sidecar(t, p.decode.Address())
	harness.BothForms(t, func(t *testing.T, stream bool) {
		c := newCall(pd.APICompletions, 100, 8, stream)
		c.Members = map[string]any{"stop_token_ids": []int{p.want(t, c).Tokens[0]}}
		got := harness.MustSend(t, c.Remote(p.prefill.Address()), s, realengine.Model)
		if want := p.want(t, c); got.Finish != "stop" || !reflect.DeepEqual(got.Texts, want.Texts) {
			t.Errorf("%q %s, the plain engine says %q %s", got.Texts, got.Finish, want.Texts, want.Finish)
		}
		mustBe(t, got, pd.Remote)
	})
	p.mustRest(t, restWithin)
}

// hostileParams are what ends an engine of one connector or another, hangs it, or leaves its blocks pinned, when a client sends it.
var hostileParams = []string{
	`{"do_remote_prefill":true}`, `{"do_remote_decode":true}`, `{}`, `"x"`, `[]`, `7`,
	`{"do_remote_prefill":true,"transfer_id":"x"}`,
	`{"do_remote_prefill":true,"transfer_id":"x","remote_engine_id":"y"}`,
	`{"do_remote_prefill":true,"transfer_id":null,"remote_engine_id":"y","remote_bootstrap_addr":"http://127.0.0.1:9"}`,
	`{"do_remote_decode":true,"transfer_id":"x"}`,
	`{"do_remote_prefill":true,"remote_engine_id":"x","remote_block_ids":[[1]],"remote_host":"127.0.0.1","remote_port":9}`,
	`{"remote_prefiller":"x"}`, `{"remote_decoder":"x"}`, `{"remote_decoder":{"kv_request_id":"x"}}`,
	`{"remote_kv_source":{"kv_request_id":"x","remote_host":"127.0.0.1","remote_port":5999}}`,
}

// testHostile sends parameters of the engines' own as a client, in every place where engines read them, with prefill and without.
func testHostile(t *testing.T, p *pair) {
	s := p.sidecar(t, p.decode.Address())
	for _, api := range harness.SplitAPIs() {
		for i, params := range hostileParams {
			t.Run(api.String()+" "+params, func(t *testing.T) {
				c := newCall(api, 40, 4, i%2 == 0)
				want := p.want(t, c)
				for _, place := range []string{`"kv_transfer_params":%s,`, `"vllm_xargs":{"kv_transfer_params":%s},`, `"kv\u005ftransfer_params":%s,`} {
					body := append([]byte("{"+fmt.Sprintf(place, params)), c.Body(realengine.Model)[1:]...)
					for _, call := range []harness.Call{c, c.Remote(p.prefill.Address())} {
						got, err := call.SendBody(harness.Within(t), s, body)
						must(t, err)
						harness.MustMatch(t, got, c.Stream, want.Tokens)
					}
				}
				p.mustLive(t)
			})
		}
	}
	p.mustRest(t, restWithin)
}

// testRefused has an engine refuse requests: the client gets its words at once, and no leg is left waiting.
func testRefused(t *testing.T, p *pair) {
	s := p.sidecar(t, p.decode.Address())
	for _, members := range []map[string]any{{"max_tokens": 5000}, {"temperature": -3}, {"top_p": "x"}, {"max_tokens": -1}, {"model": "absent"}, {"logprobs": -5}} {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			c := newCall(pd.APICompletions, 100, 8, stream)
			c.Members = members
			want := harness.MustSend(t, c, p.plain.Address(), realengine.Model)
			began := time.Now()
			got := harness.MustSend(t, c.Remote(p.prefill.Address()), s, realengine.Model)
			took := time.Since(began)
			if got.Status != want.Status || got.Body != want.Body || want.Status < 400 || want.Status >= 500 {
				t.Errorf("%v: status %d %s, the plain engine says %d %s", members, got.Status, got.Body, want.Status, want.Body)
			}
			limit := restWithin
			if p.engines.Connector == vllm.Push {
				limit += pushLease // decode does not tell prefill what it has refused
			}
			told(p, "refused", state(fmt.Sprint(members)), stream, p.mustRest(t, limit), took.Round(time.Millisecond).String())
		})
	}
}
