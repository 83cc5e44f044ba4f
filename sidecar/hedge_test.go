package sidecar

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/server"
)

// hedging lets prefill legs have second ones.
var hedging = set(func(c *Config) { c.Prefill.HedgeRatio = maxHedgeRatio })

// earned is how many prefill legs earn a second one. It is also more than it takes to know which legs of a pod are late.
const earned = 50

// quickly makes an engine whose first legs are quick; the acts follow.
func quickly(t *testing.T, legs int, acts ...act) *fakeEngine {
	t.Helper()
	script := make([]act, legs, legs+len(acts))
	for i := range script {
		script[i] = offering(handoffParams)
	}
	return startEngine(t, append(script, acts...)...)
}

// learnPace has the sidecar learn from a number of legs how long those to a prefill pod take.
func learnPace(t *testing.T, s *rig, legs int, prefill, body string) {
	t.Helper()
	for range legs {
		post(t, s.url+completionsPath, body, pd.HeaderPrefill, prefill).mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
	}
}

// A prefill leg that is late gets a second one, at the next candidate. The first of both to answer is used, and the other ends; its
// hand-off is released if it comes nonetheless.
func TestHedge(t *testing.T) {
	t.Parallel()
	offer, fails := offering(handoffParams), says(http.StatusInternalServerError, "application/json", "{}")
	leaves := then(hangs, closes)
	const either = -1 // a second leg that fails may be noticed before the first one answers, or after that
	cases := []struct {
		name     string
		first    func(second gate) act // opens the gate of the second leg, or is held by it
		second   func(first gate) act
		decision string
		result   string
		releases int
		retries  float64
	}{
		{"the second is faster", func(gate) act { return leaves }, func(gate) act { return offer }, "remote;reason=external;attempts=2;candidate=1", "won", 0, 0},
		{"the second is faster, and the first comes too", func(gate) act { return then(hangs, offer) }, func(gate) act { return offer },
			"remote;reason=external;attempts=2;candidate=1", "won", 1, 0},
		{"the first is faster", func(g gate) act { return then(g.act, offer) }, func(g gate) act { return then(g.open, leaves) },
			"remote;reason=external;attempts=2;candidate=0", "lost", 0, 0},
		{"the first is faster, and the second comes too", func(g gate) act { return then(g.act, offer) }, func(g gate) act { return then(g.open, hangs, offer) },
			"remote;reason=external;attempts=2;candidate=0", "lost", 1, 0},
		{"the second fails", func(g gate) act { return then(g.act, offer) }, func(g gate) act { return then(fails, g.open) },
			"remote;reason=external;attempts=2;candidate=0", "lost", 0, either},
		{"both fail", func(g gate) act { return then(g.act, fails) }, func(g gate) act { return then(g.open, fails) },
			"remote;reason=external;attempts=3;candidate=2", "failed", 0, 2},
		{"the second blames the client", func(gate) act { return leaves }, func(gate) act { return says(http.StatusBadRequest, "application/json", "{}") },
			"refused;reason=bad-request;attempts=2;candidate=1", "won", 0, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			both(t, func(t *testing.T, q question) {
				g := newGate()
				first, second, third, decode := quickly(t, earned, c.first(g)), startEngine(t, c.second(g)), startEngine(t, offer), startEngine(t, q.answer())
				s := startRig(t, decode.addr, hedging)
				learnPace(t, s, earned, first.addr, q.body)
				got := post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, strings.Join([]string{first.addr, second.addr, third.addr}, ","))
				if d := got.header.Get(pd.HeaderDecision); d != c.decision {
					t.Errorf("%d %s, want %s\n%s", got.status, d, c.decision, got.body)
				}
				s.end()
				s.mustCount(t, 1, "tandem_hedges_total", "result", c.result)
				if c.retries != either {
					s.mustCount(t, c.retries, "tandem_retries_total", "leg", "prefill")
				}
				s.mustCount(t, 0, "tandem_kv_stranded_total")
				if n := len(decode.releases()); n != c.releases {
					t.Errorf("%d hand-offs were released, want %d", n, c.releases)
				}
				if n := len(first.requests()) - earned; n != 1 {
					t.Errorf("the first pod got the prompt %d times", n)
				}
				second.only(t)
			})
		})
	}
}

// Where nothing is known of a pod, where there is no other candidate, and for bodies of another size than those that are known, no second
// leg is sent.
func TestNotHedged(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name    string
		learned bool
		only    bool
		body    string
	}{
		{"unknown pod", false, false, ask(false).body},
		{"one candidate", true, true, ask(false).body},
		{"another size", true, false, promptOf(8 << 10)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			first, second, decode := startEngine(t, offering(handoffParams)), startEngine(t, hangs), startEngine(t, ask(false).answer())
			s := startRig(t, decode.addr, hedging)
			if c.learned {
				learnPace(t, s, earned, first.addr, ask(false).body)
			}
			header := first.addr
			if !c.only {
				header += "," + second.addr
			}
			post(t, s.url+completionsPath, c.body, pd.HeaderPrefill, header).mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
			s.mustCount(t, 0, "tandem_hedges_total")
		})
	}
}

// lateFrom has the legs of an engine take 50 ms from now on.
func lateFrom(e *fakeEngine) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.script = []act{func(w http.ResponseWriter, r *asked) {
		select {
		case <-r.Context().Done():
		case <-time.After(50 * time.Millisecond):
			offering(handoffParams)(w, r)
		}
	}}
}

// Second legs stay within their share of requests, however many are late, and from the first request on.
func TestHedgesAreFew(t *testing.T) {
	t.Parallel()
	const requests, share = 30, 50
	for _, before := range []int{25, 200} {
		t.Run(strconv.Itoa(before), func(t *testing.T) {
			t.Parallel()
			q := ask(false)
			late := startEngine(t, offering(handoffParams))
			second, decode := startEngine(t, offering(handoffParams)), startEngine(t, q.answer())
			s := startRig(t, decode.addr, hedging)
			learnPace(t, s, before, late.addr, q.body)
			lateFrom(late)
			for range requests {
				if got := post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, late.addr+","+second.addr); got.status != http.StatusOK {
					t.Fatalf("%d %s", got.status, got.body)
				}
			}
			if n := len(second.requests()); n > (before+requests)/share {
				t.Errorf("%d of %d requests had a second leg", n, before+requests)
			}
		})
	}
}

// Legs that are hardly late do not take all of the budget: those that do not end at all have the rest.
func TestHedgeOfLegsThatDoNotEnd(t *testing.T) {
	t.Parallel()
	const burst = 4
	q, leaves := ask(false), then(hangs, closes)
	first, second, decode := quickly(t, burst*earned, leaves, leaves, leaves, leaves), startEngine(t, offering(handoffParams)), startEngine(t, q.answer())
	s := startRig(t, decode.addr, hedging)
	learnPace(t, s, burst*earned, first.addr, q.body)
	for range burst {
		got := post(t, s.url+completionsPath, q.body, pd.HeaderPrefill, first.addr+","+second.addr)
		got.mustBe(t, http.StatusOK, "remote;reason=external;attempts=2;candidate=1")
	}
	s.mustCount(t, burst, "tandem_hedges_total", "result", "won")
	s.mustCount(t, 0, "tandem_hedges_total", "result", "budget")
}

// What the local engine has lent to a leg that was not needed, and has not read it, is released, as the leg's own hand-off is.
func TestHedgeReadsNothingBack(t *testing.T) {
	t.Parallel()
	q := ask(false)
	first, second := quickly(t, earned, then(hangs, offering(handoffParams))), startEngine(t, offering(handoffParams))
	script := make([]act, earned, earned+2)
	for i := range script {
		script[i] = q.answer()
	}
	lends := offering(strings.Replace(handoffParams, `"remote_num_tokens": 40`, `"remote_num_tokens": 640`, 1))
	decode := startEngine(t, append(script, lends, q.answer())...)
	s := startRig(t, decode.addr, hedging, readsBack)
	learnPace(t, s, earned, first.addr, q.body)
	got := post(t, s.url+completionsPath, q.body, planOf(first.addr+","+second.addr, ourPod, 640)...)
	got.mustBe(t, http.StatusOK, "remote;reason=uncached;attempts=2;candidate=1")
	s.end()
	s.mustCount(t, 1, "tandem_kv_pull_requests_total", "result", "asked")
	s.mustCount(t, 1, "tandem_kv_pull_requests_total", "result", "unread")
	s.mustCount(t, 0, "tandem_kv_stranded_total")
	if lent, own := len(first.releases()), len(decode.releases()); lent != 1 || own != 1 {
		t.Errorf("the prefill engine released %d of what was lent, and decode %d hand-offs, want one each", lent, own)
	}
}

// With simulated engines whose hand-offs prove themselves in the tokens: the answer is that of a plain engine, and no engine keeps a block.
func TestSimHedge(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]fault.Fault{
		"slow":             {Leg: fault.LegPrefill, Fault: fault.Slow, Arg: fault.Forever},
		"slow for a while": {Leg: fault.LegPrefill, Fault: fault.Slow, Arg: "300", Count: 1},
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/stream=%v", name, stream), func(t *testing.T) {
				t.Parallel()
				first, second, decode, plain := startSim(t, sim.Config{}), startSim(t, sim.Config{}), startSim(t, sim.Config{}), startSim(t, sim.Config{})
				s := startRig(t, addrOf(decode), hedging)
				for range earned {
					post(t, s.url+completionsPath, simAsk(100, 2, false), pd.HeaderPrefill, addrOf(first)).mustBe(t, http.StatusOK, "remote;reason=external;attempts=1;candidate=0")
				}
				if err := first.Faults.Add(f); err != nil {
					t.Fatal(err)
				}
				q := simAsk(100, 8, stream)
				got := post(t, s.url+completionsPath, q, pd.HeaderPrefill, addrOf(first)+","+addrOf(second))
				want := post(t, plain.URL+completionsPath, q)
				if got.status != http.StatusOK || textOf(got.body) != textOf(want.body) {
					t.Errorf("%d %s\nwant %s", got.status, got.body, want.body)
				}
				s.end()
				first.Faults.Clear()
				for _, e := range []*server.Server{first, second} {
					mustFree(t, e, decode)
				}
			})
		}
	}
}

func TestHedgeProblems(t *testing.T) {
	for _, c := range []struct {
		connector string
		ratio     float64
		problems  int
	}{
		{"nixlv2", 0, 0}, {"nixlv2", 0.02, 0}, {"shared-storage", 0.01, 0}, {"offloading", 0.01, 0},
		{"nixlv2", 0.03, 1}, {"nixlv2", -0.01, 1}, {"sglang", 0.01, 1}, {"trtllm", 0.01, 1}, {"sglang", 0, 0},
	} {
		t.Run(c.connector+"/"+strconv.FormatFloat(c.ratio, 'g', -1, 64), func(t *testing.T) {
			cfg := Defaults()
			cfg.Engine.Connector, cfg.Prefill.HedgeRatio = c.connector, c.ratio
			n := 0
			cfg.Problems(func(flag, _ string, _ ...any) {
				if flag == "hedge-ratio" {
					n++
				}
			})
			if n != c.problems {
				t.Errorf("%d problems, want %d", n, c.problems)
			}
		})
	}
}

// BenchmarkHedging has what second prefill legs cost while no leg is late, and what they bring when one in 64 takes 300 ms instead of 10.
func BenchmarkHedging(b *testing.B) {
	modes := []struct {
		name   string
		option option
	}{{"off", set(func(*Config) {})}, {"on", hedging}}
	for _, m := range modes {
		b.Run("quick/"+m.name, func(b *testing.B) {
			engine := rawEngine(b, httpAnswer("application/json", wholeAnswer))
			prefill, other := rawEngine(b, httpAnswer("application/json", offer(handoffParams))), rawEngine(b, httpAnswer("application/json", offer(handoffParams)))
			s := startRig(b, engine, m.option)
			drive(b, s.Handler(), promptOf(1<<10), len(wholeAnswer), pd.HeaderPrefill, prefill+","+other)
		})
	}
	for _, m := range modes {
		b.Run("late/"+m.name, func(b *testing.B) {
			engine := rawEngine(b, httpAnswer("application/json", wholeAnswer))
			var legs atomic.Int64
			late := func(w http.ResponseWriter, r *asked) {
				took := 10 * time.Millisecond
				if legs.Add(1)%64 == 0 {
					took = 300 * time.Millisecond
				}
				select {
				case <-r.Context().Done():
				case <-time.After(took):
					offering(handoffParams)(w, r)
				}
			}
			first, second := startEngine(b, late), startEngine(b, late)
			s := startRig(b, engine, m.option)
			var took []time.Duration
			for b.Loop() {
				began := time.Now()
				serveOne(b, s.Handler(), promptOf(1<<10), len(wholeAnswer), pd.HeaderPrefill, first.addr+","+second.addr)
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100])/1e6, "p99-ms")
			b.ReportMetric(float64(len(second.requests()))/float64(len(took)), "second-legs/op")
		})
	}
}
