package epp_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

func pods(n int) (all []*epp.Endpoint) {
	for i := range n {
		all = append(all, pod(fmt.Sprint("pod-", i)))
	}
	return all
}

// claim charges one request of some tokens to what an endpoint has in flight now, for decoding: only the request stays
// charged after the answer has begun.
func claim(e *epp.Endpoint, tokens int) epp.Claim {
	return epp.Claim{Endpoint: e, Seen: e.InFlight(), Add: epp.InFlight{Requests: 1, Tokens: tokens},
		Keep: epp.InFlight{Requests: 1}}
}

// keeping returns a claim whose tokens stay charged too.
func keeping(c epp.Claim) epp.Claim {
	c.Keep = c.Add
	return c
}

// prefilling charges one request of some tokens for prefill: nothing stays charged after the answer has begun.
func prefilling(e *epp.Endpoint, tokens int) epp.Claim {
	c := claim(e, tokens)
	c.Keep = epp.InFlight{}
	return c
}

// tryReserve reserves the claims if the load of their endpoints is still what they saw.
func tryReserve(claims []epp.Claim) (*epp.Reservation, bool) {
	r := &epp.Reservation{}
	return r, r.Reserve(claims)
}

func checkInFlight(t *testing.T, e *epp.Endpoint, requests, tokens int) {
	t.Helper()
	if got, want := e.InFlight(), (epp.InFlight{Requests: requests, Tokens: tokens}); got != want {
		t.Errorf("%s: %+v in flight, want %+v", e.Name, got, want)
	}
}

func TestReserve(t *testing.T) {
	d, p := pod("decode"), pod("prefill")
	stale := claim(d, 1)
	r, ok := tryReserve([]epp.Claim{claim(d, 10), prefilling(p, 100)})
	if !ok {
		t.Fatal("not reserved")
	}
	checkInFlight(t, d, 1, 10)
	checkInFlight(t, p, 1, 100)
	if _, ok := tryReserve([]epp.Claim{stale}); ok {
		t.Error("reserved on a load that is no longer so")
	}
	stale.Endpoint = p
	if _, ok := tryReserve([]epp.Claim{claim(d, 7), stale}); ok {
		t.Error("reserved though prefill's load is no longer so")
	}
	checkInFlight(t, d, 1, 10)
	checkInFlight(t, p, 1, 100)
	r.End()
	r.End()
	checkInFlight(t, d, 0, 0)
	checkInFlight(t, p, 0, 0)
}

func TestReserveBothOnOneEndpoint(t *testing.T) {
	e := pod("both")
	r, ok := tryReserve([]epp.Claim{claim(e, 10), prefilling(e, 100)})
	if !ok {
		t.Fatal("not reserved")
	}
	checkInFlight(t, e, 2, 110)
	r.Answered()
	checkInFlight(t, e, 1, 0)
	r.End()
	checkInFlight(t, e, 0, 0)
}

func TestInsist(t *testing.T) {
	d, p := pod("decode"), pod("prefill")
	old, oldPrefill := claim(d, 10), prefilling(p, 100)
	first := epp.ReserveAnyway(old, oldPrefill)
	second := epp.ReserveAnyway(old, oldPrefill)
	checkInFlight(t, d, 2, 20)
	checkInFlight(t, p, 2, 200)
	first.End()
	second.End()
	checkInFlight(t, d, 0, 0)
	checkInFlight(t, p, 0, 0)
}

func TestAnswered(t *testing.T) {
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprint("keep ", keep), func(t *testing.T) {
			d, p := pod("decode"), pod("prefill")
			decode, left := claim(d, 10), 0
			if keep {
				decode, left = keeping(decode), 10
			}
			r := epp.ReserveAnyway(decode, prefilling(p, 100))
			for range 2 {
				r.Answered()
				checkInFlight(t, d, 1, left)
				checkInFlight(t, p, 0, 0)
			}
			r.End()
			r.Answered()
			checkInFlight(t, d, 0, 0)
		})
	}
}

func TestServed(t *testing.T) {
	picked, served := pod("picked"), pod("served")
	r := epp.ReserveAnyway(claim(picked, 10))
	r.Served(picked)
	checkInFlight(t, picked, 1, 10)
	r.Served(served)
	checkInFlight(t, picked, 0, 0)
	checkInFlight(t, served, 1, 10)
	r.Answered()
	r.Served(picked)
	checkInFlight(t, picked, 1, 0)
	checkInFlight(t, served, 0, 0)
	r.End()
	r.Served(served)
	checkInFlight(t, picked, 0, 0)
	checkInFlight(t, served, 0, 0)
}

// A charge of one version of an endpoint is a charge of all, and Move between versions changes nothing.
func TestVersionsShareTheirLoad(t *testing.T) {
	old := pod("pod")
	old.Slot = 7
	next := old.With("10.0.0.1:9000", map[string]string{pd.RoleLabel: "prefill"})
	if next.Slot != 7 || next.Role != pd.RolePrefill || next.Metrics != "10.0.0.1:9000" || next.String() != old.String() || next.Address != old.Address {
		t.Errorf("got %+v", next)
	}
	other := pod("pod")
	for _, c := range []struct {
		name string
		a, b *epp.Endpoint
		want bool
	}{{"itself", old, old, true}, {"versions", old, next, true}, {"versions, the other way", next, old, true}, {"namesakes", old, other, false},
		{"nil and one", nil, old, false}, {"one and nil", old, nil, false}, {"nil", nil, nil, true}} {
		if got := c.a.Is(c.b); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	stale := claim(old, 1)
	r := epp.ReserveAnyway(claim(old, 10))
	checkInFlight(t, next, 1, 10)
	r.Served(next)
	checkInFlight(t, next, 1, 10)
	if _, ok := tryReserve([]epp.Claim{stale}); ok {
		t.Error("reserved on a load that another version has no longer")
	}
	both, ok := tryReserve([]epp.Claim{claim(old, 1), prefilling(next, 2)})
	if !ok {
		t.Fatal("not reserved on two versions of one endpoint")
	}
	checkInFlight(t, old, 3, 13)
	both.End()
	r.Answered()
	checkInFlight(t, old, 1, 0)
	r.Served(other)
	checkInFlight(t, next, 0, 0)
	r.Served(next)
	r.End()
	for _, e := range []*epp.Endpoint{old, next, other} {
		checkInFlight(t, e, 0, 0)
	}
}

// A burst of requests that all see the same idle endpoints must spread: each goes to what is the least loaded at the moment
// it is charged, however many pick at once.
func TestReserveSpreadsABurst(t *testing.T) {
	const endpoints, pickers, each = 8, 16, 50
	all := pods(endpoints)
	var wg sync.WaitGroup
	for range pickers {
		wg.Go(func() {
			for range each {
				for reserved := false; !reserved; {
					least := claim(all[0], 5)
					for _, e := range all[1:] {
						if c := claim(e, 5); c.Seen.Requests < least.Seen.Requests {
							least = c
						}
					}
					_, reserved = tryReserve([]epp.Claim{least})
				}
			}
		})
	}
	wg.Wait()
	for _, e := range all {
		checkInFlight(t, e, pickers*each/endpoints, 5*pickers*each/endpoints)
	}
}

// world is endpoints, a ledger, and what may be done to them in any order.
type world struct {
	endpoints []*epp.Endpoint
	ledger    *epp.Ledger
	ids       atomic.Int64
}

const patience = 2 * time.Second

// most is more than may ever be in flight in these tests: a charge taken back twice makes a count wrap to far above it.
const most = 1 << 20

func (w *world) check(t *testing.T) {
	for _, e := range w.endpoints {
		if f := e.InFlight(); f.Requests > most || f.Tokens > most {
			t.Errorf("%s: %+v in flight", e.Name, f)
		}
	}
}

// request takes one request through its life, as the streams of the picker might.
func (w *world) request(t *testing.T, rnd *rand.Rand) {
	e := func() *epp.Endpoint {
		e := w.endpoints[rnd.IntN(len(w.endpoints))]
		if rnd.IntN(3) == 0 {
			e = e.With("", nil) // its labels have changed since
		}
		return e
	}
	// Pauses that meet the ledger's patience to the nanosecond are the ones that race with it.
	pause := func() {
		if n := rnd.IntN(4); n > 0 { // on a timer of 0 the runtime may crash: go1.26.8 with the race detector
			<-time.After(time.Duration(n) * patience / 2)
		}
	}
	claims := []epp.Claim{claim(e(), rnd.IntN(100))}
	if rnd.IntN(2) == 0 {
		claims[0] = keeping(claims[0])
	}
	for range rnd.IntN(4) { // further stages
		claims = append(claims, prefilling(e(), rnd.IntN(100)))
	}
	r, ok := tryReserve(claims)
	if !ok {
		r = epp.ReserveAnyway(claims...)
	}
	held := rnd.IntN(4) > 0
	if held {
		// The picker makes the ids, yet a repeated one must not lose a reservation.
		id := fmt.Sprint(w.ids.Add(int64(rnd.IntN(2))))
		w.ledger.Hold(id, &epp.Decision{Reservation: r})
		pause()
		d, ok := w.ledger.Take(id)
		if !ok {
			return // expired, or another's hold took its place: it has been ended
		}
		r = d.Reservation
	}
	for range rnd.IntN(6) {
		switch rnd.IntN(3) {
		case 0:
			r.Served(e())
		case 1:
			r.Answered()
		case 2:
			pause()
		}
		w.check(t)
	}
	for range 1 + rnd.IntN(2) {
		r.End()
	}
	w.check(t)
}

// Whatever the order and the end, nothing stays charged and nothing is taken back twice.
func TestReservationsLeakNothing(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			w := &world{endpoints: pods(3), ledger: epp.NewLedger(patience, epp.SystemClock)}
			var wg sync.WaitGroup
			for worker := range uint64(8) {
				rnd := rand.New(rand.NewPCG(seed, worker))
				wg.Go(func() {
					for range 100 {
						w.request(t, rnd)
					}
				})
			}
			if seed%2 == 0 {
				time.Sleep(20 * patience)
				w.ledger.Close() // the rest finds it closed
			}
			wg.Wait()
			time.Sleep(2 * patience)
			if n := w.ledger.Len(); n != 0 {
				t.Errorf("seed %d: %d reservations are held beyond the ledger's patience", seed, n)
			}
			for _, e := range w.endpoints {
				checkInFlight(t, e, 0, 0)
			}
		})
	}
}

// BenchmarkReserve is the life of a reservation of two stages, on endpoints that a pool watches and no subscriber waits for.
func BenchmarkReserve(b *testing.B) {
	var p epp.Publisher
	d, pre := pod("decode"), pod("prefill")
	for _, e := range []*epp.Endpoint{d, pre} {
		e.Watch(&p, make(chan struct{}, 1))
	}
	claims := []epp.Claim{claim(d, 0), prefilling(pre, 100)}
	b.ReportAllocs()
	for b.Loop() {
		r, ok := tryReserve(claims)
		if !ok {
			b.Fatal("not reserved")
		}
		r.Answered()
		r.End()
	}
}

// ends counts how often it was told of an end.
type ends struct{ n int }

func (e *ends) Ended() { e.n++ }

// A reservation tells once of its end, and evicts its request at most once, not after the end.
func TestEndAndEvictionAreTold(t *testing.T) {
	for name, tc := range map[string]struct {
		steps          string // o: OnEvict, e: Evict, E: End
		ended, evicted int
		refused        int // Evict calls that had no effect
	}{
		"ended":                     {"E", 1, 0, 0},
		"ended twice":               {"EE", 1, 0, 0},
		"evicted":                   {"oeE", 1, 1, 0},
		"evicted twice":             {"oee", 0, 1, 1},
		"evicted before it can be":  {"eoe", 0, 1, 1},
		"evicted after its end":     {"oEe", 1, 0, 1},
		"another stream waits":      {"ooeE", 1, 1, 0},
		"the end is not waited for": {"oe", 0, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			told, evicted, refused := &ends{}, 0, 0
			r := epp.ReserveAnyway(claim(pod("a"), 1))
			r.OnEnd(told)
			for _, step := range tc.steps {
				switch step {
				case 'o':
					r.OnEvict(func(why *pd.Refusal) {
						if evicted++; why.Reason != pd.Evicted {
							t.Error(why)
						}
					})
				case 'e':
					if !r.Evict(pd.Refuse(pd.Evicted, "Go.")) {
						refused++
					}
				case 'E':
					r.End()
				}
			}
			if told.n != tc.ended || evicted != tc.evicted || refused != tc.refused {
				t.Errorf("ended %d, evicted %d, and %d times without effect; want %+v", told.n, evicted, refused, tc)
			}
		})
	}
}
