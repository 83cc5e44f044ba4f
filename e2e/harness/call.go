package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/answer"
	"github.com/tandem-serving/tandem/pd"
)

// WholeModel is the context length of the engines' model, in tokens: no test waits for an answer of that length.
const WholeModel = 4096

// Call is one generate call of a client.
type Call struct {
	API     pd.API
	Stream  bool
	Prompt  []int // token ids, for completions and generate
	Text    string
	Tokens  int
	Members map[string]any
	Header  map[string]string
}

// Reply is the answer that a client got.
type Reply = answer.Answer

// Body returns the body of the request for a model.
func (c Call) Body(model string) []byte {
	m := c.question()
	m["model"] = model
	if c.Stream {
		m["stream"] = true
		if c.API != pd.APIResponses && c.API != pd.APIMessages { // whose streams have the usage anyway
			m["stream_options"] = map[string]any{"include_usage": true}
		}
	}
	for k, v := range c.Members {
		m[k] = v
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// question returns the members with the prompt and the limit, and those that make answers comparable.
func (c Call) question() map[string]any {
	said := []any{map[string]any{"role": "user", "content": c.Text}}
	switch c.API {
	case pd.APIResponses:
		return map[string]any{"input": c.Text, "max_output_tokens": c.Tokens, "temperature": 0, "ignore_eos": true}
	case pd.APIMessages:
		return map[string]any{"messages": said, "max_tokens": c.Tokens, "temperature": 0}
	case pd.APIGenerate:
		return map[string]any{"token_ids": c.Prompt, "sampling_params": map[string]any{"max_tokens": c.Tokens, "temperature": 0, "ignore_eos": true}}
	}
	m := map[string]any{"max_tokens": c.Tokens, "temperature": 0, "return_token_ids": true, "ignore_eos": true}
	switch {
	case c.API == pd.APIChat:
		m["messages"] = said
	case c.Prompt != nil:
		m["prompt"] = c.Prompt
	default:
		m["prompt"] = c.Text
	}
	return m
}

// Send makes the call at base and reads the whole answer. The error is the connection's.
func (c Call) Send(ctx context.Context, base, model string) (Reply, error) {
	return c.SendBody(ctx, base, c.Body(model))
}

// SendBody is Send with a body in place of the call's own.
func (c Call) SendBody(ctx context.Context, base string, body []byte) (Reply, error) {
	return c.Over(ctx, Client.Transport, base, body)
}

// Over makes the call with a body over a transport.
func (c Call) Over(ctx context.Context, by http.RoundTripper, base string, body []byte) (Reply, error) {
	return answer.Post(ctx, by, "http://"+base+c.API.Path(), body, c.Header)
}

// Client follows no redirects and keeps no connection: a test's client disconnects when its call has ended.
var Client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}

// Patience is how long a test waits for a result without a promised time.
const Patience = 90 * time.Second

// Within returns a context that ends after Patience, and with the test.
func Within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// MustSend makes a call, and fails the test at an error of the connection.
func MustSend(t *testing.T, c Call, base, model string) Reply {
	t.Helper()
	r, err := c.Send(Within(t), base, model)
	if err != nil {
		t.Fatalf("call to %s: %v (answer so far %+v)", base, err, r)
	}
	return r
}

// Begin makes a call in the background, and returns a channel that gets the reply.
func Begin(t *testing.T, c Call, base, model string) <-chan Reply {
	got := make(chan Reply, 1)
	ctx := Within(t)
	go func() {
		r, err := c.Send(ctx, base, model)
		if err != nil {
			t.Error(err)
		}
		got <- r
	}()
	return got
}

// MustMatch fails unless a reply is complete and has the tokens of the plain engine.
func MustMatch(t *testing.T, got Reply, stream bool, want []int) {
	t.Helper()
	switch {
	case got.Status != http.StatusOK:
		t.Fatalf("status %d: %s", got.Status, got.Body)
	case got.Failed != "":
		t.Fatalf("stream ended with error %s", got.Failed)
	case stream && !got.Done:
		t.Fatal("stream ended without its last event")
	case !slices.Equal(got.Tokens, want):
		t.Fatalf("tokens %v, an undisturbed engine gives %v (decision %v)", got.Tokens, want, got.Decision)
	}
}

// Words returns a chat message of n words that no engine has seen.
func Words(n int) string {
	PromptSeed++
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "block %d of %d ", i, PromptSeed)
	}
	return b.String()
}

// Remote makes a call go to the prefill engines at addrs, like a picker that sends no plan.
func (c Call) Remote(addrs ...string) Call {
	h := map[string]string{pd.HeaderPrefill: strings.Join(addrs, ",")}
	for k, v := range c.Header {
		h[k] = v
	}
	c.Header = h
	return c
}

// SplitAPIs are the APIs whose requests are split.
func SplitAPIs() []pd.API {
	return slices.DeleteFunc(pd.GenerateAPIs(), func(api pd.API) bool { return !api.Splittable() })
}

// BothForms runs a case with a stream and with a whole answer.
func BothForms(t *testing.T, run func(t *testing.T, stream bool)) {
	for _, stream := range []bool{false, true} {
		t.Run(map[bool]string{false: "whole", true: "stream"}[stream], func(t *testing.T) { run(t, stream) })
	}
}

// Planned returns a reply's decision without its count of attempts.
func Planned(r Reply) string {
	d := r.Decision
	d.Attempts = 0
	return d.String()
}
