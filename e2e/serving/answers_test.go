package serving

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// TestEveryAPI sends a request of every API through the whole stack, remotely where it can be: what the model says is what
// the plain engine says.
func TestEveryAPI(t *testing.T) {
	f := harness.NewStack(t, harness.Layout{Proxy: "envoy", Mode: "pair"}, 1, 2)
	for api, members := range questions {
		for _, mode := range []string{"force;fallback", "bypass"} {
			t.Run(api.String()+" "+mode, func(t *testing.T) {
				harness.BothForms(t, func(t *testing.T, stream bool) {
					body := fmt.Sprintf(`{"model":%q,"temperature":0,"stream":%t,`+members+`}`, f.Model, stream, harness.Words(40))
					wantStatus, want := postTo(t, f.Plain.Addr, api.Path(), body)
					status, got := post(t, f, api.Path(), body, pd.HeaderMode, mode)
					if wantStatus != http.StatusOK || status != http.StatusOK {
						t.Fatalf("status %d: %s\nthe plain engine: %d %s", status, got, wantStatus, want)
					}
					if said(t, got) != said(t, want) || said(t, got) == "" {
						t.Errorf("the stack says %q in\n%s\nthe plain engine %q in\n%s", said(t, got), got, said(t, want), want)
					}
				})
			})
		}
	}
	f.MustRest(t)
}

func postTo(t *testing.T, addr, path, body string) (status int, text string) {
	t.Helper()
	return post(t, (&harness.Fleet{Front: harness.Front{Addr: addr}}), path, body)
}

// said returns the text of an answer in any API, whole or streamed.
func said(t *testing.T, text string) string {
	t.Helper()
	if strings.HasPrefix(text, "{") {
		return textIn(decodeObject(t, text))
	}
	var out strings.Builder
	for line := range strings.Lines(text) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		event := decodeObject(t, data)
		kind, _ := event["type"].(string)
		switch delta := event["delta"].(type) {
		case nil:
			if kind == "" { // chat and completions
				out.WriteString(textIn(event))
			}
		case string:
			out.WriteString(delta)
		case map[string]any:
			out.WriteString(textIn(delta))
		}
	}
	return out.String()
}

func decodeObject(t *testing.T, text string) map[string]any {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return object
}

// textIn returns all that stands in members where engines put what a model says.
func textIn(v any) string {
	var out strings.Builder
	switch v := v.(type) {
	case []any:
		for _, element := range v {
			out.WriteString(textIn(element))
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			text, isText := v[name].(string)
			switch name {
			case "text", "content":
				if isText {
					out.WriteString(text)
					continue
				}
				out.WriteString(textIn(v[name]))
			case "choices", "message", "delta", "output":
				out.WriteString(textIn(v[name]))
			}
		}
	}
	return out.String()
}

// TestUsage compares the bill: the same prompts cost the same as at a plain engine that saw them as often.
func TestUsage(t *testing.T) {
	f := harness.NewStack(t, harness.Layout{Proxy: "envoy", Mode: "pair"}, 1, 1)
	for _, api := range []pd.API{pd.APICompletions, pd.APIChat} {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			c := harness.Call{API: api, Prompt: f.Fresh(100), Tokens: 8, Stream: stream, Header: map[string]string{pd.HeaderMode: "force"}}
			if api == pd.APIChat {
				c.Prompt, c.Text = nil, harness.Words(30)
			}
			for _, turn := range []string{"first", "again"} {
				want, got := billOf(t, c, f.Plain.Addr, f.Model), billOf(t, c, f.Front.Addr, f.Model)
				if got != want {
					t.Errorf("%v, %s: usage %s, the plain engine says %s", api, turn, got, want)
				}
			}
		})
	}
	f.MustRest(t)
}

// billOf returns the last usage of an answer, without members that are null.
func billOf(t *testing.T, c harness.Call, addr, model string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(harness.Within(t), http.MethodPost, "http://"+addr+c.API.Path(), bytes.NewReader(c.Body(model)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(pd.HeaderMode, c.Header[pd.HeaderMode])
	resp, err := harness.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v: %s", resp.StatusCode, err, b)
	}
	_, usage, found := strings.Cut(string(b), `"usage":{`)
	if !found {
		t.Fatalf("no usage in %s", b)
	}
	var object map[string]any
	if err := json.NewDecoder(strings.NewReader("{" + usage)).Decode(&object); err != nil {
		t.Fatal(err)
	}
	if details, ok := object["prompt_tokens_details"].(map[string]any); ok {
		delete(details, "created_cache_tokens") // decode has not computed what prefill has, and costs nothing
	}
	return fmt.Sprint(withoutNull(object))
}

func withoutNull(object map[string]any) map[string]any {
	maps.DeleteFunc(object, func(_ string, v any) bool { return v == nil })
	for _, v := range object {
		if inner, ok := v.(map[string]any); ok {
			withoutNull(inner)
		}
	}
	return object
}
