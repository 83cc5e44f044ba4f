package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/e2e/answer"
	"github.com/tandem-serving/tandem/pd"
)

// testGenerate is the API of tokens in and out, which only engines have that are started for it, and no picker knows.
func testGenerate(t *testing.T) {
	f := newFleet(t, 0, 2)
	prompt, err := json.Marshal(f.fresh(100))
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"model":%q,"token_ids":%s,"sampling_params":{"max_tokens":4,"temperature":0,"ignore_eos":true}}`, f.model, prompt)
	scaled := f.decode[1]
	_, want := postTo(t, scaled.engine.addr, pd.APIGenerate.Path(), body)
	status, got := postTo(t, scaled.addr(), pd.APIGenerate.Path(), body)
	if status != http.StatusOK || !slices.Equal(tokensIn(t, got), tokensIn(t, want)) || len(tokensIn(t, got)) != 4 {
		t.Errorf("status %d: %s\nthe engine itself: %s", status, got, want)
	}
}

// tokensIn is the tokens of an answer of the generate API.
func tokensIn(t *testing.T, text string) []int {
	t.Helper()
	var a answer.Answer
	if err := a.Take([]byte(text)); err != nil || len(a.Tokens) == 0 {
		t.Fatalf("%v in %s", err, text)
	}
	return a.Tokens
}

// testToolChoice forces a tool, which a prefill leg of one token cannot call.
func testToolChoice(t *testing.T) {
	f := newStack(t, layout{"envoy", "pair"}, 1, 1)
	const tool = `{"type":"function","function":{"name":"weather","parameters":{"type":"object",` +
		`"properties":{"city":{"type":"string","enum":["Bremen","Ulm"]}},"required":["city"],"additionalProperties":false}}}`
	for name, choice := range map[string]string{"required": `"required"`, "named": `{"type":"function","function":{"name":"weather"}}`} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, stream bool) {
				body := fmt.Sprintf(`{"model":%q,"temperature":0,"max_tokens":64,"stream":%t,"tools":[%s],"tool_choice":%s,`+
					`"messages":[{"role":"user","content":%q}]}`, f.model, stream, tool, choice, words(40))
				wantStatus, want := postTo(t, f.plain.addr, pd.APIChat.Path(), body)
				status, got := f.post(t, pd.APIChat.Path(), body, pd.HeaderMode, "force;fallback")
				if status != http.StatusOK || wantStatus != http.StatusOK {
					t.Fatalf("status %d: %s\nthe plain engine: %d %s", status, got, wantStatus, want)
				}
				// Whether a model without sense ends its call within its tokens is chance.
				if spoken(t, got) != spoken(t, want) || spoken(t, got) == "" {
					t.Errorf("the stack says %q in\n%s\nthe plain engine %q in\n%s", spoken(t, got), got, spoken(t, want), want)
				}
			})
		})
	}
	f.mustRest(t)
}

// spoken is the text in an answer of the chat API, with the arguments of its tool calls.
func spoken(t *testing.T, text string) string {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(text) {
		data := strings.TrimPrefix(strings.TrimSpace(line), "data: ")
		if !strings.HasPrefix(data, "{") {
			continue
		}
		type message struct {
			Content string
			Calls   []struct {
				Function struct{ Arguments string }
			} `json:"tool_calls"`
		}
		var a struct {
			Choices []struct{ Message, Delta message }
		}
		if err := json.Unmarshal([]byte(data), &a); err != nil {
			t.Fatalf("%v in %s", err, data)
		}
		for _, choice := range a.Choices {
			out.WriteString(choice.Message.Content + choice.Delta.Content)
			for _, call := range append(choice.Message.Calls, choice.Delta.Calls...) {
				out.WriteString(call.Function.Arguments)
			}
		}
	}
	return out.String()
}

// testLeaseInTheQueue has a hand-off wait in decode's queue for more than two leases: decode renews the lease all the time.
// Hand-offs that nobody wants, made meanwhile, are the clock: each expires after one lease.
func testLeaseInTheQueue(t *testing.T) {
	p := engines.pair(t, engines.recomputing)
	expired := p.prefill.expired
	const queued = 4 * recomputingRuns // fillers, which go on longer than the test has to wait
	ctx, leave := context.WithCancel(t.Context())
	var fillers sync.WaitGroup
	defer fillers.Wait()
	defer leave()
	for range queued {
		c := call{api: pd.APICompletions, prompt: p.fresh(20), tokens: wholeModel, stream: true}
		fillers.Go(func() { _, _ = c.send(ctx, p.decode.addr, p.model) })
	}
	waiting := func(n float64) {
		waitMetric(t, p.decode, "vllm:num_requests_waiting", func(v float64) bool { return v >= n })
	}
	waiting(queued - recomputingRuns)
	s := startSidecar(t, p.decode.addr, "--first-event-timeout=10m")
	var got [2]<-chan reply
	var want [2][]int
	for i := range got {
		c := call{api: pd.APICompletions, prompt: p.fresh(200), tokens: 8, stream: i == 1}
		want[i] = p.want(t, c)
		got[i] = begin(t, c.remote(p.prefill.addr), s.addr("http"), p.model)
	}
	waiting(queued - recomputingRuns + float64(len(got)))
	const leases = 2
	for n := range leases {
		p.handOff(t, call{api: pd.APICompletions, prompt: p.fresh(40)})
		waitMetric(t, p.prefill, expiries, func(v float64) bool { return v > expired+float64(n) })
	}
	if p.decode.metric(t, "vllm:num_requests_waiting") < float64(len(got)) {
		t.Error("the queue was too short for this test")
	}
	leave()
	for i := range got {
		r := <-got[i]
		mustMatch(t, r, i == 1, want[i])
		if r.Decision.Verdict != pd.Remote {
			t.Errorf("decision %v", r.Decision)
		}
	}
	p.mustRelease(t, expired+leases)
}

// testPolicies has prefill die while decode legs are on their way to it. Half of them arrive at decode before another prefill
// engine stands at its address, half after. Under both load policies every answer is right.
func testPolicies(t *testing.T) {
	var dead, replaced []*heldLeg
	for _, decode := range []*pair{engines.pair(t, engines.failing), engines.pair(t, engines.recomputing)} {
		for _, stream := range []bool{false, true} {
			dead = append(dead, holdLeg(t, decode, stream))
			replaced = append(replaced, holdLeg(t, decode, stream))
		}
	}
	p := dead[0].pair
	p.prefill.kill(t)
	for _, l := range dead {
		l.mustEnd(t, "dead")
	}
	p.revive(t)
	for _, l := range replaced {
		l.mustEnd(t, "replaced")
		c := call{api: pd.APICompletions, prompt: p.fresh(200), tokens: 8, stream: l.stream}
		r := mustSend(t, c.remote(p.prefill.addr), l.sidecar.addr("http"), p.model)
		mustMatch(t, r, l.stream, p.want(t, c))
		if r.Decision.Verdict != pd.Remote {
			t.Errorf("decision %v although prefill came back", r.Decision)
		}
	}
	p.mustRelease(t, 0) // a new engine counts from 0
}

// heldLeg is a request whose decode leg has been sent and not arrived.
type heldLeg struct {
	pair    *pair
	stream  bool
	sidecar program
	gate    *gate
	got     chan reply
	want    []int
}

func holdLeg(t *testing.T, p *pair, stream bool) *heldLeg {
	t.Helper()
	l := &heldLeg{pair: p, stream: stream, gate: newGate(t, p.decode.addr, requests), got: make(chan reply, 1)}
	l.sidecar = startSidecar(t, l.gate.addr, "--first-event-timeout=10m")
	c := call{api: pd.APICompletions, prompt: p.fresh(200), tokens: 8, stream: stream}
	// The engines have met, so that decode has a connection that breaks.
	mustMatch(t, mustSend(t, c.remote(p.prefill.addr), l.sidecar.addr("http"), p.model), stream, p.want(t, c))
	c.prompt = p.fresh(200)
	l.want = p.want(t, c)
	l.gate.shut()
	go func() {
		r, err := c.remote(p.prefill.addr).send(t.Context(), l.sidecar.addr("http"), p.model) // an engine starts meanwhile
		if err != nil {
			t.Error(err)
		}
		l.got <- r
	}()
	<-l.gate.held
	return l
}

// mustEnd lets the leg arrive. Under the policy fail the sidecar sees it fail and has decode prefill; else decode does that by
// itself, and tells nobody.
func (l *heldLeg) mustEnd(t *testing.T, prefill string) {
	t.Helper()
	l.gate.release()
	r := <-l.got
	mustMatch(t, r, l.stream, l.want)
	want := pd.Result{Verdict: pd.Local, Reason: pd.TransferFailed}
	if l.pair.decode.addr == engines.recomputing.Address() {
		want = pd.Result{Verdict: pd.Remote, Reason: pd.External}
	}
	if r.Decision.Verdict != want.Verdict || r.Decision.Reason != want.Reason {
		t.Errorf("prefill %s, decode at %s, stream %v: decision %v, want %v", prefill, l.pair.decode.addr, l.stream, r.Decision, want)
	}
}
