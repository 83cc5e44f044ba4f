package sglang_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/sim/sglang"
	"github.com/tandem-serving/tandem/sim/simtest"
)

// pair is a pair in memory.
type pair struct {
	*simtest.SGLangNetwork
	p, d *simtest.SGLangEngine
}

func newPair(t *testing.T, change ...func(*sglang.Config)) *pair {
	t.Helper()
	n := simtest.NewSGLangNetwork()
	return &pair{n, n.Start(t, sglang.Prefill, change...), n.Start(t, sglang.Decode, change...)}
}

// leg is a request that is under way.
type leg struct {
	began time.Time
	took  time.Duration
	reply simtest.Reply
	done  chan struct{}
	leave context.CancelFunc
}

// send sends a request to /generate, and does not wait for its answer.
func send(t *testing.T, e *simtest.SGLangEngine, body any) *leg {
	t.Helper()
	ctx, leave := context.WithCancel(context.Background())
	t.Cleanup(leave)
	l := &leg{began: time.Now(), done: make(chan struct{}), leave: leave}
	go func() {
		defer close(l.done)
		l.reply = e.Post(ctx, "/generate", body)
		l.took = time.Since(l.began)
	}()
	return l
}

// answered reports whether a leg has its answer.
func (l *leg) answered() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// wait waits for the answer.
func (l *leg) wait() simtest.Reply {
	<-l.done
	return l.reply
}

// must waits for an answer that takes a time, give or take the times of steps and transfers, has a status, and a text.
func (l *leg) must(t *testing.T, status int, text string, after time.Duration) {
	t.Helper()
	r := l.wait()
	if r.Status != status || !strings.Contains(string(r.Body), text) {
		t.Errorf("answer is %d %.400s, want %d with %q", r.Status, r.Body, status, text)
	}
	if late := l.took - after; late < 0 || late > 500*time.Millisecond {
		t.Errorf("it took %v, want %v", l.took, after)
	}
}

var prompt = simtest.Prompt(1, 1000)

// body returns the body of one leg.
func (x *pair) body(room uint64, more ...map[string]any) map[string]any {
	return simtest.Generate(prompt, 8, append([]map[string]any{x.p.Meet(room)}, more...)...)
}

var streamed = map[string]any{"stream": true}

func rid(id string) map[string]any { return map[string]any{"rid": id} }

// mustRest fails unless the engines of the pair hold nothing.
func (x *pair) mustRest(t *testing.T) {
	t.Helper()
	synctest.Wait()
	for name, e := range map[string]*simtest.SGLangEngine{"prefill": x.p, "decode": x.d} {
		if st := e.State(); !st.Idle() {
			t.Errorf("%s holds %+v", name, st)
		}
	}
}

// works fails unless a pair generates what a plain engine does.
func (x *pair) works(t *testing.T, room uint64) {
	t.Helper()
	plain := x.Start(t, sglang.Plain)
	want := plain.Post(t.Context(), "/generate", simtest.Generate(prompt, 8)).Decoded(t)
	p, d := send(t, x.p, x.body(room)), send(t, x.d, x.body(room))
	if got := d.wait().Decoded(t); !slices.Equal(got.OutputIDs, want.OutputIDs) {
		t.Errorf("pair generated %v, want %v", got.OutputIDs, want.OutputIDs)
	}
	p.wait().Decoded(t)
}

const timeout = 300 * time.Second // of both legs, by default

// TestOrder: a leg that comes first waits for the other one, and the other one does not wait.
func TestOrder(t *testing.T) {
	for name, first := range map[string]func(*pair) (a, b *simtest.SGLangEngine){
		"prefill first": func(x *pair) (a, b *simtest.SGLangEngine) { return x.p, x.d },
		"decode first":  func(x *pair) (a, b *simtest.SGLangEngine) { return x.d, x.p },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newPair(t)
				a, b := first(x)
				early := send(t, a, x.body(5))
				simtest.Elapse(t, 2*time.Second)
				late := send(t, b, x.body(5))
				early.must(t, http.StatusOK, "output_ids", 2*time.Second)
				late.must(t, http.StatusOK, "output_ids", 0)
				x.mustRest(t)
			})
		})
	}
}

// TestLoneLegs: a leg whose other leg does not come ends with the time-out of its side. Decode holds pages for its whole prompt
// meanwhile, prefill none, and the gauges say nothing of either.
func TestLoneLegs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPair(t)
		p, d := send(t, x.p, x.body(1)), send(t, x.d, x.body(2))
		simtest.Elapse(t, time.Second)
		if l := x.p.Loads()[0]; l.Bootstrap != 1 || l.Waiting != 1 || l.Used != 0 {
			t.Errorf("prefill load %+v", l)
		}
		if l := x.d.Loads()[0]; l.Transfer != 1 || l.Waiting != 1 || l.Used != 1008 {
			t.Errorf("decode load %+v", l)
		}
		for _, e := range []*simtest.SGLangEngine{x.p, x.d} {
			if page := string(e.MetricsPage()); strings.Contains(page, "num_used_tokens") || strings.Contains(page, "queue_reqs") {
				t.Errorf("gauges without a batch:\n%s", page)
			}
		}
		p.must(t, http.StatusInternalServerError, "Prefill bootstrap failed", timeout)
		d.must(t, http.StatusInternalServerError, "Decode transfer failed", timeout)
		if want := "Request 1 timed out after 300.0s in KVPoll.Bootstrapping"; !strings.Contains(string(p.reply.Body), want) {
			t.Errorf("prefill said %s, want %q", p.reply.Body, want)
		}
		if want := "Request 2 timed out after 300.0s in KVPoll.WaitingForInput"; !strings.Contains(string(d.reply.Body), want) {
			t.Errorf("decode said %s, want %q", d.reply.Body, want)
		}
		x.mustRest(t)
		if page := string(x.d.MetricsPage()); !strings.Contains(page, "num_transfer_failed_reqs_total{") {
			t.Error("the failure was not counted")
		}
	})
}

// TestRefusedLeg: no engine learns that the other leg was refused.
func TestRefusedLeg(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPair(t)
		bad := x.body(1)
		bad["sampling_params"] = map[string]any{"temperature": -3}
		send(t, x.p, bad).must(t, http.StatusBadRequest, "temperature must be", 0)
		send(t, x.d, x.body(1)).must(t, http.StatusInternalServerError, "WaitingForInput", timeout)
	})
}

// TestClientLeaves: an engine notices that the client of a stream has left at once, and of a whole answer at the next look.
func TestClientLeaves(t *testing.T) {
	for _, c := range []struct {
		name   string
		more   map[string]any
		after  time.Duration // the start of the request
		decode bool
	}{
		{"whole, prefill", nil, 4 * time.Second, false}, {"stream, prefill", streamed, time.Second, false},
		{"whole, decode", nil, 4 * time.Second, true}, {"stream, decode", streamed, time.Second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := newPair(t)
				e, other := x.p, x.d
				if c.decode {
					e, other = x.d, x.p
				}
				l := send(t, e, x.body(3, c.more))
				simtest.Elapse(t, time.Second)
				l.leave()
				simtest.Elapse(t, c.after-time.Since(l.began)-time.Millisecond)
				synctest.Wait()
				if c.more == nil && e.State().Live != 1 {
					t.Error("the engine looked too early")
				}
				simtest.Elapse(t, 2*time.Millisecond)
				x.mustRest(t)
				late := send(t, other, x.body(3))
				if c.decode { // which has told prefill
					late.must(t, http.StatusInternalServerError, "Aborted by decode-side abort notification.", 0)
				} else {
					late.must(t, http.StatusInternalServerError, "WaitingForInput", timeout)
				}
			})
		})
	}
}

// TestRoomZero: decode takes the number 0 for none, and waits for ever; prefill has its answer.
func TestRoomZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPair(t)
		d := send(t, x.d, x.body(0))
		send(t, x.p, x.body(0)).must(t, http.StatusOK, "output_ids", 0)
		simtest.Elapse(t, time.Hour)
		if d.answered() || x.d.State().Transfer != 1 {
			t.Errorf("decode answered %s", d.reply.Body)
		}
		d.leave()
		simtest.Elapse(t, 4*time.Second)
		x.mustRest(t)
	})
}

// TestSameRoomTwice: of two pairs of the same number at once, one decode leg waits for ever, and both prefill legs have their
// answers. After the end of one pair the number is free.
func TestSameRoomTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newPair(t)
		hung, d := send(t, x.d, x.body(7)), send(t, x.d, x.body(7))
		p := []*leg{send(t, x.p, x.body(7)), send(t, x.p, x.body(7))}
		for _, l := range p {
			l.must(t, http.StatusOK, "output_ids", 0)
		}
		simtest.Elapse(t, time.Hour)
		if hung.answered() == d.answered() {
			t.Errorf("decode answered %s and %s, want one answer", hung.reply.Body, d.reply.Body)
		}
		x.works(t, 7)
		hung.leave()
		d.leave()
		simtest.Elapse(t, 5*time.Second)
		x.mustRest(t)
	})
}
