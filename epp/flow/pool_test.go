package flow_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// slots is a gate: a pool whose stages have so many slots for requests.
type slots struct {
	mu      sync.Mutex
	first   int // free ones
	prefill int
	empty   bool
}

func (s *slots) Saturation(split bool, _ int64, pending epp.InFlight, _ float64) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := s.first
	if split {
		free = s.prefill
	}
	if free-pending.Requests <= 0 {
		return 1
	}
	return 0.75
}

func (s *slots) Splits(r *epp.Request) bool { return r.Fit == request.FitSplit }

func (s *slots) Empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.empty
}

func (s *slots) setEmpty(empty bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.empty = empty
}

func (s *slots) add(first, prefill int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.first, s.prefill = s.first+first, s.prefill+prefill
}

// queue is a controller with a gate, and notes what becomes of the requests sent to it.
type queue struct {
	*flow.Controller
	gate    *slots
	mu      sync.Mutex
	passed  []string         // names of requests in the order in which they passed
	refused map[string]error // by name
	sending sync.WaitGroup
}

func newQueue(s flow.Settings, gate *slots) *queue {
	q := &queue{gate: gate, refused: map[string]error{}}
	q.Controller = flow.New(s, gate, flow.Options{Clock: epp.SystemClock})
	return q
}

// local returns a request of one token that the first stage alone serves.
func local(name string, priority int, flow string) *epp.Request {
	return &epp.Request{ID: name, API: pd.APIChat, Fit: request.FitLocal, Priority: priority, Bytes: 1,
		Prompt: epp.Prompt{Tokens: 1}, Headers: http.Header{"X-Llm-D-Inference-Fairness-Id": {flow}}}
}

// send sends a request. A pick that passes takes a slot and keeps it.
func (q *queue) send(ctx context.Context, r *epp.Request) {
	q.sending.Go(func() {
		pass, err := q.Admit(ctx, r)
		q.mu.Lock()
		defer q.mu.Unlock()
		if err != nil {
			q.refused[r.ID] = err
			return
		}
		q.passed = append(q.passed, r.ID)
		if q.gate.Splits(r) {
			q.gate.add(-1, -1)
		} else {
			q.gate.add(-1, 0)
		}
		q.Settled(r, pass)
	})
	synctest.Wait()
}

// drain frees one slot of each stage after the other until nothing waits, and ends.
func (q *queue) drain() {
	for q.View().Requests > 0 {
		q.free(1, 1)
	}
	q.sending.Wait()
}

// free frees slots.
func (q *queue) free(first, prefill int) {
	q.gate.add(first, prefill)
	q.SnapshotChanged()
	synctest.Wait()
}

func (q *queue) check(t *testing.T, when string, want ...string) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	if fmt.Sprint(q.passed) != fmt.Sprint(want) {
		t.Errorf("%s: passed %v, want %v", when, q.passed, want)
	}
}

func (q *queue) checkRefused(t *testing.T, name string, want pd.Reason) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	switch err := q.refused[name]; {
	case err == nil:
		t.Errorf("%s was not refused, want %s", name, want)
	case pd.AsRefusal(err).Reason != want:
		t.Errorf("%s was refused with %v, want %s", name, err, want)
	}
}

// names returns what has passed so far.
func (q *queue) names() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.passed)
}

// refusals returns how many requests were refused so far.
func (q *queue) refusals() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.refused)
}

func inBubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// pass has some time pass in a bubble. None is not a timer of 0, on which the runtime may crash: go1.26.8 with the race detector.
func pass(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
}

// names numbers requests of a flow: a0, a1, …
func names(flow string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(flow, i))
	}
	return all
}

const ttl = time.Minute
