package main

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/pd"
)

// witness is a plugin that notes what it is told.
type witness struct{ told []string }

func (w *witness) EndpointJoined(e *epp.Endpoint) { w.told = append(w.told, "+"+e.Name) }
func (w *witness) EndpointLeft(e *epp.Endpoint)   { w.told = append(w.told, "-"+e.Name) }

func (*witness) Watches() epp.Changes { return epp.LoadsChanged }

func (w *witness) SnapshotChanged(s *epp.Snapshot, what epp.Changes) {
	if what == epp.LoadsChanged && s != nil {
		w.told = append(w.told, "loads")
	}
}

// changingPool is a pool that changes when it is told to.
type changingPool struct {
	epp.Publisher
	endpoints []*epp.Endpoint
}

func (p *changingPool) Snapshot() *epp.Snapshot {
	return &epp.Snapshot{Endpoints: p.endpoints, Loads: make([]epp.Load, len(p.endpoints))}
}

func TestPluginsFollowThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		endpoint := func(name string, slot int) *epp.Endpoint {
			e := epp.NewEndpoint("default", name, netip.MustParseAddrPort("10.0.0.1:8000"), "", nil)
			e.Slot = slot
			return e
		}
		a, b := endpoint("a", 0), endpoint("b", 1)
		l, pool := &lifecycle{keep: &epp.Keep{}}, &changingPool{}
		kept := epp.Kept(l.keep, "kept", func() *witness { return &witness{} })
		first, second := &witness{}, &witness{}
		ctx, stop := context.WithCancel(t.Context())
		var following sync.WaitGroup
		following.Go(func() { l.follow(ctx, pool) })
		synctest.Wait()

		l.EndpointJoined(a)
		l.use(&config.Built{Instances: []config.Instance{{Name: "first", Value: first}}})
		l.EndpointJoined(b)
		pool.Publish(epp.LoadsChanged)
		synctest.Wait()
		l.EndpointLeft(b)
		l.use(&config.Built{Instances: []config.Instance{{Name: "second", Value: second}}})
		l.EndpointLeft(a)
		pool.Publish(epp.LoadsChanged)
		synctest.Wait()
		stop()
		following.Wait()
		for _, c := range []struct {
			name string
			got  *witness
			want []string
		}{
			{"kept", kept, []string{"+a", "+b", "-b", "-a"}},
			{"first", first, []string{"+a", "+b", "loads", "-b"}},
			{"second", second, []string{"+a", "-a", "loads"}},
		} {
			if !slices.Equal(c.got.told, c.want) {
				t.Errorf("%s was told %v, want %v", c.name, c.got.told, c.want)
			}
		}
	})
}

// oneAtATime is an admission that lets a request pass while none is in flight, and makes others wait without a timer.
type oneAtATime struct {
	on *epp.Endpoint

	mu    sync.Mutex
	again chan struct{} // closed when those that wait are to look again
}

func (*oneAtATime) Watches() epp.Changes { return epp.InFlightFell }

func (a *oneAtATime) SnapshotChanged(*epp.Snapshot, epp.Changes) {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.again)
	a.again = make(chan struct{})
}

func (a *oneAtATime) Settled(*epp.Request, epp.Pass) {}

func (a *oneAtATime) Admit(ctx context.Context, _ *epp.Request) (epp.Pass, error) {
	for {
		a.mu.Lock()
		again := a.again
		a.mu.Unlock()
		if a.on.InFlight().Requests == 0 {
			return epp.Pass{}, nil
		}
		select {
		case <-again:
		case <-ctx.Done():
			return epp.Pass{}, pd.Refuse(pd.Deadline, "Too late.")
		}
	}
}

// A request that waits for capacity is picked for when another one ends, in the same instant, and not before.
func TestAdmissionWaitsForCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := epp.NewEndpoint("default", "a", netip.MustParseAddrPort("10.0.0.1:8000"), "", nil)
		pool := &changingPool{endpoints: []*epp.Endpoint{e}}
		e.Watch(&pool.Publisher, nil)
		admission := &oneAtATime{on: e, again: make(chan struct{})}
		l := &lifecycle{keep: &epp.Keep{}}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { l.follow(ctx, pool) })
		synctest.Wait()
		l.use(&config.Built{Instances: []config.Instance{{Name: "admission", Value: admission}}})

		s := sched.New(pool, epp.SystemClock)
		pipeline, err := sched.NewPipeline(sched.Config{Admission: admission, Stages: epp.Stages{epp.DecodeRow("decode")},
			Profiles: []epp.Profile{{Name: "decode", Picker: firstPicker{}}}, Stale: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		s.Swap(pipeline)
		first, err := s.Pick(t.Context(), &epp.Request{})
		if err != nil {
			t.Fatal(err)
		}
		var second *epp.Decision
		var picked time.Time
		running.Go(func() {
			var err error
			if second, err = s.Pick(t.Context(), &epp.Request{}); err != nil {
				t.Error(err)
			}
			picked = time.Now()
		})
		time.Sleep(time.Hour)
		pool.Publish(epp.LoadsChanged) // frees nothing, and is not watched
		synctest.Wait()
		if second != nil {
			t.Fatal("the second request did not wait")
		}
		ended := time.Now()
		first.Reservation.End()
		synctest.Wait()
		if second == nil || !picked.Equal(ended) {
			t.Errorf("the second request was picked for %v after the first had ended", picked.Sub(ended))
		}
		stop()
		running.Wait()
	})
}

// firstPicker picks the first candidate.
type firstPicker struct{}

func (firstPicker) Endpoints() int { return 1 }

func (firstPicker) Pick(_ *epp.Round, _ []float64, _ int, dst []int) []int { return append(dst, 0) }
