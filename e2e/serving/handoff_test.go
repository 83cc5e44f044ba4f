package serving

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// TestForeignHandoff has a client paste the hand-off of one prompt into the request for another, as it came from the engine. An
// engine that got it would answer wrongly, and again when the same prompt comes without it.
func TestForeignHandoff(t *testing.T) {
	f := harness.NewStack(t, harness.Layout{Proxy: "envoy", Mode: "pair"}, 1, 2)
	p := &harness.Pair{Model: f.Model, Prefill: f.Prefill[0], Decode: f.Decode[0].Engine, Plain: f.Plain}
	for place, form := range places {
		t.Run(place, func(t *testing.T) {
			harness.BothForms(t, func(t *testing.T, stream bool) { pasteForeign(t, p, f, form, stream) })
		})
	}
	f.MustRest(t)
}

func pasteForeign(t *testing.T, p *harness.Pair, f *harness.Fleet, form string, stream bool) {
	t.Helper()
	theirs := harness.Call{API: pd.APICompletions, Prompt: f.Fresh(100), Tokens: 8}
	wantTheirs := p.Want(t, theirs)
	stolen := handOff(t, p, theirs)
	c := harness.Call{API: pd.APICompletions, Prompt: f.Fresh(100), Tokens: 8, Stream: stream}
	want := f.Want(t, c)
	body := append(fmt.Appendf(nil, "{"+form+",", stolen), c.Body(f.Model)[1:]...)
	for _, mode := range []string{"force", "bypass"} {
		c.Header = map[string]string{pd.HeaderMode: mode}
		got, err := c.SendBody(harness.Within(t), f.Front.Addr, body)
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		harness.MustMatch(t, got, stream, want)
	}
	for _, pod := range f.Decode { // nothing wrong was kept
		harness.MustMatch(t, harness.MustSend(t, c, pod.Engine.Addr, f.Model), stream, want)
	}
	// Whose it is may still use it.
	theirs.Members = map[string]any{"kv_transfer_params": stolen}
	harness.MustMatch(t, harness.MustSend(t, theirs, p.Decode.Addr, p.Model), false, wantTheirs)
}

// handOff has the prefill engine compute a prompt, and gives what it offers to decode.
func handOff(t *testing.T, p *harness.Pair, c harness.Call) json.RawMessage {
	t.Helper()
	c.Tokens, c.Stream = 1, false
	c.Members = with(c.Members, map[string]any{"do_remote_decode": true})
	var a struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	r := harness.MustSend(t, c, p.Prefill.Addr, p.Model)
	if err := json.Unmarshal([]byte(r.Body), &a); err != nil || !bytes.HasPrefix(a.Params, []byte("{")) {
		t.Fatalf("prefill offers nothing: %d %s", r.Status, r.Body)
	}
	return a.Params
}

// with returns a copy of the members of a call, with kv_transfer_params.
func with(members map[string]any, params any) map[string]any {
	all := map[string]any{"kv_transfer_params": params}
	maps.Copy(all, members)
	return all
}

// testOneReader sends legs of requests with several choices or prompts to the engines themselves, and shows why the sidecar does
// not: prefill offers one hand-off for all of them, for one prompt and one reader.
func testOneReader(t *testing.T, p *harness.Pair) {
	two := map[string]any{"n": 2, "temperature": 1}
	t.Run("two choices at prefill", func(t *testing.T) {
		c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(100), Tokens: 8, Members: two}
		c.Members = with(nil, handOff(t, p, c))
		want := p.Want(t, harness.Call{API: c.API, Prompt: c.Prompt, Tokens: c.Tokens})
		harness.MustMatch(t, harness.MustSend(t, c, p.Decode.Addr, p.Model), false, want)
		mustStrand(t, p)
	})
	t.Run("two choices at decode", func(t *testing.T) {
		c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(100), Tokens: 8}
		c.Members = with(two, handOff(t, p, c))
		before := p.Prefill.Metric(t, afterExpiry)
		if got := harness.MustSend(t, c, p.Decode.Addr, p.Model); got.Status != http.StatusOK || len(got.Tokens) != 2*c.Tokens {
			t.Fatalf("%d %s", got.Status, got.Body)
		}
		harness.WaitMetric(t, p.Prefill, afterExpiry, func(v float64) bool { // one has read blocks that were free
			reportCounts(t, p)
			return v == before+1
		})
	})
	t.Run("two prompts", func(t *testing.T) {
		c := harness.Call{API: pd.APICompletions, Tokens: 8, Members: map[string]any{"prompt": [][]int{p.Fresh(100), p.Fresh(90)}}}
		want := p.Want(t, c)
		c.Members = with(c.Members, handOff(t, p, c))
		got := harness.MustSend(t, c, p.Decode.Addr, p.Model)
		if got.Status != http.StatusOK || len(got.Tokens) != 2*c.Tokens || len(want) != 2*c.Tokens {
			t.Fatalf("%d %s", got.Status, got.Body)
		}
		first, second := got.Tokens[:c.Tokens], got.Tokens[c.Tokens:]
		if !slices.Equal(first, want[:c.Tokens]) || slices.Equal(second, want[c.Tokens:]) {
			t.Errorf("tokens %v and %v, the plain engine gives %v: the hand-off is not that of the first prompt alone", first, second, want)
		}
		mustStrand(t, p)
	})
}

// mustStrand fails unless prefill holds blocks until the lease of a hand-off expires.
func mustStrand(t *testing.T, p *harness.Pair) {
	t.Helper()
	before := p.Prefill.Metric(t, harness.Expiries)
	p.MustReleaseWithin(t, p.Lease+5*time.Second)
	if n := p.Prefill.Metric(t, harness.Expiries) - before; n != 1 {
		t.Errorf("%v hand-offs expired, want 1", n)
	}
}

// damages are what may happen to a hand-off on its way, that an engine would die of or wait for, or be hurt by otherwise.
var damages = map[string]func(params map[string]any){
	"only the flag": func(p map[string]any) {
		maps.DeleteFunc(p, func(k string, _ any) bool { return k != "do_remote_prefill" })
	},
	"nothing":            func(p map[string]any) { clear(p) },
	"not for decode":     func(p map[string]any) { p["do_remote_prefill"] = false },
	"no engine":          func(p map[string]any) { delete(p, "remote_engine_id") },
	"no request":         func(p map[string]any) { delete(p, "remote_request_id") },
	"no host":            func(p map[string]any) { delete(p, "remote_host") },
	"no port":            func(p map[string]any) { delete(p, "remote_port") },
	"no blocks":          func(p map[string]any) { delete(p, "remote_block_ids") },
	"null blocks":        func(p map[string]any) { p["remote_block_ids"] = nil },
	"an empty list":      func(p map[string]any) { p["remote_block_ids"] = []any{} },
	"an empty group":     func(p map[string]any) { p["remote_block_ids"] = []any{[]any{}} },
	"a flat list":        func(p map[string]any) { p["remote_block_ids"] = p["remote_block_ids"].([]any)[0] },
	"a block too few":    func(p map[string]any) { p["remote_block_ids"] = []any{blocksOf(p)[1:]} },
	"a block too many":   func(p map[string]any) { p["remote_block_ids"] = []any{append(blocksOf(p), 7)} },
	"blocks far away":    func(p map[string]any) { p["remote_block_ids"] = []any{[]any{100_000, 100_001, 100_002, 100_003}} },
	"another engine":     func(p map[string]any) { p["remote_engine_id"] = "00000000-0000-0000-0000-000000000000" },
	"an engine nowhere":  func(p map[string]any) { p["remote_engine_id"], p["remote_port"] = "nowhere", 9 },
	"another's address":  func(p map[string]any) { p["remote_port"] = 9 }, // known by its id, so it is not read
	"an unknown request": func(p map[string]any) { p["remote_request_id"] = "cmpl-unknown" },
}

func blocksOf(params map[string]any) []any {
	return slices.Clone(params["remote_block_ids"].([]any)[0].([]any))
}

// testDamaged has every damage happen between prefill and the sidecar. Whether it is seen by the sidecar or by decode: the
// answer is right, decode lives, and has nothing wrong in its prefix cache. Decode may do with the last two what it likes.
func testDamaged(t *testing.T, p *harness.Pair) {
	s := harness.StartSidecar(t, p.Decode.Addr, "--prefill-block-size=32", "--fallback-burst=100")
	for name, damage := range damages {
		t.Run(name, func(t *testing.T) {
			harness.BothForms(t, func(t *testing.T, stream bool) {
				c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(100), Tokens: 8, Stream: stream}
				want := p.Want(t, c)
				harness.MustMatch(t, harness.MustSend(t, c.Remote(damaging(t, p.Prefill.Addr, damage)), s.Addr("http"), p.Model), stream, want)
				harness.MustMatch(t, harness.MustSend(t, c, p.Decode.Addr, p.Model), stream, want)
			})
		})
	}
	p.MustReleaseWithin(t, p.Lease+5*time.Second)
}

// damaging returns the address of a proxy before a prefill engine that damages what it offers.
func damaging(t *testing.T, addr string, damage func(map[string]any)) string {
	t.Helper()
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: addr}) },
		Transport: harness.Client.Transport,
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method != http.MethodPost {
				return nil
			}
			var body map[string]any
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				return err
			}
			if params, ok := body["kv_transfer_params"].(map[string]any); ok {
				damage(params)
			}
			b, err := json.Marshal(body)
			if err != nil {
				return err
			}
			r.Body.Close()
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
			r.Header.Set("Content-Length", fmt.Sprint(len(b)))
			return nil
		},
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}
