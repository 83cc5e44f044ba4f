package serving

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
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
func writePolicy(t *testing.T, f *harness.Fleet) (flag string) {
	t.Helper()
	name, err := json.Marshal(alias)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "policy.yaml")
	harness.Replace(t, file, fmt.Sprintf(rewritePolicy, name, f.Model))
	return "--policy-file=" + file
}

// TestRewrite is a pool whose clients call the model by other names than its engines, behind every proxy.
func TestRewrite(t *testing.T) {
	for _, l := range harness.Layouts() {
		t.Run(l.String(), func(t *testing.T) {
			f := harness.NewFleet(t, 1, 1)
			p := f.StartPicker(t, writePolicy(t, f))
			f.StartFront(t, l)
			t.Run("names", func(t *testing.T) { testNames(t, f, "force;fallback", "bypass") })
			t.Run("counts", func(t *testing.T) { testCounts(t, f) })
			t.Run("tokens", func(t *testing.T) { testRenamedTokens(t, f) })
			t.Run("share", func(t *testing.T) { testShare(t, f, p) })
			t.Run("explain", func(t *testing.T) { testExplainsRewrite(t, p) })
			f.MustRest(t)
		})
	}
}

// TestRewriteWithTheLength has Envoy keep the Content-Length of requests, which it drops unless it is told to.
func TestRewriteWithTheLength(t *testing.T) {
	for _, mode := range []string{"pair", "single"} {
		t.Run(mode, func(t *testing.T) {
			f := harness.NewFleet(t, 1, 1)
			f.StartPicker(t, writePolicy(t, f))
			startEdited(t, f, mode, "message_timeout: 10s", "allow_content_length_header: true\n              message_timeout: 10s")
			testNames(t, f, "force;fallback", "bypass")
			f.MustRest(t)
		})
	}
}

// TestRewriteWithoutSidecar has Envoy send the answers through the picker, as some gateways do: it gives the name back then,
// where no sidecar of ours can.
func TestRewriteWithoutSidecar(t *testing.T) {
	bare := harness.StartSim(t, "bare")
	f := harness.NewFleet(t, 0, 0)
	f.WriteEndpoints(t, bare.Addr)
	f.StartPicker(t, writePolicy(t, f))
	startEdited(t, f, "single", "response_body_mode: NONE", "response_body_mode: FULL_DUPLEX_STREAMED")
	testNames(t, f, "")
	f.MustRest(t)
}

// startEdited runs Envoy on its usual configuration with something else in it.
func startEdited(t *testing.T, f *harness.Fleet, mode, old, other string) {
	t.Helper()
	text, err := harness.Output("tandem", "envoy-config", "--listen=127.0.0.1:0", "--admin-address=127.0.0.1:0", "--epp="+f.Pickers[0].Addr("extproc"),
		"--mode="+mode, "--epp-plaintext")
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.ReplaceAll(text, old, other)
	if edited == text {
		t.Fatalf("Envoy's configuration has no %s", old)
	}
	f.Front = harness.StartEnvoy(t, edited)
}

// testNames asks for the alias in every API. Whatever the way of the answer, its model is the alias, spelled as it was.
func testNames(t *testing.T, f *harness.Fleet, modes ...string) {
	for _, api := range harness.SplitAPIs() {
		for _, mode := range modes {
			t.Run(strings.TrimSpace(api.String()+" "+mode), func(t *testing.T) {
				harness.BothForms(t, func(t *testing.T, stream bool) {
					status, text := post(t, f, api.Path(), string(f.Ask(api, 400, stream).Body(alias)), pd.HeaderMode, mode)
					if status != http.StatusOK {
						t.Fatalf("status %d: %s", status, text)
					}
					names, nameless := namesIn(t, text), api == pd.APIGenerate && stream
					if (len(names) == 0) != nameless || slices.ContainsFunc(names, func(got string) bool { return got != alias }) {
						t.Errorf("the models are %q in %s", names, text)
					}
				})
			})
		}
	}
}

// testCounts counts the tokens of a conversation with the alias.
func testCounts(t *testing.T, f *harness.Fleet) {
	name, err := json.Marshal(alias)
	if err != nil {
		t.Fatal(err)
	}
	const question = `{"model":%s,"messages":[{"role":"user","content":"hi there"}]}`
	_, want := postTo(t, f.Plain.Addr, pd.APICountTokens.Path(), fmt.Sprintf(question, strconv.Quote(f.Model)))
	status, got := post(t, f, pd.APICountTokens.Path(), fmt.Sprintf(question, name), pd.HeaderMode, "force")
	if status != http.StatusOK || got != want {
		t.Errorf("%d %s, the plain engine says %s", status, got, want)
	}
}

// post sends a body as it is; a header without a value is not sent.
func post(t *testing.T, f *harness.Fleet, path, body string, header ...string) (status int, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(harness.Within(t), http.MethodPost, "http://"+f.Front.Addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		if header[i+1] != "" {
			req.Header.Set(header[i], header[i+1])
		}
	}
	resp, err := harness.Client.Do(req)
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

// namesIn returns the models that an answer names, in JSON or in events.
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
func testRenamedTokens(t *testing.T, f *harness.Fleet) {
	for _, tokens := range []int{harness.Threshold / 2, 4 * harness.Threshold} {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			q := f.TokensCall(tokens, stream)
			want := f.Want(t, q)
			got := harness.MustSend(t, q, f.Front.Addr, alias)
			harness.MustMatch(t, got, stream, want)
			if remote := got.Decision.Verdict == pd.Remote; remote != (tokens > harness.Threshold) {
				t.Errorf("decision %v for %d tokens", got.Decision, tokens)
			}
		})
	}
}

// testShare sends enough to see the weights. An error that names the model keeps the engine's text.
func testShare(t *testing.T, f *harness.Fleet, p harness.Program) {
	const calls, atOnce = 200, 20
	next := 0
	for range calls / atOnce {
		var asked []<-chan harness.Reply
		for range atOnce {
			asked = append(asked, harness.Begin(t, harness.Call{API: pd.APICompletions, Text: "a", Tokens: 1}, f.Front.Addr, "canary"))
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
	_, metrics := harness.FetchPage(t, "http://"+p.Addr("metrics")+"/metrics")
	if want := fmt.Sprintf(`tandem_model_rewrites_total{model="next",rewrite="aliases"} %d`, next); !strings.Contains(metrics, want) {
		t.Errorf("metrics lack %s", want)
	}
}

// testExplainsRewrite asks the picker why.
func testExplainsRewrite(t *testing.T, p harness.Program) {
	body, err := json.Marshal(map[string]any{"model": alias, "prompt": "a"})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(harness.Within(t), http.MethodPost, "http://"+p.Addr("admin")+"/explain/v1/completions", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(epp.HeaderObjective, "interactive")
	resp, err := harness.Client.Do(req)
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
