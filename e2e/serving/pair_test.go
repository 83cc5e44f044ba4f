package serving

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// runPair is the suite. Cases that kill an engine come last.
func runPair(t *testing.T, p *harness.Pair) {
	t.Run("transcript", func(t *testing.T) { testTranscript(t, p) })
	t.Run("tokens", func(t *testing.T) { testTokens(t, p) })
	t.Run("stop on the first token", func(t *testing.T) { testFirstTokenStop(t, p) })
	t.Run("candidates", func(t *testing.T) { testCandidates(t, p) })
	t.Run("forged", func(t *testing.T) { testForged(t, p) })
	t.Run("damaged", func(t *testing.T) { testDamaged(t, p) })
	t.Run("one reader", func(t *testing.T) { testOneReader(t, p) })
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

func testTokens(t *testing.T, p *harness.Pair) {
	s := harness.StartSidecar(t, p.Decode.Addr)
	for _, n := range []int{1, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 1000} { // around the borders of blocks
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			harness.BothForms(t, func(t *testing.T, stream bool) {
				for name, c := range map[string]harness.Call{
					"completions": p.Ask(pd.APICompletions, n, stream),
					"chat":        p.Ask(pd.APIChat, n, stream),
					"generate":    p.Ask(pd.APIGenerate, n, stream),
				} {
					want := p.Want(t, c)
					got := harness.MustSend(t, c.Remote(p.Prefill.Addr), s.Addr("http"), p.Model)
					harness.MustMatch(t, got, stream, want)
					if got.Decision.Verdict != pd.Remote {
						t.Errorf("%s: decision %v", name, got.Decision)
					}
					if got.Cached != 0 {
						t.Errorf("%s: %d cached tokens billed for a prompt that no engine had seen", name, got.Cached)
					}
				}
			})
		})
	}
	p.MustRelease(t, p.Prefill.Metric(t, harness.Expiries))
}

// testFirstTokenStop has prefill's one token end the answer: decode must repeat the stop, or generate as if there was none.
func testFirstTokenStop(t *testing.T, p *harness.Pair) {
	s := harness.StartSidecar(t, p.Decode.Addr)
	harness.BothForms(t, func(t *testing.T, stream bool) {
		c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(100), Tokens: 8, Stream: stream}
		first := p.Want(t, c)[0]
		c.Members = map[string]any{"stop_token_ids": []int{first}}
		want := p.Want(t, c)
		got := harness.MustSend(t, c.Remote(p.Prefill.Addr), s.Addr("http"), p.Model)
		harness.MustMatch(t, got, stream, want)
		if got.Finish != "stop" || len(got.Tokens) != 1 {
			t.Errorf("finish reason %q after %v", got.Finish, got.Tokens)
		}
	})
	p.MustRelease(t, p.Prefill.Metric(t, harness.Expiries))
}

func testCandidates(t *testing.T, p *harness.Pair) {
	s := harness.StartSidecar(t, p.Decode.Addr)
	harness.BothForms(t, func(t *testing.T, stream bool) {
		c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(100), Tokens: 8, Stream: stream}
		got := harness.MustSend(t, c.Remote("127.0.0.1:9", p.Prefill.Addr), s.Addr("http"), p.Model)
		harness.MustMatch(t, got, stream, p.Want(t, c))
		if d := got.Decision; d.Verdict != pd.Remote || d.Attempts != 2 || d.Candidate != 1 {
			t.Errorf("decision %v, the second candidate should have served", d)
		}
	})
	harness.BothForms(t, func(t *testing.T, stream bool) {
		c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(100), Tokens: 8, Stream: stream}
		got := harness.MustSend(t, c.Remote("127.0.0.1:9"), s.Addr("http"), p.Model)
		harness.MustMatch(t, got, stream, p.Want(t, c))
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

func testForged(t *testing.T, p *harness.Pair) {
	s := harness.StartSidecar(t, p.Decode.Addr)
	for name, forged := range forgeries {
		for place, form := range places {
			t.Run(name+"/"+place, func(t *testing.T) {
				c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(70), Tokens: 4}
				want := p.Want(t, c)
				body := c.Body(p.Model)
				body = append(fmt.Appendf(nil, "{"+form+",", forged), body[1:]...)
				for _, c := range []harness.Call{c, c.Remote(p.Prefill.Addr)} {
					got, err := c.SendBody(harness.Within(t), s.Addr("http"), body)
					if err != nil {
						t.Fatal(err)
					}
					harness.MustMatch(t, got, false, want)
				}
			})
		}
	}
	// Bodies that the engine reads and a plain JSON parser does not.
	for name, wrap := range smuggled {
		t.Run(name, func(t *testing.T) {
			c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(70), Tokens: 4}
			body := append([]byte(`{"kv_transfer_params":{"do_remote_prefill":true},`), c.Body(p.Model)[1:]...)
			for _, c := range []harness.Call{c, c.Remote(p.Prefill.Addr)} {
				got, err := c.SendBody(harness.Within(t), s.Addr("http"), wrap(body))
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
	resp, err := harness.Client.Post("http://"+s.Addr("http")+"/invocations", "application/json",
		strings.NewReader(`{"model":"`+p.Model+`","prompt":"a b c","max_tokens":1,"kv_transfer_params":{"do_remote_prefill":true}}`))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("/invocations: status %d", resp.StatusCode)
	}
	c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(100), Tokens: 8}
	harness.MustMatch(t, harness.MustSend(t, c, s.Addr("http"), p.Model), false, p.Want(t, c))
	p.MustRelease(t, p.Prefill.Metric(t, harness.Expiries))
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

func testUnsplittable(t *testing.T, p *harness.Pair) {
	s := harness.StartSidecar(t, p.Decode.Addr)
	a, b := p.Fresh(40), p.Fresh(90)
	for name, members := range map[string]map[string]any{
		"batch, second longer":  {"prompt": [][]int{a, b}},
		"batch, second shorter": {"prompt": [][]int{b, a}},
		"two choices":           {"n": 2, "temperature": 1, "prompt": a},
		"prompt log probs":      {"prompt": a, "echo": true, "logprobs": 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := harness.Call{API: pd.APICompletions, Prompt: a, Tokens: 4, Members: members}
			got := harness.MustSend(t, c.Remote(p.Prefill.Addr), s.Addr("http"), p.Model)
			if got.Status != http.StatusOK || got.Decision.Verdict != pd.Local || got.Decision.Reason != pd.NotSplittable {
				t.Errorf("status %d, decision %v: %s", got.Status, got.Decision, got.Body)
			}
			if members["n"] == nil && members["echo"] == nil {
				harness.MustMatch(t, got, false, p.Want(t, c))
			}
			c.Header = map[string]string{pd.HeaderMode: "force"}
			got = harness.MustSend(t, c.Remote(p.Prefill.Addr), s.Addr("http"), p.Model)
			if got.Status != http.StatusBadRequest || got.Decision.Reason != pd.NotSplittable {
				t.Errorf("forced: status %d, decision %v", got.Status, got.Decision)
			}
		})
	}
	c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(100), Tokens: 8}
	harness.MustMatch(t, harness.MustSend(t, c.Remote(p.Prefill.Addr), s.Addr("http"), p.Model), false, p.Want(t, c))
	p.MustRelease(t, p.Prefill.Metric(t, harness.Expiries))
}

// refused are members that an engine's front end refuses. Prefill would accept many of them, with its own limit and without a
// stream.
var refused = []struct {
	name    string
	api     pd.API
	members map[string]any
}{
	{"max_tokens of a wrong type", pd.APICompletions, map[string]any{"max_tokens": "many"}},
	{"max_tokens zero", pd.APICompletions, map[string]any{"max_tokens": 0}},
	{"max_tokens over the model", pd.APICompletions, map[string]any{"max_tokens": harness.WholeModel + 1}},
	{"stream of a wrong type", pd.APICompletions, map[string]any{"stream": "maybe"}},
	{"options without a stream", pd.APICompletions, map[string]any{"stream_options": map[string]any{"include_usage": true}}},
	{"temperature", pd.APICompletions, map[string]any{"temperature": -3}},
	{"min over max", pd.APICompletions, map[string]any{"min_tokens": 9}},
	{"a type prefill minds too", pd.APICompletions, map[string]any{"top_p": "x"}},

	{"limit of a wrong type", pd.APIResponses, map[string]any{"max_output_tokens": "many"}},
	{"limit zero", pd.APIResponses, map[string]any{"max_output_tokens": 0}},
	{"limit over the model", pd.APIResponses, map[string]any{"max_output_tokens": harness.WholeModel + 1}},
	{"stream of a wrong type", pd.APIResponses, map[string]any{"stream": "maybe"}},
	{"temperature", pd.APIResponses, map[string]any{"temperature": -3}},
	{"a type prefill minds too", pd.APIResponses, map[string]any{"top_p": "x"}},

	{"limit of a wrong type", pd.APIMessages, map[string]any{"max_tokens": "many"}},
	{"limit zero", pd.APIMessages, map[string]any{"max_tokens": 0}},
	{"limit over the model", pd.APIMessages, map[string]any{"max_tokens": harness.WholeModel + 1}},
	{"limit null", pd.APIMessages, map[string]any{"max_tokens": nil}},
	{"stream of a wrong type", pd.APIMessages, map[string]any{"stream": "maybe"}},
	{"temperature", pd.APIMessages, map[string]any{"temperature": -3}},

	{"limit of a wrong type", pd.APIGenerate, map[string]any{"sampling_params": map[string]any{"max_tokens": "many"}}},
	{"limit zero", pd.APIGenerate, map[string]any{"sampling_params": map[string]any{"max_tokens": 0}}},
	{"stream of a wrong type", pd.APIGenerate, map[string]any{"stream": "maybe"}},
	{"min over max", pd.APIGenerate, map[string]any{"sampling_params": map[string]any{"max_tokens": 4, "min_tokens": 9}}},
	{"temperature", pd.APIGenerate, map[string]any{"sampling_params": map[string]any{"max_tokens": 4, "temperature": -3}}},
	{"sampling of a wrong type", pd.APIGenerate, map[string]any{"sampling_params": "greedy"}},
}

// testRefused sends what an engine's front end refuses: the engine's own words must come back, and prefill hold nothing.
func testRefused(t *testing.T, p *harness.Pair) {
	s := harness.StartSidecar(t, p.Decode.Addr)
	expired := p.Prefill.Metric(t, harness.Expiries)
	for _, r := range refused {
		t.Run(r.api.String()+"/"+r.name, func(t *testing.T) {
			c := p.Ask(r.api, 100, false)
			c.Tokens, c.Members = 4, r.members
			want := harness.MustSend(t, c, p.Plain.Addr, p.Model)
			got := harness.MustSend(t, c.Remote(p.Prefill.Addr), s.Addr("http"), p.Model)
			if got.Status != want.Status || got.Body != want.Body || want.Status < http.StatusBadRequest {
				t.Errorf("status %d %s, the engine itself says %d %s", got.Status, got.Body, want.Status, want.Body)
			}
		})
	}
	c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(100), Tokens: 4}
	got, err := c.Remote(p.Prefill.Addr).SendBody(harness.Within(t), s.Addr("http"), []byte(`{"model":"`+p.Model+`","prompt":`))
	if err != nil || got.Status != http.StatusBadRequest {
		t.Errorf("malformed body: status %d, %v", got.Status, err)
	}
	unknown := harness.MustSend(t, c.Remote(p.Prefill.Addr), s.Addr("http"), "unknown")
	if unknown.Status != http.StatusNotFound {
		t.Errorf("unknown model: status %d", unknown.Status)
	}
	p.MustRelease(t, expired)
}

func testClientGone(t *testing.T, p *harness.Pair) {
	harness.BothForms(t, func(t *testing.T, stream bool) {
		t.Run("during prefill", func(t *testing.T) {
			expired := p.Prefill.Metric(t, harness.Expiries)
			s := harness.StartSidecar(t, p.Decode.Addr)
			c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(3500), Tokens: 8, Stream: stream}
			leave(t, c.Remote(p.Prefill.Addr), s, p, func() { waitRunning(t, p.Prefill) })
			p.MustRelease(t, expired)
		})
		t.Run("before prefill's answer arrives", func(t *testing.T) {
			expired := p.Prefill.Metric(t, harness.Expiries)
			g := harness.NewGate(t, p.Prefill.Addr, harness.Answers)
			s := harness.StartSidecar(t, p.Decode.Addr)
			g.Shut()
			c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(200), Tokens: 8, Stream: stream}
			leave(t, c.Remote(g.Addr), s, p, func() { <-g.Held })
			g.Release()
			p.MustRelease(t, expired)
		})
		t.Run("between the legs", func(t *testing.T) {
			expired := p.Prefill.Metric(t, harness.Expiries)
			g := harness.NewGate(t, p.Decode.Addr, harness.Requests)
			s := harness.StartSidecar(t, g.Addr)
			g.Shut()
			c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(200), Tokens: 8, Stream: stream}
			leave(t, c.Remote(p.Prefill.Addr), s, p, func() { <-g.Held })
			g.Release()
			p.MustRelease(t, expired)
		})
		t.Run("during decode", func(t *testing.T) {
			expired := p.Prefill.Metric(t, harness.Expiries)
			s := harness.StartSidecar(t, p.Decode.Addr)
			c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(200), Tokens: 3000, Stream: stream}
			leave(t, c.Remote(p.Prefill.Addr), s, p, func() { waitRunning(t, p.Decode) })
			p.MustRelease(t, expired)
			harness.WaitIdle(t, p.Decode)
		})
	})
}

// testCrowd sends many calls at once, of which every third is given up after a time that falls into all states.
func testCrowd(t *testing.T, p *harness.Pair) {
	expired := p.Prefill.Metric(t, harness.Expiries)
	s := harness.StartSidecar(t, p.Decode.Addr)
	const calls, atOnce = 90, 6
	turn := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	for i := range calls {
		c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(20 + 37*i%700), Tokens: 6 + i%20, Stream: i%2 == 0}
		turn <- struct{}{}
		running.Go(func() {
			defer func() { <-turn }()
			ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
			if i%3 == 0 {
				ctx, cancel = context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
			}
			defer cancel()
			got, err := c.Remote(p.Prefill.Addr).Send(ctx, s.Addr("http"), p.Model)
			if err != nil {
				if i%3 != 0 {
					t.Errorf("call %d: %v", i, err)
				}
				return
			}
			c.Stream, c.Header = false, nil
			want, err := c.Send(t.Context(), p.Plain.Addr, p.Model)
			if err != nil || !slices.Equal(got.Tokens, want.Tokens) {
				t.Errorf("call %d: tokens %v, an undisturbed engine gives %v (%v; %v)", i, got.Tokens, want.Tokens, err, got.Decision)
			}
			if got.Decision.Verdict != pd.Remote {
				t.Errorf("call %d: decision %v", i, got.Decision)
			}
		})
	}
	running.Wait()
	p.MustRelease(t, expired)
	harness.WaitIdle(t, p.Decode)
}

// leave makes a call and drops its connection when at returns.
func leave(t *testing.T, c harness.Call, s harness.Program, p *harness.Pair, at func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(harness.Within(t))
	ended := make(chan error, 1)
	go func() {
		_, err := c.Send(ctx, s.Addr("http"), p.Model)
		ended <- err
	}()
	at()
	cancel()
	if err := <-ended; err == nil {
		t.Log("the answer was complete before the client left")
	}
}

func waitRunning(t *testing.T, e harness.Engine) {
	harness.WaitMetric(t, e, "vllm:num_requests_running", func(v float64) bool { return v > 0 })
}

// testDrain ends the sidecar under a running stream.
func testDrain(t *testing.T, p *harness.Pair) {
	s := harness.StartSidecar(t, p.Decode.Addr)
	c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(100), Tokens: 400, Stream: true}
	want := p.Want(t, c)
	got := harness.Begin(t, c.Remote(p.Prefill.Addr), s.Addr("http"), p.Model)
	waitRunning(t, p.Decode)
	s.MustStop(t)
	harness.MustMatch(t, <-got, true, want)
}

func testPrefillStopped(t *testing.T, p *harness.Pair) {
	harness.BothForms(t, func(t *testing.T, stream bool) {
		g := harness.NewGate(t, p.Decode.Addr, harness.Requests)
		s := harness.StartSidecar(t, g.Addr, "--first-event-timeout=2s")
		c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(200), Tokens: 8, Stream: stream}
		want := p.Want(t, c)
		g.Shut()
		got := harness.Begin(t, c.Remote(p.Prefill.Addr), s.Addr("http"), p.Model)
		<-g.Held
		p.Prefill.Pause(t)
		defer p.Prefill.Resume(t)
		g.Release()
		r := <-got
		harness.MustMatch(t, r, stream, want)
		if r.Decision.Verdict != pd.Local || r.Decision.Reason != pd.TransferFailed {
			t.Errorf("decision %v", r.Decision)
		}
	})
	p.MustReleaseWithin(t, p.Lease+5*time.Second)
}

// testFrozen stops the sidecar while prefill's answer waits in its socket, for longer than the lease, and lets another
// prompt take the blocks meanwhile.
func testFrozen(t *testing.T, p *harness.Pair) {
	g := harness.NewGate(t, p.Prefill.Addr, harness.Answers)
	s := harness.StartSidecar(t, p.Decode.Addr, "--lease="+p.Lease.String())
	var calls [2]harness.Call // whole and streamed
	var want [len(calls)][]int
	for i := range calls {
		calls[i] = harness.Call{API: pd.APICompletions, Prompt: p.Fresh(200), Tokens: 8, Stream: i == 1}
		want[i] = p.Want(t, calls[i])
	}
	expired := p.Prefill.Metric(t, harness.Expiries)
	g.Shut()
	var got [len(calls)]<-chan harness.Reply
	for i, c := range calls {
		got[i] = harness.Begin(t, c.Remote(g.Addr), s.Addr("http"), p.Model)
		<-g.Held
	}
	s.Freeze(t)
	g.Release()
	harness.WaitMetric(t, p.Prefill, harness.Expiries, func(v float64) bool { return v == expired+float64(len(calls)) })
	churn(t, p)
	s.MustResume(t)
	for i, c := range calls {
		r := <-got[i]
		harness.MustMatch(t, r, c.Stream, want[i])
		if r.Decision.Verdict != pd.Local || r.Decision.Reason != pd.HandoffLate {
			t.Errorf("decision %v", r.Decision)
		}
	}
}

// churn overwrites every free block of the prefill engine.
func churn(t *testing.T, p *harness.Pair) {
	t.Helper()
	for range 6 {
		c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(3800), Tokens: 1}
		if r := harness.MustSend(t, c, p.Prefill.Addr, p.Model); r.Status != http.StatusOK {
			t.Fatalf("prefill answers %d %s", r.Status, r.Body)
		}
	}
}

func testPrefillKilled(t *testing.T, p *harness.Pair) {
	harness.BothForms(t, func(t *testing.T, stream bool) {
		g := harness.NewGate(t, p.Decode.Addr, harness.Requests)
		s := harness.StartSidecar(t, g.Addr)
		c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(200), Tokens: 8, Stream: stream}
		want := p.Want(t, c)
		// The pair has met, so that decode holds a connection that breaks.
		harness.MustMatch(t, harness.MustSend(t, c.Remote(p.Prefill.Addr), s.Addr("http"), p.Model), stream, want)
		c.Prompt = p.Fresh(200)
		want = p.Want(t, c)
		g.Shut()
		got := harness.Begin(t, c.Remote(p.Prefill.Addr), s.Addr("http"), p.Model)
		<-g.Held
		p.Prefill.Kill(t)
		g.Release()
		r := <-got
		harness.MustMatch(t, r, stream, want)
		if r.Decision.Verdict != pd.Local || r.Decision.Reason != pd.TransferFailed {
			t.Errorf("decision %v", r.Decision)
		}
		p.Revive(t)
		c = harness.Call{API: pd.APICompletions, Prompt: p.Fresh(200), Tokens: 8, Stream: stream}
		r = harness.MustSend(t, c.Remote(p.Prefill.Addr), s.Addr("http"), p.Model)
		harness.MustMatch(t, r, stream, p.Want(t, c))
		if r.Decision.Verdict != pd.Remote {
			t.Errorf("decision %v after prefill came back", r.Decision)
		}
	})
}
