package sglang_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strconv"
	"testing"

	"github.com/tandem-serving/tandem/e2e/answer"
	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/sglang"
	"github.com/tandem-serving/tandem/pd"
)

// apis are those that a pair serves.
var apis = []pd.API{pd.APICompletions, pd.APIChat, pd.APIResponses, pd.APIMessages, pd.APISGLang}

// ask is a request of a client.
type ask struct {
	api     pd.API
	members map[string]any
	header  map[string]string
}

// newAsk returns a request with a prompt of about n tokens that no engine has seen, for some tokens.
func newAsk(api pd.API, n, tokens int, stream bool) ask {
	text := strconv.FormatUint(rand.Uint64(), 10) + harness.Words(n/8) // no first page is like another
	ids, said := (&harness.Fleet{}).Fresh(n), []any{map[string]any{"role": "user", "content": text}}
	m := map[string]any{"model": realengine.Model, "stream": stream}
	switch api {
	case pd.APICompletions:
		maps.Copy(m, map[string]any{"prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "return_token_ids": true})
	case pd.APIChat: // whose streams refuse return_token_ids
		maps.Copy(m, map[string]any{"messages": said, "max_tokens": tokens, "temperature": 0, "ignore_eos": true})
	case pd.APIResponses: // of which SGLang generates two tokens less
		maps.Copy(m, map[string]any{"input": text, "max_output_tokens": tokens + 2, "temperature": 0, "ignore_eos": true})
	case pd.APIMessages:
		maps.Copy(m, map[string]any{"messages": said, "max_tokens": tokens, "temperature": 0})
	case pd.APISGLang:
		maps.Copy(m, map[string]any{"input_ids": ids, "sampling_params": map[string]any{"max_new_tokens": tokens, "temperature": 0, "ignore_eos": true}})
	}
	if stream && (api == pd.APICompletions || api == pd.APIChat) { // other streams have the usage anyway
		m["stream_options"] = map[string]any{"include_usage": true}
	}
	return ask{api: api, members: m}
}

// with returns the request with further members.
func (a ask) with(members map[string]any) ask {
	a.members = maps.Clone(a.members)
	maps.Copy(a.members, members)
	return a
}

// told returns the request with a further header.
func (a ask) told(name, value string) ask {
	a.header = maps.Clone(a.header)
	if a.header == nil {
		a.header = map[string]string{}
	}
	a.header[name] = value
	return a
}

func (a ask) stream() bool { return a.members["stream"] == true }

// send makes the request at an address.
func (a ask) send(ctx context.Context, addr string) (answer.Answer, error) {
	body, err := json.Marshal(a.members)
	if err != nil {
		return answer.Answer{}, err
	}
	return answer.Post(ctx, harness.Client.Transport, "http://"+addr+a.api.Path(), body, a.header)
}

// at is send that fails the test at an error of the connection.
func (a ask) at(t *testing.T, addr string) answer.Answer {
	t.Helper()
	got, err := a.send(harness.Within(t), addr)
	if err != nil {
		t.Fatalf("%s: %v (answer so far %+v)", a.api, err, got)
	}
	return got
}

// begin is at in the background.
func (a ask) begin(t *testing.T, addr string) <-chan answer.Answer {
	done, ctx := make(chan answer.Answer, 1), harness.Within(t)
	go func() {
		got, err := a.send(ctx, addr)
		if err != nil {
			t.Errorf("%s: %v (answer so far %+v)", a.api, err, got)
		}
		done <- got
	}()
	return done
}

// byHand makes both legs at once, as a client does that knows the engines: what a coordinator must not be much slower than.
// The leg that fails first ends the other.
func (a ask) byHand(ctx context.Context, prefill, decode *sglang.Engine) (answer.Answer, error) {
	const rendezvous = 1 << 62 // numbers of them
	legs := a.with(map[string]any{"bootstrap_host": realengine.Loopback, "bootstrap_port": prefill.Bootstrap, "bootstrap_room": 1 + rand.Int64N(rendezvous)})
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	prefilled := make(chan struct{})
	go func() {
		defer close(prefilled)
		if r, err := legs.send(ctx, prefill.Address()); err != nil || r.Status != http.StatusOK {
			cancel(errors.Join(err, errors.New("prefill answers "+r.Body)))
		}
	}()
	got, err := legs.send(ctx, decode.Address())
	if err != nil {
		cancel(err)
	}
	<-prefilled
	return got, errors.Join(err, context.Cause(ctx))
}

// mustEqual fails unless an answer is complete and says what the plain engine says, with the same usage.
func mustEqual(t *testing.T, a ask, got, want answer.Answer) {
	t.Helper()
	switch {
	case want.Status != http.StatusOK || want.Failed != "" || len(want.Texts) == 0:
		t.Fatalf("the plain engine answers %d %s%s", want.Status, want.Failed, want.Body)
	case got.Status != http.StatusOK || got.Failed != "":
		t.Fatalf("status %d, decision %v, failed %q: %s", got.Status, got.Decision, got.Failed, got.Body)
	case got.Done != a.stream():
		t.Fatal("the stream has no last event")
	case !reflect.DeepEqual(got.Texts, want.Texts), !reflect.DeepEqual(got.Tokens, want.Tokens), got.Finish != want.Finish:
		t.Fatalf("%q %v %s, an undisturbed engine says %q %v %s (decision %v)", got.Texts, got.Tokens, got.Finish, want.Texts, want.Tokens, want.Finish, got.Decision)
	case bill(t, got) != bill(t, want):
		t.Errorf("usage %s, the plain engine's is %s", bill(t, got), bill(t, want))
	}
}

// bill returns the usage without members that are null, with its members in order.
func bill(t *testing.T, a answer.Answer) string {
	t.Helper()
	var usage map[string]any
	if err := json.Unmarshal(a.Usage, &usage); err != nil {
		t.Fatalf("usage %q: %v", a.Usage, err)
	}
	maps.DeleteFunc(usage, func(_ string, v any) bool { return v == nil })
	b, err := json.Marshal(usage)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
