package flow_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
	"github.com/tandem-serving/tandem/pd"
)

// busy is a pool of one endpoint whose requests can be evicted.
type busy struct {
	*flow.Controller
	endpoint *epp.Endpoint
	running  *flow.Running
	takes    time.Duration // from an eviction to the end of the request; negative: it does not end

	mu      sync.Mutex
	evicted []string // names of requests, in their order
	passed  []string
	sending sync.WaitGroup
}

// newBusy makes a pool that takes as many requests as run, of these priorities. Their names are 0, 1, ….
func newBusy(takes time.Duration, eviction flow.Eviction, priorities ...int) *busy {
	p := newFixed(0, "decode")
	b := &busy{endpoint: p.snapshot.Endpoints[0], running: flow.NewRunning(epp.SystemClock), takes: takes}
	gate := flow.NewPoolGate(flow.GateOptions{Pool: p, Detector: perEndpoint{float64(len(priorities)), new(int)}, Clock: epp.SystemClock,
		Stale: time.Hour, Stages: epp.Stages{epp.DecodeRow("decode")}})
	b.Controller = flow.New(flow.Settings{TTL: time.Hour, Eviction: eviction}, gate, flow.Options{Clock: epp.SystemClock, Running: b.running})
	for i, priority := range priorities {
		b.run(fmt.Sprint(i), priority)
	}
	return b
}

// run has a request run, which ends some time after its eviction.
func (b *busy) run(name string, priority int) *epp.Reservation {
	r := epp.ReserveAnyway(epp.Claim{Endpoint: b.endpoint, Add: epp.InFlight{Requests: 1}})
	b.running.Picked(nil, nil, &epp.Decision{Origin: epp.Origin{Flow: name, Priority: priority}, Reservation: r})
	r.OnEvict(func(why *pd.Refusal) {
		b.mu.Lock()
		b.evicted = append(b.evicted, name)
		b.mu.Unlock()
		if why.Reason != pd.Evicted || why.Dropped() != "evicted" {
			panic(why)
		}
		if b.takes >= 0 {
			pass(b.takes)
			r.End()
			b.SnapshotChanged()
		}
	})
	return r
}

// send sends a request, which runs when it has passed.
func (b *busy) send(t *testing.T, name string, priority int) {
	b.sending.Go(func() {
		r := local(name, priority, "a")
		r.Prompt.Tokens = 0
		pass, err := b.Admit(t.Context(), r)
		b.mu.Lock()
		defer b.mu.Unlock()
		if err != nil {
			return
		}
		b.passed = append(b.passed, name)
		b.run(name, priority)
		b.Settled(r, pass)
	})
	synctest.Wait()
}

func (b *busy) check(t *testing.T, when string, evicted, passed []string) {
	t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.evicted, evicted) || !slices.Equal(b.passed, passed) {
		t.Errorf("%s: %v are evicted and %v pass, want %v and %v", when, b.evicted, b.passed, evicted, passed)
	}
}

// sort orders the evicted requests by their names, as those of one round end at the same time.
func (b *busy) sort() {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.Sort(b.evicted)
}

func (b *busy) close() {
	b.Close()
	b.sending.Wait()
}

// TestRunningRequestsAreEvicted holds which of four running requests ends for one that waits.
func TestRunningRequestsAreEvicted(t *testing.T) {
	on := flow.Eviction{On: true, Grace: 10 * time.Millisecond}
	for _, tc := range []struct {
		name     string
		eviction flow.Eviction
		running  []int
		comes    int
		evicted  []string
	}{
		{"off", flow.Eviction{}, []int{-1, -1, -1, -1}, 0, nil},
		{"the newest of the lowest priority", on, []int{-1, -2, -2, 0}, 0, []string{"2"}},
		{"for one that is sheddable too", on, []int{-1, -2, -1, 0}, -1, []string{"1"}},
		{"not for an equal one", on, []int{-1, -1, 0, 0}, -1, nil},
		{"none is sheddable", on, []int{0, 1, 0, 0}, 7, nil},
	} {
		inBubble(t, tc.name, func(t *testing.T) {
			b := newBusy(0, tc.eviction, tc.running...)
			b.send(t, "new", tc.comes)
			var passed []string
			if tc.evicted != nil {
				passed = []string{"new"}
			}
			b.check(t, "at once", tc.evicted, passed)
			b.close()
		})
	}
}

// TestEvictionWaitsForWhatItFrees: a request that waits costs one that runs, and not another one before that has ended and the gate
// shows it.
func TestEvictionWaitsForWhatItFrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBusy(time.Second, flow.Eviction{On: true, Grace: 100 * time.Millisecond}, -1, -1, -1, -1)
		b.send(t, "first", 0)
		b.send(t, "second", 0)
		b.check(t, "at once", []string{"3"}, nil)
		<-time.After(time.Second)
		b.check(t, "one has ended", []string{"3"}, []string{"first"})
		<-time.After(99 * time.Millisecond)
		b.check(t, "the gate may not show it", []string{"3"}, []string{"first"})
		<-time.After(time.Millisecond)
		b.check(t, "it shows it", []string{"3", "2"}, []string{"first"})
		<-time.After(time.Second)
		b.check(t, "another one has ended", []string{"3", "2"}, []string{"first", "second"})
		<-time.After(time.Minute)
		b.check(t, "none waits", []string{"3", "2"}, []string{"first", "second"})
		b.close()
	})
}

// TestMostEvicted: of an overfilled pool, two requests are evicted at a time.
func TestMostEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBusy(time.Second, flow.Eviction{On: true, Grace: 10 * time.Millisecond}, -1, -1, -1, -1)
		for range 4 {
			b.run("more", 0)
		}
		b.send(t, "new", 0)
		b.sort()
		b.check(t, "at once", []string{"2", "3"}, nil)
		<-time.After(time.Minute)
		b.sort()
		b.check(t, "later", []string{"0", "1", "2", "3"}, nil)
		b.close()
	})
}

// TestEachEvictedIsLessImportant: the second request of a round must be less important as well.
func TestEachEvictedIsLessImportant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBusy(0, flow.Eviction{On: true, Grace: 10 * time.Millisecond}, -2, -1, -1, -1)
		for range 4 {
			b.run("more", 0)
		}
		b.send(t, "new", -1)
		<-time.After(time.Second)
		b.check(t, "in the end", []string{"0"}, nil)
		b.close()
	})
}

// TestHungEviction: a request that does not end does not stop evictions for ever.
func TestHungEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBusy(-1, flow.Eviction{On: true, Grace: 10 * time.Millisecond}, -1, -1)
		b.send(t, "new", 0)
		b.check(t, "at once", []string{"1"}, nil)
		<-time.After(9 * time.Second)
		b.check(t, "it may still end", []string{"1"}, nil)
		<-time.After(2 * time.Second)
		b.check(t, "it hangs", []string{"1", "0"}, nil)
		b.close()
	})
}

// TestEvictionBeforeItIsPossible: a request that cannot be ended yet is tried again.
func TestEvictionBeforeItIsPossible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBusy(0, flow.Eviction{On: true, Grace: 10 * time.Millisecond}, 0)
		r := epp.ReserveAnyway(epp.Claim{Endpoint: b.endpoint, Add: epp.InFlight{Requests: 1}})
		b.running.Picked(nil, nil, &epp.Decision{Origin: epp.Origin{Priority: -1}, Reservation: r})
		b.send(t, "new", 0)
		<-time.After(15 * time.Millisecond)
		ended := make(chan time.Time, 1)
		r.OnEvict(func(*pd.Refusal) {
			ended <- time.Now()
			r.End()
		})
		possible := time.Now()
		if took := (<-ended).Sub(possible); took > 10*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		b.close()
	})
}
