package serving

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// TestEveryAPI sends a request of every API through the whole stack, with prefill on another pod and without. The model says
// what the plain engine says, and decode has pulled the KV of the prompt, or has computed it.
func TestEveryAPI(t *testing.T) {
	f := harness.NewStack(t, harness.Layout{Proxy: "envoy", Mode: "pair"}, 1, 1)
	decode := f.Decode[0].Engine
	const prompt = 200 // tokens, about
	for _, api := range harness.SplitAPIs() {
		for mode, decision := range map[string]string{"force": "remote;reason=forced", "bypass": "local;reason=bypassed"} {
			t.Run(api.String()+" "+mode, func(t *testing.T) {
				harness.BothForms(t, func(t *testing.T, stream bool) {
					c := f.Ask(api, prompt, stream)
					want := f.Want(t, c)
					c.Header = map[string]string{pd.HeaderMode: mode}
					before := decode.Metric(t, harness.PulledTokens)
					got := f.Send(t, c)
					harness.MustMatch(t, got, stream, want)
					if harness.Planned(got) != decision {
						t.Errorf("decision %q, want %q", harness.Planned(got), decision)
					}
					if mode == "force" {
						harness.WaitMetric(t, decode, harness.PulledTokens, func(v float64) bool { return v >= before+prompt/2 })
					} else if pulled := decode.Metric(t, harness.PulledTokens) - before; pulled != 0 {
						t.Errorf("decode has pulled %v tokens", pulled)
					}
				})
			})
		}
	}
	f.MustRest(t)
}

// postTo sends a body to an address.
func postTo(t *testing.T, addr, path, body string) (status int, text string) {
	t.Helper()
	return post(t, (&harness.Fleet{Front: harness.Front{Addr: addr}}), path, body)
}

// TestUsage compares the bill: the same prompts cost the same as at a plain engine that saw them as often.
func TestUsage(t *testing.T) {
	f := harness.NewStack(t, harness.Layout{Proxy: "envoy", Mode: "pair"}, 1, 1)
	for _, api := range harness.SplitAPIs() {
		t.Run(api.String(), func(t *testing.T) {
			harness.BothForms(t, func(t *testing.T, stream bool) {
				c := f.Ask(api, 200, stream)
				c.Header = map[string]string{pd.HeaderMode: "force"}
				for _, turn := range []string{"first", "again"} {
					plain, split := harness.MustSend(t, c, f.Plain.Addr, f.Model), f.Send(t, c)
					want, got := billOf(t, plain), billOf(t, split)
					if got != want {
						t.Errorf("%s: usage %s, the plain engine says %s", turn, got, want)
					}
					if split.Decision.Verdict != pd.Remote || (split.Cached > 0) != (turn == "again") {
						t.Errorf("%s: %d cached tokens, decision %v", turn, split.Cached, split.Decision)
					}
				}
			})
		})
	}
	f.MustRest(t)
}

// billOf returns the usage of an answer, without members that are null, and without those of tokens that an engine has put into
// its cache: decode has not computed what prefill has. Messages leave these out of their input_tokens, to which they are added.
func billOf(t *testing.T, r harness.Reply) string {
	t.Helper()
	var usage map[string]any
	if err := json.Unmarshal(r.Usage, &usage); err != nil || r.Status != http.StatusOK {
		t.Fatalf("status %d, usage %q: %v", r.Status, r.Usage, err)
	}
	for _, member := range []string{"prompt_tokens_details", "input_tokens_details"} {
		if details, ok := usage[member].(map[string]any); ok {
			delete(details, "created_cache_tokens")
			delete(details, "cache_write_tokens")
		}
	}
	if created, ok := usage["cache_creation_input_tokens"].(float64); ok {
		usage["input_tokens"] = usage["input_tokens"].(float64) + created
		delete(usage, "cache_creation_input_tokens")
	}
	return fmt.Sprint(withoutNull(usage))
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
