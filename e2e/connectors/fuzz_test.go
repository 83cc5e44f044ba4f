package connectors_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/pd"
)

var (
	fuzzTime = flag.Duration("connectors.fuzz", 0, "how long the case \"fuzz\" goes on; 0: a few rounds")
	fuzzSeed = flag.Uint64("connectors.seed", 0, "the seed of the case \"fuzz\", as a failed run has printed it; 0: another one for each run")
)

// fuzzRounds is how many rounds the case has without -connectors.fuzz.
const fuzzRounds = 6

// testFuzz sends random parameters of the engines' own, and damaged bodies, as a client, and damages what the prefill engine answers. No
// engine ends, each request does, and in the end no block is pinned. Parameters of a client's change no token. What tokens a request with a
// damaged hand-off gets is not compared: an engine that names other blocks than it has written is believed.
func testFuzz(t *testing.T, p *pair) {
	seed := *fuzzSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	f := &fuzzer{pair: p, random: rand.New(rand.NewPCG(seed, 0))}
	repeat := fmt.Sprintf("-connectors.only='^(%s)$' -connectors.fuzz=%v -connectors.seed=%d", p.name, *fuzzTime, seed)
	s := p.sidecar(t, p.decode.Address())
	rounds, sent, refused, damaged := 0, 0, 0, 0
	var lies []string // the latest ones: an engine can end some requests later
	for began := time.Now(); time.Since(began) < *fuzzTime || *fuzzTime == 0 && rounds < fuzzRounds; rounds++ {
		api, stream := harness.SplitAPIs()[f.below(len(harness.SplitAPIs()))], f.below(2) == 0
		c := newCall(api, 40+f.below(200), 4, stream)
		want := p.want(t, c)

		body := f.parameters(c.Body(realengine.Model))
		for _, call := range []harness.Call{c, c.Remote(p.prefill.Address())} {
			got, err := call.SendBody(harness.Within(t), s, body)
			must(t, err)
			if sent++; got.Status != http.StatusOK || got.Failed != "" || !slices.Equal(got.Tokens, want.Tokens) {
				t.Errorf("%s\n%s %s\nis answered %d %v %s%s (decision %v), the plain engine says %v", repeat, api, body, got.Status, got.Tokens, got.Failed, got.Body, got.Decision, want.Tokens)
			}
		}

		body = f.bytes(c.Body(realengine.Model))
		patience := harness.Patience
		if !limited(body, c.Tokens) { // the answer may be as long as the engine can make it: the client leaves it
			patience = endlessFor
		}
		ctx, leave := context.WithTimeout(t.Context(), patience)
		got, err := c.Remote(p.prefill.Address()).SendBody(ctx, s, body)
		leave()
		if err != nil && (patience != endlessFor || !errors.Is(err, context.DeadlineExceeded)) {
			t.Fatalf("%s\n%s %q: %v", repeat, api, body, err)
		}
		if sent++; got.Status >= http.StatusInternalServerError {
			if plain, err := c.SendBody(harness.Within(t), p.plain.Address(), body); err != nil || plain.Status < http.StatusInternalServerError {
				t.Errorf("%s\n%s %q\nis answered %d %s, the plain engine says %d %v", repeat, api, body, got.Status, got.Body, plain.Status, err)
			}
		}
		if got.Status != http.StatusOK {
			refused++
		}

		var lie atomic.Pointer[string]
		liar := startLiar(t, p.prefill.Address(), func(answer []byte) []byte {
			answer = f.answer(answer)
			lie.Store(new(string(answer)))
			return answer
		})
		began := time.Now()
		got, err = newCall(api, 40+f.below(200), 4, stream).Remote(liar.Listener.Addr().String()).Send(harness.Within(t), s, realengine.Model)
		if sent++; err != nil {
			t.Errorf("%s\n%s: after %v: %v", repeat, api, time.Since(began), err)
		}
		if got.Status != http.StatusOK {
			refused++
		}
		liar.Close()
		if text := lie.Load(); text != nil {
			damaged++
			lies = append(lies[max(0, len(lies)-3):], *text)
		}
		if p.prefill.Exited() || p.decode.Exited() || t.Failed() {
			for _, text := range lies {
				t.Logf("prefill has answered %s", text)
			}
			t.Fatalf("%s: ended in round %d", repeat, rounds)
		}
	}
	rest := p.mustRest(t, max(p.engines.Lease, abort)+10*time.Second)
	fmt.Printf("       %s: %d rounds of 4 requests, %d of which were refused and %d got a damaged answer of prefill, in rest after %d ms, seed %d\n",
		p.name, rounds, refused, damaged, rest.Milliseconds(), seed)
	if sent != 4*rounds || damaged == 0 {
		t.Errorf("%d requests in %d rounds, %d with a damaged answer", sent, rounds, damaged)
	}
	for _, stream := range []bool{false, true} { // the pair still hands over
		c := newCall(pd.APICompletions, 100, 8, stream)
		got := harness.MustSend(t, c.Remote(p.prefill.Address()), s, realengine.Model)
		mustEqual(t, c, got, p.want(t, c))
		mustBe(t, got, pd.Remote)
	}
}

// endlessFor is how long a client reads an answer of which the damage has removed the limit.
const endlessFor = 5 * time.Second

// limited reports whether a body still has its limit of tokens. One that is not JSON has: it is refused.
func limited(body []byte, tokens int) bool {
	var has struct {
		Tokens   int `json:"max_tokens"`
		Output   int `json:"max_output_tokens"`
		Sampling struct {
			Tokens int `json:"max_tokens"`
		} `json:"sampling_params"`
	}
	err := json.Unmarshal(body, &has)
	var other *json.UnmarshalTypeError
	return err != nil && !errors.As(err, &other) || slices.Contains([]int{has.Tokens, has.Output, has.Sampling.Tokens}, tokens)
}

// fuzzer makes random bodies. Its methods may be called by several goroutines.
type fuzzer struct {
	*pair
	mu     sync.Mutex
	random *rand.Rand
}

// fuzzNames are what the connectors read of parameters.
var fuzzNames = []string{
	"do_remote_prefill", "do_remote_decode", "transfer_id", "remote_engine_id", "remote_block_ids", "remote_request_id", "remote_host", "remote_port",
	"tp_size", "remote_num_tokens", "remote_bootstrap_addr", "remote_prefiller", "remote_decoder", "remote_kv_source", "kv_request_id",
	"remote_handshake_port", "remote_notify_port", "remote_dp_rank", "x",
}

// parameters adds parameters of the engines' own to a body.
func (f *fuzzer) parameters(body []byte) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	params := f.value(0)
	if f.random.IntN(4) > 0 { // nearly right
		object := map[string]any{}
		for range 1 + f.random.IntN(6) {
			object[fuzzNames[f.random.IntN(len(fuzzNames))]] = f.value(0)
		}
		if f.random.IntN(2) == 0 {
			object[fuzzNames[f.random.IntN(2)]] = true
		}
		params = object
	}
	text, err := json.Marshal(params)
	if err != nil {
		panic(err) // no value of ours
	}
	place := []string{`"kv_transfer_params":%s,`, `"vllm_xargs":{"kv_transfer_params":%s},`, `"kv\u005ftransfer_params":%s,`}[f.random.IntN(3)]
	return append([]byte("{"+fmt.Sprintf(place, text)), body[1:]...)
}

// bytes damages a body: it is cut, or some of its bytes change.
func (f *fuzzer) bytes(body []byte) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.random.IntN(4) == 0 {
		return body[:f.random.IntN(len(body))]
	}
	body = slices.Clone(body)
	for range 1 + f.random.IntN(3) {
		body[f.random.IntN(len(body))] = "{}[]\":,\\\x00\xff "[f.random.IntN(11)]
	}
	return body
}

// answer damages an answer of a prefill engine: some values of its parameters, or of the rest if it has none, or its bytes.
func (f *fuzzer) answer(text []byte) []byte {
	if f.below(8) == 0 {
		return f.bytes(text)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var object map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if decoder.Decode(&object) != nil || len(object) == 0 {
		return text
	}
	damaged := object
	if params, ok := object["kv_transfer_params"].(map[string]any); ok && len(params) > 0 && f.random.IntN(8) > 0 {
		damaged = params
	}
	names := make([]string, 0, len(damaged))
	for name := range damaged {
		names = append(names, name)
	}
	slices.Sort(names) // a seed gives the same
	for range 1 + f.random.IntN(2) {
		switch name := names[f.random.IntN(len(names))]; f.random.IntN(4) {
		case 0:
			delete(damaged, name)
		case 1:
			damaged[fuzzNames[f.random.IntN(len(fuzzNames))]] = f.value(0)
		default:
			damaged[name] = f.value(0)
		}
	}
	text, err := json.Marshal(object)
	if err != nil {
		panic(err) // it was JSON
	}
	return text
}

// below returns a number from 0 to n-1.
func (f *fuzzer) below(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.random.IntN(n)
}

// value returns a JSON value at a depth. The caller holds the lock.
func (f *fuzzer) value(depth int) any {
	switch n := f.random.IntN(12); {
	case n == 0:
		return nil
	case n == 1:
		return f.random.IntN(2) == 0
	case n == 2:
		return []any{-1, 0, 1, 9, 65536, json.Number("9223372036854775808"), json.Number("1e400"), -0.5}[f.random.IntN(8)]
	case n == 3:
		return f.random.IntN(1 << 20)
	case n <= 6:
		return []string{"", "x", "127.0.0.1", "127.0.0.1:9", "http://127.0.0.1:9", "\x00", strings.Repeat("x", 5000), strconv.FormatUint(f.random.Uint64(), 16)}[f.random.IntN(8)]
	case depth > 3:
		return "deep"
	case n <= 9:
		list := []any{}
		for range f.random.IntN(4) {
			list = append(list, f.value(depth+1))
		}
		return list
	}
	object := map[string]any{}
	for range f.random.IntN(3) {
		object[fuzzNames[f.random.IntN(len(fuzzNames))]] = f.value(depth + 1)
	}
	return object
}

// startLiar serves a proxy of a prefill engine, which damages the engine's answers. The sidecar remembers for a while that an engine's answer
// was another protocol's, so each round has a liar at another port.
func startLiar(t *testing.T, engine string, damage func(answer []byte) []byte) *httptest.Server {
	t.Helper()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: engine})
	proxy.Transport = &http.Transport{DisableKeepAlives: true}
	proxy.ErrorHandler = func(w http.ResponseWriter, r *http.Request, err error) {
		if context.Cause(r.Context()) == nil {
			t.Errorf("%s %s: %v", r.Method, r.URL.Path, err)
		}
		w.WriteHeader(http.StatusBadGateway)
	}
	proxy.ModifyResponse = func(resp *http.Response) error {
		if resp.Request.Method != http.MethodPost || resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
			return nil
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		text = damage(text)
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		resp.Header.Set("Content-Length", strconv.Itoa(len(text)))
		return nil
	}
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server
}
