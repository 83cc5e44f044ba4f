package sched_test

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
	"github.com/tandem-serving/tandem/epp/plugin"
	"github.com/tandem-serving/tandem/epp/sched"
)

// instance builds a plugin of the table with its defaults.
func instance[T any](tb testing.TB, typ string) T {
	tb.Helper()
	i := slices.IndexFunc(plugin.Table, func(r epp.Row) bool { return r.Type == typ })
	if i < 0 {
		tb.Fatalf("%s is not in the table", typ)
	}
	built, err := plugin.Table[i].New().Build(&epp.Builder{Name: typ, Log: slog.New(slog.DiscardHandler), Keep: &epp.Keep{}})
	if err != nil {
		tb.Fatal(err)
	}
	return built.(T)
}

// production returns a configuration of real plugins: by role and load, four scorers in each profile, a prefix cache.
func production(tb testing.TB) sched.Config {
	profile := func(name string) epp.Profile {
		p := epp.Profile{Name: name, Picker: instance[epp.Picker](tb, "max-score-picker"),
			Filters: []epp.NamedFilter{{Name: name + "-filter", Filter: instance[epp.Filter](tb, name+"-filter")},
				{Name: "utilization-detector", Filter: instance[epp.Filter](tb, "utilization-detector")}}}
		for _, s := range []string{"queue-scorer", "kv-cache-utilization-scorer", "active-request-scorer", "prefix-cache-scorer"} {
			p.Scorers = append(p.Scorers, epp.NamedScorer{Name: s, Weight: 2, Scorer: instance[epp.Scorer](tb, s)})
		}
		return p
	}
	c := disagg()
	c.Profiles = []epp.Profile{profile("decode"), profile("prefill")}
	c.Stages[1].Decider.Decider = always{}
	c.Matchers = []epp.Matcher{instance[epp.Matcher](tb, "approx-prefix-cache-producer")}
	return c
}

// half returns a pool half of whose endpoints prefill.
func half(n int) *pool { return fleet(append(times(n/2, "decode"), times(n-n/2, "prefill")...)...) }

// kilobyte returns a request with a prompt of 1 kB, whose blocks no other request has.
func kilobyte(c sched.Config, number int) *epp.Request {
	r := splitRequest(256)
	r.Prompt.BlockTokens = c.Matchers[0].Needs().Tokens
	for i := range r.Prompt.Blocks {
		r.Prompt.Blocks[i] = uint64(number*1000+i) * 0x9e3779b97f4a7c15
	}
	return r
}

// BenchmarkPick is a remote decision: both profiles with four scorers each, the reservation, and the matcher's learning.
func BenchmarkPick(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := production(b)
			c.Stale = time.Hour // however long the benchmark runs, loads are fresh
			s := scheduler(b, half(n), c)
			var requests []*epp.Request
			for i := range 16 {
				requests = append(requests, kilobyte(c, i))
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				mustPick(b, s, requests[i%len(requests)]).Reservation.End()
			}
		})
	}
}

// BenchmarkPickFlowControl is BenchmarkPick with flow control off, and on while the pool has capacity: no request waits. Both take
// turns, since the machine does not stay equally fast. ns/off and ns/on are the medians; on/off may be 1.1. ns/op and
// allocations are those of 64 picks of each. Without engines whose queue is full, a reading of the gate serves for longer.
func BenchmarkPickFlowControl(b *testing.B) {
	const turn = 64
	for _, c := range []struct {
		endpoints, longest int // queue
	}{{10, 4}, {10, 6}, {100, 4}, {100, 6}, {1000, 4}, {1000, 6}} {
		b.Run(fmt.Sprintf("%d/queues-to-%d", c.endpoints, c.longest), func(b *testing.B) {
			off, requests := flowControlled(b, c.endpoints, c.longest, false)
			on, _ := flowControlled(b, c.endpoints, c.longest, true)
			var took [2][]float64
			b.ReportAllocs()
			for b.Loop() {
				for way, s := range []*sched.Scheduler{off, on} {
					began := time.Now()
					for j := range turn {
						mustPick(b, s, requests[j%len(requests)]).Reservation.End()
					}
					took[way] = append(took[way], float64(time.Since(began))/turn)
				}
			}
			var median [2]float64
			for way := range took {
				slices.Sort(took[way])
				median[way] = took[way][len(took[way])/2]
			}
			b.ReportMetric(median[0], "ns/off")
			b.ReportMetric(median[1], "ns/on")
			b.ReportMetric(median[1]/median[0], "on/off")
		})
	}
}

// flowControlled returns a scheduler over n endpoints, with queues of up to a length, with flow control on or off, and requests for it.
func flowControlled(b *testing.B, n, longest int, on bool) (*sched.Scheduler, []*epp.Request) {
	c, p := production(b), half(n)
	for i, l := range p.at.Load().Loads {
		p.at.Load().Loads[i].Signals = l.Signals.With(epp.Waiting, float64(i%(longest+1)))
	}
	c.Stale = time.Hour
	running := flow.NewRunning(epp.SystemClock)
	c.Picked = append(c.Picked, running)
	if on {
		gate := flow.NewPoolGate(flow.GateOptions{Pool: p, Detector: instance[epp.Detector](b, "utilization-detector"), Stages: c.Stages,
			Clock: epp.SystemClock, Stale: time.Hour})
		c.Admission = flow.New(flow.Settings{TTL: time.Minute}, gate, flow.Options{Clock: epp.SystemClock,
			Metrics: flow.NewMetrics(prometheus.NewRegistry(), ""), Running: running})
	}
	var requests []*epp.Request
	for i := range 16 {
		requests = append(requests, kilobyte(c, i))
	}
	return scheduler(b, p, c), requests
}

// BenchmarkPickParallel is BenchmarkPick on all cores at once, over the same endpoints.
func BenchmarkPickParallel(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := production(b)
			c.Stale = time.Hour
			s := scheduler(b, half(n), c)
			var number int
			var mu sync.Mutex
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				mu.Lock()
				number++
				r := kilobyte(c, number)
				mu.Unlock()
				for pb.Next() {
					mustPick(b, s, r).Reservation.End()
				}
			})
		})
	}
}

// BenchmarkExplain is what a person's question costs the machine.
func BenchmarkExplain(b *testing.B) {
	c := production(b)
	c.Stale = time.Hour
	s, r := scheduler(b, half(100), c), kilobyte(c, 1)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Explain(b.Context(), r); err != nil {
			b.Fatal(err)
		}
	}
}
