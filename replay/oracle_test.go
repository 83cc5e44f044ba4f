package replay

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestCourseIsWhatHappens: as long as no request comes, what a course says is what happens: to requests that wait for their prefill, are on their way to
// decode, or are decoded there.
func TestCourseIsWhatHappens(t *testing.T) {
	for _, at := range []time.Duration{0, 500 * time.Microsecond, 40 * time.Millisecond, 250 * time.Millisecond, 700 * time.Millisecond} {
		o := options(t, 2048, "1P+2D")
		o.Oracle = true
		trace := &Trace{Wanted: SLO{time.Second, 50 * time.Millisecond}}
		for i := range 12 {
			trace.Requests = append(trace.Requests, Request{Input: 500 + 700*i%5000, Output: 1 + 17*i%60})
		}
		var foreseen []Record
		watch(t, o, trace, at, func(w *world) {
			c := w.course()
			if !c.run() {
				t.Fatal("a request waits for nothing")
			}
			for _, p := range c.ways {
				foreseen = append(foreseen, p.record)
			}
		}, func(r *Result) {
			if len(foreseen) == 0 {
				t.Fatalf("nothing is on its way after %v", at)
			}
			for _, one := range foreseen {
				// Transfers that share a port each take longer here than one after another in a course.
				is := &r.Records[one.Index]
				if d := (is.E2E - one.E2E).Abs(); d > 40*time.Millisecond {
					t.Errorf("after %v: request %d (remote %v) was to end after %v, and ends after %v", at, one.Index, is.Remote, one.E2E, is.E2E)
				}
				if d := (is.TTFT - one.TTFT).Abs(); d > 40*time.Millisecond {
					t.Errorf("after %v: request %d (remote %v) was to have its first token after %v, and has it after %v", at, one.Index, is.Remote, one.TTFT, is.TTFT)
				}
			}
		})
	}
}

// watch replays a trace, and looks at the world at a moment, after what happens then.
func watch(t *testing.T, o Options, trace *Trace, at time.Duration, look func(*world), result func(*Result)) {
	t.Helper()
	w := newWorld(&o, trace)
	p := &picker{world: w}
	built, err := p.build(0)
	if err != nil {
		t.Fatal(err)
	}
	defer built.Close()
	w.pickers = append(w.pickers, p)
	w.spec = p.sched.Needs()
	w.begin(0)
	looked := false
	for w.left > 0 {
		if !looked && w.clock.events[0].at > at {
			looked = true
			w.clock.now = at
			look(w)
		}
		if !w.step() {
			t.Fatal("requests wait for nothing")
		}
	}
	result(w.finish())
}

// TestOracleKnowsLengths: of decode engines that run as many requests as they may, some will be free soon, because their answers are short. No picker
// can tell which, and the oracle sends the next requests there.
func TestOracleKnowsLengths(t *testing.T) {
	o, random := options(t, 2048, "3B"), random(3)
	o.Engine.Sequences = 4
	trace, now := &Trace{Wanted: SLO{time.Second, 50 * time.Millisecond}}, time.Duration(0)
	for range 80 {
		now += time.Duration(random.ExpFloat64() * float64(180*time.Millisecond))
		output := 20
		if random.IntN(5) == 0 {
			output = 600
		}
		trace.Requests = append(trace.Requests, Request{Due: now, Input: 100, Output: output})
	}
	met := func() (n int) {
		for _, one := range replayed(t, o, trace).Records {
			if trace.Wanted.Met(&one) {
				n++
			}
		}
		return n
	}
	without := met()
	o.Oracle = true
	if with := met(); with < without+4 {
		t.Errorf("%d of 80 requests are served as wanted with the oracle, %d without", with, without)
	}
}

func TestOracleNeedsAnEngineThatComputesFirst(t *testing.T) {
	o := options(t, 2048, "1P+1D")
	o.Oracle, o.Engine.TokenArrives = true, true
	if _, err := Run(t.Context(), o, conversation(t)); err == nil || !strings.Contains(fmt.Sprint(err), "the oracle knows only engines") {
		t.Errorf("error %v", err)
	}
}
