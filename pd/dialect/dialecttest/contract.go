package dialecttest

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
)

// Case is a dialect under test.
type Case struct {
	Dialect dialect.Dialect
	// Good returns the answer of a prefill engine to a prefill leg.
	Good func(prefillLeg []byte) (answer []byte)
	// Bad are answers that must be rejected, besides those that the suite rejects for every protocol: an empty answer, text
	// that is not JSON, other JSON values, compressed bytes, an event stream, HTML, and every beginning of Good's answer.
	Bad []string
	// Own are the members that the dialect sets in legs and removes from what clients send.
	Own []string
	// Sets are further members that the decode leg gets. A client may send them.
	Sets []string
	// Headers are examples of headers that the dialect removes from what clients send, in any spelling.
	Headers []string
	// Minted are those of Own, or members of them ("object.member"), that are new for each attempt. The prefill leg has all of
	// them, and the decode leg of a concurrent protocol has the same values.
	Minted []string
	// EndsByLimit says that a prefill leg ignores the end of a sequence (ignore_eos).
	EndsByLimit bool
	// OneToken says that a concurrent protocol's prefill leg asks for one token and no stream, as those of serial protocols
	// do.
	OneToken bool
	// NoStream says that a prefill leg asks for no stream, stores no response, and has the client's limits.
	NoStream bool
	// APIs are those that are split; nil: all.
	APIs []pd.API
}

const clientBody = `{ "model":"m", "prompt":"a\u00e9", "seed":12345678901234567890123, "x":{"deep":[1.0]}, "max_tokens":9 }`

// apis are the APIs that are split: how a client writes the prompt, and the member with its limit.
var apis = map[pd.API]struct{ prompt, limit string }{
	pd.APIChat:        {`"messages":[{"content":"a\u00e9"}]`, "max_tokens"},
	pd.APICompletions: {`"prompt":"a\u00e9"`, "max_tokens"},
	pd.APIResponses:   {`"input":"a\u00e9","store":true`, "max_output_tokens"},
	pd.APIMessages:    {`"messages":[{"content":"a\u00e9"}]`, "max_tokens"},
	pd.APIGenerate:    {`"token_ids":[1,2]`, "sampling_params"},
}

// Run runs the suite.
func Run(t *testing.T, c Case) {
	for _, api := range pd.GenerateAPIs() {
		if api.Splittable() && (c.APIs == nil || slices.Contains(c.APIs, api)) {
			t.Run("legs of "+api.String(), func(t *testing.T) { c.legs(t, api) })
		}
	}
	t.Run("APIs", func(t *testing.T) { c.splits(t) })
	t.Run("client members", func(t *testing.T) { c.clientMembers(t) })
	t.Run("client headers", func(t *testing.T) { c.clientHeaders(t) })
	t.Run("attempts are fresh", func(t *testing.T) { c.fresh(t) })
	t.Run("hostile answers", func(t *testing.T) { c.hostile(t) })
	t.Run("release", func(t *testing.T) { c.release(t) })
}

// splits: requests of other APIs are not split.
func (c *Case) splits(t *testing.T) {
	for _, api := range pd.GenerateAPIs() {
		is, ok := apis[api]
		if !ok {
			continue
		}
		r, _ := c.attemptOf(t, api, `{ "model":"m", `+is.prompt+`, "max_tokens":9, "sampling_params":{} }`)
		fit, _ := dialect.Fit(c.Dialect, r)
		if want := c.APIs == nil || slices.Contains(c.APIs, api); (fit == request.FitSplit) != want {
			t.Errorf("a request of %s has fit %d", api, fit)
		}
	}
}

// attempt makes an attempt for a completion with this body.
func (c *Case) attempt(t *testing.T, text string) (*request.Request, dialect.Attempt) {
	t.Helper()
	return c.attemptOf(t, pd.APICompletions, text)
}

// attemptOf makes an attempt for a request with this body.
func (c *Case) attemptOf(t *testing.T, api pd.API, text string) (*request.Request, dialect.Attempt) {
	t.Helper()
	table := dialect.Members(c.Dialect)
	var scan body.Scanner
	scan.Reset(table.Members(), body.Limits{}, nil)
	if _, err := scan.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := scan.Close(); err != nil {
		t.Fatal(err)
	}
	b := &body.Body{}
	b.Append([]byte(text))
	r := table.Request(api, b, &scan)
	a, err := c.Dialect.Attempt(t.Context(), r, pd.Target{Host: "10.0.0.7", Port: 8000})
	if err != nil {
		t.Fatal(err)
	}
	if _, meets := a.(dialect.Rendezvous); meets != (c.Dialect.Shape() == dialect.Concurrent) {
		t.Fatalf("shape %d, and the attempt is %T", c.Dialect.Shape(), a)
	}
	return r, a
}

// handedOff returns the hand-off for the decode leg.
func (c *Case) handedOff(t *testing.T, a dialect.Attempt) dialect.Handoff {
	t.Helper()
	h, err := a.Accept(c.Good(payload(t, a.Prefill)))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// payload returns the bytes of a leg's body, and checks its length and that it is valid JSON.
func payload(t *testing.T, leg func() (request.Payload, error)) []byte {
	t.Helper()
	p, err := leg()
	if err != nil {
		t.Fatal(err)
	}
	text := bytes.Join(p.Segments, nil)
	if int64(len(text)) != p.Length || !json.Valid(text) {
		t.Fatalf("%d bytes of a leg that says %d: %s", len(text), p.Length, text)
	}
	return text
}

func members(t *testing.T, text []byte) map[string]json.RawMessage {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return m
}

// value returns a member by its path.
func value(m map[string]json.RawMessage, path string) json.RawMessage {
	object, name, nested := strings.Cut(path, ".")
	if !nested {
		return m[path]
	}
	var inner map[string]json.RawMessage
	if json.Unmarshal(m[object], &inner) != nil {
		return nil
	}
	return inner[name]
}

// legs keep what the client wrote. The prefill leg of a serial protocol, or with OneToken, asks for one token and no stream.
func (c *Case) legs(t *testing.T, api pd.API) {
	is, ok := apis[api]
	if !ok {
		t.Fatal("the suite does not know this API")
	}
	limit, one := "9", "1"
	if api == pd.APIGenerate {
		limit, one = `{"seed":1,"max_tokens":9}`, `{"seed":1,"max_tokens":1}`
	}
	if c.EndsByLimit && api == pd.APIGenerate {
		one = `{"seed":1,"max_tokens":1,"ignore_eos":true}`
	}
	whole := `{ "model":"m", ` + is.prompt + `, "seed":12345678901234567890123, "x":{"deep":[1.0]}, "` + is.limit + `":` + limit + ` }`
	streamed := `{"stream":true,"stream_options":{"include_usage":true},` + whole[1:]
	for _, text := range []string{whole, streamed} {
		_, a := c.attemptOf(t, api, text)
		prefill := payload(t, a.Prefill)
		in, p, d := members(t, []byte(text)), members(t, prefill), members(t, payload(t, c.handedOff(t, a).Decode))
		if c.EndsByLimit {
			delete(p, "ignore_eos")
		}
		if c.NoStream {
			if s := p["stream"]; s != nil && string(s) != "false" || p["stream_options"] != nil || p["store"] != nil && string(p["store"]) != "false" {
				t.Errorf("prefill leg %s", prefill)
			}
			for _, name := range []string{"stream", "stream_options", "store"} {
				delete(p, name)
			}
		}
		if c.OneToken || c.Dialect.Shape() == dialect.Serial && !c.NoStream {
			if s, ok := p["stream"]; string(p[is.limit]) != one || p["store"] != nil && string(p["store"]) != "false" || ok && string(s) != "false" || p["stream_options"] != nil {
				t.Errorf("prefill leg %s", prefill)
			}
			for _, name := range []string{is.limit, "stream", "stream_options", "store"} {
				delete(p, name)
			}
		}
		for leg, got := range map[string]map[string]json.RawMessage{"prefill": p, "decode": d} {
			for name, value := range got {
				if leg == "decode" && slices.Contains(c.Sets, name) {
					continue
				}
				if !slices.Contains(c.Own, name) && !bytes.Equal(value, in[name]) {
					t.Errorf("%s leg of %s has %s: %s", leg, text, name, value)
				}
			}
		}
		if c.Dialect.Shape() == dialect.Concurrent {
			for _, name := range c.Minted {
				if !bytes.Equal(value(p, name), value(d, name)) {
					t.Errorf("%s is %s in the prefill leg and %s in the decode leg", name, value(p, name), value(d, name))
				}
			}
		}
		for name := range in {
			if d[name] == nil {
				t.Errorf("the decode leg of %s lacks %s", text, name)
			}
		}
	}
}

// clientMembers: members of this or any other protocol that a client sends must not reach an engine.
func (c *Case) clientMembers(t *testing.T) {
	const evil = `"evil"`
	names := append([]string{"kv_transfer_params", "ec_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room"}, c.Own...)
	for _, name := range names {
		r, a := c.attempt(t, `{"prompt":"x","`+name+`":`+evil+`}`)
		legs := [][]byte{payload(t, a.Prefill), payload(t, c.handedOff(t, a).Decode), payload(t, r.Local)}
		for i, leg := range legs {
			if bytes.Contains(leg, []byte("evil")) {
				t.Errorf("leg %d carries the client's %s: %s", i, name, leg)
			}
		}
	}
}

// commonHeaders are headers that engines need to answer, account for or trace a request.
var commonHeaders = []string{"Accept", "Authorization", "Content-Encoding", "Content-Length", "Content-Type", "Host", "Traceparent", "Tracestate",
	"User-Agent", "X-Request-Id"}

// clientHeaders: headers that engines obey must not reach them from a client, and no header that engines need may be lost.
func (c *Case) clientHeaders(t *testing.T) {
	d, ok := c.Dialect.(dialect.HeaderStripper)
	if !ok {
		if len(c.Headers) > 0 {
			t.Errorf("%T strips no headers, want %v stripped", c.Dialect, c.Headers)
		}
		return
	}
	if len(c.Headers) == 0 {
		t.Errorf("%T strips headers, and the case has no examples", c.Dialect)
	}
	for _, name := range c.Headers {
		if !d.StripsHeader(http.CanonicalHeaderKey(name)) {
			t.Errorf("a client's %s reaches engines", name)
		}
	}
	for _, name := range commonHeaders {
		if d.StripsHeader(name) {
			t.Errorf("%s never reaches an engine", name)
		}
	}
}

// fresh: two attempts must not share a minted value.
func (c *Case) fresh(t *testing.T) {
	const attempts = 64
	for _, name := range c.Minted {
		seen := map[string]bool{}
		for range attempts {
			_, a := c.attempt(t, clientBody)
			minted := string(value(members(t, payload(t, a.Prefill)), name))
			if again := string(value(members(t, payload(t, a.Prefill)), name)); again != minted || minted == "" {
				t.Fatalf("%s is %q, then %q of one attempt", name, minted, again)
			}
			seen[minted] = true
		}
		if len(seen) != attempts {
			t.Errorf("%s has %d values in %d attempts: %v", name, len(seen), attempts, slices.Collect(maps.Keys(seen)))
		}
	}
}

func (c *Case) hostile(t *testing.T) {
	for _, answer := range append([]string{"", "x", "[]", "{}", "null", `""`, "\x1f\x8b\x08", "data: {}\n\n", "<html>"}, c.Bad...) {
		_, a := c.attempt(t, clientBody)
		if h, err := a.Accept([]byte(answer)); err == nil || h != nil {
			t.Errorf("%q was accepted: %v, %v", answer, h, err)
		}
	}
	_, a := c.attempt(t, clientBody)
	good := c.Good(payload(t, a.Prefill))
	for n := range len(bytes.TrimSpace(good)) {
		if _, err := a.Accept(good[:n]); err == nil {
			t.Errorf("%q was accepted", good[:n])
		}
	}
}

// release: requests that release or abort are complete.
func (c *Case) release(t *testing.T) {
	_, a := c.attempt(t, clientBody)
	h := c.handedOff(t, a)
	check := func(what, path string, b []byte) {
		if path == "" || path[0] != '/' || !json.Valid(b) {
			t.Errorf("%s: POST %q %s", what, path, b)
		}
	}
	if r, ok := h.(dialect.Releaser); ok {
		if stream := members(t, payload(t, r.Discard))["stream"]; string(stream) != "true" || r.Settle() < 0 || r.Pins(200) {
			t.Errorf("discarded by a leg with stream %s", stream)
		}
	}
	if f, ok := h.(dialect.RequestReleaser); ok {
		path, b := f.ReleaseRequest()
		check("release request", path, b)
		if n, pause := f.Tries(); n < 1 || pause < 0 || f.Released(500) || f.Released(503) {
			t.Errorf("%d tries, %v between them", n, pause)
		}
	}
	if ab, ok := a.(dialect.Aborter); ok {
		for _, role := range []pd.Role{pd.RolePrefill, pd.RoleDecode} {
			path, b := ab.Abort(role)
			check("abort", path, b)
		}
	}
	if n, ok := c.Dialect.(dialect.Noticer); ok {
		for _, id := range []string{"", "a,b", "\xff", "a\n"} {
			if n.Notices().Names(id) {
				t.Errorf("%q can be named", id)
			}
		}
		for _, lease := range []time.Duration{time.Second, time.Minute} {
			if renewal := n.Renewal(lease); renewal <= 0 || renewal > lease {
				t.Errorf("a heartbeat renews a lease of %v for %v", lease, renewal)
			}
		}
		if q, limit := n.Agents().Question(0, 1); len(q) == 0 || limit <= 0 {
			t.Errorf("asks %q, and reads %d bytes", q, limit)
		}
		for _, parts := range [][][]byte{nil, {nil}, {[]byte("x")}} {
			if id, _, err := n.Agents().Answer(parts); err == nil {
				t.Errorf("%q is an answer of engine %q", parts, id)
			}
		}
	}
}
