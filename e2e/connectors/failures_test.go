package connectors_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/answer"
	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/realengine"
	"github.com/tandem-serving/tandem/e2e/vllm"
	"github.com/tandem-serving/tandem/pd"
)

// state is how far a request has come when something happens.
type state string

const (
	before      state = "before the request"
	decodeWaits state = "decode waits for the prefill leg"
	prefilling  state = "prefill computes"
	handedOff   state = "prefill has answered, decode has no leg"
	decoding    state = "decode generates"
)

// path is a sidecar between valves, in front of the pair.
type path struct {
	pair            *pair
	prefill, decode *harness.Valve
	sidecar         string
}

func newPath(t *testing.T, p *pair, flags ...string) *path {
	t.Helper()
	way := &path{pair: p, prefill: harness.NewValve(t, p.prefill.Address()), decode: harness.NewValve(t, p.decode.Address())}
	way.sidecar = p.sidecar(t, way.decode.Addr, flags...)
	way.mustServe(t, pd.Remote)
	return way
}

// mustServe fails unless both forms of a request are served.
func (w *path) mustServe(t *testing.T, how pd.Verdict) {
	t.Helper()
	for _, stream := range []bool{false, true} {
		c := newCall(pd.APICompletions, 100, 8, stream)
		got := harness.MustSend(t, c.Remote(w.prefill.Addr), w.sidecar, realengine.Model)
		mustEqual(t, c, got, w.pair.want(t, c))
		mustBe(t, got, how)
	}
}

// running is a request on its way.
type running struct {
	*path
	call  harness.Call
	state state
	want  answer.Answer
	begun time.Time
	got   chan ended
}

// ended is an answer, and when it was complete.
type ended struct {
	answer.Answer
	err error
	at  time.Time
}

// prepare makes a request that stays in a state for long enough, on a path of its own.
func prepare(t *testing.T, p *pair, s state, stream bool, flags ...string) *running {
	t.Helper()
	n, tokens := 300, 8
	switch s {
	case prefilling:
		n = 3500
	case decoding:
		tokens = 2000
	}
	r := &running{path: newPath(t, p, flags...), call: newCall(pd.APICompletions, n, tokens, stream), state: s, got: make(chan ended, 1)}
	r.want = p.want(t, r.call)
	return r
}

// reach starts the request and returns when it is in its state.
func (r *running) reach(t *testing.T, ctx context.Context) {
	t.Helper()
	p := r.pair
	done := func() float64 { return harness.SumOf(t, p.prefill.Address(), "vllm:request_success_total") }
	prefilled, prefillUses, decodeUses, decodeHas := done(), usage(t, p.prefill), usage(t, p.decode), requests(t, p.decode)
	switch r.state {
	case decodeWaits:
		r.prefill.Shut()
	case handedOff:
		r.decode.Shut()
	}
	r.start(ctx)
	switch r.state {
	case decodeWaits:
		<-r.prefill.Held
		if p.concurrent() {
			// By the number of requests: OffloadingConnector has a request without blocks until the peer has told what it has.
			await(t, string(r.state), harness.Patience, func() bool { return requests(t, p.decode) > decodeHas })
		}
	case handedOff:
		<-r.decode.Held
		await(t, string(r.state), harness.Patience, func() bool { return done() > prefilled })
	case prefilling:
		await(t, string(r.state), harness.Patience, func() bool { return usage(t, p.prefill) > prefillUses || done() > prefilled })
	case decoding:
		await(t, string(r.state), harness.Patience, func() bool { return usage(t, p.decode) > decodeUses && done() > prefilled })
	}
}

// concurrent reports whether both legs are sent at once.
func (p *pair) concurrent() bool { return p.name == "mooncake" || p.name == "offloading" }

// start sends the request.
func (r *running) start(ctx context.Context) {
	r.begun = time.Now()
	go func() {
		a, err := r.call.Remote(r.prefill.Addr).Send(ctx, r.sidecar, realengine.Model)
		r.got <- ended{a, err, time.Now()}
	}()
}

// release opens the valves.
func (r *running) release() {
	r.prefill.Release()
	r.decode.Release()
}

// told prints a row of the table of failures; rest 0: it was not measured for this row alone.
func told(p *pair, what string, s state, stream bool, rest time.Duration, how string) {
	row := fmt.Sprintf("       %-8s  %-16s  %-40s  %-6s  ", p.name, what, s, map[bool]string{true: "stream", false: "whole"}[stream])
	if rest > 0 {
		row += fmt.Sprintf("at rest after %5d ms  ", rest.Milliseconds())
	}
	fmt.Println(row + how)
}

// reachAll prepares requests in every form of some states, and has them reach those.
func reachAll(t *testing.T, p *pair, states []state, flags ...string) (all []*running) {
	t.Helper()
	for _, s := range states {
		for _, stream := range []bool{false, true} {
			all = append(all, prepare(t, p, s, stream, flags...))
		}
	}
	for _, r := range all {
		r.reach(t, harness.Within(t))
	}
	return all
}

// mustAnswer fails unless all requests are answered rightly, and prints what the failure has cost each.
func mustAnswer(t *testing.T, what string, all []*running, since time.Time) {
	t.Helper()
	for _, r := range all {
		got := <-r.got
		must(t, got.err)
		harness.MustMatch(t, got.Answer, r.call.Stream, r.want.Tokens)
		told(r.pair, what, r.state, r.call.Stream, 0, fmt.Sprintf("answered after %d ms, %v", got.at.Sub(since).Milliseconds(), got.Decision))
	}
}

// testClientGone has clients leave in every state.
func testClientGone(t *testing.T, p *pair) {
	for _, s := range []state{decodeWaits, prefilling, handedOff, decoding} {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			t.Run(string(s), func(t *testing.T) {
				r := prepare(t, p, s, stream)
				defer r.release()
				ctx, leave := context.WithCancel(harness.Within(t))
				defer leave()
				r.reach(t, ctx)
				leave()
				if got := <-r.got; got.err == nil {
					t.Error("the answer was complete before the client left")
				}
				r.release()
				limit := restWithin
				switch {
				case s != decoding && p.concurrent():
					limit = abort + 5*time.Second // decode keeps blocks for a prefill that never comes
				case p.engines.Connector == vllm.Push:
					limit = pushLease + 5*time.Second // decode may have dropped the leg before prefill has heard of it
				}
				told(p, "client gone", s, stream, p.mustRest(t, limit), "")
			})
		})
	}
	newPath(t, p)
}

// testPrefillKilled kills the prefill engine while requests of every state are on it. The client of none notices. Then it is started
// again, with another id at the same address, and serves at once.
func testPrefillKilled(t *testing.T, p *pair) {
	again := killPrefill(t, p, decodeWaits, handedOff, decoding, prefilling)
	told(p, "prefill killed", "all", false, p.mustRest(t, 4*abort+10*time.Second), "decode keeps blocks until its time-out")
	again()
	p.mustRest(t, restWithin)
}

// testFilesPrefillKilled is testPrefillKilled for engines that know nothing of each other.
func testFilesPrefillKilled(t *testing.T, p *pair) {
	again := killPrefill(t, p, handedOff, decoding)
	p.mustRest(t, restWithin)
	again()
}

// killPrefill kills the prefill engine while requests of these states are on it, and before others come. All must get their answers.
// again starts the engine, which must serve.
func killPrefill(t *testing.T, p *pair, states ...state) (again func()) {
	idle := []*running{prepare(t, p, before, false), prepare(t, p, before, true)}
	all := reachAll(t, p, states)
	must(t, p.prefill.Kill())
	killed := time.Now()
	for _, r := range all {
		r.release()
	}
	mustAnswer(t, "prefill killed", all, killed)
	for _, r := range idle {
		r.start(harness.Within(t))
		mustAnswer(t, "prefill killed", []*running{r}, r.begun)
	}
	return func() {
		must(t, p.prefill.Restart(t.Context()))
		idle[0].mustServe(t, pd.Remote)
	}
}

// testPrefillStopped stops the prefill engine, as on a node that hangs: it accepts and does not answer.
func testPrefillStopped(t *testing.T, p *pair) {
	all := reachAll(t, p, []state{decodeWaits, handedOff, decoding})
	must(t, p.prefill.Pause())
	t.Cleanup(func() { must(t, p.prefill.Resume()) })
	stopped := time.Now()
	for _, r := range all {
		r.release()
	}
	mustAnswer(t, "prefill stopped", all, stopped)
	must(t, p.prefill.Resume())
	told(p, "prefill stopped", "all", false, p.mustRest(t, 2*abort), "since it runs again")
	newPath(t, p)
}

// testDecodeKilled kills the decode engine: its clients get an error, and prefill holds nothing after its time-out.
func testDecodeKilled(t *testing.T, p *pair) {
	all := reachAll(t, p, []state{decodeWaits, handedOff, decoding})
	must(t, p.decode.Kill())
	killed := time.Now()
	for _, r := range all {
		r.release()
	}
	for _, r := range all {
		got := <-r.got
		told(p, "decode killed", r.state, r.call.Stream, 0, fmt.Sprintf("ended after %d ms: %d %s%.80s %v", got.at.Sub(killed).Milliseconds(), got.Status, got.Failed, got.Body, got.err))
		if got.err == nil && got.Failed == "" && got.Status < 500 {
			t.Errorf("%s: a dead engine has answered: %+v", r.state, got.Answer)
		}
	}
	told(p, "decode killed", "all", false, p.mustRest(t, abort+10*time.Second), "prefill keeps blocks until its time-out")
	must(t, p.decode.Restart(t.Context()))
	newPath(t, p)
	p.mustRest(t, restWithin)
}
