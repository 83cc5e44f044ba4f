package replica

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
)

// TestLimitHoldsForAllReplicas: a limit of concurrency holds for all replicas together, in a burst as later, and they use all of it, whichever
// of them gets the requests.
func TestLimitHoldsForAllReplicas(t *testing.T) {
	const endpoints, waves, takes = 4, 5, time.Second
	const limit = endpoints * perEndpoint
	for _, c := range []struct {
		name     string
		replicas int
		to       func(i int) int // the replica that gets the request
	}{
		{"one", 1, func(int) int { return 0 }},
		{"two, in turn", 2, func(i int) int { return i % 2 }},
		{"three, in turn", 3, func(i int) int { return i % 3 }},
		{"two, and one gets all", 2, func(int) int { return 0 }},
		{"three, and one gets most", 3, func(i int) int { return max(0, i%10-7) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l lan
				all := l.twins(t, c.replicas, endpoints, flow.Settings{})
				var now gauge
				var running sync.WaitGroup
				began := time.Now()
				for i := range waves * limit {
					running.Go(func() {
						if err := all[c.to(i)].serve(takes, &now); err != nil {
							t.Error(err)
						}
					})
				}
				running.Wait()
				took := time.Since(began)
				_, atMost := now.read()
				t.Logf("%d replicas: at most %d of %d in flight, %d requests in %v", c.replicas, atMost, limit, waves*limit, took)
				// What is free is a whole number: replicas that share it may each take one more than their share. When many requests end and begin at
				// one moment, as here, a replica may also be told of a load from between the two: of one request or, where the replicas wait for a
				// processor, of a few. Replicas that share nothing would have twice and three times the limit.
				if most := limit + 6*(c.replicas-1); atMost < limit || atMost > most {
					t.Errorf("at most %d requests were in flight, want %d to %d", atMost, limit, most)
				}
				if most := waves * takes * 105 / 100; took > most {
					t.Errorf("%d requests took %v, which one picker would do in %v", waves*limit, took, waves*takes)
				}
			})
		})
	}
}

// TestQueuesHoldForAllReplicas: what waits at other replicas counts for the limits of all queues and of a priority, until they end.
func TestQueuesHoldForAllReplicas(t *testing.T) {
	for name, s := range map[string]flow.Settings{
		"all":        {All: flow.Limits{Requests: 10}},
		"a priority": {Other: flow.Band{Limits: flow.Limits{Requests: 10}}},
		"bytes":      {All: flow.Limits{Bytes: 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l lan
				all := l.twins(t, 2, 1, s)
				var now gauge
				var running sync.WaitGroup
				defer running.Wait()
				defer all[1].end() // refuses what waits
				refused := func(at *twin, n int) int {
					var mu sync.Mutex
					count := 0
					for range n {
						running.Go(func() {
							if at.serve(time.Minute, &now) != nil {
								mu.Lock()
								defer mu.Unlock()
								count++
							}
						})
					}
					<-time.After(100 * time.Millisecond)
					mu.Lock()
					defer mu.Unlock()
					return count
				}
				if n := refused(all[0], perEndpoint+8); n != 0 {
					t.Fatalf("%d requests were refused while queues had capacity", n)
				}
				if n := refused(all[1], 8); n != 6 {
					t.Errorf("%d of 8 requests were refused beside 8 that wait at the other replica, want 6", n)
				}
				if states, _ := all[1].States(); len(states) != 1 || states[0].Waiting != 8 {
					t.Errorf("the states of other replicas are %+v, want one with 8 requests that wait", states)
				}
				all[0].end() // its 8 requests wait no more, and its endpoint is free
				<-time.After(100 * time.Millisecond)
				if n := refused(all[1], perEndpoint+8); n != 0 {
					t.Errorf("%d requests were refused after the other replica had ended", n)
				}
			})
		})
	}
}

// TestPartition: what a replica has sent, and what waits at it, counts for three seconds after the network was cut, and again when it has
// healed, with the prompts that were learned meanwhile.
func TestPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lan
		all := l.twins(t, 3, 2, flow.Settings{})
		held := reserve(all[0].pool.Load().Endpoints[0], 70)
		defer held.End()
		<-time.After(20 * time.Millisecond)
		counts := func(what string, want epp.InFlight, replicas int) {
			t.Helper()
			for i, w := range all[1:] {
				if got := w.pool.Load().Endpoints[0].InFlight(); got != want || w.Others() != replicas {
					t.Errorf("%s: replica %d counts %+v of %d others, want %+v of %d", what, i+1, got, w.Others(), want, replicas)
				}
			}
		}
		counts("at first", epp.InFlight{Requests: 1, Tokens: 70}, 2)
		l.cut.Store(true)
		<-time.After(silence - heartbeat)
		counts("just after the cut", epp.InFlight{Requests: 1, Tokens: 70}, 2)
		<-time.After(2 * heartbeat)
		counts("after the silence", epp.InFlight{}, 0)
		prompt := &epp.Prompt{Tokens: 80, BlockTokens: 16, Blocks: []uint64{1, 2, 3, 4, 5}}
		all[0].matcher.Learn(nil, prompt, all[0].pool.Load().Endpoints[1], &epp.Load{})
		l.cut.Store(false)
		<-time.After(2 * lookUp)
		counts("when the network has healed", epp.InFlight{Requests: 1, Tokens: 70}, 2)
		for i, w := range all[1:] {
			if got := w.finds(prompt); fmt.Sprint(got) != "[0 80]" {
				t.Errorf("replica %d knows %v tokens of the prompt that another one learned while it was cut off, want [0 80]", i+1, got)
			}
		}
	})
}

// TestReplicaDies: what a replica that is killed had reserved is free for the others at once, and its queue too.
func TestReplicaDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lan
		all := l.twins(t, 2, 1, flow.Settings{})
		var holders []*epp.Reservation
		for range perEndpoint {
			holders = append(holders, reserve(all[0].pool.Load().Endpoints[0], 1))
		}
		<-time.After(20 * time.Millisecond)
		var now gauge
		var running sync.WaitGroup
		running.Go(func() {
			if err := all[1].serve(time.Second, &now); err != nil {
				t.Error(err)
			}
		})
		<-time.After(time.Second)
		if _, most := now.read(); most != 0 {
			t.Fatal("a request passed although the other replica fills the endpoint")
		}
		all[0].end()
		<-time.After(20 * time.Millisecond)
		if running, _ := now.read(); running != 1 {
			t.Error("a request still waits for what a dead replica had reserved")
		}
		running.Wait()
		for _, h := range holders {
			h.End()
		}
	})
}

// finds returns how many tokens of a prompt each endpoint has, as far as the replica knows.
func (w *twin) finds(p *epp.Prompt) (tokens []int) {
	var c []epp.Candidate
	for _, e := range w.pool.Load().Endpoints {
		c = append(c, epp.Candidate{Endpoint: e, Load: &epp.Load{}})
	}
	w.matcher.Match(nil, p, c)
	for i := range c {
		tokens = append(tokens, c[i].Cached)
	}
	return tokens
}

// TestPromptsAreShared: a prompt that one replica has sent somewhere is known to the others some 10 ms later, by hash, and only to those with
// the same secret.
func TestPromptsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lan
		all := l.twins(t, 3, 2, flow.Settings{})
		long := &epp.Prompt{Tokens: 16 * 1000, BlockTokens: 16}
		for i := range 1000 {
			long.Blocks = append(long.Blocks, uint64(i+1)<<40)
		}
		all[1].matcher.Learn(nil, long, all[1].pool.Load().Endpoints[1], &epp.Load{})
		<-time.After(2 * DefaultInterval)
		for i, w := range all {
			if got := w.finds(long); fmt.Sprint(got) != "[0 16000]" {
				t.Errorf("replica %d knows %v tokens, want [0 16000]", i, got)
			}
		}
		states, _ := all[0].States()
		if delay := max(states[0].Delay, states[1].Delay); delay <= 0 || delay > DefaultInterval.Seconds() {
			t.Errorf("the prompt was told after %v s, want up to %v", delay, DefaultInterval)
		}
		gone := &epp.Prompt{Tokens: 16, BlockTokens: 16, Blocks: []uint64{7}}
		all[0].matcher.Learn(nil, gone, endpoint("z"), &epp.Load{}) // the others have no such endpoint
		<-time.After(2 * DefaultInterval)
		for i, w := range all[1:] {
			if _, unknown := w.prompts(); unknown != 1 {
				t.Errorf("replica %d counts %d prompts of unknown endpoints, want 1", i+1, unknown)
			}
		}
		all[2].SetMatchers(nil) // another configuration
		all[0].matcher.Learn(nil, gone, all[0].pool.Load().Endpoints[0], &epp.Load{})
		<-time.After(2 * DefaultInterval)
		if _, unknown := all[2].prompts(); unknown != 2 || fmt.Sprint(all[1].finds(gone)) != "[16 0]" {
			t.Errorf("%d prompts are unknown to a replica without an index, want 2; the other one knows %v tokens", unknown, all[1].finds(gone))
		}
	})
}

// TestSecretsDiffer: hashes under another secret mean nothing, so they are not even sent.
func TestSecretsDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lan
		first := l.twin(t, addresses[0], addresses[:2], 1, flow.Settings{})
		second := l.keyed(t, "another", addresses[1], addresses[:2], 1, flow.Settings{})
		<-time.After(2 * lookUp)
		prompt := &epp.Prompt{Tokens: 16, BlockTokens: 16, Blocks: []uint64{7}}
		first.matcher.Learn(nil, prompt, first.pool.Load().Endpoints[0], &epp.Load{})
		<-time.After(2 * DefaultInterval)
		learned, unknown := second.prompts()
		if first.Others() != 1 || second.Others() != 1 || learned+unknown != 0 || second.finds(prompt)[0] != 0 {
			t.Errorf("%d and %d replicas count; of prompts under another secret %d were learned and %d unknown", first.Others(), second.Others(),
				learned, unknown)
		}
	})
}

// TestUnreachableIsTold: an endpoint that one replica finds unreachable is checked by the others at once, and again when it is reachable.
func TestUnreachableIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lan
		all := l.twins(t, 2, 2, flow.Settings{})
		down := *all[0].pool.Load()
		down.Loads = []epp.Load{{}, {Unreachable: true}}
		all[0].pool.Store(&down)
		<-time.After(2 * DefaultInterval)
		checked := func(what string) {
			t.Helper()
			select {
			case e := <-all[1].checked:
				if e != all[1].pool.Load().Endpoints[1] {
					t.Errorf("%s, %s is checked", what, e)
				}
			default:
				t.Errorf("%s, no endpoint is checked", what)
			}
		}
		checked("after one was found unreachable")
		if states, _ := all[1].States(); fmt.Sprint(states[0].Unreachable) != "[default/b]" {
			t.Errorf("the states are %+v, want default/b to be unreachable", states)
		}
		up := down
		up.Loads = make([]epp.Load, 2)
		all[0].pool.Store(&up)
		<-time.After(2 * DefaultInterval)
		checked("after it was reachable again")
		if len(all[1].checked) > 0 {
			t.Error("an endpoint is checked more than once for one change")
		}
	})
}

// TestLoadsApart: a configuration may have each replica count its own requests only.
func TestLoadsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lan
		all := l.twins(t, 2, 1, flow.Settings{})
		for _, w := range all {
			defer reserve(w.pool.Load().Endpoints[0], 10).End()
		}
		counts := func(what string, want ...int) {
			t.Helper()
			<-time.After(5 * DefaultInterval)
			for i, w := range all {
				if got := w.pool.Load().Endpoints[0].InFlight().Requests; got != want[i] {
					t.Errorf("%s, replica %d counts %d requests, want %d", what, i, got, want[i])
				}
			}
		}
		counts("at first", 2, 2)
		all[0].SetLoads(false)
		counts("when one counts apart", 1, 1)
		if all[0].Others() != 0 || all[1].Others() != 1 {
			t.Errorf("%d and %d others share what is free, want 0 and 1", all[0].Others(), all[1].Others())
		}
		all[0].SetLoads(true)
		counts("when both count together again", 2, 2)
	})
}
