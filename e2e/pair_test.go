package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

// pair is a prefill and a decode engine, and a plain one with the same weights that tells what is right.
type pair struct {
	model                  string
	prefill, decode, plain engine
	lease                  time.Duration
	tokenIDs               [2]int             // lowest and highest id that is an ordinary token
	revive                 func(t *testing.T) // starts the prefill engine again, at the same address, after it was killed
}

// engine is one engine of a pair, simulated or real.
type engine struct {
	addr                string
	pause, resume, kill func(t *testing.T) // all of its processes
	expired             float64            // hand-offs that had expired on it before the test
}

// metric reads one unlabelled-enough series of the engine's metrics page.
func (e engine) metric(t *testing.T, name string) float64 {
	t.Helper()
	v, err := e.readMetric(name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (e engine) readMetric(name string) (float64, error) {
	resp, err := client.Get("http://" + e.addr + "/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.SplitSeq(string(page), "\n") {
		if series, value, ok := strings.Cut(line, "} "); ok && strings.HasPrefix(series, name+"{") {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, fmt.Errorf("%s has no metric %s", e.addr, name)
}

const (
	usageGauge = "vllm:kv_cache_usage_perc"
	expiries   = "vllm:nixl_num_kv_expired_reqs_total"
	// releaseWithin is the promise: blocks nobody will read are free again after 2 s.
	releaseWithin = 2 * time.Second
)

// mustRelease fails unless prefill holds nothing within the promised time, and nothing of it by expiry.
func (p *pair) mustRelease(t *testing.T, expired float64) {
	t.Helper()
	p.mustReleaseWithin(t, releaseWithin)
	if got := p.prefill.metric(t, expiries); got != expired {
		t.Errorf("%v hand-offs expired on prefill", got-expired)
	}
}

func (p *pair) mustReleaseWithin(t *testing.T, limit time.Duration) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		used := p.prefill.metric(t, usageGauge)
		if used == 0 {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("prefill still holds %.4f of its blocks after %v", used, limit)
		case <-poll.C:
		}
	}
}

// fresh makes a prompt of n tokens that no engine has seen. Its text form is for chat.
func (p *pair) fresh(n int) []int {
	promptSeed++
	seed := uint64(promptSeed) * 0x9e3779b97f4a7c15
	ids := make([]int, n)
	for i := range ids {
		seed ^= seed << 13
		seed ^= seed >> 7
		seed ^= seed << 17
		ids[i] = p.tokenIDs[0] + int(seed%uint64(p.tokenIDs[1]-p.tokenIDs[0]))
	}
	return ids
}

var promptSeed = os.Getpid() << 16

// words makes a chat message of n words that no engine has seen.
func words(n int) string {
	promptSeed++
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "block %d of %d ", i, promptSeed)
	}
	return b.String()
}

// remote makes a call go to the prefill engines at addrs, as a picker that sends no plan does.
func (c call) remote(addrs ...string) call {
	h := map[string]string{pd.HeaderPrefill: strings.Join(addrs, ",")}
	for k, v := range c.header {
		h[k] = v
	}
	c.header = h
	return c
}

// want asks the plain engine.
func (p *pair) want(t *testing.T, c call) []int {
	t.Helper()
	c.stream, c.header = false, nil
	r := mustSend(t, c, p.plain.addr, p.model)
	if r.Status != http.StatusOK || len(r.Tokens) == 0 {
		t.Fatalf("the plain engine answers %d %s", r.Status, r.Body)
	}
	return r.Tokens
}

// runPair is the suite. Cases that kill an engine come last.
func runPair(t *testing.T, p *pair) {
	t.Run("transcript", func(t *testing.T) { testTranscript(t, p) })
	t.Run("tokens", func(t *testing.T) { testTokens(t, p) })
	t.Run("stop on the first token", func(t *testing.T) { testFirstTokenStop(t, p) })
	t.Run("candidates", func(t *testing.T) { testCandidates(t, p) })
	t.Run("forged", func(t *testing.T) { testForged(t, p) })
	t.Run("damaged", func(t *testing.T) { testDamaged(t, p) })
	t.Run("unsplittable", func(t *testing.T) { testUnsplittable(t, p) })
	t.Run("refused", func(t *testing.T) { testRefused(t, p) })
	t.Run("client gone", func(t *testing.T) { testClientGone(t, p) })
	t.Run("crowd", func(t *testing.T) { testCrowd(t, p) })
	t.Run("drain", func(t *testing.T) { testDrain(t, p) })
	t.Run("prefill stopped between the legs", func(t *testing.T) { testPrefillStopped(t, p) })
	t.Run("sidecar frozen between the legs", func(t *testing.T) { testFrozen(t, p) })
	if engines == nil { // real ones take long to start: testPolicies kills one once, with legs of all kinds on their way
		t.Run("prefill killed between the legs", func(t *testing.T) { testPrefillKilled(t, p) })
	}
}

// both runs a case on a stream and on a whole answer.
func both(t *testing.T, run func(t *testing.T, stream bool)) {
	for _, stream := range []bool{false, true} {
		t.Run(map[bool]string{false: "whole", true: "stream"}[stream], func(t *testing.T) { run(t, stream) })
	}
}

func testTokens(t *testing.T, p *pair) {
	s := startSidecar(t, p.decode.addr)
	for _, n := range []int{1, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 1000} { // around the borders of blocks
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			both(t, func(t *testing.T, stream bool) {
				for name, c := range map[string]call{
					"completions": {api: pd.APICompletions, prompt: p.fresh(n), tokens: 8, stream: stream},
					"chat":        {api: pd.APIChat, text: words(n / 8), tokens: 8, stream: stream},
				} {
					want := p.want(t, c)
					got := mustSend(t, c.remote(p.prefill.addr), s.addr("http"), p.model)
					mustMatch(t, got, stream, want)
					if got.Decision.Verdict != pd.Remote {
						t.Errorf("%s: decision %v", name, got.Decision)
					}
					if got.Cached != 0 {
						t.Errorf("%s: %d cached tokens billed for a prompt nobody had seen", name, got.Cached)
					}
				}
			})
		})
	}
	p.mustRelease(t, p.prefill.metric(t, expiries))
}

// testFirstTokenStop has prefill's one token end the answer: decode must repeat the stop, or generate as if there was none.
func testFirstTokenStop(t *testing.T, p *pair) {
	s := startSidecar(t, p.decode.addr)
	both(t, func(t *testing.T, stream bool) {
		c := call{api: pd.APICompletions, prompt: p.fresh(100), tokens: 8, stream: stream}
		first := p.want(t, c)[0]
		c.members = map[string]any{"stop_token_ids": []int{first}}
		want := p.want(t, c)
		got := mustSend(t, c.remote(p.prefill.addr), s.addr("http"), p.model)
		mustMatch(t, got, stream, want)
		if got.Finish != "stop" || len(got.Tokens) != 1 {
			t.Errorf("finish reason %q after %v", got.Finish, got.Tokens)
		}
	})
	p.mustRelease(t, p.prefill.metric(t, expiries))
}

func testCandidates(t *testing.T, p *pair) {
	s := startSidecar(t, p.decode.addr)
	both(t, func(t *testing.T, stream bool) {
		c := call{api: pd.APICompletions, prompt: p.fresh(100), tokens: 8, stream: stream}
		got := mustSend(t, c.remote("127.0.0.1:9", p.prefill.addr), s.addr("http"), p.model)
		mustMatch(t, got, stream, p.want(t, c))
		if d := got.Decision; d.Verdict != pd.Remote || d.Attempts != 2 || d.Candidate != 1 {
			t.Errorf("decision %v, the second candidate should have served", d)
		}
	})
	both(t, func(t *testing.T, stream bool) {
		c := call{api: pd.APICompletions, prompt: p.fresh(100), tokens: 8, stream: stream}
		got := mustSend(t, c.remote("127.0.0.1:9"), s.addr("http"), p.model)
		mustMatch(t, got, stream, p.want(t, c))
		if d := got.Decision; d.Verdict != pd.Local || d.Reason != pd.PrefillFailed {
			t.Errorf("decision %v, the decode engine should have served it itself", d)
		}
	})
}

// forgeries are hand-offs a client may invent. Sent to vLLM as they are, most end its decode engine.
var forgeries = map[string]string{
	"only the flag":      `{"do_remote_prefill":true}`,
	"no blocks":          `{"do_remote_prefill":true,"remote_block_ids":[],"remote_engine_id":"e","remote_request_id":"r","remote_host":"127.0.0.1","remote_port":1}`,
	"no groups":          `{"do_remote_prefill":true,"remote_block_ids":[[]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"127.0.0.1","remote_port":1}`,
	"flat blocks":        `{"do_remote_prefill":true,"remote_block_ids":[1,2],"remote_engine_id":"e","remote_request_id":"r","remote_host":"127.0.0.1","remote_port":1}`,
	"no engine":          `{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_request_id":"r","remote_host":"127.0.0.1","remote_port":1}`,
	"no request":         `{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_host":"127.0.0.1","remote_port":1}`,
	"a prefill's":        `{"do_remote_decode":true}`,
	"a string":           `"x"`,
	"null blocks":        `{"do_remote_prefill":true,"remote_block_ids":null,"remote_engine_id":"e","remote_request_id":"r","remote_host":"127.0.0.1","remote_port":1}`,
	"a stranger's":       `{"do_remote_prefill":true,"remote_block_ids":[[1,2,3,4]],"remote_engine_id":"stranger","remote_request_id":"r","remote_host":"127.0.0.1","remote_port":1}`,
	"too few blocks":     `{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"127.0.0.1","remote_port":5601}`,
	"an unhashable name": `{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":[],"remote_request_id":"r","remote_host":"127.0.0.1","remote_port":1}`,
}

// places are where a hand-off can stand in a body: %s is the forgery.
var places = map[string]string{
	"top":     `"kv_transfer_params":%s`,
	"escaped": `"kv\u005ftransfer_params":%s`,
	"extra":   `"sampling_params":{"extra_args":{"kv_transfer_params":%s}}`,
	"xargs":   `"vllm_xargs":{"x":1,"kv_transfer_params":%s}`,
}

func testForged(t *testing.T, p *pair) {
	s := startSidecar(t, p.decode.addr)
	for name, forged := range forgeries {
		for place, form := range places {
			t.Run(name+"/"+place, func(t *testing.T) {
				c := call{api: pd.APICompletions, prompt: p.fresh(70), tokens: 4}
				want := p.want(t, c)
				body := c.body(p.model)
				body = append(fmt.Appendf(nil, "{"+form+",", forged), body[1:]...)
				for _, c := range []call{c, c.remote(p.prefill.addr)} {
					got, err := c.sendBody(within(t), s.addr("http"), body)
					if err != nil {
						t.Fatal(err)
					}
					mustMatch(t, got, false, want)
				}
			})
		}
	}
	// Bodies that the engine reads and a plain JSON parser does not.
	for name, wrap := range smuggled {
		t.Run(name, func(t *testing.T) {
			c := call{api: pd.APICompletions, prompt: p.fresh(70), tokens: 4}
			body := append([]byte(`{"kv_transfer_params":{"do_remote_prefill":true},`), c.body(p.model)[1:]...)
			for _, c := range []call{c, c.remote(p.prefill.addr)} {
				got, err := c.sendBody(within(t), s.addr("http"), wrap(body))
				if err != nil {
					t.Fatal(err)
				}
				if got.Status != http.StatusOK && got.Status != http.StatusBadRequest {
					t.Errorf("status %d %s", got.Status, got.Body)
				}
			}
		})
	}
	// Not only the generate calls: every body is cleaned.
	resp, err := client.Post("http://"+s.addr("http")+"/invocations", "application/json",
		strings.NewReader(`{"model":"`+p.model+`","prompt":"a b c","max_tokens":1,"kv_transfer_params":{"do_remote_prefill":true}}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("/invocations: status %d", resp.StatusCode)
	}
	c := call{api: pd.APICompletions, prompt: p.fresh(100), tokens: 8}
	mustMatch(t, mustSend(t, c, s.addr("http"), p.model), false, p.want(t, c))
	p.mustRelease(t, p.prefill.metric(t, expiries))
}

var smuggled = map[string]func([]byte) []byte{
	"byte order mark": func(b []byte) []byte { return append([]byte("\xef\xbb\xbf"), b...) },
	"not a number":    func(b []byte) []byte { return append([]byte(`{"x":NaN,`), b[1:]...) },
	"infinity":        func(b []byte) []byte { return append([]byte(`{"x":-Infinity,`), b[1:]...) },
	"utf-16": func(b []byte) []byte {
		var wide []byte
		for _, c := range b {
			wide = append(wide, c, 0)
		}
		return wide
	},
}

func testUnsplittable(t *testing.T, p *pair) {
	s := startSidecar(t, p.decode.addr)
	a, b := p.fresh(40), p.fresh(90)
	for name, members := range map[string]map[string]any{
		"batch, second longer":  {"prompt": [][]int{a, b}},
		"batch, second shorter": {"prompt": [][]int{b, a}},
		"two choices":           {"n": 2, "temperature": 1, "prompt": a},
		"prompt log probs":      {"prompt": a, "echo": true, "logprobs": 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := call{api: pd.APICompletions, prompt: a, tokens: 4, members: members}
			got := mustSend(t, c.remote(p.prefill.addr), s.addr("http"), p.model)
			if got.Status != http.StatusOK || got.Decision.Verdict != pd.Local || got.Decision.Reason != pd.NotSplittable {
				t.Errorf("status %d, decision %v: %s", got.Status, got.Decision, got.Body)
			}
			if members["n"] == nil && members["echo"] == nil {
				mustMatch(t, got, false, p.want(t, c))
			}
			c.header = map[string]string{pd.HeaderMode: "force"}
			got = mustSend(t, c.remote(p.prefill.addr), s.addr("http"), p.model)
			if got.Status != http.StatusBadRequest || got.Decision.Reason != pd.NotSplittable {
				t.Errorf("forced: status %d, decision %v", got.Status, got.Decision)
			}
		})
	}
	c := call{api: pd.APICompletions, prompt: p.fresh(100), tokens: 8}
	mustMatch(t, mustSend(t, c.remote(p.prefill.addr), s.addr("http"), p.model), false, p.want(t, c))
	p.mustRelease(t, p.prefill.metric(t, expiries))
}

// testRefused sends what an engine's front end refuses: the engine's own words must come back, and prefill hold nothing.
func testRefused(t *testing.T, p *pair) {
	s := startSidecar(t, p.decode.addr)
	expired := p.prefill.metric(t, expiries)
	for name, members := range map[string]map[string]any{
		"max_tokens of a wrong type": {"max_tokens": "many"},
		"max_tokens zero":            {"max_tokens": 0},
		"max_tokens over the model":  {"max_tokens": wholeModel + 1},
		"stream of a wrong type":     {"stream": "maybe"},
		"options without a stream":   {"stream_options": map[string]any{"include_usage": true}},
		"temperature":                {"temperature": -3},
		"min over max":               {"min_tokens": 9},
		"a type prefill minds too":   {"top_p": "x"},
	} {
		t.Run(name, func(t *testing.T) {
			c := call{api: pd.APICompletions, prompt: p.fresh(100), tokens: 4, members: members}
			want := mustSend(t, c, p.plain.addr, p.model)
			got := mustSend(t, c.remote(p.prefill.addr), s.addr("http"), p.model)
			if got.Status != want.Status || got.Body != want.Body {
				t.Errorf("status %d %s, the engine itself says %d %s", got.Status, got.Body, want.Status, want.Body)
			}
		})
	}
	c := call{api: pd.APICompletions, prompt: p.fresh(100), tokens: 4}
	got, err := c.remote(p.prefill.addr).sendBody(within(t), s.addr("http"), []byte(`{"model":"`+p.model+`","prompt":`))
	if err != nil || got.Status != http.StatusBadRequest {
		t.Errorf("malformed body: status %d, %v", got.Status, err)
	}
	unknown := mustSend(t, c.remote(p.prefill.addr), s.addr("http"), "nobody")
	if unknown.Status != http.StatusNotFound {
		t.Errorf("unknown model: status %d", unknown.Status)
	}
	p.mustRelease(t, expired)
}

func testClientGone(t *testing.T, p *pair) {
	both(t, func(t *testing.T, stream bool) {
		t.Run("during prefill", func(t *testing.T) {
			expired := p.prefill.metric(t, expiries)
			s := startSidecar(t, p.decode.addr)
			c := call{api: pd.APICompletions, prompt: p.fresh(3500), tokens: 8, stream: stream}
			leave(t, c.remote(p.prefill.addr), s, p, func() { waitRunning(t, p.prefill) })
			p.mustRelease(t, expired)
		})
		t.Run("before prefill's answer arrives", func(t *testing.T) {
			expired := p.prefill.metric(t, expiries)
			g := newGate(t, p.prefill.addr, answers)
			s := startSidecar(t, p.decode.addr)
			g.shut()
			c := call{api: pd.APICompletions, prompt: p.fresh(200), tokens: 8, stream: stream}
			leave(t, c.remote(g.addr), s, p, func() { <-g.held })
			g.release()
			p.mustRelease(t, expired)
		})
		t.Run("between the legs", func(t *testing.T) {
			expired := p.prefill.metric(t, expiries)
			g := newGate(t, p.decode.addr, requests)
			s := startSidecar(t, g.addr)
			g.shut()
			c := call{api: pd.APICompletions, prompt: p.fresh(200), tokens: 8, stream: stream}
			leave(t, c.remote(p.prefill.addr), s, p, func() { <-g.held })
			g.release()
			p.mustRelease(t, expired)
		})
		t.Run("during decode", func(t *testing.T) {
			expired := p.prefill.metric(t, expiries)
			s := startSidecar(t, p.decode.addr)
			c := call{api: pd.APICompletions, prompt: p.fresh(200), tokens: 3000, stream: stream}
			leave(t, c.remote(p.prefill.addr), s, p, func() { waitRunning(t, p.decode) })
			p.mustRelease(t, expired)
			waitIdle(t, p.decode)
		})
	})
}

// testCrowd sends many calls at once, of which every third is given up after a time that falls into all states.
func testCrowd(t *testing.T, p *pair) {
	expired := p.prefill.metric(t, expiries)
	s := startSidecar(t, p.decode.addr)
	const calls, atOnce = 90, 6
	turn := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	for i := range calls {
		c := call{api: pd.APICompletions, prompt: p.fresh(20 + 37*i%700), tokens: 6 + i%20, stream: i%2 == 0}
		turn <- struct{}{}
		running.Go(func() {
			defer func() { <-turn }()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			if i%3 == 0 {
				ctx, cancel = context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
			}
			defer cancel()
			got, err := c.remote(p.prefill.addr).send(ctx, s.addr("http"), p.model)
			if err != nil {
				if i%3 != 0 {
					t.Errorf("call %d: %v", i, err)
				}
				return
			}
			c.stream, c.header = false, nil
			want, err := c.send(t.Context(), p.plain.addr, p.model)
			if err != nil || !slices.Equal(got.Tokens, want.Tokens) {
				t.Errorf("call %d: tokens %v, an undisturbed engine gives %v (%v; %v)", i, got.Tokens, want.Tokens, err, got.Decision)
			}
			if got.Decision.Verdict != pd.Remote {
				t.Errorf("call %d: decision %v", i, got.Decision)
			}
		})
	}
	running.Wait()
	p.mustRelease(t, expired)
	waitIdle(t, p.decode)
}

// leave makes a call and drops its connection when at returns.
func leave(t *testing.T, c call, s program, p *pair, at func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t))
	ended := make(chan error, 1)
	go func() {
		_, err := c.send(ctx, s.addr("http"), p.model)
		ended <- err
	}()
	at()
	cancel()
	if err := <-ended; err == nil {
		t.Log("the answer was complete before the client left")
	}
}

func waitRunning(t *testing.T, e engine) {
	waitMetric(t, e, "vllm:num_requests_running", func(v float64) bool { return v > 0 })
}
func waitIdle(t *testing.T, e engine) {
	waitMetric(t, e, "vllm:num_requests_running", func(v float64) bool { return v == 0 })
}

// waitMetric polls: an engine's metrics page is the only place that tells.
func waitMetric(t *testing.T, e engine, name string, ok func(float64) bool) {
	t.Helper()
	ctx := within(t)
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for !ok(e.metric(t, name)) {
		select {
		case <-ctx.Done():
			t.Fatalf("%s of %s did not become what the test waits for", name, e.addr)
		case <-poll.C:
		}
	}
}

// testDrain ends the sidecar under a running stream.
func testDrain(t *testing.T, p *pair) {
	s := startSidecar(t, p.decode.addr)
	c := call{api: pd.APICompletions, prompt: p.fresh(100), tokens: 400, stream: true}
	want := p.want(t, c)
	got := begin(t, c.remote(p.prefill.addr), s.addr("http"), p.model)
	waitRunning(t, p.decode)
	s.stop(t)
	mustMatch(t, <-got, true, want)
}

func testPrefillStopped(t *testing.T, p *pair) {
	both(t, func(t *testing.T, stream bool) {
		g := newGate(t, p.decode.addr, requests)
		s := startSidecar(t, g.addr, "--first-event-timeout=2s")
		c := call{api: pd.APICompletions, prompt: p.fresh(200), tokens: 8, stream: stream}
		want := p.want(t, c)
		g.shut()
		got := begin(t, c.remote(p.prefill.addr), s.addr("http"), p.model)
		<-g.held
		p.prefill.pause(t)
		defer p.prefill.resume(t)
		g.release()
		r := <-got
		mustMatch(t, r, stream, want)
		if r.Decision.Verdict != pd.Local || r.Decision.Reason != pd.TransferFailed {
			t.Errorf("decision %v", r.Decision)
		}
	})
	p.mustReleaseWithin(t, p.lease+5*time.Second)
}

// testFrozen stops the sidecar while prefill's answer waits in its socket, for longer than the lease, and lets another
// prompt take the blocks meanwhile.
func testFrozen(t *testing.T, p *pair) {
	g := newGate(t, p.prefill.addr, answers)
	s := startSidecar(t, p.decode.addr, "--lease="+p.lease.String())
	var calls [2]call // whole and streamed
	var want [len(calls)][]int
	for i := range calls {
		calls[i] = call{api: pd.APICompletions, prompt: p.fresh(200), tokens: 8, stream: i == 1}
		want[i] = p.want(t, calls[i])
	}
	expired := p.prefill.metric(t, expiries)
	g.shut()
	var got [len(calls)]<-chan reply
	for i, c := range calls {
		got[i] = begin(t, c.remote(g.addr), s.addr("http"), p.model)
		<-g.held
	}
	s.freeze(t)
	g.release()
	waitMetric(t, p.prefill, expiries, func(v float64) bool { return v == expired+float64(len(calls)) })
	p.churn(t)
	s.resume(t)
	for i, c := range calls {
		r := <-got[i]
		mustMatch(t, r, c.stream, want[i])
		if r.Decision.Verdict != pd.Local || r.Decision.Reason != pd.HandoffLate {
			t.Errorf("decision %v", r.Decision)
		}
	}
}

// churn overwrites every free block of the prefill engine.
func (p *pair) churn(t *testing.T) {
	t.Helper()
	for range 6 {
		c := call{api: pd.APICompletions, prompt: p.fresh(3800), tokens: 1}
		if r := mustSend(t, c, p.prefill.addr, p.model); r.Status != http.StatusOK {
			t.Fatalf("prefill answers %d %s", r.Status, r.Body)
		}
	}
}

func testPrefillKilled(t *testing.T, p *pair) {
	both(t, func(t *testing.T, stream bool) {
		g := newGate(t, p.decode.addr, requests)
		s := startSidecar(t, g.addr)
		c := call{api: pd.APICompletions, prompt: p.fresh(200), tokens: 8, stream: stream}
		want := p.want(t, c)
		// The pair has met, so that decode holds a connection that breaks.
		mustMatch(t, mustSend(t, c.remote(p.prefill.addr), s.addr("http"), p.model), stream, want)
		c.prompt = p.fresh(200)
		want = p.want(t, c)
		g.shut()
		got := begin(t, c.remote(p.prefill.addr), s.addr("http"), p.model)
		<-g.held
		p.prefill.kill(t)
		g.release()
		r := <-got
		mustMatch(t, r, stream, want)
		if r.Decision.Verdict != pd.Local || r.Decision.Reason != pd.TransferFailed {
			t.Errorf("decision %v", r.Decision)
		}
		p.revive(t)
		c = call{api: pd.APICompletions, prompt: p.fresh(200), tokens: 8, stream: stream}
		r = mustSend(t, c.remote(p.prefill.addr), s.addr("http"), p.model)
		mustMatch(t, r, stream, p.want(t, c))
		if r.Decision.Verdict != pd.Remote {
			t.Errorf("decision %v after prefill came back", r.Decision)
		}
	})
}

// decodeModel is the name of the model an engine serves.
func decodeModel(addr string) (string, error) {
	resp, err := client.Get("http://" + addr + "/v1/models")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return "", err
	}
	if i := slices.IndexFunc(list.Data, func(m struct {
		ID string `json:"id"`
	}) bool {
		return m.ID != ""
	}); i >= 0 {
		return list.Data[i].ID, nil
	}
	return "", fmt.Errorf("%s lists no model", addr)
}
