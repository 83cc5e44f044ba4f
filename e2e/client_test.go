package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/answer"
	"github.com/tandem-serving/tandem/pd"
)

// wholeModel is as many tokens as the engines' model takes: nobody waits for an answer of that length.
const wholeModel = 4096

// call is one generate call of a client.
type call struct {
	api     pd.API
	stream  bool
	prompt  []int // token ids, for completions
	text    string
	tokens  int
	members map[string]any
	header  map[string]string
}

// reply is what a client got.
type reply = answer.Answer

func (c call) body(model string) []byte {
	m := map[string]any{"model": model, "max_tokens": c.tokens, "temperature": 0, "return_token_ids": true, "ignore_eos": true}
	switch {
	case c.api == pd.APIChat:
		m["messages"] = []any{map[string]any{"role": "user", "content": c.text}}
	case c.prompt != nil:
		m["prompt"] = c.prompt
	default:
		m["prompt"] = c.text
	}
	if c.stream {
		m["stream"] = true
		m["stream_options"] = map[string]any{"include_usage": true}
	}
	for k, v := range c.members {
		m[k] = v
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// send makes the call at base and reads the whole answer. The error is that of the connection.
func (c call) send(ctx context.Context, base, model string) (reply, error) {
	return c.sendBody(ctx, base, c.body(model))
}

func (c call) sendBody(ctx context.Context, base string, body []byte) (reply, error) {
	return c.over(ctx, client.Transport, base, body)
}

// over makes the call with a body over a transport.
func (c call) over(ctx context.Context, by http.RoundTripper, base string, body []byte) (reply, error) {
	return answer.Post(ctx, by, "http://"+base+c.api.Path(), body, c.header)
}

// client follows no redirects and keeps no connection: a test's client is gone when its call is.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}

// patience is how long a test waits for what is promised without a figure.
const patience = 90 * time.Second

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// mustSend makes a call that must not fail on the wire.
func mustSend(t *testing.T, c call, base, model string) reply {
	t.Helper()
	r, err := c.send(within(t), base, model)
	if err != nil {
		t.Fatalf("call to %s: %v (answer so far %+v)", base, err, r)
	}
	return r
}

// begin makes a call in the background; what comes of it can be received.
func begin(t *testing.T, c call, base, model string) <-chan reply {
	got := make(chan reply, 1)
	ctx := within(t)
	go func() {
		r, err := c.send(ctx, base, model)
		if err != nil {
			t.Error(err)
		}
		got <- r
	}()
	return got
}

// mustMatch fails unless a reply is whole and has the tokens of an undisturbed engine.
func mustMatch(t *testing.T, got reply, stream bool, want []int) {
	t.Helper()
	switch {
	case got.Status != http.StatusOK:
		t.Fatalf("status %d: %s", got.Status, got.Body)
	case got.Failed != "":
		t.Fatalf("stream ended with error %s", got.Failed)
	case stream && !got.Done:
		t.Fatal("stream ended without [DONE]")
	case !slices.Equal(got.Tokens, want):
		t.Fatalf("tokens %v, an undisturbed engine gives %v (decision %v)", got.Tokens, want, got.Decision)
	}
}
