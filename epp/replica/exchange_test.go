package replica

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/epp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakePool is a pool whose endpoints a test chooses.
type fakePool struct{ atomic.Pointer[epp.Snapshot] }

func (p *fakePool) Snapshot() *epp.Snapshot { return p.Load() }

func (p *fakePool) set(all ...*epp.Endpoint) {
	p.Store(&epp.Snapshot{Endpoints: all, Loads: make([]epp.Load, len(all))})
}

func endpoint(name string) *epp.Endpoint {
	return epp.NewEndpoint("default", name, netip.MustParseAddrPort("10.0.0.1:8000"), "", nil)
}

// picker is a replica: what it has in flight, and what it knows of others.
type picker struct {
	*Exchange
	pool   fakePool
	a, b   *epp.Endpoint
	server *httptest.Server
	log    lockedBuffer
	end    func()
	// resizes is how often other sizes were told.
	resizes atomic.Int64
}

type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) has(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Contains(b.text.String(), text)
}

// start starts a picker whose port is one of its own or, if that is not nil, l. It follows those with the addresses.
func start(t *testing.T, with ...string) *picker {
	t.Helper()
	p := &picker{a: endpoint("a"), b: endpoint("b")}
	p.pool.set(p.a, p.b)
	p.server = httptest.NewUnstartedServer(nil)
	p.Exchange = New(Options{Pool: &p.pool, With: append(with, p.server.Listener.Addr().String()), Log: slog.New(slog.NewTextHandler(&p.log, nil)),
		Resized: func() { p.resizes.Add(1) }})
	p.server.Config.Handler = p.Handler()
	p.server.Start()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	p.end = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		p.server.CloseClientConnections()
		p.server.Close()
	})
	t.Cleanup(p.end)
	return p
}

func (p *picker) address() string { return p.server.Listener.Addr().String() }

// reserve sends a request to an endpoint, whose load in flight then is that of the request.
func reserve(e *epp.Endpoint, tokens int) *epp.Reservation {
	return epp.ReserveAnyway(epp.Claim{Endpoint: e, Add: epp.InFlight{Requests: 1, Tokens: tokens}, Keep: epp.InFlight{Requests: 1}})
}

// until waits for what no event tells.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for limit := time.Now().Add(30 * time.Second); !ok(); <-poll.C {
		if time.Now().After(limit) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// mustCount waits until an endpoint has this load in flight of its own picker and of others.
func mustCount(t *testing.T, e *epp.Endpoint, own, all epp.InFlight) {
	t.Helper()
	until(t, fmt.Sprintf("%s to have %+v of its own of %+v", e, own, all), func() bool { return e.Own() == own && e.InFlight() == all })
}

func TestReplicasCountEachOther(t *testing.T) {
	first := start(t)
	held := reserve(first.a, 500) // before the other one is there
	second := start(t, first.address())
	third := start(t, first.address(), second.address())
	none, one := epp.InFlight{}, epp.InFlight{Requests: 1, Tokens: 500}
	mustCount(t, second.a, none, one)
	mustCount(t, third.a, none, one)
	more := reserve(second.a, 100)
	mustCount(t, third.a, none, epp.InFlight{Requests: 2, Tokens: 600})
	mustCount(t, second.a, epp.InFlight{Requests: 1, Tokens: 100}, epp.InFlight{Requests: 2, Tokens: 600})
	mustCount(t, first.a, one, one) // follows only itself
	held.Answered()
	mustCount(t, third.a, none, epp.InFlight{Requests: 2, Tokens: 100})
	held.End()
	more.End()
	mustCount(t, third.a, none, none)
	mustCount(t, second.a, none, none)
	mustCount(t, third.b, none, none)
	if all, _ := third.States(); len(all) != 2 {
		t.Errorf("%+v", all)
	}
	if all, _ := first.States(); len(all) != 0 {
		t.Errorf("a picker counts itself: %+v", all)
	}
}

// The requests of a replica that ends stop counting, and those of its successor count.
func TestReplicaEndsAndComesBack(t *testing.T) {
	first := start(t)
	reserve(first.a, 7)
	second := start(t, first.address())
	mustCount(t, second.a, epp.InFlight{}, epp.InFlight{Requests: 1, Tokens: 7})
	first.server.CloseClientConnections() // a partition that heals
	until(t, "the connection to be counted as lost", func() bool { _, lost := second.States(); return lost == 1 })
	mustCount(t, second.a, epp.InFlight{}, epp.InFlight{Requests: 1, Tokens: 7})
	first.end()
	mustCount(t, second.a, epp.InFlight{}, epp.InFlight{})
	if !second.log.has("cannot be followed") {
		t.Error("the end of a replica is not logged")
	}
}

// When the exchange ends, nothing of others counts.
func TestExchangeEnds(t *testing.T) {
	first := start(t)
	reserve(first.b, 9)
	second := start(t, first.address())
	mustCount(t, second.b, epp.InFlight{}, epp.InFlight{Requests: 1, Tokens: 9})
	second.end()
	mustCount(t, second.b, epp.InFlight{}, epp.InFlight{})
}

// Replicas learn of an endpoint at different times, and one may be replaced by another of the same name.
func TestPoolsDiffer(t *testing.T) {
	first := start(t)
	c := endpoint("c")
	first.pool.set(first.a, first.b, c)
	reserve(c, 40)
	second := start(t, first.address())
	until(t, "an unknown endpoint", func() bool { all, _ := second.States(); return len(all) == 1 && all[0].Unknown == 1 })
	late := endpoint("c")
	second.pool.set(second.a, second.b, late)
	reserve(first.a, 1)
	mustCount(t, late, epp.InFlight{}, epp.InFlight{Requests: 1, Tokens: 40})
	version := late.With("", map[string]string{"x": "y"})
	second.pool.set(second.a, second.b, version)
	reserve(first.a, 1)
	mustCount(t, version, epp.InFlight{}, epp.InFlight{Requests: 1, Tokens: 40})
	other := endpoint("c")
	second.pool.set(second.a, second.b, other)
	reserve(first.a, 1)
	mustCount(t, other, epp.InFlight{}, epp.InFlight{Requests: 1, Tokens: 40})
	mustCount(t, late, epp.InFlight{}, epp.InFlight{})
	first.pool.set(first.a, first.b) // it has left
	mustCount(t, other, epp.InFlight{}, epp.InFlight{})
	mustCount(t, second.a, epp.InFlight{}, epp.InFlight{Requests: 3, Tokens: 3})
}

// What is no replica, or tells nonsense, counts for nothing, and the log says what is wrong.
func TestStrangers(t *testing.T) {
	for _, c := range []struct{ name, answer, log string }{
		{"no hello", "hello\n", "no picker's share port"},
		{"no line", `{"picker":"x"}`, "closed the connection"},
		{"no JSON", "{\"picker\":\"x\"}\n{\"loads\":{\"default/a\":[1,1]}}\nnonsense\n", "cannot be read"},
		{"negative", "{\"picker\":\"x\"}\n{\"loads\":{\"default/a\":[-1,1]}}\n", "-1 requests"},
		{"overflow", "{\"picker\":\"x\"}\n{\"loads\":{\"default/a\":[1,99999999999999]}}\n", "tokens in flight"},
		{"a huge size", "{\"picker\":\"x\"}\n{\"sizes\":{\"decode\":99999999}}\n", "99999999 replicas"},
		{"a negative size", "{\"picker\":\"x\"}\n{\"sizes\":{\"decode\":-1}}\n", "-1 replicas"},
		{"a long line", "{\"picker\":\"x\"}\n" + strings.Repeat(" ", maxLine+1) + "\n", "too long"},
	} {
		t.Run(c.name, func(t *testing.T) {
			stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, c.answer) }))
			defer stranger.Close()
			p := start(t, stranger.Listener.Addr().String())
			until(t, "the log", func() bool { return p.log.has(c.log) })
			p.end()
			if p.a.InFlight() != (epp.InFlight{}) {
				t.Errorf("%+v counts", p.a.InFlight())
			}
		})
	}
	t.Run("another server", func(t *testing.T) {
		other := httptest.NewServer(http.NotFoundHandler())
		defer other.Close()
		p := start(t, other.Listener.Addr().String())
		until(t, "the log", func() bool { return p.log.has("404 Not Found") })
	})
	t.Run("too many endpoints", func(t *testing.T) {
		var x strings.Builder
		x.WriteString("{\"picker\":\"x\"}\n")
		for n := 0; n <= maxTold; {
			x.WriteString(`{"loads":{"z":[0,0]`)
			for range 1 << 12 {
				fmt.Fprintf(&x, `,"%d":[1,1]`, n)
				n++
			}
			x.WriteString("}}\n")
		}
		many := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, x.String()) }))
		defer many.Close()
		p := start(t, many.Listener.Addr().String())
		until(t, "the log", func() bool { return p.log.has("too many endpoints") })
	})
}

// A replica that stays connected and tells nothing counts no longer than three heartbeats.
func TestSilentReplica(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "{\"picker\":\"x\"}\n{\"loads\":{\"default/a\":[3,0]}}\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer silent.Close()
	p := start(t, silent.Listener.Addr().String())
	mustCount(t, p.a, epp.InFlight{}, epp.InFlight{Requests: 3})
	mustCount(t, p.a, epp.InFlight{}, epp.InFlight{})
	until(t, "the log", func() bool { return p.log.has("told nothing for 3s") })
}

// BenchmarkChanges is what a replica costs another one in each interval: no endpoint, one or every one has changed.
func BenchmarkChanges(b *testing.B) {
	var pool fakePool
	all := make([]*epp.Endpoint, 1000)
	for i := range all {
		all[i] = endpoint(fmt.Sprintf("decode-%d", i))
	}
	pool.set(all...)
	x := New(Options{Pool: &pool})
	for _, changed := range []int{0, 1, len(all)} {
		b.Run(fmt.Sprint(changed), func(b *testing.B) {
			var l line
			x.changes(&l)
			b.ReportAllocs()
			for b.Loop() {
				for _, e := range all[:changed] {
					reserve(e, 10)
				}
				x.changes(&l)
			}
		})
	}
}

// Replicas agree on the largest size that any of them wants, and on the next one when the largest falls or its replica ends.
func TestReplicasAgreeOnSizes(t *testing.T) {
	first := start(t)
	second := start(t, first.address())
	third := start(t, first.address(), second.address())
	first.SetSizes(map[string]int{"decode": 5, "prefill": 1})
	second.SetSizes(map[string]int{"decode": 3})
	agree := func(want int) {
		t.Helper()
		until(t, fmt.Sprintf("%d decode replicas to be the largest size", want), func() bool { return third.Largest("decode", 2) == want })
	}
	agree(5)
	if n := third.Largest("prefill", 0); n != 1 {
		t.Errorf("%d prefill replicas, want 1", n)
	}
	if n := third.Largest("decode", 9); n != 9 {
		t.Errorf("%d decode replicas, want the 9 of this picker", n)
	}
	first.SetSizes(map[string]int{"decode": 4, "prefill": 0})
	agree(4)
	reserve(first.a, 10) // loads are told as before
	mustCount(t, third.a, epp.InFlight{}, epp.InFlight{Requests: 1, Tokens: 10})
	resized := third.resizes.Load()
	first.end()
	agree(3)
	if third.resizes.Load() == resized {
		t.Error("that a replica with sizes has ended is not told")
	}
}
