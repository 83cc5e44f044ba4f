package sglang_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/answer"
	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/e2e/sglang"
	"github.com/tandem-serving/tandem/pd"
)

// state is how far a request has come when something happens.
type state string

const (
	prefillWaits state = "prefill waits for the decode leg"
	decodeWaits  state = "decode waits for the prefill leg"
	prefilling   state = "prefill computes"
	decoding     state = "decode generates"
)

var states = []state{prefillWaits, decodeWaits, prefilling, decoding}

// generating is the load of a decode engine that has begun an answer.
func generating(l sglang.Load) bool { return l.Running > 0 }

// path is a sidecar between valves, on one prefill engine and the decode engine.
type path struct {
	e               *engines
	engine          *sglang.Engine // that prefills
	prefill, decode *harness.Valve
	sidecar         harness.Program
}

func newPath(t *testing.T, e *engines, engine *sglang.Engine, flags ...string) *path {
	t.Helper()
	p := &path{e: e, engine: engine, prefill: harness.NewValve(t, engine.Address()), decode: harness.NewValve(t, e.decode.Address())}
	p.sidecar = startSidecar(t, p.decode.Addr, flags...)
	before, err := e.decode.Load(harness.Within(t))
	must(t, err)
	a := newAsk(pd.APICompletions, 20, 2, false) // the parts have met, and asked what they ask once
	mustEqual(t, a, a.from(p.prefill.Addr).at(t, p.sidecar.Addr("http")), a.at(t, e.plain.Address()))
	// SGLang counts a request as running until its next step, which comes after the answer.
	await(t, e.decode, "decode has ended the first request", harness.Patience, func(l sglang.Load) bool { return l.Running <= before.Running })
	return p
}

// asks returns a request that stays in a state for long enough.
func (p *path) ask(s state, stream bool) ask {
	switch s {
	case prefilling:
		return newAsk(pd.APICompletions, 3500, 8, stream)
	case decoding:
		return newAsk(pd.APICompletions, 100, 2000, stream)
	}
	return newAsk(pd.APICompletions, 300, 8, stream)
}

// hold prepares the valves for a state, in which all requests stay that begin now.
func (p *path) hold(s state) {
	switch s {
	case prefillWaits:
		p.decode.Shut()
	case decodeWaits:
		p.prefill.Shut()
	}
}

// unseen is how long after its start a prompt of prefilling is taken to be computed already: an engine that computes answers late when it is
// asked for its load, so that a short time on a busy machine may pass unseen.
const unseen = 5 * time.Second

// begin starts a request, and returns when it is in a state. It starts another one when one has been in the state prefilling unseen.
func (p *path) begin(t *testing.T, s state, start func()) {
	t.Helper()
	engine := p.engine
	if s == decodeWaits || s == decoding {
		engine = p.e.decode
	}
	before, err := engine.Load(harness.Within(t))
	must(t, err)
	p.hold(s)
	start()
	switch s {
	case prefillWaits:
		<-p.decode.Held
	case decodeWaits:
		<-p.prefill.Held
	}
	started := time.Now()
	await(t, engine, string(s), harness.Patience, func(l sglang.Load) bool {
		switch s {
		case prefilling:
			if l == before && time.Since(started) > unseen {
				start()
				started = time.Now()
			}
			return l != before
		case decoding:
			return l.Running > before.Running
		}
		return l.Pairing > before.Pairing
	})
}

// release opens the valves.
func (p *path) release() {
	p.prefill.Release()
	p.decode.Release()
}

// testClientGone has clients leave in every state, and says how long it takes until the engines hold nothing of them.
func testClientGone(t *testing.T, e *engines) {
	p := newPath(t, e, e.prefill)
	for _, s := range states {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			t.Run(string(s), func(t *testing.T) {
				defer p.release()
				ctx, leave := context.WithCancel(harness.Within(t))
				defer leave()
				ended, begun := make(chan error, harness.Patience/unseen+1), 0
				p.begin(t, s, func() {
					begun++
					go func() {
						_, err := p.ask(s, stream).from(p.prefill.Addr).send(ctx, p.sidecar.Addr("http"))
						ended <- err
					}()
				})
				leave()
				left := 0
				for range begun {
					if err := <-ended; err != nil {
						left++
					}
				}
				if left == 0 {
					t.Error("the answer was complete before the client left")
				}
				told(t, "client gone", s, stream, e.mustRest(t, restWithin), "")
			})
		})
	}
	p.mustServe(t, p.prefill.Addr)
}

// told prints a row of the table of failures; rest 0: it was not measured for this row alone.
func told(t *testing.T, what string, s state, stream bool, rest time.Duration, how string) {
	t.Helper()
	row := fmt.Sprintf("       %-20s  %-34s  %-6s  ", what, s, map[bool]string{true: "stream", false: "whole"}[stream])
	if rest > 0 {
		row += fmt.Sprintf("at rest after %5d ms  ", rest.Milliseconds())
	}
	fmt.Println(row + how)
}

// mustServe fails unless both forms of a request are served remotely by these prefill pods.
func (p *path) mustServe(t *testing.T, prefills ...string) {
	t.Helper()
	for _, stream := range []bool{false, true} {
		a := newAsk(pd.APICompletions, 100, 8, stream)
		got := a.from(prefills...).at(t, p.sidecar.Addr("http"))
		mustEqual(t, a, got, a.at(t, p.e.plain.Address()))
		mustBe(t, got, pd.Remote)
	}
}

// testRefused has an engine refuse a request: the client gets its words at once, and no leg is left waiting.
func testRefused(t *testing.T, e *engines) {
	p := newPath(t, e, e.prefill)
	for _, members := range []map[string]any{{"max_tokens": 5000}, {"temperature": -1}, {"top_p": "x"}, {"max_tokens": -1}} {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			a := newAsk(pd.APICompletions, 100, 8, stream).with(members)
			want := a.at(t, e.plain.Address())
			began := time.Now()
			got := a.from(p.prefill.Addr).at(t, p.sidecar.Addr("http"))
			took := time.Since(began)
			if got.Status != want.Status || got.Body != want.Body || want.Status != http.StatusBadRequest {
				t.Errorf("%v: status %d %s, the engine itself says %d %s", members, got.Status, got.Body, want.Status, want.Body)
			}
			told(t, "refused", state(fmt.Sprint(members)), stream, e.mustRest(t, restWithin), took.Round(time.Millisecond).String())
		})
	}
}

// testAborted has an operator abort every request of the decode engine, which answers 200 to them all: a whole answer comes from a second
// try, and a stream that has begun ends with an error event.
func testAborted(t *testing.T, e *engines) {
	p := newPath(t, e, e.prefill)
	for _, api := range []pd.API{pd.APICompletions, pd.APIChat, pd.APIResponses, pd.APISGLang} {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			a := newAsk(api, 100, 400, stream)
			want := a.at(t, e.plain.Address())
			// SGLang's Responses API has no ignore_eos, so that the answer to a prompt of random words may be short.
			for tries := 1; api == pd.APIResponses && len(want.Tokens) < 200; tries++ {
				if tries == 5 {
					t.Fatalf("the answers to %d prompts are short, the last has %d characters", tries, len(want.Tokens))
				}
				a = newAsk(api, 100, 400, stream)
				want = a.at(t, e.plain.Address())
			}
			var got <-chan answer.Answer
			p.begin(t, decoding, func() { got = a.from(p.prefill.Addr, e.ranked.Address()).begin(t, p.sidecar.Addr("http")) })
			mustBeAnswered(t, e.decode.Address()+"/abort_request", `{"abort_all":true}`, nil)
			if r := <-got; stream {
				if r.Status != http.StatusOK || r.Failed == "" {
					t.Errorf("%s: status %d, no error event", api, r.Status)
				}
			} else if mustEqual(t, a, r, want); r.Decision.Attempts != 2 {
				t.Errorf("%s: %v", api, r.Decision)
			}
			told(t, "aborted", state(api.String()), stream, e.mustRest(t, restWithin), "")
		})
	}
}

// running is a request on its way.
type running struct {
	ask
	state state
	got   <-chan ended
	want  answer.Answer
	path  *path
}

// ended is an answer, and when it was complete.
type ended struct {
	answer.Answer
	at time.Time
}

// prepare makes a request for a state, on a path of its own. All are prepared before the first is begun: engines and sidecars
// do not wait for long.
func prepare(t *testing.T, e *engines, s state, stream bool, flags ...string) *running {
	t.Helper()
	r := &running{state: s, path: newPath(t, e, e.prefill, flags...)}
	r.ask = r.path.ask(s, stream)
	r.want = r.at(t, e.plain.Address())
	return r
}

// reach starts the request and returns when it is in its state. It may try the second engine too.
func (r *running) reach(t *testing.T) {
	t.Helper()
	r.path.begin(t, r.state, func() {
		got := r.from(r.path.prefill.Addr, r.path.e.ranked.Address()).begin(t, r.path.sidecar.Addr("http"))
		done := make(chan ended, 1)
		go func() { a := <-got; done <- ended{a, time.Now()} }()
		r.got = done
	})
}

// testPrefillKilled kills the prefill engine while requests of every state are on it. The client of none notices; then the
// engine is started again, at once, and serves.
func testPrefillKilled(t *testing.T, e *engines) {
	var all []*running
	for _, s := range []state{prefillWaits, decodeWaits, decoding} {
		for _, stream := range []bool{false, true} {
			all = append(all, prepare(t, e, s, stream))
		}
	}
	for _, stream := range []bool{false, true} { // last: it does not stay in its state
		all = append(all, prepare(t, e, prefilling, stream))
	}
	for _, r := range all {
		r.reach(t)
	}
	must(t, e.prefill.Kill())
	killed := time.Now()
	for _, r := range all {
		r.path.release()
	}
	for _, r := range all {
		got := <-r.got
		took := got.at.Sub(killed)
		mustEqual(t, r.ask, got.Answer, r.want)
		mustBe(t, got.Answer, pd.Remote)
		told(t, "prefill killed", r.state, r.stream(), 0, fmt.Sprintf("answered after %d ms, %v", took.Milliseconds(), got.Decision))
	}
	p := newPath(t, e, e.ranked)
	p.mustServe(t, e.prefill.Address(), e.ranked.Address()) // it is dead before they begin
	told(t, "prefill killed", "all", false, e.mustRest(t, deferredRelease), "decode keeps pages of a broken transfer up to 30 s")

	must(t, e.prefill.Restart(t.Context()))
	p.mustServe(t, e.prefill.Address())

	// Decode is stopped meanwhile, so that it cannot notice that another engine has come: its route leads to the one of before.
	must(t, e.decode.Pause())
	t.Cleanup(func() { must(t, e.decode.Resume()) })
	must(t, e.prefill.Restart(t.Context()))
	must(t, e.decode.Resume())
	began := time.Now()
	for n := 1; ; n++ {
		a := newAsk(pd.APICompletions, 100, 8, n%2 == 0)
		got := a.from(e.prefill.Address(), e.ranked.Address()).at(t, p.sidecar.Addr("http"))
		mustEqual(t, a, got, a.at(t, e.plain.Address()))
		if got.Decision.Verdict == pd.Remote && got.Decision.Candidate == 0 {
			told(t, "prefill restarted", "decode has its old route", n%2 == 0, 0, fmt.Sprintf("cured by request %d, after %d ms", n, time.Since(began).Milliseconds()))
			break
		}
		if time.Since(began) > harness.Patience {
			t.Fatalf("request %d was not served by the engine that was restarted: %v", n, got.Decision)
		}
	}
	e.mustRest(t, deferredRelease)
}

// deferredRelease is how long decode keeps the pages of a request whose transfer broke, if prefill does not tell that it has
// ended: SGLang's own limit, and its time to notice.
const deferredRelease = 45 * time.Second

// testPrefillStopped stops the prefill engine, as on a node that hangs: it accepts and does not answer.
func testPrefillStopped(t *testing.T, e *engines) {
	var all []*running
	for _, s := range []state{prefillWaits, decodeWaits, decoding} {
		for _, stream := range []bool{false, true} {
			all = append(all, prepare(t, e, s, stream, "--prefill-timeout=5s", "--first-event-timeout=5s"))
		}
	}
	for _, r := range all {
		r.reach(t)
	}
	must(t, e.prefill.Pause())
	t.Cleanup(func() { must(t, e.prefill.Resume()) })
	stopped := time.Now()
	for _, r := range all {
		r.path.release()
	}
	for _, r := range all {
		got := <-r.got
		took := got.at.Sub(stopped)
		mustEqual(t, r.ask, got.Answer, r.want)
		mustBe(t, got.Answer, pd.Remote)
		told(t, "prefill stopped", r.state, r.stream(), 0, fmt.Sprintf("answered after %d ms, %v", took.Milliseconds(), got.Decision))
	}
	must(t, e.prefill.Resume())
	told(t, "prefill stopped", "all", false, e.mustRest(t, deferredRelease), "since it runs again")
	newPath(t, e, e.prefill).mustServe(t, e.prefill.Address())
}

// testDecodeKilled kills the decode engine: its clients get an error at once, and prefill holds nothing. Then it is started
// again and serves.
func testDecodeKilled(t *testing.T, e *engines) {
	type late struct {
		*running
		ended chan string
	}
	var all []late
	for _, s := range []state{prefillWaits, decodeWaits, decoding} {
		for _, stream := range []bool{false, true} {
			p := newPath(t, e, e.prefill)
			r := &running{ask: p.ask(s, stream), state: s, path: p}
			l := late{r, make(chan string, 1)}
			ctx := harness.Within(t)
			p.begin(t, s, func() {
				go func() {
					got, err := r.from(p.prefill.Addr).send(ctx, p.sidecar.Addr("http"))
					l.ended <- fmt.Sprintf("%d %s%.80s %v", got.Status, got.Failed, got.Body, err)
				}()
			})
			all = append(all, l)
		}
	}
	must(t, e.decode.Kill())
	killed := time.Now()
	for _, l := range all {
		l.path.release()
	}
	for _, l := range all {
		how := <-l.ended
		told(t, "decode killed", l.state, l.stream(), 0, fmt.Sprintf("ended after %d ms: %s", time.Since(killed).Milliseconds(), how))
		if took := time.Since(killed); took > patience {
			t.Errorf("%s: the client waited %v for its error", l.state, took)
		}
	}
	told(t, "decode killed", "all", false, e.mustRest(t, restWithin), "")
	must(t, e.decode.Restart(t.Context()))
	newPath(t, e, e.prefill).mustServe(t, e.prefill.Address())
	e.mustRest(t, restWithin)
}

// testNoPrefill has every prefill engine dead: clients are refused at once.
func testNoPrefill(t *testing.T, e *engines) {
	f := newStack(t, e, e.prefill, e.ranked)
	must(t, e.prefill.Kill())
	must(t, e.ranked.Kill())
	for _, api := range apis {
		harness.BothForms(t, func(t *testing.T, stream bool) {
			began := time.Now()
			got := newAsk(api, 200, 8, stream).at(t, f.Front.Addr)
			if got.Status != http.StatusServiceUnavailable || got.Decision.Verdict != pd.Refused {
				t.Errorf("%s: status %d, decision %v: %s", api, got.Status, got.Decision, got.Body)
			}
			told(t, "no prefill", state(api.String()), stream, e.mustRest(t, deferredRelease), fmt.Sprintf("%d %v after %d ms", got.Status, got.Decision, time.Since(began).Milliseconds()))
		})
	}
	f.MustRest(t)
	must(t, e.prefill.Restart(t.Context()))
	must(t, e.ranked.Restart(t.Context()))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
