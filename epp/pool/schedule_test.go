package pool

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp/pool/page"
)

func TestScrapesFollowLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := specOf("a", "10.0.0.1:8000")
		host := spec.Addr.String()
		p, e := withEngines(t, Options{}, ofPool(spec), always(idlePage))
		start(t, p)
		time.Sleep(2 * time.Second)
		e.since()
		time.Sleep(20 * time.Second)
		between(t, "scrapes of an idle endpoint in 20 s", e.since()[host], 18, 22)

		running := inFlight(p.Snapshot().Endpoints[0])
		time.Sleep(220 * time.Millisecond)
		between(t, "scrapes in the first moment of a request", e.since()[host], 1, 2)
		time.Sleep(20 * time.Second)
		between(t, "scrapes of an endpoint with a request in 20 s", e.since()[host], 90, 112)
		running.End()

		e.behave(always(busyPage))
		time.Sleep(2 * time.Second)
		e.since()
		time.Sleep(20 * time.Second)
		between(t, "scrapes of an endpoint that says it is busy in 20 s", e.since()[host], 90, 112)

		e.behave(refuse)
		time.Sleep(20 * time.Second)
		e.since()
		time.Sleep(60 * time.Second)
		between(t, "scrapes of a busy endpoint that fails in 60 s", e.since()[host], 10, 14)

		e.behave(always(busyPage))
		time.Sleep(6 * time.Second)
		e.since()
		time.Sleep(20 * time.Second)
		between(t, "scrapes after it has recovered in 20 s", e.since()[host], 90, 112)
	})
}

// An idle endpoint whose page was read some time ago gets a request: the page is read soon, but not sooner after the last time
// than the page of a busy endpoint is.
func TestFirstRequestHasThePageRead(t *testing.T) {
	const busy, idle = 10 * time.Second, 100 * time.Second
	for _, c := range []struct {
		name           string
		since          time.Duration // the last reading
		earliest, late time.Duration // after the request
	}{
		{"at once", 0, busy * 9 / 10, busy * 11 / 10},
		{"within the busy interval", busy / 2, busy * 4 / 10, busy * 6 / 10},
		{"later", 5 * busy, 0, busy / 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				read := make(chan time.Time, 100)
				p, _ := withEngines(t, Options{Busy: busy, Idle: idle}, ofPool(specOf("a", "10.0.0.1:8000")), func(context.Context, string) (string, error) {
					read <- time.Now()
					return idlePage, nil
				})
				start(t, p)
				last := <-read
				time.Sleep(time.Until(last.Add(c.since)))
				synctest.Wait()
				request := time.Now()
				running := inFlight(p.Snapshot().Endpoints[0])
				defer running.End()
				if took := (<-read).Sub(request); took < c.earliest || took > c.late {
					t.Errorf("read %v after the request, want %v to %v", took, c.earliest, c.late)
				}
			})
		})
	}
}

// A request that has ended before the scraper runs has the page read as well, and requests after that wake nothing.
func TestShortRequestsAreSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := specOf("a", "10.0.0.1:8000")
		p, e := withEngines(t, Options{}, ofPool(spec), always(idlePage))
		start(t, p)
		time.Sleep(10 * time.Second)
		e.since()
		for range 20_000 {
			inFlight(p.Snapshot().Endpoints[0]).End()
			time.Sleep(time.Millisecond)
		}
		between(t, "scrapes of an endpoint with a short request every millisecond in 20 s", e.since()[spec.Addr.String()], 90, 112)
	})
}

// TestScrapesSpreadABurst has 200 idle endpoints get a request in the same moment. Each is read within a busy interval and its
// tenth (220 ms), and again no sooner than 180 ms later.
func TestScrapesSpreadABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		perMoment, perEndpoint := map[time.Duration]int{}, map[string]int{}
		var begin time.Time
		p, _ := withEngines(t, Options{}, ofPool(manySpecs(200)...), func(_ context.Context, url string) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			perMoment[time.Since(begin)/(10*time.Millisecond)]++
			perEndpoint[url]++
			return idlePage, nil
		})
		start(t, p)
		time.Sleep(10 * time.Second)
		mu.Lock()
		clear(perMoment)
		clear(perEndpoint)
		begin = time.Now()
		mu.Unlock()
		for _, e := range p.Snapshot().Endpoints {
			defer inFlight(e).End()
		}
		time.Sleep(250 * time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		for moment, n := range perMoment {
			if n > 50 {
				t.Errorf("%d of 200 were read within the 10 ms from %v", n, moment*10*time.Millisecond)
			}
		}
		if len(perEndpoint) != 200 {
			t.Errorf("%d of 200 endpoints were read", len(perEndpoint))
		}
		for url, n := range perEndpoint {
			if n > 2 {
				t.Errorf("%s was read %d times in 250 ms", url, n)
			}
		}
	})
}

func TestIntervals(t *testing.T) {
	cases := []struct {
		name       string
		busy, idle time.Duration // of the options
		source     time.Duration
		wantBusy   time.Duration
		wantIdle   time.Duration
	}{
		{"defaults", 0, 0, 0, 200 * time.Millisecond, time.Second},
		{"flag", 100 * time.Millisecond, 0, 0, 100 * time.Millisecond, time.Second},
		{"flag below llm-d's least", time.Millisecond, 0, 0, 50 * time.Millisecond, time.Second},
		{"slow flag", 5 * time.Second, 0, 0, 5 * time.Second, 5 * time.Second},
		{"configured", 100 * time.Millisecond, 0, 300 * time.Millisecond, 300 * time.Millisecond, time.Second},
		{"configured below llm-d's least", 0, 0, time.Millisecond, 50 * time.Millisecond, time.Second},
		{"configured slow", 0, 0, 3 * time.Second, 3 * time.Second, 3 * time.Second},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p, source := New(Options{Busy: c.busy, Idle: c.idle}), DefaultSource()
			source.Interval = c.source
			if err := p.Configure(nil, source, page.DefaultExtractor()); err != nil {
				t.Fatal(err)
			}
			if s := scraperOf(p, "10.0.0.1:1"); s.busy != c.wantBusy || s.idle != c.wantIdle {
				t.Errorf("busy %v, idle %v, want %v and %v", s.busy, s.idle, c.wantBusy, c.wantIdle)
			}
		})
	}
}

func TestSpread(t *testing.T) {
	for r, want := range map[float64]time.Duration{0: 90 * time.Millisecond, .5: 100 * time.Millisecond, 1: 110 * time.Millisecond} {
		if got := spread(100*time.Millisecond, r); got.Round(time.Microsecond) != want {
			t.Errorf("%v: %v, want %v", r, got, want)
		}
	}
}

// TestScrapesSpread looks at when 200 endpoints that were found together are read: never many in the same moment.
func TestScrapesSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, perMoment := time.Now(), map[time.Duration]int{}
		var mu sync.Mutex
		p, _ := withEngines(t, Options{}, ofPool(manySpecs(200)...), func(context.Context, string) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			perMoment[time.Since(begin)/(10*time.Millisecond)]++
			return busyPage, nil
		})
		start(t, p)
		time.Sleep(10 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		for moment, n := range perMoment {
			if n > 40 { // 10 would be perfectly even
				t.Errorf("%d of 200 were read within the 10 ms from %v", n, moment*10*time.Millisecond)
			}
		}
	})
}

// TestSlowEndpointsDelayNoOther has far more endpoints that never answer than scrapes may run at a time.
func TestSlowEndpointsDelayNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		specs := manySpecs(400)
		healthy := map[string]bool{}
		for _, s := range specs[:10] {
			healthy[s.Addr.String()] = true
		}
		p, e := withEngines(t, Options{}, ofPool(specs...), func(ctx context.Context, host string) (string, error) {
			if healthy[host] {
				return idlePage, nil
			}
			return hang(ctx, host)
		})
		start(t, p)
		time.Sleep(20 * time.Second) // each of them has held a place once
		e.since()
		time.Sleep(30 * time.Second)
		asked := e.since()
		for host := range healthy {
			between(t, "scrapes of a healthy endpoint among slow ones in 30 s", asked[host], 27, 33)
		}
		for host, n := range asked {
			if !healthy[host] {
				between(t, "scrapes of a slow endpoint in 30 s", n, 1, 6)
			}
		}
	})
}
