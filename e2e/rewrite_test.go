package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// alias is what clients call the model in these tests: all that is difficult in a header and in JSON.
const alias = `llama "3"; 模型/8b%20`

// rewritePolicy has the engines' model answer for the alias, and shares "canary" out between it and one that no engine has,
// whose requests show by a 404.
const rewritePolicy = `
apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: aliases}
spec:
  poolRef: {name: tandem}
  rules:
  - matches: [{model: {value: %s}}]
    targets: [{modelRewrite: %s}]
  - matches: [{model: {value: canary}}]
    targets: [{modelRewrite: %[2]s, weight: 90}, {modelRewrite: next, weight: 10}]
---
apiVersion: llm-d.ai/v1alpha2
kind: InferenceObjective
metadata: {name: interactive}
spec: {poolRef: {name: tandem}, priority: 100}
`

// writePolicy writes the policy and gives the picker's flag for it.
func (f *fleet) writePolicy(t *testing.T) (flag string) {
	t.Helper()
	name, err := json.Marshal(alias)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "policy.yaml")
	replace(t, file, fmt.Sprintf(rewritePolicy, name, f.model))
	return "--policy-file=" + file
}

// TestRewrite is a pool whose clients call the model by other names than its engines, behind every proxy.
func TestRewrite(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.String(), func(t *testing.T) {
			f := newFleet(t, 1, 1)
			p := f.startPicker(t, f.writePolicy(t))
			f.startFront(t, l)
			t.Run("names", func(t *testing.T) { testNames(t, f, "force;fallback", "bypass") })
			t.Run("tokens", func(t *testing.T) { testRenamedTokens(t, f) })
			t.Run("share", func(t *testing.T) { testShare(t, f, p) })
			t.Run("explain", func(t *testing.T) { testExplainsRewrite(t, p) })
			f.mustRest(t)
		})
	}
}

// TestRewriteWithTheLength has Envoy keep the Content-Length of requests, which it drops unless it is told to.
func TestRewriteWithTheLength(t *testing.T) {
	for _, mode := range []string{"pair", "single"} {
		t.Run(mode, func(t *testing.T) {
			f := newFleet(t, 1, 1)
			f.startPicker(t, f.writePolicy(t))
			f.startEdited(t, mode, "message_timeout: 10s", "allow_content_length_header: true\n              message_timeout: 10s")
			testNames(t, f, "force;fallback", "bypass")
			f.mustRest(t)
		})
	}
}

// TestRewriteWithoutSidecar has Envoy send the answers through the picker, as some gateways do: it gives the name back then,
// where no sidecar of ours can.
func TestRewriteWithoutSidecar(t *testing.T) {
	bare := startSim(t, "bare")
	f := newFleet(t, 0, 0)
	f.writeEndpoints(t, bare.addr)
	f.startPicker(t, f.writePolicy(t))
	f.startEdited(t, "single", "response_body_mode: NONE", "response_body_mode: FULL_DUPLEX_STREAMED")
	testNames(t, f, "")
	f.mustRest(t)
}

// startEdited runs Envoy on its usual configuration with something else in it.
func (f *fleet) startEdited(t *testing.T, mode, old, other string) {
	t.Helper()
	text, err := output("tandem", "envoy-config", "--listen=127.0.0.1:0", "--admin-address=127.0.0.1:0", "--epp="+f.pickers[0].addr("extproc"),
		"--mode="+mode, "--epp-plaintext")
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.ReplaceAll(text, old, other)
	if edited == text {
		t.Fatalf("Envoy's configuration has no %s", old)
	}
	f.front = startEnvoy(t, edited)
}

// questions are requests of every API the engines have, with members besides the model.
var questions = map[pd.API]string{
	pd.APIChat:        `"max_tokens":4,"messages":[{"role":"user","content":%q}]`,
	pd.APICompletions: `"max_tokens":4,"prompt":%q`,
	pd.APIMessages:    `"max_tokens":4,"messages":[{"role":"user","content":%q}]`,
	pd.APIResponses:   `"max_output_tokens":4,"input":%q`,
}

// testNames asks for the alias in every API. Whatever the way of the answer, its model is the alias, spelled as it was.
func testNames(t *testing.T, f *fleet, modes ...string) {
	name, err := json.Marshal(alias)
	if err != nil {
		t.Fatal(err)
	}
	for api, members := range questions {
		for _, mode := range modes {
			t.Run(strings.TrimSpace(api.String()+" "+mode), func(t *testing.T) {
				both(t, func(t *testing.T, stream bool) {
					body := fmt.Sprintf(`{"model":%s,"stream":%t,`+members+`}`, name, stream, words(60))
					status, text := f.post(t, api.Path(), body, pd.HeaderMode, mode)
					if status != http.StatusOK {
						t.Fatalf("status %d: %s", status, text)
					}
					names := namesIn(t, text)
					if len(names) == 0 || slices.ContainsFunc(names, func(got string) bool { return got != alias }) {
						t.Errorf("the models are %q in %s", names, text)
					}
				})
			})
		}
	}
}

// post sends a body as it is; a header without a value is not sent.
func (f *fleet) post(t *testing.T, path, body string, header ...string) (status int, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://"+f.front.addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		if header[i+1] != "" {
			req.Header.Set(header[i], header[i+1])
		}
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// namesIn gives the models that an answer names, in JSON or in events.
func namesIn(t *testing.T, text string) (names []string) {
	t.Helper()
	type model struct{ Model string }
	for line := range strings.Lines(text) {
		data, event := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if strings.Contains(text, "data: ") && !event || data == "[DONE]" || data == "" {
			continue
		}
		var a struct {
			model
			Message, Response model
		}
		if err := json.Unmarshal([]byte(data), &a); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		for _, name := range []string{a.Model, a.Message.Model, a.Response.Model} {
			if name != "" {
				names = append(names, name)
			}
		}
	}
	return names
}

// testRenamedTokens holds the answers to those of an engine that was asked by its own name.
func testRenamedTokens(t *testing.T, f *fleet) {
	for _, tokens := range []int{threshold / 2, 4 * threshold} {
		both(t, func(t *testing.T, stream bool) {
			q := f.tokensCall(tokens, stream)
			want := f.want(t, q)
			got := mustSend(t, q, f.front.addr, alias)
			mustMatch(t, got, stream, want)
			if remote := got.Decision.Verdict == pd.Remote; remote != (tokens > threshold) {
				t.Errorf("decision %v for %d tokens", got.Decision, tokens)
			}
		})
	}
}

// testShare sends enough to see the weights. An error that names the model keeps the engine's text.
func testShare(t *testing.T, f *fleet, p program) {
	const calls, atOnce = 200, 20
	next := 0
	for range calls / atOnce {
		var asked []<-chan reply
		for range atOnce {
			asked = append(asked, begin(t, call{api: pd.APICompletions, text: "a", tokens: 1}, f.front.addr, "canary"))
		}
		for _, got := range asked {
			switch r := <-got; {
			case r.Status == http.StatusOK && strings.Contains(r.Body, `"model":"canary"`):
			case r.Status == http.StatusNotFound && strings.Contains(r.Body, "`next`"):
				next++
			default:
				t.Fatalf("status %d: %s", r.Status, r.Body)
			}
		}
	}
	if next < 3 || next > 45 { // 20 are expected; a fair draw is outside once in 100,000 runs
		t.Errorf("%d of %d requests went to the model with weight 10 of 100", next, calls)
	}
	_, metrics := page(t, "http://"+p.addr("metrics")+"/metrics")
	if want := fmt.Sprintf(`tandem_model_rewrites_total{model="next",rewrite="aliases"} %d`, next); !strings.Contains(metrics, want) {
		t.Errorf("metrics lack %s", want)
	}
}

// testExplainsRewrite asks the picker why.
func testExplainsRewrite(t *testing.T, p program) {
	body, err := json.Marshal(map[string]any{"model": alias, "prompt": "a"})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://"+p.addr("admin")+"/explain/v1/completions", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(epp.HeaderObjective, "interactive")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var x epp.Explanation
	if err := json.NewDecoder(resp.Body).Decode(&x); err != nil {
		t.Fatal(err)
	}
	if r := x.Request; r.Asked != alias || r.Rewrite != "aliases" || r.Priority != 100 || !r.Known {
		t.Errorf("request %+v", r)
	}
	if back, err := pd.ParseRename(x.Headers[pd.HeaderModel]); err != nil || back.Asked != alias {
		t.Errorf("headers %q: %v", x.Headers, err)
	}
}
