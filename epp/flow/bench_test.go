package flow_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
)

// unlimited is a gate that is closed, or has capacity for the requests that a benchmark lets pass.
type unlimited struct {
	mu   sync.Mutex
	free int
}

func (u *unlimited) Saturation(_ bool, _ int64, pending epp.InFlight, _ float64) float64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.free-pending.Requests <= 0 {
		return 1
	}
	return 0
}

func (*unlimited) Splits(*epp.Request) bool { return false }
func (*unlimited) Empty() bool              { return false }

func (u *unlimited) add(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.free += n
}

// BenchmarkDispatch is one request through the queue of 1,000 flows with four clients each. Every client sends the next request when
// one has passed. dispatches/s/core goes by the processor time of all threads, which other programs do not lengthen; 100,000 are
// promised.
func BenchmarkDispatch(b *testing.B) {
	const flows, clients = 1000, 4000
	for _, bench := range []struct {
		name     string
		fairness flow.Fairness
	}{{"strict", flow.GlobalStrict}, {"robin", flow.RoundRobin}, {"tokens", flow.ServedTokens}, {"least", flow.LeastAttained}} {
		b.Run(bench.name, func(b *testing.B) {
			gate := &unlimited{}
			c := flow.New(flow.Settings{TTL: time.Hour, Other: flow.Band{Fairness: bench.fairness}}, gate, flow.Options{Clock: epp.SystemClock})
			passed := make(chan struct{}, clients)
			var running sync.WaitGroup
			for i := range clients {
				running.Go(func() {
					r := local("", 0, fmt.Sprint(i%flows))
					for {
						pass, err := c.Admit(b.Context(), r)
						if err != nil {
							return
						}
						gate.add(-1)
						c.Settled(r, pass)
						passed <- struct{}{}
					}
				})
			}
			for c.View().Requests < clients {
				runtime.Gosched()
			}
			b.ReportAllocs()
			began := cpuTime()
			for b.Loop() {
				gate.add(1)
				c.SnapshotChanged()
				<-passed
			}
			b.ReportMetric(float64(b.N)/(cpuTime()-began).Seconds(), "dispatches/s/core")
			c.Close()
			running.Wait()
		})
	}
}

// cpuTime returns the time that the process has used all cores for.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkIdle is what flow control costs a request that does not wait.
func BenchmarkIdle(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			roles := make([]string, n)
			for i := range roles {
				roles[i] = []string{"decode", "prefill"}[i%2]
			}
			c := flow.New(flow.Settings{TTL: time.Hour}, newFixed(0, roles...).gate(perEndpoint{10, new(int)}),
				flow.Options{Clock: epp.SystemClock, Metrics: flow.NewMetrics(prometheus.NewRegistry(), "")})
			r := local("", 0, "a")
			b.ReportAllocs()
			for b.Loop() {
				pass, err := c.Admit(b.Context(), r)
				if err != nil {
					b.Fatal(err)
				}
				c.Settled(r, pass)
			}
		})
	}
}

// mostWaiting is how many bytes of heap a request may take while it waits, besides its body.
const mostWaiting = 4 << 10

func TestWaitingCosts(t *testing.T) {
	if each := waitingCost(t.Context(), 10_000); each > mostWaiting {
		t.Errorf("a waiting request takes %.0f bytes, want at most %d", each, mostWaiting)
	}
}

// BenchmarkWaiting is what requests of 1,000 flows cost while they wait, besides their bodies: B/waiting of heap, of which 4096 are
// promised. The goroutine of a request is that of its stream.
func BenchmarkWaiting(b *testing.B) {
	b.ReportAllocs()
	each := 0.0
	for b.Loop() {
		each = max(each, waitingCost(b.Context(), 10_000))
	}
	b.ReportMetric(each, "B/waiting")
}

// waitingCost returns the bytes of heap that each of so many requests takes while it waits.
func waitingCost(ctx context.Context, waiting int) float64 {
	c := flow.New(flow.Settings{TTL: time.Hour, Other: flow.Band{Fairness: flow.ServedTokens}}, &unlimited{}, flow.Options{Clock: epp.SystemClock})
	requests := make([]*epp.Request, waiting)
	for i := range requests {
		requests[i] = local("", 0, fmt.Sprint(i%1000))
	}
	before := memory()
	var running sync.WaitGroup
	for _, r := range requests {
		running.Go(func() { _, _ = c.Admit(ctx, r) })
	}
	for c.View().Requests < waiting {
		runtime.Gosched()
	}
	used := memory() - before
	c.Close()
	running.Wait()
	return float64(used) / float64(waiting)
}

// memory returns the bytes of the heap that are in use.
func memory() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
