package serving

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// testContinuation has the stream of a decode engine break off after every third event of 60 tokens, and late in a longer one: another decode
// engine goes on, and the client reads the text of an undisturbed stream.
func testContinuation(t *testing.T) {
	p := engines.pair(t, engines.failing)
	other := engines.recomputing.Address()
	for name, c := range map[string]struct {
		call   harness.Call
		events []int // after which the stream breaks off; nil: after every third
		stops  bool  // at a stop string of three characters
	}{
		"completions":        {harness.Call{API: pd.APICompletions, Prompt: p.Fresh(70), Tokens: 60}, nil, false},
		"completions, 100":   {harness.Call{API: pd.APICompletions, Prompt: p.Fresh(70), Tokens: 110}, []int{100}, false},
		"completions, text":  {harness.Call{API: pd.APICompletions, Tokens: 60, Members: map[string]any{"prompt": "😀 about KV caches é", "logprobs": 1}}, []int{1, 2, 3, 7, 20, 40, 59}, false},
		"completions, stops": {harness.Call{API: pd.APICompletions, Prompt: p.Fresh(70), Tokens: 60}, nil, true},
		// Special tokens have no text in an answer, and have one where the sidecar asks for that of the tokens.
		"completions, stops after special tokens": {harness.Call{API: pd.APICompletions, Prompt: withSpecialTokens(t, p, other), Tokens: 60}, nil, true},
		"chat":           {harness.Call{API: pd.APIChat, Prompt: p.Fresh(40), Tokens: 60}, nil, false},
		"chat, stops":    {harness.Call{API: pd.APIChat, Prompt: p.Fresh(40), Tokens: 60}, nil, true},
		"chat, logprobs": {harness.Call{API: pd.APIChat, Prompt: p.Fresh(40), Tokens: 60, Members: map[string]any{"logprobs": true}}, []int{2, 3, 7, 20, 40, 59}, false},
		"chat, 100":      {harness.Call{API: pd.APIChat, Prompt: p.Fresh(40), Tokens: 110}, []int{100}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.call.Stream = true
			body := string(withoutIDs(c.call.Body(p.Model)))
			undisturbed := streamOf(t, "http://"+other, c.call.API, body)
			if c.stops {
				c.call.Members = map[string]any{"stop": []string{stopIn(t, read(t, undisturbed).text), "never"}}
				body = string(withoutIDs(c.call.Body(p.Model)))
				undisturbed = streamOf(t, "http://"+other, c.call.API, body)
			}
			want, total := read(t, undisturbed), strings.Count(undisturbed, "data: ")
			if c.events == nil {
				step := 3 // sidecar.TestStreamGoesOnAtEveryToken tries each
				if *short {
					step = 11
				}
				for at := 1; at < total; at += step {
					c.events = append(c.events, at)
				}
			}
			cut := harness.NewCutter(t, p.Decode.Addr)
			s := harness.StartSidecar(t, cut.Addr, "--continue-times=1", "--continue-burst=1000")
			for _, at := range c.events {
				cut.After.Store(int64(at))
				got := read(t, streamOf(t, "http://"+s.Addr("http"), c.call.API, body, pd.HeaderPrefill, p.Prefill.Addr, pd.HeaderDestination, cut.Addr+","+other))
				if !got.equals(want) {
					t.Errorf("broken off after %d of %d events:\n%+v\nwant\n%+v", at, total, got, want)
				}
			}
		})
	}
	t.Run("evacuated", func(t *testing.T) { testEvacuatedStreams(t, p, other) })
	t.Run("killed", func(t *testing.T) { testKilledStream(t, p, other) })
	t.Run("whole answers", func(t *testing.T) { testAskedAnew(t, p, other) })
	p.MustRelease(t, p.Prefill.Metric(t, harness.Expiries))
}

// withSpecialTokens returns a prompt whose answer has a special token among its first 30 of 60. No special token comes next to a byte: without it
// that byte could be part of another character, and the stream ends with an error, because the tokens then have another text.
func withSpecialTokens(t *testing.T, p *harness.Pair, other string) []int {
	t.Helper()
	for range 200 {
		call := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(70), Tokens: 60}
		reply, err := call.Send(harness.Within(t), other, p.Model)
		if err != nil {
			t.Fatal(err)
		}
		const special, bytes = 5, 256 // of the tests' model: ids 0 to 4, and the next ones
		isSpecial := func(id int) bool { return id < special }
		ids := reply.Tokens
		apart := len(ids) == 60 && slices.ContainsFunc(ids[8:30], isSpecial)
		for i := 1; apart && i < len(ids); i++ {
			a, b := ids[i-1], ids[i]
			apart = !isSpecial(a) && !isSpecial(b) || max(a, b) >= special+bytes
		}
		if apart {
			return call.Prompt
		}
	}
	t.Fatal("no answer of 200 has a special token apart from bytes")
	return nil
}

// stopIn returns three characters that occur in the second half of a text for the first time.
func stopIn(t *testing.T, text string) string {
	t.Helper()
	chars := []rune(text)
	for at := len(chars) / 2; at+3 < len(chars); at++ {
		if stop := string(chars[at : at+3]); strings.Index(text, stop) == len(string(chars[:at])) && !strings.ContainsRune(stop, '\ufffd') {
			return stop
		}
	}
	t.Fatalf("no three characters occur once in %q", text)
	return ""
}

// testEvacuatedStreams ends a decode pod while streams run, as the chart does, and starts its engine again.
func testEvacuatedStreams(t *testing.T, p *harness.Pair, other string) {
	const streams = 4
	s := harness.StartSidecar(t, p.Decode.Addr, "--continue-times=1", "--drain-timeout=1s", "--evacuate-timeout=5m")
	var want []said
	var bodies []string
	for range streams {
		call := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(70), Tokens: 1000, Stream: true}
		bodies = append(bodies, string(withoutIDs(call.Body(p.Model))))
		want = append(want, read(t, streamOf(t, "http://"+other, call.API, bodies[len(bodies)-1])))
	}
	var running []*http.Response
	for _, body := range bodies {
		running = append(running, openStream(t, "http://"+s.Addr("http"), pd.APICompletions, body, pd.HeaderPrefill, p.Prefill.Addr, pd.HeaderDestination, p.Decode.Addr+","+other))
	}
	began := time.Now()
	out, err := harness.Output("tandem", "drain", "--engine="+p.Decode.Addr, "--sidecar="+s.Addr("metrics"), "--evacuate="+s.Addr("admin"), "--settle=0s", "--timeout=1m")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%d streams left within %v", streams, time.Since(began).Round(time.Millisecond))
	if err := engines.failing.Stop(); err != nil {
		t.Fatal(err)
	}
	var ending sync.WaitGroup
	ending.Go(func() { s.MustStop(t) })
	for i, resp := range running {
		got, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := read(t, string(got)); !got.equals(want[i]) {
			t.Errorf("%+v\nwant\n%+v", got, want[i])
		}
		if moved := resp.Trailer.Get(pd.HeaderContinued); moved != "1" {
			t.Errorf("moved %q times", moved)
		}
	}
	ending.Wait()
	if err := engines.failing.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// testKilledStream has the decode engine itself die during a stream, and starts it again.
func testKilledStream(t *testing.T, p *harness.Pair, other string) {
	call := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(70), Tokens: 1000, Stream: true}
	body := string(withoutIDs(call.Body(p.Model)))
	want := read(t, streamOf(t, "http://"+other, call.API, body))
	s := harness.StartSidecar(t, p.Decode.Addr, "--continue-times=1")
	resp := openStream(t, "http://"+s.Addr("http"), call.API, body, pd.HeaderPrefill, p.Prefill.Addr, pd.HeaderDestination, p.Decode.Addr+","+other)
	head := make([]byte, 2000)
	if _, err := io.ReadFull(resp.Body, head); err != nil {
		t.Fatal(err)
	}
	p.Decode.Kill(t)
	rest, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, string(head)+string(rest)); !got.equals(want) {
		t.Errorf("%+v\nwant\n%+v", got, want)
	}
	if moved := resp.Trailer.Get(pd.HeaderContinued); moved != "1" {
		t.Errorf("moved %q times", moved)
	}
	if err := engines.failing.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// testAskedAnew has the connection to the decode engine break in the middle of each kind of whole answer, and then has the engine itself die
// while it generates one: another engine answers, with the tokens of an undisturbed one.
func testAskedAnew(t *testing.T, p *harness.Pair, other string) {
	cut := harness.NewCutter(t, p.Decode.Addr)
	cut.Whole.Store(true)
	breaks, kills := harness.StartSidecar(t, cut.Addr, "--continue-times=1"), harness.StartSidecar(t, p.Decode.Addr, "--continue-times=1")
	for _, api := range []pd.API{pd.APICompletions, pd.APIChat, pd.APIResponses, pd.APIMessages} {
		for _, remote := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, remote %t", api, remote), func(t *testing.T) {
				call := p.Ask(api, 70, false)
				want := p.Want(t, call)
				call.Header = map[string]string{pd.HeaderDestination: cut.Addr + "," + other}
				if remote {
					call = call.Remote(p.Prefill.Addr)
				}
				mustBeAskedAnew(t, harness.MustSend(t, call, breaks.Addr("http"), p.Model), want)
			})
		}
	}
	t.Run("killed", func(t *testing.T) {
		call := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(70), Tokens: 1000}
		want := p.Want(t, call)
		call.Header = map[string]string{pd.HeaderDestination: p.Decode.Addr + "," + other}
		got := harness.Begin(t, call.Remote(p.Prefill.Addr), kills.Addr("http"), p.Model)
		mustGenerate(t, p.Decode)
		p.Decode.Kill(t)
		mustBeAskedAnew(t, <-got, want)
		if err := engines.failing.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// mustGenerate waits until an engine has generated some tokens of a long answer.
func mustGenerate(t *testing.T, e harness.Engine) {
	t.Helper()
	began := e.Metric(t, "vllm:generation_tokens_total")
	harness.WaitMetric(t, e, "vllm:generation_tokens_total", func(v float64) bool { return v > began+20 })
}

// mustBeAskedAnew checks an answer that another engine has given from its beginning.
func mustBeAskedAnew(t *testing.T, got harness.Reply, want []int) {
	t.Helper()
	harness.MustMatch(t, got, false, want)
	if moved := got.Header.Get(pd.HeaderContinued); moved != "1" || got.Decision.Verdict != pd.Local {
		t.Errorf("moved %q times, decision %v", moved, got.Decision)
	}
}

var idsMember = regexp.MustCompile(`"return_token_ids":\s*true,?`)

// withoutIDs returns a body without the wish for token ids, which calls of the harness have.
func withoutIDs(body []byte) []byte {
	return bytes.ReplaceAll(idsMember.ReplaceAll(body, nil), []byte(",}"), []byte("}"))
}

// streamOf returns a stream.
func streamOf(t *testing.T, url string, api pd.API, body string, header ...string) string {
	t.Helper()
	return streamIn(t, openStream(t, url, api, body, header...))
}

// streamIn reads a stream to its end.
func streamIn(t *testing.T, resp *http.Response) string {
	t.Helper()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}

// openStream sends a request.
func openStream(t *testing.T, url string, api pd.API, body string, header ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(harness.Within(t), http.MethodPost, url+api.Path(), strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("TE", "trailers")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := harness.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	return resp
}

// said is what a client reads in a stream. How many tokens one event has depends on how busy the engine was.
type said struct {
	text, finish             string
	answers                  int // ids, times and objects, of which one stream has one each
	prompt, completion, done int
	lastOffset               int     // of log probabilities
	scores                   []score // the log probabilities of chat
	reasoning                string
	calls                    []toolCall
}

// toolCall is one call of a tool. How many ids it has got is told, since they are random.
type toolCall struct {
	ids             int
	name, arguments string
}

// score is the log probability of one token.
type score struct {
	Token   string
	Logprob float64
	Bytes   []int
}

// equals says whether a client cannot tell two streams apart. Engines compute a token with others or alone, and round differently then.
func (s said) equals(other said) bool {
	same := slices.EqualFunc(s.scores, other.scores, func(a, b score) bool {
		return a.Token == b.Token && slices.Equal(a.Bytes, b.Bytes) && math.Abs(a.Logprob-b.Logprob) < 1e-3
	})
	s.scores, other.scores = nil, nil
	return same && reflect.DeepEqual(s, other)
}

// read reads a stream.
func read(t *testing.T, stream string) (s said) {
	t.Helper()
	own := map[string]bool{}
	for _, event := range strings.Split(stream, "\n\n") {
		data, ok := strings.CutPrefix(event, "data: ")
		if data == "[DONE]" {
			s.done++
		}
		if !ok || data == "[DONE]" {
			continue
		}
		var e struct {
			ID, Object string
			Created    int
			Choices    []struct {
				Text  string
				Delta struct {
					Content, Reasoning string
					Calls              []struct {
						Index    int
						ID       string
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
				FinishReason string `json:"finish_reason"`
				Logprobs     *struct {
					TextOffset []int `json:"text_offset"`
					Content    []score
				}
			}
			Usage *struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
		own[fmt.Sprint(e.ID, e.Object, e.Created)] = true
		for _, c := range e.Choices {
			s.text += c.Text + c.Delta.Content
			s.reasoning += c.Delta.Reasoning
			for _, call := range c.Delta.Calls {
				for len(s.calls) <= call.Index {
					s.calls = append(s.calls, toolCall{})
				}
				to := &s.calls[call.Index]
				to.name += call.Function.Name
				to.arguments += call.Function.Arguments
				if call.ID != "" {
					to.ids++
				}
			}
			s.finish += c.FinishReason
			if c.Logprobs != nil && c.Logprobs.Content != nil {
				s.scores = append(s.scores, c.Logprobs.Content...)
			} else if c.Logprobs != nil {
				s.lastOffset = c.Logprobs.TextOffset[len(c.Logprobs.TextOffset)-1]
			}
		}
		if e.Usage != nil {
			s.prompt, s.completion = e.Usage.Prompt, e.Usage.Completion
		}
	}
	s.answers = len(own)
	return s
}
