package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

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
type reply struct {
	status   int
	header   http.Header
	trailer  http.Header
	tokens   []int
	cached   int
	finish   string
	failed   string // the error event of a stream
	done     bool   // the stream ended with [DONE]
	body     string
	decision pd.Decision
}

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
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+base+c.api.Path(), bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range c.header {
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	r := reply{status: resp.StatusCode, header: resp.Header, cached: -1}
	if v := resp.Header.Get(pd.HeaderDecision); v != "" {
		if r.decision, err = pd.ParseDecision(v); err != nil {
			return r, err
		}
	}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		err = r.readStream(resp.Body)
	} else {
		err = r.readWhole(resp.Body)
	}
	r.trailer = resp.Trailer
	return r, err
}

// client follows no redirects and keeps no connection: a test's client is gone when its call is.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}

type choice struct {
	TokenIDs     []int  `json:"token_ids"`
	FinishReason string `json:"finish_reason"`
}

type answer struct {
	Choices []choice        `json:"choices"`
	Error   json.RawMessage `json:"error"`
	Usage   *struct {
		Details *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

func (r *reply) take(data []byte) error {
	var a answer
	if err := json.Unmarshal(data, &a); err != nil {
		return fmt.Errorf("reading %q: %w", data, err)
	}
	if a.Error != nil {
		r.failed = string(a.Error)
	}
	for _, c := range a.Choices {
		r.tokens = append(r.tokens, c.TokenIDs...)
		if c.FinishReason != "" {
			r.finish = c.FinishReason
		}
	}
	if a.Usage != nil && a.Usage.Details != nil {
		r.cached = a.Usage.Details.Cached
	}
	return nil
}

func (r *reply) readWhole(from io.Reader) error {
	b, err := io.ReadAll(from)
	r.body = string(b)
	if err != nil || r.status != http.StatusOK {
		return err
	}
	return r.take(b)
}

func (r *reply) readStream(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			r.done = true
		default:
			if err := r.take([]byte(data)); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

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
	case got.status != http.StatusOK:
		t.Fatalf("status %d: %s", got.status, got.body)
	case got.failed != "":
		t.Fatalf("stream ended with error %s", got.failed)
	case stream && !got.done:
		t.Fatal("stream ended without [DONE]")
	case !slices.Equal(got.tokens, want):
		t.Fatalf("tokens %v, an undisturbed engine gives %v (decision %v)", got.tokens, want, got.decision)
	}
}
