package serving

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
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

// TestErrorShapes has requests of every API fail where the picker or a sidecar writes the error: before the answer, and in the
// middle of a stream. The error has the shape of its API.
func TestErrorShapes(t *testing.T) {
	f := harness.NewTappedFleet(t, 1)
	f.Prefill[0].Fault(t, `{"leg":"prefill","fault":"status","arg":"500","match":"fault-prefill"}`)
	f.Decode[0].Fault(t, `{"leg":"decode","fault":"reset-after","at":"6","match":"fault-break"}`) // after the first token in every API
	f.StartPicker(t)
	f.StartFront(t, harness.Layout{Proxy: "envoy", Mode: "pair"})
	for _, c := range []failure{
		{"picker refuses", "bad-mode", "perhaps", http.StatusBadRequest, pd.BadPDHeader},
		{"sidecar refuses", "fault-prefill", "force", http.StatusBadGateway, pd.PrefillFailed},
		{"remote stream breaks", "fault-break", "force", http.StatusOK, pd.InternalError},
		{"local stream breaks", "fault-break", "bypass", http.StatusOK, pd.InternalError},
	} {
		t.Run(c.name, func(t *testing.T) { c.inEveryAPI(t, f.Fleet) })
	}
	f.MustRest(t)
	f.EmptyPool(t)
	empty := failure{"empty pool", "no-endpoint", "auto", http.StatusServiceUnavailable, pd.NoEndpoint}
	t.Run(empty.name, func(t *testing.T) { empty.inEveryAPI(t, f.Fleet) })
}

// failure is why a request fails: the fault that its id selects, its P/D mode, or the state of the pool.
type failure struct {
	name, id, mode string
	status         int // 200: a stream breaks
	reason         pd.Reason
}

func (c failure) inEveryAPI(t *testing.T, f *harness.Fleet) {
	for _, api := range harness.SplitAPIs() {
		t.Run(api.String(), func(t *testing.T) {
			harness.BothForms(t, func(t *testing.T, stream bool) {
				if !stream && c.status == http.StatusOK {
					return // half of a whole answer is no answer, and has no shape
				}
				call := f.Ask(api, 200, stream)
				call.Header = map[string]string{pd.HeaderMode: c.mode, pd.HeaderRequestID: fmt.Sprintf("%s-%v", c.id, api)}
				got := f.Send(t, call)
				if got.Status != c.status {
					t.Fatalf("status %d, decision %v: %s", got.Status, got.Decision, got.Body)
				}
				if c.status == http.StatusOK {
					c.mustEnd(t, api, got)
				} else {
					c.mustRefuse(t, api, got)
				}
			})
		})
	}
}

// mustEnd fails unless a stream has tokens, and then the error with which its API ends a stream.
func (c failure) mustEnd(t *testing.T, api pd.API, got harness.Reply) {
	t.Helper()
	members := map[pd.API]string{pd.APIMessages: "message type", pd.APIResponses: "code message param sequence_number type"}
	c.mustHave(t, cmp.Or(members[api], "code message param type"), got.Failed)
	named := api == pd.APIMessages || api == pd.APIResponses
	if len(got.Tokens) == 0 || !got.FailedWell() || got.Done == named {
		t.Errorf("the stream has %d tokens, the error %s, and its end: %v", len(got.Tokens), got.Failed, got.Done)
	}
}

// mustRefuse fails unless an answer is the refusal in the shape of the API.
func (c failure) mustRefuse(t *testing.T, api pd.API, got harness.Reply) {
	t.Helper()
	var body struct {
		Type  string
		Error json.RawMessage
	}
	if err := json.Unmarshal([]byte(got.Body), &body); err != nil || got.Decision.Reason != c.reason {
		t.Fatalf("decision %v, %v: %s", got.Decision, err, got.Body)
	}
	if api == pd.APIMessages {
		c.mustHave(t, "error type", got.Body)
		c.mustHave(t, "message type", string(body.Error))
	} else {
		c.mustHave(t, "error", got.Body)
		c.mustHave(t, "code message param type", string(body.Error))
	}
	if (body.Type == "error") != (api == pd.APIMessages) {
		t.Errorf("the type of %s", got.Body)
	}
}

// mustHave fails unless an object has exactly these members; its code, if it has one, must be the reason.
func (c failure) mustHave(t *testing.T, members, object string) {
	t.Helper()
	var got map[string]any
	if err := json.Unmarshal([]byte(object), &got); err != nil {
		t.Fatalf("%v in %q", err, object)
	}
	if names := strings.Join(slices.Sorted(maps.Keys(got)), " "); names != members {
		t.Errorf("the members are %s, want %s: %s", names, members, object)
	}
	if code, ok := got["code"]; ok && code != string(c.reason) {
		t.Errorf("the code is %v, want %s", code, c.reason)
	}
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
