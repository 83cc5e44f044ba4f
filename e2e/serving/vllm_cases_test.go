package serving

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// testToolChoice forces a tool, which a prefill leg of one token cannot call.
func testToolChoice(t *testing.T) {
	f := harness.NewStack(t, harness.Layout{Proxy: "envoy", Mode: "pair"}, 1, 1)
	const tool = `{"type":"function","function":{"name":"weather","parameters":{"type":"object",` +
		`"properties":{"city":{"type":"string","enum":["Bremen","Ulm"]}},"required":["city"],"additionalProperties":false}}}`
	for name, choice := range map[string]string{"required": `"required"`, "named": `{"type":"function","function":{"name":"weather"}}`} {
		t.Run(name, func(t *testing.T) {
			harness.BothForms(t, func(t *testing.T, stream bool) {
				body := fmt.Sprintf(`{"model":%q,"temperature":0,"max_tokens":64,"stream":%t,"tools":[%s],"tool_choice":%s,`+
					`"messages":[{"role":"user","content":%q}]}`, f.Model, stream, tool, choice, harness.Words(40))
				wantStatus, want := postTo(t, f.Plain.Addr, pd.APIChat.Path(), body)
				status, got := post(t, f, pd.APIChat.Path(), body, pd.HeaderMode, "force;fallback")
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
	f.MustRest(t)
}

// spoken returns the text in an answer of the chat API, with the arguments of its tool calls.
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
// Hand-offs that are never read, made meanwhile, are the clock: each expires after one lease.
func testLeaseInTheQueue(t *testing.T) {
	p := engines.pair(t, engines.recomputing)
	expired := p.Prefill.Expired
	const queued = 4 * recomputingRuns // fillers, which go on longer than the test has to wait
	ctx, leave := context.WithCancel(t.Context())
	var fillers sync.WaitGroup
	defer fillers.Wait()
	defer leave()
	for range queued {
		c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(20), Tokens: harness.WholeModel, Stream: true}
		fillers.Go(func() { _, _ = c.Send(ctx, p.Decode.Addr, p.Model) })
	}
	waiting := func(n float64) {
		harness.WaitMetric(t, p.Decode, "vllm:num_requests_waiting", func(v float64) bool { return v >= n })
	}
	waiting(queued - recomputingRuns)
	s := harness.StartSidecar(t, p.Decode.Addr, "--first-event-timeout=10m")
	var got [2]<-chan harness.Reply
	var want [2][]int
	for i := range got {
		c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(200), Tokens: 8, Stream: i == 1}
		want[i] = p.Want(t, c)
		got[i] = harness.Begin(t, c.Remote(p.Prefill.Addr), s.Addr("http"), p.Model)
	}
	waiting(queued - recomputingRuns + float64(len(got)))
	const leases = 2
	for n := range leases {
		handOff(t, p, harness.Call{API: pd.APICompletions, Prompt: p.Fresh(40)})
		harness.WaitMetric(t, p.Prefill, harness.Expiries, func(v float64) bool { return v > expired+float64(n) })
	}
	if p.Decode.Metric(t, "vllm:num_requests_waiting") < float64(len(got)) {
		t.Error("the queue was too short for this test")
	}
	leave()
	for i := range got {
		r := <-got[i]
		harness.MustMatch(t, r, i == 1, want[i])
		if r.Decision.Verdict != pd.Remote {
			t.Errorf("decision %v", r.Decision)
		}
	}
	p.MustRelease(t, expired+leases)
}

// testPolicies has prefill die while decode legs are on their way to it. Half of them arrive at decode before another prefill
// engine stands at its address, half after. Under both load policies every answer is right.
func testPolicies(t *testing.T) {
	var dead, replaced []*heldLeg
	for _, decode := range []*harness.Pair{engines.pair(t, engines.failing), engines.pair(t, engines.recomputing)} {
		for _, stream := range []bool{false, true} {
			dead = append(dead, holdLeg(t, decode, stream))
			replaced = append(replaced, holdLeg(t, decode, stream))
		}
	}
	p := dead[0].pair
	p.Prefill.Kill(t)
	for _, l := range dead {
		l.mustEnd(t, "dead")
	}
	p.Revive(t)
	for _, l := range replaced {
		l.mustEnd(t, "replaced")
		c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(200), Tokens: 8, Stream: l.stream}
		r := harness.MustSend(t, c.Remote(p.Prefill.Addr), l.sidecar.Addr("http"), p.Model)
		harness.MustMatch(t, r, l.stream, p.Want(t, c))
		if r.Decision.Verdict != pd.Remote {
			t.Errorf("decision %v although prefill came back", r.Decision)
		}
	}
	p.MustRelease(t, 0) // a new engine counts from 0
}

// heldLeg is a request whose decode leg has been sent and not arrived.
type heldLeg struct {
	pair    *harness.Pair
	stream  bool
	sidecar harness.Program
	gate    *harness.Gate
	got     chan harness.Reply
	want    []int
}

func holdLeg(t *testing.T, p *harness.Pair, stream bool) *heldLeg {
	t.Helper()
	l := &heldLeg{pair: p, stream: stream, gate: harness.NewGate(t, p.Decode.Addr, harness.Requests), got: make(chan harness.Reply, 1)}
	l.sidecar = harness.StartSidecar(t, l.gate.Addr, "--first-event-timeout=10m", "--hang-after=0") // the gate is shut for long
	c := harness.Call{API: pd.APICompletions, Prompt: p.Fresh(200), Tokens: 8, Stream: stream}
	// The engines have met, so that decode has a connection that breaks.
	harness.MustMatch(t, harness.MustSend(t, c.Remote(p.Prefill.Addr), l.sidecar.Addr("http"), p.Model), stream, p.Want(t, c))
	c.Prompt = p.Fresh(200)
	l.want = p.Want(t, c)
	l.gate.Shut()
	go func() {
		r, err := c.Remote(p.Prefill.Addr).Send(t.Context(), l.sidecar.Addr("http"), p.Model) // an engine starts meanwhile
		if err != nil {
			t.Error(err)
		}
		l.got <- r
	}()
	<-l.gate.Held
	return l
}

// mustEnd lets the leg arrive. Under the policy fail the sidecar sees it fail and has decode prefill; else decode does that by
// itself, and notifies no agent.
func (l *heldLeg) mustEnd(t *testing.T, prefill string) {
	t.Helper()
	l.gate.Release()
	r := <-l.got
	harness.MustMatch(t, r, l.stream, l.want)
	want := pd.Result{Verdict: pd.Local, Reason: pd.TransferFailed}
	if l.pair.Decode.Addr == engines.recomputing.Address() {
		want = pd.Result{Verdict: pd.Remote, Reason: pd.External}
	}
	if r.Decision.Verdict != want.Verdict || r.Decision.Reason != want.Reason {
		t.Errorf("prefill %s, decode at %s, stream %v: decision %v, want %v", prefill, l.pair.Decode.Addr, l.stream, r.Decision, want)
	}
}
