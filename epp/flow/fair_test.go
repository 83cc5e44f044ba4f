package flow_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
	"github.com/tandem-serving/tandem/pd"
)

// jain returns Jain's fairness index of shares: 1 if all are equal, 1/n if one has all.
func jain(shares map[string]float64) float64 {
	sum, squares := 0.0, 0.0
	for _, s := range shares {
		sum += s
		squares += s * s
	}
	return sum * sum / (float64(len(shares)) * squares)
}

// TestFairness: 8 flows wait with different numbers of requests of different sizes, in random order. After part of them has
// passed, the index of what each flow got is at least the wanted one.
func TestFairness(t *testing.T) {
	const flows, each, dispatched = 8, 40, 120
	for _, tc := range []struct {
		name             string
		fairness         flow.Fairness
		requests, tokens float64 // least index
		unfair           bool    // to show that the others are no accident: the index of tokens is less than 0.9
	}{
		{"strict", flow.GlobalStrict, 0, 0, true},
		{"round robin", flow.RoundRobin, 0.999, 0, true},
		{"served tokens", flow.ServedTokens, 0, 0.95, false},
		{"least attained", flow.LeastAttained, 0, 0.95, false},
	} {
		inBubble(t, tc.name, func(t *testing.T) {
			q := newQueue(flow.Settings{Other: flow.Band{Fairness: tc.fairness}}, &slots{})
			r := rand.New(rand.NewPCG(1, 2))
			var order []int
			for f := range flows {
				for range each {
					order = append(order, f)
				}
			}
			r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			tokens := map[string]float64{}
			for i, f := range order {
				request := local(fmt.Sprintf("%d.%d", f, i), 0, fmt.Sprint(f))
				request.Prompt.Tokens = (f + 1) * (50 + r.IntN(100)) // flows differ by up to 8
				tokens[request.ID] = float64(request.Prompt.Tokens)
				q.send(t.Context(), request)
			}
			for range dispatched {
				q.free(1, 1)
			}
			count, got := map[string]float64{}, map[string]float64{}
			for f := range flows {
				count[fmt.Sprint(f)], got[fmt.Sprint(f)] = 0, 0
			}
			for _, id := range q.passed {
				count[id[:1]]++
				got[id[:1]] += tokens[id]
			}
			byCount, byTokens := jain(count), jain(got)
			if len(q.passed) != dispatched || byCount < tc.requests || byTokens < tc.tokens || (byTokens < 0.9) != tc.unfair {
				t.Errorf("%d passed; index %.4f of requests, %.4f of tokens", len(q.passed), byCount, byTokens)
			}
			q.drain()
		})
	}
}

// TestIdleFlowsGetNoCredit: a flow that was idle while another one was served does not stop that one when it comes back.
func TestIdleFlowsGetNoCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(flow.Settings{Other: flow.Band{Fairness: flow.ServedTokens}}, &slots{})
		for _, name := range names("a", 14) {
			q.send(t.Context(), local(name, 0, "a"))
		}
		for range 10 {
			q.free(1, 1)
		}
		for _, name := range names("b", 4) {
			q.send(t.Context(), local(name, 0, "b"))
		}
		q.mu.Lock()
		q.passed = nil
		q.mu.Unlock()
		for range 4 {
			q.free(1, 1)
		}
		served := map[byte]int{}
		for _, id := range q.passed {
			served[id[0]]++
		}
		if served['a'] != 2 || served['b'] != 2 {
			t.Errorf("passed %v, want two of each", q.passed)
		}
		q.drain()
	})
}

// TestDebtIsRemembered: a flow that got a large request cannot forget it by being idle for a moment.
func TestDebtIsRemembered(t *testing.T) {
	for _, fairness := range []flow.Fairness{flow.ServedTokens, flow.LeastAttained} {
		inBubble(t, fmt.Sprint(fairness), func(t *testing.T) {
			q := newQueue(flow.Settings{Other: flow.Band{Fairness: fairness}}, &slots{})
			large := local("large", 0, "a")
			large.Prompt.Tokens = 1000
			q.send(t.Context(), large)
			for _, name := range names("b", 3) {
				q.send(t.Context(), local(name, 0, "b"))
			}
			q.free(1, 1)
			q.send(t.Context(), local("small", 0, "a"))
			q.drain()
			q.check(t, "drained", "large", "b0", "b1", "b2", "small")
		})
	}
}

// TestOutcomesAreCharged: flow a has three requests waiting before those of b, and one of a's has ended with an outcome. What it has
// cost decides how many of b's go before the next one of a.
func TestOutcomesAreCharged(t *testing.T) {
	outcome := func(waited time.Duration, prompt, completion int64) *epp.Outcome {
		return &epp.Outcome{Decision: &epp.Decision{Origin: epp.Origin{Flow: "a"}, Tokens: 10,
			Pass: epp.Pass{Waited: waited, Charged: map[bool]int{true: 10}[waited > 0]}},
			Result: &pd.AnswerSummary{Prompt: prompt, Completion: completion}}
	}
	for _, tc := range []struct {
		name          string
		outcome       *epp.Outcome
		served, least string // order in which requests of ten tokens pass
	}{
		{"nothing known", outcome(time.Second, -1, -1), "abababbb", "abababbb"},
		{"refused", &epp.Outcome{}, "abababbb", "abababbb"},
		{"an answer counts twice, and the next ones are expected to be as long", outcome(time.Second, 10, 10), "bbabbbaa", "bbabbbaa"},
		{"a short estimate is corrected", outcome(time.Second, 30, -1), "bbababab", "bbababab"},
		{"a long estimate is corrected", outcome(time.Second, 0, -1), "aababbbb", "aababbbb"},
		{"it did not wait", outcome(0, 10, 5), "abababbb", "bbabbaba"},
		{"it did not wait, and is not known", outcome(0, -1, -1), "abababbb", "babababb"},
	} {
		for _, policy := range []struct {
			flow.Fairness
			want string
		}{{flow.ServedTokens, tc.served}, {flow.LeastAttained, tc.least}} {
			inBubble(t, fmt.Sprint(tc.name, policy.Fairness), func(t *testing.T) {
				q := newQueue(flow.Settings{Other: flow.Band{Fairness: policy.Fairness}}, &slots{})
				for i, name := range []string{"a0", "a1", "a2", "b0", "b1", "b2", "b3", "b4"} {
					if i == 3 {
						q.Observe(tc.outcome)
					}
					r := local(name, 0, name[:1])
					r.Prompt.Tokens = 10
					q.send(t.Context(), r)
				}
				q.drain()
				got := ""
				for _, name := range q.passed {
					got += name[:1]
				}
				if got != policy.want {
					t.Errorf("passed %s, want %s", got, policy.want)
				}
			})
		}
	}
}

// TestServiceIsForgotten: what a flow was served counts half after the half-life, and no more when it is not remembered.
func TestServiceIsForgotten(t *testing.T) {
	for _, tc := range []struct {
		after time.Duration
		want  string // how many requests of ten tokens of b go before a's
	}{{0, "bbbba"}, {time.Minute, "bbab"}, {time.Hour, "abbb"}} {
		inBubble(t, tc.after.String(), func(t *testing.T) {
			attained := flow.Attained{HalfLife: time.Minute, Keep: 30 * time.Minute}
			q := newQueue(flow.Settings{Other: flow.Band{Fairness: flow.LeastAttained, Attained: attained}}, &slots{})
			q.Observe(&epp.Outcome{Decision: &epp.Decision{Origin: epp.Origin{Flow: "a"}, Tokens: 40}})
			pass(tc.after)
			q.Observe(&epp.Outcome{Decision: &epp.Decision{Origin: epp.Origin{Flow: "b"}, Tokens: 1}})
			for _, name := range []string{"a0", "b0", "b1", "b2", "b3"} {
				r := local(name, 0, name[:1])
				r.Prompt.Tokens = 10
				q.send(t.Context(), r)
			}
			q.drain()
			got := ""
			for _, name := range q.passed {
				got += name[:1]
			}
			if got[:len(tc.want)] != tc.want {
				t.Errorf("passed %s, want %s", got, tc.want)
			}
		})
	}
}

// TestDeepestFirst: the session with the most requests goes first, but one that waits catches up, and one that was idle begins anew.
func TestDeepestFirst(t *testing.T) {
	ended := func(q *queue, flow string, turns int) { // requests that did not wait
		for range turns {
			q.Observe(&epp.Outcome{Decision: &epp.Decision{Origin: epp.Origin{Flow: flow}}})
		}
	}
	for _, tc := range []struct {
		name        string
		depth       flow.Depth
		idle, early time.Duration // before the requests of deep come, and by which the request of new comes earlier
		want        []string
	}{
		{"deep first", flow.Depth{}, 0, 0, []string{"deep0", "deep1", "new"}},
		{"a short wait", flow.Depth{PerSecond: 0.1}, 0, 49 * time.Second, []string{"deep0", "deep1", "new"}},
		{"a wait worth more than five requests", flow.Depth{PerSecond: 0.1}, 0, 51 * time.Second, []string{"new", "deep0", "deep1"}},
		{"not idle for long enough", flow.Depth{Idle: time.Minute}, time.Minute, time.Second, []string{"deep0", "deep1", "new"}},
		{"idle, and deep again after its next request", flow.Depth{Idle: time.Minute}, time.Minute + time.Second, time.Second, []string{"new", "deep0", "deep1", "late"}},
		{"forgotten", flow.Depth{Keep: time.Minute}, time.Hour, time.Second, []string{"new", "deep0", "deep1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(flow.Settings{Other: flow.Band{Fairness: flow.DeepestFirst, Depth: tc.depth}}, &slots{})
				ended(q, "deep", 5)
				time.Sleep(tc.idle - tc.early)
				q.send(t.Context(), local("new", 0, "new"))
				time.Sleep(tc.early)
				for _, name := range names("deep", 2) {
					q.send(t.Context(), local(name, 0, "deep"))
				}
				if len(tc.want) > 3 {
					q.free(1, 1)
					q.free(1, 1)
					q.send(t.Context(), local("late", 0, "late"))
				}
				q.drain()
				q.check(t, "drained", tc.want...)
			})
		})
	}
}
