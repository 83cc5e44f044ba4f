package replica

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
	"github.com/tandem-serving/tandem/epp/plugin/filter"
	"github.com/tandem-serving/tandem/epp/plugin/producer"
	"github.com/tandem-serving/tandem/pd"
)

// lan is the network of a bubble. While it is cut, what is sent is lost and no connection is made.
type lan struct {
	cut       atomic.Bool
	mu        sync.Mutex
	listeners map[string]*pipes // by address
}

// pipes is a listener of a lan.
type pipes struct {
	at     string
	coming chan net.Conn
	ended  chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.coming:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.ended) })
	return nil
}

func (p *pipes) Addr() net.Addr { return pipeAddr(p.at) }

type pipeAddr string

func (pipeAddr) Network() string  { return "pipe" }
func (a pipeAddr) String() string { return string(a) }

var errUnreachable = errors.New("no route to host")

func (l *lan) dial(_ context.Context, _, address string) (net.Conn, error) {
	l.mu.Lock()
	to := l.listeners[address]
	l.mu.Unlock()
	if to == nil || l.cut.Load() {
		return nil, errUnreachable
	}
	ours, theirs := net.Pipe()
	select {
	case to.coming <- lossy{theirs, l}:
		return lossy{ours, l}, nil
	case <-to.ended:
		return nil, errUnreachable
	}
}

func (l *lan) listen(address string) *pipes {
	p := &pipes{at: address, coming: make(chan net.Conn), ended: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listeners == nil {
		l.listeners = map[string]*pipes{}
	}
	l.listeners[address] = p
	return p
}

// lossy is a connection that loses what is sent while the network is cut.
type lossy struct {
	net.Conn
	of *lan
}

func (c lossy) Write(p []byte) (int, error) {
	if c.of.cut.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// twin is a replica in a bubble, with queues before its endpoints and an approximate index of prompts.
type twin struct {
	*Exchange
	pool    fakePool
	fell    epp.Publisher
	queue   *flow.Controller
	matcher epp.SharedMatcher
	checked chan *epp.Endpoint
	picking sync.Mutex
	end     func()
}

const perEndpoint = 5 // requests that an endpoint of a twin may have

// addresses are those of the twins.
var addresses = []string{"10.1.0.1:9004", "10.1.0.2:9004", "10.1.0.3:9004"}

// twins starts n replicas that follow each other, each with as many endpoints, and waits until all count.
func (l *lan) twins(t *testing.T, n, endpoints int, s flow.Settings) []*twin {
	t.Helper()
	var all []*twin
	for i := range n {
		all = append(all, l.twin(t, addresses[i], addresses[:n], endpoints, s))
	}
	<-time.After(2 * lookUp) // the first ones looked before the last one listened
	synctest.Wait()
	for _, w := range all {
		if w.Others() != n-1 {
			t.Fatalf("a replica counts %d others of %d", w.Others(), n-1)
		}
	}
	return all
}

func (l *lan) twin(t *testing.T, at string, with []string, endpoints int, s flow.Settings) *twin {
	t.Helper()
	return l.keyed(t, "s", at, with, endpoints, s)
}

// keyed starts a replica with a secret.
func (l *lan) keyed(t *testing.T, secret, at string, with []string, endpoints int, s flow.Settings) *twin {
	t.Helper()
	w := &twin{checked: make(chan *epp.Endpoint, 16)}
	var members []*epp.Endpoint
	for i := range endpoints {
		e := endpoint(string(rune('a' + i)))
		e.Slot = i
		e.Watch(&w.fell, nil)
		members = append(members, e)
	}
	w.pool.set(members...)
	w.Exchange = New(Options{Pool: &w.pool, With: with, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Secret: secret,
		Check: func(e *epp.Endpoint) { w.checked <- e }, Waiting: func() []epp.Queued { return w.queue.Waiting() },
		Heard: func() { w.queue.SnapshotChanged() }})
	w.dial = l.dial
	detector := filter.NewConcurrencyDetector().(*filter.ConcurrencyDetector)
	detector.MaxConcurrency = perEndpoint
	w.matcher = build(t, producer.NewApproxPrefixCache()).(epp.SharedMatcher)
	w.SetMatchers([]epp.SharedMatcher{w.matcher})
	gate := flow.NewPoolGate(flow.GateOptions{Pool: &w.pool, Detector: build(t, detector).(epp.Detector), Clock: epp.SystemClock, Stale: time.Hour,
		Stages: epp.Stages{epp.DecodeRow("decode")}, Others: w.Others})
	w.queue = flow.New(s, gate, flow.Options{Clock: epp.SystemClock, Others: w.Exchange.Waiting})
	server := &http.Server{Handler: w.Handler()}
	listener := l.listen(at)
	ctx, cancel := context.WithCancel(context.Background())
	changes := w.fell.Subscribe(epp.InFlightFell)
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	running.Go(func() { _ = server.Serve(listener) }) // it always ends with an error
	running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-changes.Ready():
				changes.Take()
				w.queue.SnapshotChanged()
			}
		}
	})
	w.end = sync.OnceFunc(func() {
		cancel()
		w.queue.Close()
		changes.Close()
		_ = server.Close() // of a listener that is a pipe
		running.Wait()
	})
	t.Cleanup(w.end)
	return w
}

func build(t *testing.T, p epp.Plugin) any {
	t.Helper()
	instance, err := p.Build(&epp.Builder{Name: "test", Keep: &epp.Keep{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return instance
}

// serve sends a request to the endpoint with the fewest ones when the queue lets it pass, and ends it after a time. It returns the refusal of
// the queue.
func (w *twin) serve(takes time.Duration, now *gauge) error {
	r := &epp.Request{API: pd.APIChat, Bytes: 100}
	pass, err := w.queue.Admit(context.Background(), r)
	if err != nil {
		return err
	}
	w.picking.Lock()
	best := w.pool.Load().Endpoints[0]
	for _, e := range w.pool.Load().Endpoints {
		if e.InFlight().Requests < best.InFlight().Requests {
			best = e
		}
	}
	held := reserve(best, 10)
	w.picking.Unlock()
	now.add(1)
	w.queue.Settled(r, pass)
	<-time.After(takes)
	now.add(-1)
	held.End()
	return nil
}

// gauge is what all replicas together have in flight.
type gauge struct {
	mu        sync.Mutex
	now, most int
}

func (g *gauge) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += n
	g.most = max(g.most, g.now)
}

func (g *gauge) read() (now, most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now, g.most
}

// prompts returns how many prompts of others it has learned, and of how many it does not know the endpoint or the matcher.
func (w *twin) prompts() (learned, unknown uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.learned, w.unknown
}
