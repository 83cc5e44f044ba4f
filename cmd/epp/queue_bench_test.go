package main

import (
	"context"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
	"github.com/tandem-serving/tandem/pd"
)

// oneSlot is a detector: an endpoint is full with one request.
type oneSlot struct{}

func (oneSlot) Filter(_ *epp.Round, c []epp.Candidate) []epp.Candidate { return c }

func (oneSlot) Saturation(_ time.Time, c []epp.Candidate) float64 {
	return float64(c[0].InFlight.Requests)
}

// BenchmarkFreedSlot is the time from the end of a request to the moment in which the next one of a thousand that wait is picked for,
// through the pool's changes: on average, and the time that all but one in a hundred keep, p99-µs, of which 1000 are promised.
func BenchmarkFreedSlot(b *testing.B) {
	const waiting = 1000
	e := epp.NewEndpoint("default", "a", netip.MustParseAddrPort("10.0.0.1:8000"), "", nil)
	pool := &changingPool{endpoints: []*epp.Endpoint{e}}
	e.Watch(&pool.Publisher, nil)
	q := newQueue(pool, "", prometheus.NewRegistry())
	q.Configure(flow.Settings{TTL: time.Hour}, flow.NewPoolGate(flow.GateOptions{Pool: pool, Detector: oneSlot{}, Clock: epp.SystemClock,
		Stale: time.Hour, Stages: epp.Stages{epp.DecodeRow("decode")}}))
	slot := epp.Claim{Endpoint: e, Add: epp.InFlight{Requests: 1}}
	holder := epp.ReserveAnyway(slot)
	passed := make(chan *epp.Reservation)
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { q.follow(ctx) })
	for range waiting {
		running.Go(func() {
			r := &epp.Request{API: pd.APIChat}
			for {
				pass, err := q.Admit(ctx, r)
				if err != nil {
					return
				}
				next := epp.ReserveAnyway(slot)
				q.Settled(r, pass)
				passed <- next
			}
		})
	}
	for q.View().Requests < waiting {
		runtime.Gosched()
	}
	took := make([]time.Duration, 0, 1<<20)
	b.ReportAllocs()
	for b.Loop() {
		began := time.Now()
		holder.End()
		holder = <-passed
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100])/1e3, "p99-µs")
	stop()
	running.Wait()
}
