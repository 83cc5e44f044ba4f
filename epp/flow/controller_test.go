package flow_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

func TestRequestsPassWhileThereIsCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(flow.Settings{}, &slots{first: 2})
		for _, name := range names("a", 3) {
			q.send(t.Context(), local(name, 0, "a"))
		}
		q.check(t, "two slots", "a0", "a1")
		began := time.Now()
		q.free(1, 0)
		if q.check(t, "a slot is freed", "a0", "a1", "a2"); !time.Now().Equal(began) {
			t.Errorf("it was used after %v", time.Since(began))
		}
		models, count := local("models", 0, "a"), local("count", 0, "a")
		models.API, count.API = pd.APIOther, pd.APICountTokens
		q.send(t.Context(), models)
		q.send(t.Context(), count)
		q.check(t, "requests that are no load", "a0", "a1", "a2", "models", "count")
	})
}

// TestOrder holds which of the waiting requests goes next.
func TestOrder(t *testing.T) {
	wants := func(r *epp.Request, within time.Duration) *epp.Request {
		r.Headers.(http.Header).Set(epp.HeaderTTFT, fmt.Sprint(within.Milliseconds()))
		return r
	}
	of := func(r *epp.Request, tokens int) *epp.Request {
		r.Prompt.Tokens = tokens
		return r
	}
	for _, tc := range []struct {
		name  string
		band  flow.Band
		given []*epp.Request
		want  []string
	}{
		{"bands", flow.Band{}, []*epp.Request{local("low", -1, "a"), local("usual", 0, "b"), local("high", 7, "c"), local("high2", 7, "a")},
			[]string{"high", "high2", "usual", "low"}},
		{"strict", flow.Band{}, []*epp.Request{local("a0", 0, "a"), local("a1", 0, "a"), local("b0", 0, "b")}, []string{"a0", "a1", "b0"}},
		{"in turn", flow.Band{Fairness: flow.RoundRobin}, []*epp.Request{local("a0", 0, "a"), local("a1", 0, "a"), local("a2", 0, "a"),
			local("b0", 0, "b"), local("b1", 0, "b"), local("c0", 0, "c")}, []string{"a0", "b0", "c0", "a1", "b1", "a2"}},
		{"by tokens", flow.Band{Fairness: flow.ServedTokens}, []*epp.Request{of(local("a0", 0, "a"), 3), of(local("a1", 0, "a"), 3),
			local("b0", 0, "b"), local("b1", 0, "b"), local("b2", 0, "b"), local("b3", 0, "b")}, []string{"a0", "b0", "b1", "b2", "a1", "b3"}},
		{"who got least", flow.Band{Fairness: flow.LeastAttained}, []*epp.Request{of(local("a0", 0, "a"), 3), of(local("a1", 0, "a"), 3),
			local("b0", 0, "b"), local("b1", 0, "b"), local("b2", 0, "b"), local("b3", 0, "b")}, []string{"a0", "b0", "b1", "b2", "a1", "b3"}},
		{"by target", flow.Band{Ordering: flow.SLODeadline}, []*epp.Request{local("none", 0, "a"), wants(local("slow", 0, "b"), time.Second),
			wants(local("fast", 0, "a"), time.Millisecond)}, []string{"fast", "slow", "none"}},
		{"targets of a flow", flow.Band{Ordering: flow.SLODeadline, Fairness: flow.RoundRobin}, []*epp.Request{
			wants(local("a0", 0, "a"), time.Second), wants(local("a1", 0, "a"), time.Millisecond), wants(local("b0", 0, "b"), time.Minute)},
			[]string{"a1", "b0", "a0"}},
	} {
		inBubble(t, tc.name, func(t *testing.T) {
			q := newQueue(flow.Settings{Other: tc.band}, &slots{})
			for _, r := range tc.given {
				q.send(t.Context(), r)
			}
			q.drain()
			q.check(t, "drained", tc.want...)
		})
	}
}

// TestTimeToLiveOrders: a request that came while the pool had no endpoints may wait for a shorter time than those before it.
func TestTimeToLiveOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(flow.Settings{TTL: time.Hour, EmptyTTL: time.Minute, Other: flow.Band{Ordering: flow.EDF}}, &slots{})
		q.send(t.Context(), local("long", 0, "a"))
		q.gate.setEmpty(true)
		q.send(t.Context(), local("short", 0, "a"))
		q.drain()
		q.check(t, "drained", "short", "long")
	})
}

// TestTimeToLiveOfBands: a band can have its own time to live, which holds for it alone, and not while the pool has no endpoints.
func TestTimeToLiveOfBands(t *testing.T) {
	for _, tc := range []struct {
		name     string
		priority int
		empty    bool
		after    time.Duration
	}{
		{"its own", -1, false, time.Hour},
		{"of another band", 0, false, time.Minute},
		{"without endpoints", -1, true, 10 * time.Minute},
	} {
		inBubble(t, tc.name, func(t *testing.T) {
			settings := flow.Settings{TTL: time.Minute, EmptyTTL: 10 * time.Minute, Bands: []flow.Band{{Priority: -1, TTL: new(time.Hour)}}}
			q := newQueue(settings, &slots{empty: tc.empty})
			q.send(t.Context(), local("a", tc.priority, "a"))
			start := time.Now()
			q.sending.Wait()
			if waited := time.Since(start); waited != tc.after || q.refusals() != 1 {
				t.Errorf("%d refused after %v, want one after %v", q.refusals(), waited, tc.after)
			}
		})
	}
}

// TestLongestWait: the longest wait is that of any band.
func TestLongestWait(t *testing.T) {
	const minute = time.Minute
	for _, tc := range []struct {
		name string
		flow.Settings
		want time.Duration
	}{
		{"of all bands", flow.Settings{TTL: 2 * minute, EmptyTTL: minute}, 2 * minute},
		{"without endpoints", flow.Settings{TTL: minute, EmptyTTL: 3 * minute}, 3 * minute},
		{"of a listed band", flow.Settings{TTL: minute, EmptyTTL: minute, Bands: []flow.Band{{TTL: new(9 * minute)}}}, 9 * minute},
		{"of the others", flow.Settings{TTL: minute, EmptyTTL: minute, Other: flow.Band{TTL: new(8 * minute)}}, 8 * minute},
		{"no limit", flow.Settings{EmptyTTL: minute}, 24 * time.Hour},
		{"no limit in a band", flow.Settings{TTL: minute, EmptyTTL: minute, Negative: flow.Band{TTL: new(time.Duration(0))}}, 24 * time.Hour},
	} {
		if got := tc.LongestWait(); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestLimits(t *testing.T) {
	for _, tc := range []struct {
		name     string
		settings flow.Settings
		want     pd.Reason // of the third request, "" = it waits
	}{
		{"none", flow.Settings{}, ""},
		{"all requests", flow.Settings{All: flow.Limits{Requests: 2}}, pd.QueueFull},
		{"just enough", flow.Settings{All: flow.Limits{Requests: 3, Bytes: 3}}, ""},
		{"all bytes", flow.Settings{All: flow.Limits{Bytes: 2}}, pd.QueueFull},
		{"of the band", flow.Settings{Other: flow.Band{Limits: flow.Limits{Requests: 2}}}, pd.QueueFull},
		{"bytes of the band", flow.Settings{Other: flow.Band{Limits: flow.Limits{Bytes: 2}}}, pd.QueueFull},
		{"of the flow", flow.Settings{Flow: flow.Limits{Requests: 2}}, pd.QueueFull},
		{"of another band", flow.Settings{Bands: []flow.Band{{Priority: 1, Limits: flow.Limits{Requests: 1}}}}, ""},
		{"of bands below 0", flow.Settings{Negative: flow.Band{Limits: flow.Limits{Requests: 1}}}, ""},
	} {
		inBubble(t, tc.name, func(t *testing.T) {
			q := newQueue(tc.settings, &slots{})
			for _, name := range names("a", 3) {
				q.send(t.Context(), local(name, 0, "a"))
			}
			if tc.want != "" {
				q.checkRefused(t, "a2", tc.want)
			} else if len(q.refused) > 0 {
				t.Errorf("refused: %v", q.refused)
			}
			q.drain()
			q.send(t.Context(), local("later", 0, "a")) // the queue is empty again
			q.drain()
			if q.refused["later"] != nil {
				t.Error(q.refused["later"])
			}
		})
	}
}

func TestLimitOfOneFlowLeavesOthersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(flow.Settings{Flow: flow.Limits{Requests: 1}}, &slots{})
		q.send(t.Context(), local("a0", 0, "a"))
		q.send(t.Context(), local("a1", 0, "a"))
		q.send(t.Context(), local("b0", 0, "b"))
		q.checkRefused(t, "a1", pd.QueueFull)
		q.drain()
		q.check(t, "drained", "a0", "b0")
	})
}

// TestEviction holds which requests make place in a full queue of three.
func TestEviction(t *testing.T) {
	for _, tc := range []struct {
		name    string
		given   []int // priorities of those that wait
		comes   int
		bytes   int64
		evicted []string
		refused bool
	}{
		{"none is sheddable", []int{0, 0, 0}, 5, 1, nil, true},
		{"the newest of the lowest band", []int{-2, -1, -2}, 0, 1, []string{"2"}, false},
		{"for one that is sheddable too", []int{-2, -2, 0}, -1, 1, []string{"1"}, false},
		{"not for an equal one", []int{-1, -1, -1}, -1, 1, nil, true},
		{"not for a lower one", []int{-1, -1, -1}, -2, 1, nil, true},
		{"as many as the bytes need, from the lowest band up", []int{-2, -1, -1}, 0, 2, []string{"0", "2"}, false},
		{"none if that is not enough", []int{-1, 0, 0}, 0, 2, nil, true},
	} {
		inBubble(t, tc.name, func(t *testing.T) {
			q := newQueue(flow.Settings{All: flow.Limits{Bytes: 3}}, &slots{})
			for i, priority := range tc.given {
				q.send(t.Context(), local(string(rune('0'+i)), priority, "a"))
			}
			r := local("new", tc.comes, "a")
			r.Bytes = tc.bytes
			q.send(t.Context(), r)
			for _, name := range tc.evicted {
				q.checkRefused(t, name, pd.Evicted)
			}
			if tc.refused {
				q.checkRefused(t, "new", pd.QueueFull)
			}
			q.drain()
			if left := len(q.refused); left != len(tc.evicted) && !tc.refused || tc.refused && left != 1 {
				t.Errorf("refused: %v", q.refused)
			}
		})
	}
}

// TestRefusalsTellThePlace: one request leaves each second, and eleven go before the next one of this priority.
func TestRefusalsTellThePlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(flow.Settings{Other: flow.Band{Limits: flow.Limits{Requests: 10}}}, &slots{})
		q.send(t.Context(), local("low", -1, "a"))
		q.send(t.Context(), local("high", 1, "a"))
		q.send(t.Context(), local("high2", 1, "a"))
		for _, name := range names("a", 10) {
			q.send(t.Context(), local(name, 0, "a"))
		}
		q.send(t.Context(), local("early", 0, "a"))
		if r := pd.AsRefusal(q.refused["early"]); r.Queue == nil || *r.Queue != (pd.QueuePlace{Position: 13}) || r.RetryAfter() != "1" {
			t.Errorf("before any has left: %+v %s", r.Queue, r.RetryAfter())
		}
		for range 3 {
			<-time.After(time.Second)
			q.free(1, 0)
		}
		q.send(t.Context(), local("a10", 0, "a"))
		q.send(t.Context(), local("late", 0, "a"))
		r := pd.AsRefusal(q.refused["late"])
		if r.Queue == nil || *r.Queue != (pd.QueuePlace{Position: 11, Wait: 11 * time.Second}) || r.RetryAfter() != "11" {
			t.Errorf("at one a second: %+v %s", r.Queue, r.RetryAfter())
		}
		q.drain()
	})
}

func TestTimeToLive(t *testing.T) {
	for _, tc := range []struct {
		name   string
		empty  bool // when the request comes
		filled bool // the pool gets an endpoint
		after  time.Duration
		want   pd.Reason
	}{
		{"full", false, false, time.Minute, pd.QueueTimeout},
		{"empty", true, false, time.Hour, pd.NoEndpoint},
		{"empty at first", true, true, time.Hour, pd.QueueTimeout},
	} {
		inBubble(t, tc.name, func(t *testing.T) {
			q := newQueue(flow.Settings{TTL: time.Minute, EmptyTTL: time.Hour}, &slots{empty: tc.empty})
			q.send(t.Context(), local("a", 0, "a"))
			if tc.filled {
				q.gate.setEmpty(false)
			}
			<-time.After(tc.after - 1)
			synctest.Wait()
			if n := q.refusals(); n > 0 {
				t.Fatalf("%d refused early", n)
			}
			<-time.After(1)
			synctest.Wait()
			q.checkRefused(t, "a", tc.want)
			if place := pd.AsRefusal(q.refused["a"]).Queue; tc.want == pd.QueueTimeout && (place == nil || place.Position != 1) {
				t.Errorf("a new try would be at %v, want the first place", place)
			}
			if v := q.View(); v.Requests != 0 || v.Bytes != 0 || len(v.Bands) != 0 {
				t.Errorf("left over: %+v", v)
			}
		})
	}
}

func TestALeavingClientFreesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(flow.Settings{All: flow.Limits{Requests: 1}, TTL: ttl}, &slots{})
		ctx, leave := context.WithCancel(t.Context())
		q.send(ctx, local("gone", 0, "a"))
		leave()
		synctest.Wait()
		q.checkRefused(t, "gone", pd.Deadline)
		q.send(t.Context(), local("next", 0, "a"))
		q.drain()
		q.check(t, "drained", "next")
	})
}

// TestALeavingHeadLetsOthersPass: the request that could not go anywhere hid others that can.
func TestALeavingHeadLetsOthersPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(flow.Settings{}, &slots{first: 5})
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		split := local("split", 5, "a")
		split.Fit = request.FitSplit
		q.send(ctx, split)
		low := local("low", 0, "a")
		low.Fit = request.FitSplit
		q.send(t.Context(), low)
		q.gate.add(0, 1)
		leave()
		synctest.Wait()
		q.check(t, "the first has left", "low")
	})
}

// TestStages: a full prefill pool does not stop local requests, and does not let less important ones pass by.
func TestStages(t *testing.T) {
	split := func(name string, priority int) *epp.Request {
		r := local(name, priority, "a")
		r.Fit = request.FitSplit
		return r
	}
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(flow.Settings{}, &slots{first: 3})
		q.send(t.Context(), split("high", 1))
		q.send(t.Context(), split("usual", 0))
		q.send(t.Context(), local("local", 0, "a"))
		q.check(t, "prefill is full", "local")
		q.free(0, 1)
		q.check(t, "it has one slot", "local", "high")
		q.free(-1, 1)
		q.check(t, "decode is full", "local", "high")
		q.free(1, 0)
		q.check(t, "both have one", "local", "high", "usual")
	})
}

// TestHoldback: the lower a priority, the less full may the pool be. Which priorities there are decides about the steps.
func TestHoldback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(flow.Settings{Usage: flow.Usage{Policy: flow.Holdback, Least: 0.5}}, &slots{first: 4}) // free slots: filled to 0.75
		q.send(t.Context(), local("alone", 0, "a"))
		q.check(t, "there is one priority", "alone")
		q.send(t.Context(), local("low", -1, "a"))
		q.send(t.Context(), local("usual", 0, "a"))
		q.check(t, "a lower one waits", "alone", "usual")
		q.send(t.Context(), local("high", 5, "a"))
		q.check(t, "a higher one passes", "alone", "usual", "high")
		q.send(t.Context(), local("second", 0, "a"))
		q.check(t, "the usual one is in the middle", "alone", "usual", "high")
		q.Close()
		q.sending.Wait()
	})
}

// TestSoftReflective: at a saturation of 3/4, every third look for requests lets one of the lower priority pass. They do not depend
// on other requests.
func TestSoftReflective(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const requests = 4
		q := newQueue(flow.Settings{Usage: flow.Usage{Policy: flow.SoftReflective}}, &slots{first: 100})
		began := time.Now()
		for _, name := range names("low", requests) {
			q.send(t.Context(), local(name, -1, "a"))
		}
		q.send(t.Context(), local("usual", 0, "a"))
		if passed := q.names(); !slices.Contains(passed, "usual") || len(passed) > requests {
			t.Errorf("at once pass %v", passed)
		}
		q.sending.Wait()
		if took := time.Since(began); took < 2*time.Millisecond || took > 3*requests*time.Millisecond {
			t.Errorf("all have passed after %v", took)
		}
	})
}

// TestLeavingWhilePassing: a client that leaves at the moment in which its request may pass takes no capacity, whichever is noticed
// first.
func TestLeavingWhilePassing(t *testing.T) {
	const rounds = 64 // in most of them the request passes before its client is seen to leave
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(flow.Settings{}, &slots{})
		for _, name := range names("a", rounds) {
			ctx, leave := context.WithCancel(t.Context())
			q.send(ctx, local(name, 0, "a"))
			q.gate.add(1, 0)
			leave()
			q.SnapshotChanged()
			synctest.Wait()
			if _, left := q.refused[name]; left {
				q.gate.add(-1, 0) // as if it had passed
			}
		}
		if v := q.View(); v.Pending != [2]int64{} || v.Requests != 0 || len(q.passed)+len(q.refused) != rounds {
			t.Errorf("%d passed, %d left, and this remains: %+v", len(q.passed), len(q.refused), v)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(flow.Settings{TTL: ttl}, &slots{})
		q.send(t.Context(), local("waits", 0, "a"))
		q.Close()
		synctest.Wait()
		q.gate.add(5, 5)
		q.send(t.Context(), local("comes", 0, "a"))
		q.checkRefused(t, "waits", pd.Draining)
		q.checkRefused(t, "comes", pd.Draining)
	})
}

// TestConfigure: what waits under old settings is ordered by the new ones, and not refused.
func TestConfigure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(flow.Settings{TTL: ttl}, &slots{})
		for _, name := range []string{"a0", "a1", "b0"} {
			q.send(t.Context(), local(name, 0, name[:1]))
		}
		q.Configure(flow.Settings{All: flow.Limits{Requests: 1}, Other: flow.Band{Fairness: flow.RoundRobin}}, q.gate)
		q.send(t.Context(), local("new", 0, "a"))
		q.checkRefused(t, "new", pd.QueueFull)
		q.drain()
		q.check(t, "drained", "a0", "b0", "a1")
	})
}

// TestPendingCounts: what was let pass and is not picked for yet takes a slot; what is refused by its pick gives it to the next.
func TestPendingCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := &slots{first: 1}
		q := newQueue(flow.Settings{}, gate)
		first := local("first", 0, "a")
		pass, err := q.Admit(t.Context(), first)
		if err != nil {
			t.Fatal(err)
		}
		q.send(t.Context(), local("second", 0, "a"))
		q.check(t, "the first is not picked for yet")
		q.Settled(first, pass)
		synctest.Wait()
		q.check(t, "its pick has failed", "second")
	})
}

// TestWaitingIsTold: the controller wants to hear of changes only while requests wait.
func TestWaitingIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []bool
		q := newQueue(flow.Settings{}, &slots{first: 1})
		q.Controller = flow.New(flow.Settings{}, q.gate, flow.Options{Clock: epp.SystemClock, Waiting: func(any bool) { told = append(told, any) }})
		for _, name := range names("a", 3) {
			q.send(t.Context(), local(name, 0, "a"))
		}
		q.drain()
		if !slices.Equal(told, []bool{true, false}) {
			t.Errorf("told %v", told)
		}
	})
}

func TestBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(flow.Settings{}, &slots{})
		for i, name := range names("a", 3) {
			r := local(name, 0, "a")
			r.Prompt.Tokens = 100 * (i + 1)
			q.send(t.Context(), r)
		}
		synctest.Wait()
		if got, want := q.Backlog(), (epp.InFlight{Requests: 3, Tokens: 600}); got != want {
			t.Errorf("%+v waits, want %+v", got, want)
		}
		q.Configure(flow.Settings{}, q.gate)
		if got := q.Backlog(); got.Requests != 3 || got.Tokens != 600 {
			t.Errorf("%+v waits after a reload", got)
		}
		q.drain()
		if got := q.Backlog(); got != (epp.InFlight{}) {
			t.Errorf("%+v waits in empty queues", got)
		}
	})
}
