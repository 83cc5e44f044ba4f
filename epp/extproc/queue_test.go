package extproc

import (
	"runtime"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/pd"
)

// queued returns a pool whose requests have waited, and passes its decisions on.
func queued(waited time.Duration) (*pool, chan *epp.Decision) {
	p, made := newPool(a), make(chan *epp.Decision, 1)
	p.choose = func(r *epp.Request) (*epp.Decision, error) {
		d, err := p.local(r, p.endpoints...)
		d.Pass.Waited = waited
		made <- d
		return d, err
	}
	return p, made
}

// A client is told how long its request has waited for capacity, if it has.
func TestWaitIsTold(t *testing.T) {
	for _, tc := range []struct {
		waited time.Duration
		want   string
	}{{0, ""}, {time.Microsecond, "waited=1"}, {1500 * time.Millisecond, "waited=1500"}} {
		p, _ := queued(tc.waited)
		s := startRig(t, p).open(t, "")
		s.decide()
		s.send(responseHeaders(more, pd.HeaderDecision, "local;reason=bypassed", pd.HeaderTiming, "epp;dur=1"))
		if got := headersSet(t, s.recv())[pd.HeaderQueue]; got != tc.want {
			t.Errorf("after %v: %q, want %q", tc.waited, got, tc.want)
		}
		s.mustFinish()
	}
}

// A running request is ended early: its client gets the refusal, whatever stream waits for the answer, and its load ends.
func TestEvict(t *testing.T) {
	refusal := func() *pd.Refusal {
		r := pd.Refuse(pd.Evicted, "Go.")
		r.Token = "evicted"
		return r
	}
	for _, pair := range []bool{false, true} {
		for name, answer := range map[string]frames{"before the answer": nil, "within the answer": {responseHeaders(more)}} {
			t.Run(name, func(t *testing.T) {
				p, made := queued(0)
				r := startRig(t, p)
				s := r.open(t, map[bool]client.Mark{true: client.MarkPicker}[pair])
				plan := s.decide()[pd.HeaderPlan]
				d := <-made
				if pair {
					if _, err := s.rest(); err != nil {
						t.Fatal(err)
					}
					r.gone(t)
					if d.Reservation.Evict(refusal()) {
						t.Error("a request is ended whose answer no stream waits for")
					}
					s = r.open(t, client.MarkAcct)
					s.send(chat(more, pd.HeaderPlan, plan, epp.HeaderDestination, a))
					s.recv()
				}
				s.send(answer...)
				for range answer {
					s.recv()
				}
				awaitEvictable(t, d.Reservation, refusal())
				answers, err := s.rest()
				if err != nil || len(answers) != 1 || describe1(answers[0]) != "immediate 429" {
					t.Fatalf("the gateway gets %q, %v", describe(answers), err)
				}
				if got := headersSet(t, answers[0]); got[pd.HeaderDropped] != "evicted" || got["retry-after"] != "1" {
					t.Errorf("headers %v", got)
				}
				all := r.outcomes(t)
				if len(all) != 1 || all[0].Happened == nil || all[0].Happened.Reason != pd.Evicted || all[0].Status != 429 {
					t.Errorf("outcomes %+v", all)
				}
				r.pool.mustLoad(t, "0/0")
				if d.Reservation.Evict(refusal()) {
					t.Error("a request is ended that has ended")
				}
			})
		}
	}
}

// awaitEvictable evicts a request as soon as its stream is ready for that, which it is some microseconds after its answer to the
// gateway.
func awaitEvictable(t *testing.T, r *epp.Reservation, why *pd.Refusal) {
	t.Helper()
	late := within(t)
	for !r.Evict(why) {
		if late.Err() != nil {
			t.Fatal("the request cannot be ended")
		}
		runtime.Gosched()
	}
}
