package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool/page"
	"github.com/tandem-serving/tandem/pd"
)

// engines answers for all endpoints, without sockets, so that a test has the clock of its bubble.
type engines struct {
	mu     sync.Mutex
	asked  map[string]int // by host:port
	answer func(ctx context.Context, host string) (page string, err error)
}

func (e *engines) RoundTrip(r *http.Request) (*http.Response, error) {
	e.mu.Lock()
	e.asked[r.URL.Host]++
	answer := e.answer
	e.mu.Unlock()
	page, err := answer(r.Context(), r.URL.Host)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(page)), ContentLength: int64(len(page))}, nil
}

// since returns how often each was asked since the last call.
func (e *engines) since() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	asked := maps.Clone(e.asked)
	clear(e.asked)
	return asked
}

func (e *engines) behave(answer func(ctx context.Context, host string) (string, error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = answer
}

// always answers with one page.
func always(page string) func(context.Context, string) (string, error) {
	return func(context.Context, string) (string, error) { return page, nil }
}

func refuse(context.Context, string) (string, error) { return "", errors.New("connection refused") }

func hang(ctx context.Context, _ string) (string, error) {
	<-ctx.Done()
	return "", ctx.Err()
}

const (
	idlePage = "vllm:num_requests_waiting 0\nvllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0.5\n"
	busyPage = "vllm:num_requests_waiting 1\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.5\n"
)

// withEngines makes a pool whose endpoints are all served by engines.
func withEngines(t *testing.T, o Options, d Discovery, page func(context.Context, string) (string, error)) (*Pool, *engines) {
	t.Helper()
	p, e := New(o), &engines{asked: make(map[string]int), answer: page}
	configure(t, p, d)
	e.serve(p)
	return p, e
}

// serve answers what p asks from now on, until it is configured again.
func (e *engines) serve(p *Pool) {
	pages := *p.pages.Load()
	pages.client = &http.Client{Transport: e}
	p.pages.Store(&pages)
}

func configure(t *testing.T, p *Pool, d Discovery) {
	t.Helper()
	if err := p.Configure(d, DefaultSource(), page.DefaultExtractor()); err != nil {
		t.Fatal(err)
	}
}

func between(t *testing.T, what string, got, low, high int) {
	t.Helper()
	if got < low || got > high {
		t.Errorf("%s: %d, want %d to %d", what, got, low, high)
	}
}

func manySpecs(n int) []epp.Spec {
	specs := make([]epp.Spec, n)
	for i := range specs {
		specs[i] = specOf(fmt.Sprintf("e%04d", i), fmt.Sprintf("10.1.%d.%d:8000", i/250, i%250+1))
	}
	return specs
}

func TestSnapshotsFollowLoads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, e := withEngines(t, Options{}, ofPool(manySpecs(100)...), always(busyPage))
		start(t, p)
		time.Sleep(2 * time.Second)
		first := p.Snapshot()
		old := slices.Clone(first.Loads)
		time.Sleep(2 * time.Second)
		second := p.Snapshot()
		between(t, "snapshots in 2 s", int(second.Version-first.Version), 50, 101)
		if &first.Endpoints[0] != &second.Endpoints[0] {
			t.Error("the list of endpoints was made anew, though none came or went")
		}
		if !slices.Equal(old, first.Loads) {
			t.Error("a snapshot has changed")
		}
		for i, l := range second.Loads {
			if l.Signals != signals(1, 2, .5) || time.Since(l.At) > 250*time.Millisecond {
				t.Errorf("%v: load %+v", second.Endpoints[i], l)
			}
		}

		e.behave(refuse)
		time.Sleep(time.Second)
		silent := p.Snapshot()
		time.Sleep(20 * time.Second)
		if p.Snapshot() != silent {
			t.Error("a new snapshot, though no page was read")
		}
		if l := silent.Loads[0]; l.Signals != signals(1, 2, .5) || time.Since(l.At) < 20*time.Second {
			t.Errorf("a page that could not be read left the load %+v, want the one before", l)
		}

		e.behave(always("<html>"))
		time.Sleep(20 * time.Second)
		if p.Snapshot() != silent {
			t.Error("a new snapshot, though pages held nothing")
		}

		e.behave(always("vllm:num_requests_running 7\nvllm:kv_cache_usage_perc NaN\n"))
		time.Sleep(20 * time.Second)
		if l := p.Snapshot().Loads[0]; l.Signals != (epp.Values{}.With(epp.Running, 7)) {
			t.Errorf("a page without two of the values left the load %+v, want only running", l)
		}
	})
}

// observer records the calls that it gets.
type observer struct {
	mu           sync.Mutex
	joined, gone []string
}

func (f *observer) EndpointJoined(e *epp.Endpoint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.joined = append(f.joined, e.Name+":"+e.Role.String())
}

func (f *observer) EndpointLeft(e *epp.Endpoint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = append(f.gone, e.Name)
}

func (f *observer) taken() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	gone := f.gone
	f.gone = nil
	return gone
}

func names(s *epp.Snapshot) (names []string) {
	for _, e := range s.Endpoints {
		names = append(names, e.Name)
	}
	return names
}

func TestEndpointsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone observer
		a, b := specOf("a", "10.0.0.1:8000"), specOf("b", "10.0.0.2:8000")
		discovery := ofPool(b, a)
		p, e := withEngines(t, Options{Observer: &gone}, discovery, always(idlePage))
		if s := p.Snapshot(); s.Version != 0 || len(s.Endpoints) != 0 {
			t.Errorf("before the first discovery: %+v", s)
		}
		start(t, p)
		<-p.Synced()
		if got := names(p.Snapshot()); !slices.Equal(got, []string{"a", "b"}) {
			t.Fatalf("endpoints %v", got)
		}
		time.Sleep(5 * time.Second)
		before := p.Snapshot()
		inFlight(before.Endpoints[1])

		changed, another := p.Subscribe(epp.MembersChanged), p.Subscribe(epp.MembersChanged)
		discovery <- []epp.Spec{a}
		<-changed.Ready()
		<-another.Ready()
		synctest.Wait() // observers are told after the subscribers
		after := p.Snapshot()
		if got := names(after); !slices.Equal(got, []string{"a"}) || after.Endpoints[0] != before.Endpoints[0] || after.Loads[0].At.IsZero() {
			t.Errorf("endpoints %v, loads %+v: want the same a with its load", got, after.Loads)
		}
		if got := gone.taken(); !slices.Equal(got, []string{"b"}) {
			t.Errorf("gone: %v", got)
		}
		if found, ok := p.Find(b.Addr); !ok || found != before.Endpoints[1] {
			t.Errorf("b, on which a request runs, is %v, %v", found, ok)
		}
		e.since()
		time.Sleep(70 * time.Second)
		if n := e.since()[b.Addr.String()]; n != 0 {
			t.Errorf("an endpoint that has left was read %d times", n)
		}
		if got := gone.taken(); !slices.Equal(got, []string{"b"}) {
			t.Errorf("before its slot was given up: %v", got)
		}
		if found, ok := p.Find(netip.MustParseAddrPort("[::ffff:10.0.0.2]:8000")); !ok || found.Name != "b" {
			t.Errorf("b, on which a request runs, is %v, %v after its quarantine", found, ok)
		}

		select {
		case <-changed.Ready():
			t.Error("a change of loads woke who waits for endpoints")
		default:
		}
		discovery <- nil
		<-changed.Ready()
		if s := p.Snapshot(); len(s.Endpoints) != 0 || len(s.Loads) != 0 {
			t.Errorf("an empty pool has %v", names(s))
		}
	})
}

// TestRelabeled: an endpoint whose labels change stays the same endpoint. Observers are not told that it left, since its
// caches have not, and the pool reads its metrics page once at a time.
func TestRelabeled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var gone observer
		a := specOf("a", "10.0.0.1:8000")
		discovery := ofPool(a)
		p, e := withEngines(t, Options{Observer: &gone, Idle: time.Second}, discovery, always(idlePage))
		start(t, p)
		<-p.Synced()
		time.Sleep(5 * time.Second)
		before := p.Snapshot()
		running := inFlight(before.Endpoints[0])
		for _, role := range []string{"prefill", "decode", "prefill"} {
			changed := p.Subscribe(epp.MembersChanged)
			discovery <- []epp.Spec{withLabel(a, pd.RoleLabel, role)}
			<-changed.Ready()
			after := p.Snapshot()
			if next := after.Endpoints[0]; next.Role.String() != role || !next.Is(before.Endpoints[0]) || next.Slot != before.Endpoints[0].Slot ||
				next.InFlight().Requests != 1 || after.Loads[0].At.IsZero() {
				t.Errorf("as %s: %+v, load %+v", role, next, after.Loads[0])
			}
		}
		last := p.Snapshot().Endpoints[0]
		if found, ok := p.Find(a.Addr); !ok || found != last {
			t.Errorf("at its address is %+v", found)
		}
		running.End()
		time.Sleep(2 * time.Minute)
		if got := gone.taken(); len(got) != 0 || last.InFlight().Requests != 0 {
			t.Errorf("gone: %v, in flight: %v", got, last.InFlight())
		}
		e.since()
		time.Sleep(time.Minute)
		between(t, "readings in a minute", e.since()[a.Addr.String()], 50, 70)
	})
}

// TestRelabeledUnderLoad changes labels while requests are charged, moved and ended.
func TestRelabeledUnderLoad(t *testing.T) {
	discovery := make(fixed)
	p := New(Options{})
	if err := p.Configure(discovery, Source{}, page.Extractor{}); err != nil { // no engine listens at the addresses
		t.Fatal(err)
	}
	start(t, p)
	specs := manySpecs(4)
	discovery <- specs
	<-p.Synced()
	first := p.Snapshot().Endpoints
	done := make(chan struct{})
	var requests sync.WaitGroup
	for i := range 4 {
		requests.Go(func() {
			for n := i; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				r := inFlight(p.Snapshot().Endpoints[n%len(specs)])
				r.Served(p.Snapshot().Endpoints[n/2%len(specs)])
				r.Answered()
				r.End()
			}
		})
	}
	for n := range 200 {
		next := slices.Clone(specs)
		next[n%len(specs)] = withLabel(next[n%len(specs)], pd.RoleLabel, []string{"prefill", "both"}[n%2])
		discovery <- next
	}
	close(done)
	requests.Wait()
	for i, e := range p.Snapshot().Endpoints {
		if !e.Is(first[i]) || e.InFlight() != (epp.InFlight{}) {
			t.Errorf("%s: %+v in flight at the end", e, e.InFlight())
		}
	}
}

// TestNoChangeIsMissed has several subscribers follow the pool while it changes as fast as it can.
func TestNoChangeIsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		discovery := make(fixed)
		p, _ := withEngines(t, Options{}, discovery, always(idlePage))
		start(t, p)
		var followers sync.WaitGroup
		for range 8 {
			followers.Go(func() {
				changed := p.Subscribe(epp.MembersChanged)
				for {
					if len(p.Snapshot().Endpoints) == 200 {
						return
					}
					<-changed.Ready() // a change that is missed ends the test: all its goroutines would wait
				}
			})
		}
		specs := manySpecs(200)
		for n := range 200 {
			discovery <- specs[:n+1]
		}
		followers.Wait()
	})
}

func TestProblemsAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, twin := specOf("a", "10.0.0.1:8000"), specOf("b", "10.0.0.1:8000")
		odd := withLabel(specOf("c", "10.0.0.3:8000"), page.DefaultExtractor().EngineLabelKey, "tgi")
		discovery, log := make(fixed), &logged{}
		p, e := withEngines(t, Options{Log: log.logger()}, discovery, always(idlePage))
		start(t, p)
		for range 3 {
			discovery <- []epp.Spec{a, twin, odd}
			time.Sleep(5 * time.Second)
		}
		if got := log.count("has the address"); got != 1 {
			t.Errorf("the twin was told %d times", got)
		}
		discovery <- []epp.Spec{a, odd}
		discovery <- []epp.Spec{a, twin, odd}
		e.behave(refuse)
		time.Sleep(30 * time.Second)
		e.behave(always(idlePage))
		time.Sleep(30 * time.Second)
		for text, want := range map[string]int{"has the address": 2, "names an engine that is not configured": 1,
			"metrics page cannot be read": 2, "metrics page can be read again": 2} {
			if got := log.count(text); got != want {
				t.Errorf("%q was logged %d times, want %d", text, got, want)
			}
		}
	})
}

// failing is a Discovery that fails after it has found specs, if it has any.
type failing struct{ specs []epp.Spec }

func (f failing) Run(_ context.Context, apply func([]epp.Spec)) error {
	if f.specs != nil {
		apply(f.specs)
	}
	return errors.New("no such file")
}

func TestReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := specOf("a", "10.0.0.1:8000"), specOf("b", "10.0.0.2:8000")
		log := &logged{}
		p, _ := withEngines(t, Options{Log: log.logger()}, ofPool(a), always(idlePage))
		start(t, p)
		<-p.Synced()
		first := p.Snapshot().Endpoints[0]
		inFlight(first)

		next := make(fixed)
		configure(t, p, next)
		synctest.Wait()
		if got := names(p.Snapshot()); !slices.Equal(got, []string{"a"}) {
			t.Errorf("before the new discovery has spoken: %v", got)
		}
		next <- []epp.Spec{a, b}
		synctest.Wait()
		if s := p.Snapshot(); !slices.Equal(names(s), []string{"a", "b"}) || s.Endpoints[0] != first || first.InFlight().Requests != 1 {
			t.Errorf("after the new discovery has spoken: %v", names(s))
		}

		configure(t, p, failing{})
		synctest.Wait()
		if got := names(p.Snapshot()); !slices.Equal(got, []string{"a", "b"}) || log.count("discovery of endpoints has failed") != 1 {
			t.Errorf("after a discovery that failed: %v", got)
		}
		configure(t, p, ofPool(b))
		synctest.Wait()
		if got := names(p.Snapshot()); !slices.Equal(got, []string{"b"}) {
			t.Errorf("after a discovery that works again: %v", got)
		}

		bad := page.DefaultExtractor()
		bad.DefaultEngine = "unknown"
		if err := p.Configure(ofPool(a), DefaultSource(), bad); err == nil {
			t.Error("a bad extractor: no error")
		}
		synctest.Wait()
		if got := names(p.Snapshot()); !slices.Equal(got, []string{"b"}) {
			t.Errorf("after a configuration that is refused: %v", got)
		}
	})
}

// TestReloadOfMetrics changes which engine is read while scrapers run.
func TestReloadOfMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := specOf("a", "10.0.0.1:8000")
		p, e := withEngines(t, Options{}, ofPool(spec), always("mine 4\n"+idlePage))
		start(t, p)
		time.Sleep(5 * time.Second)
		if l := p.Snapshot().Loads[0]; l.Signals != signals(0, 0, .5) {
			t.Errorf("vllm: %+v", l)
		}
		x := page.DefaultExtractor()
		x.DefaultEngine, x.EngineConfigs = "mine", []page.EngineConfig{{Name: "mine", RunningRequestsSpec: "mine"}}
		s := DefaultSource()
		s.Port = 9100
		if err := p.Configure(ofPool(spec), s, x); err != nil {
			t.Fatal(err)
		}
		e.serve(p)
		time.Sleep(5 * time.Second)
		if l := p.Snapshot().Loads[0]; l.Signals != only(epp.Running, 4).Signals {
			t.Errorf("mine: %+v", l)
		}
		if e.since()["10.0.0.1:9100"] == 0 {
			t.Error("the new port was not asked")
		}
	})
}

// TestReloadToNoMetrics stops reading while scrapers run, and begins again.
func TestReloadToNoMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, e := withEngines(t, Options{}, ofPool(specOf("a", "10.0.0.1:8000")), always(busyPage))
		start(t, p)
		time.Sleep(5 * time.Second)
		if l := p.Snapshot().Loads[0]; l.Signals != signals(1, 2, .5) {
			t.Errorf("before: %+v", l)
		}
		if err := p.Configure(ofPool(specOf("a", "10.0.0.1:8000")), Source{}, page.Extractor{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // a reader that is under way reads once more at most
		e.since()
		time.Sleep(time.Minute)
		if l := p.Snapshot().Loads[0]; l != (epp.Load{}) || len(e.since()) != 0 {
			t.Errorf("without a source: %+v", l)
		}
		configure(t, p, ofPool(specOf("a", "10.0.0.1:8000")))
		e.serve(p)
		time.Sleep(5 * time.Second)
		if l := p.Snapshot().Loads[0]; l.Signals != signals(1, 2, .5) {
			t.Errorf("with a source again: %+v", l)
		}
	})
}

func TestRunFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{})
		configure(t, p, failing{})
		if err := p.Run(t.Context()); err == nil || err.Error() != "discovering endpoints: no such file" {
			t.Errorf("a discovery that finds nothing: got %v", err)
		}
		p, _ = withEngines(t, Options{}, failing{[]epp.Spec{specOf("a", "10.0.0.1:8000")}}, always(idlePage))
		start(t, p)
		time.Sleep(time.Minute)
		if got := names(p.Snapshot()); !slices.Equal(got, []string{"a"}) {
			t.Errorf("a discovery that fails later: %v", got)
		}
	})
}

func TestRunWithoutConfiguration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{})
		start(t, p)
		time.Sleep(time.Minute)
		p2, e := withEngines(t, Options{}, ofPool(specOf("a", "10.0.0.1:8000")), always(idlePage))
		start(t, p2)
		time.Sleep(time.Minute)
		if len(p.Snapshot().Endpoints) != 0 || e.since()["10.0.0.1:8000"] == 0 {
			t.Error("want nothing of a pool without configuration, and all of one that has one")
		}
	})
}

// refused returns the error of an engine whose port is closed.
func refused(context.Context, string) (string, error) { return "", syscall.ECONNREFUSED }

// TestSubscribers: subscribers get the kinds of changes that they want, after the snapshot shows them.
func TestSubscribers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told observer
		a, b := specOf("a", "10.0.0.1:8000"), specOf("b", "10.0.0.2:8000")
		discovery := ofPool(a)
		p, e := withEngines(t, Options{Observer: &told}, discovery, always(idlePage))
		members, loads, health := p.Subscribe(epp.MembersChanged), p.Subscribe(epp.LoadsChanged), p.Subscribe(epp.HealthChanged)
		all := p.Subscribe(epp.MembersChanged | epp.LoadsChanged | epp.HealthChanged)
		changes := func() (got [3]bool, joined epp.Changes) {
			for i, s := range []*epp.Subscription{members, loads, health} {
				select {
				case <-s.Ready():
					got[i] = true
				default:
				}
				s.Take()
			}
			return got, all.Take()
		}
		start(t, p)
		for _, c := range []struct {
			name        string
			given       func()
			want        [3]bool // members, loads, health
			unreachable bool    // is the first endpoint then
		}{
			{"the first endpoints are found and read", func() {}, [3]bool{true, true, false}, false},
			{"their pages are read again", func() {}, [3]bool{false, true, false}, false},
			{"another joins", func() { discovery <- []epp.Spec{a, b} }, [3]bool{true, true, false}, false},
			{"one leaves", func() { discovery <- []epp.Spec{a} }, [3]bool{true, true, false}, false},
			{"the engine dies", func() { e.behave(refused) }, [3]bool{false, false, true}, true},
			{"it stays dead", func() {}, [3]bool{}, true},
			{"it is back", func() { e.behave(always(idlePage)) }, [3]bool{false, true, true}, false},
		} {
			c.given()
			time.Sleep(10 * time.Second)
			got, joined := changes()
			if got != c.want {
				t.Errorf("%s: told %v, want %v", c.name, got, c.want)
			}
			for i, kind := range []epp.Changes{epp.MembersChanged, epp.LoadsChanged, epp.HealthChanged} {
				if (joined&kind != 0) != c.want[i] {
					t.Errorf("%s: a subscriber of all changes got %b", c.name, joined)
				}
			}
			if now := p.Snapshot().Loads[0].Unreachable; now != c.unreachable {
				t.Errorf("%s: unreachable %v", c.name, now)
			}
		}
		told.mu.Lock()
		defer told.mu.Unlock()
		if want := []string{"a:decode", "b:decode"}; !slices.Equal(told.joined, want) {
			t.Errorf("joined %q, want %q", told.joined, want)
		}
	})
}

// TestFreeCapacityIsTold at once, whichever version of the endpoint the request was sent to, and to none that does not want it.
func TestFreeCapacityIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, relabelled := specOf("a", "10.0.0.1:8000"), specOf("a", "10.0.0.1:8000")
		relabelled.Labels = map[string]string{"zone": "b"}
		discovery := ofPool(a)
		p, _ := withEngines(t, Options{}, discovery, always(idlePage))
		start(t, p)
		<-p.Synced()
		ends, others := p.Subscribe(epp.InFlightFell), p.Subscribe(epp.MembersChanged)
		told := func() bool {
			select {
			case <-ends.Ready():
				return ends.Take() == epp.InFlightFell
			default:
				return false
			}
		}
		running := inFlight(p.Snapshot().Endpoints[0])
		if told() {
			t.Error("a request that begins is no free capacity")
		}
		discovery <- []epp.Spec{relabelled}
		<-others.Ready()
		next := inFlight(p.Snapshot().Endpoints[0])
		for _, r := range []*epp.Reservation{running, next} {
			if r.End(); !told() {
				t.Error("a request has ended, and no subscriber was told")
			}
			if r.End(); told() {
				t.Error("told of an end that was none")
			}
		}
	})
}

// TestCheck: an endpoint that another picker has found unreachable is read at once, and taken out after one reading without an answer, where
// this picker alone wants two. One that answers stays, whatever others say. It comes back as soon as another picker has found it reachable again.
func TestCheck(t *testing.T) {
	const idle, timeout = 10 * time.Second, 500 * time.Millisecond
	for _, c := range []struct {
		name    string
		checked bool
		page    func(context.Context, string) (string, error)
		want    bool // it is unreachable
	}{
		{"hangs, and another picker says so", true, hang, true},
		{"hangs", false, hang, false},
		{"answers, and another picker says that it does not", true, always(idlePage), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, e := withEngines(t, Options{Idle: idle, Timeout: timeout}, ofPool(specOf("a", "10.0.0.1:8000")), always(idlePage))
				start(t, p)
				<-p.Synced()
				time.Sleep(time.Second) // the first page is read, the next one is due in nine seconds
				e.since()
				e.behave(c.page)
				if c.checked {
					p.Check(p.Snapshot().Endpoints[0])
				}
				time.Sleep(2 * timeout)
				if n := e.since()["10.0.0.1:8000"]; (n > 0) != c.checked {
					t.Errorf("the page was read %d times, checked: %v", n, c.checked)
				}
				if got := p.Snapshot().Loads[0].Unreachable; got != c.want {
					t.Errorf("unreachable: %v, want %v", got, c.want)
				}
				e.behave(always(idlePage))
				p.Check(p.Snapshot().Endpoints[0])
				time.Sleep(timeout)
				if p.Snapshot().Loads[0].Unreachable {
					t.Error("an endpoint that answers again is not back after a check")
				}
			})
		})
	}
	t.Run("has left", func(t *testing.T) { New(Options{}).Check(&epp.Endpoint{}) })
}
