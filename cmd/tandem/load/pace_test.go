package load

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/client"
)

// server is an endpoint that takes some time for each answer, and answers nothing while it stalls.
type server struct {
	took       time.Duration
	from, till time.Time // of the stall
}

func (s *server) send(ctx context.Context) *client.Answer {
	a := &client.Answer{Sent: time.Now()}
	ready := time.Now().Add(s.took)
	if !ready.Before(s.from) && time.Now().Before(s.till) {
		ready = s.till.Add(s.took)
	}
	if !sleepUntil(ctx, ready) {
		a.Failure = &client.Failure{Reason: client.ReasonTimeout}
	}
	a.First, a.End = time.Now(), time.Now()
	return a
}

// every returns due times at a constant distance.
func every(gap time.Duration, n int) (dues []time.Duration) {
	for i := range n {
		dues = append(dues, time.Duration(i)*gap)
	}
	return dues
}

func (s *server) pacer(dues []time.Duration, limit int) *pacer {
	return &pacer{dues: dues, limit: limit, span: time.Minute, grace: time.Minute,
		prepare: func(int) *request { return &request{send: s.send} }}
}

// slowest returns the longest E2E, and how many took more than twice what the server takes.
func slowest(s *server, samples []sample) (most time.Duration, slow int) {
	for i := range samples {
		e2e := samples[i].e2e()
		most = max(most, e2e)
		if e2e > 2*s.took {
			slow++
		}
	}
	return most, slow
}

func TestOpenLoopSendsEachCallWhenItIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{took: time.Second}
		began := time.Now()
		samples := s.pacer(every(100*time.Millisecond, 50), 1000).open(t.Context())
		for i := range samples {
			if samples[i].due != time.Duration(i)*100*time.Millisecond || samples[i].lateness() != 0 || samples[i].e2e() != time.Second {
				t.Errorf("call %d was due at %v, %v late, took %v", i, samples[i].due, samples[i].lateness(), samples[i].e2e())
			}
		}
		if took := time.Since(began); took != 4900*time.Millisecond+time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A stall of two seconds delays every request that was due in it. An open loop shows all of them, at whatever limit of requests in
// flight; a closed loop shows only those that were in flight, because the others were not sent.
func TestStallIsVisible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const stall, gap = 2 * time.Second, 10 * time.Millisecond
		run := func(limit int, loop func(*pacer, context.Context) []sample) (time.Duration, int) {
			s := &server{took: gap, from: time.Now().Add(time.Second), till: time.Now().Add(time.Second + stall)}
			return slowest(s, loop(s.pacer(every(gap, 500), limit), t.Context()))
		}
		for _, limit := range []int{2, 1000} {
			most, slow := run(limit, (*pacer).open)
			if most < stall || slow < 190 {
				t.Errorf("with %d in flight, the longest took %v and %d were slow, want %v and 190 or more", limit, most, slow, stall)
			}
		}
		if most, slow := run(2, (*pacer).closed); most < stall || slow > 2 {
			t.Errorf("in a closed loop, the longest took %v and %d were slow", most, slow)
		}
	})
}

func TestLimitDelaysAndIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{took: time.Second}
		samples := s.pacer(every(0, 4), 2).open(t.Context())
		var late []time.Duration
		for i := range samples {
			late = append(late, samples[i].lateness())
			if samples[i].e2e() != samples[i].lateness()+time.Second {
				t.Errorf("call %d took %v", i, samples[i].e2e())
			}
		}
		if want := []time.Duration{0, 0, time.Second, time.Second}; !slices.Equal(late, want) {
			t.Errorf("late by %v, want %v", late, want)
		}
	})
}

// An endpoint that never answers cannot keep a round from ending.
func TestRoundEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{took: time.Hour}
		began := time.Now()
		samples := s.pacer(every(time.Second, 60), 3).open(t.Context())
		if took := time.Since(began); took != 2*time.Minute {
			t.Errorf("it took %v", took)
		}
		sent := 0
		for i := range samples {
			if samples[i].sent() {
				sent++
			}
		}
		if sent != 3 || len(samples) != 60 {
			t.Errorf("%d of %d sent", sent, len(samples))
		}
	})
}

func TestClosedLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{took: time.Second}
		began := time.Now()
		samples := s.pacer(make([]time.Duration, 10), 4).closed(t.Context())
		if took := time.Since(began); took != 3*time.Second || len(samples) != 10 {
			t.Errorf("%d calls took %v, want 10 and 3s", len(samples), took)
		}
		p := s.pacer(make([]time.Duration, 1000), 4)
		p.span = 2500 * time.Millisecond
		if samples := p.closed(t.Context()); len(samples) != 12 {
			t.Errorf("%d calls in 2.5 s, want 12", len(samples))
		}
	})
}

func TestInterruptEndsBothLoops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, loop := range map[string]func(*pacer, context.Context) []sample{"open": (*pacer).open, "closed": (*pacer).closed} {
			ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
			s := &server{took: time.Second}
			began := time.Now()
			samples := loop(s.pacer(every(100*time.Millisecond, 500), 4), ctx)
			cancel()
			whole := newTally(samples, nil, false).answered
			if took := time.Since(began); took != 1500*time.Millisecond || whole != 4 {
				t.Errorf("%s: %d answered in %v", name, whole, took)
			}
		}
	})
}
