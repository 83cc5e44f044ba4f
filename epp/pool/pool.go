package pool

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/pool/page"
)

// Discovery reports the endpoints of the pool.
type Discovery interface {
	// Run calls apply with the whole pool, as soon as it is known and then whenever it changes, one call at a time. Run
	// returns when ctx ends, or earlier if no further change will come; it then calls apply no more. The error says why the
	// pool cannot be known.
	Run(ctx context.Context, apply func([]epp.Spec)) error
}

// Options are the settings of a pool. The comments name the default of a zero value.
type Options struct {
	Log     *slog.Logger          // nil: nothing is logged
	Metrics prometheus.Registerer // nil: metrics are not registered
	// Observer is called when endpoints join and leave, after the snapshot has changed. It may call only the pool's Snapshot
	// and Find. nil: there is no observer.
	Observer epp.EndpointObserver

	Busy       time.Duration // between two readings of a page while the endpoint has requests: 200 ms; 50 ms at least
	Idle       time.Duration // the same while it has none: 1 s; at least Busy
	Timeout    time.Duration // of one reading: 1 s
	PageLimit  int64         // size of a page above which it is not read: 4 MiB
	Quarantine time.Duration // how long the slot of an endpoint that left stays unused: 1 min
	Stale      time.Duration // age from which metrics call a load stale: 2 s
}

const (
	// minInterval is llm-d's shortest interval.
	minInterval = 50 * time.Millisecond
	// publishInterval is how often changed loads become a new snapshot. A busy endpoint is read every 200 ms: this adds a
	// tenth to the age of its load.
	publishInterval = 20 * time.Millisecond
	// sweepInterval is how often the pool drops departed endpoints that it no longer needs.
	sweepInterval = time.Second

	defaultNamespace = "default"
)

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	o.Busy = max(cmp.Or(o.Busy, 200*time.Millisecond), minInterval)
	o.Idle = max(cmp.Or(o.Idle, time.Second), o.Busy)
	o.Timeout = cmp.Or(o.Timeout, time.Second)
	o.PageLimit = cmp.Or(o.PageLimit, 4<<20)
	o.Quarantine = cmp.Or(o.Quarantine, time.Minute)
	o.Stale = cmp.Or(o.Stale, 2*time.Second)
	return o
}

// noObserver is an observer that does nothing.
type noObserver struct{}

// EndpointJoined implements epp.EndpointObserver.
func (noObserver) EndpointJoined(*epp.Endpoint) {}

// EndpointLeft implements epp.EndpointObserver.
func (noObserver) EndpointLeft(*epp.Endpoint) {}

// Pool holds the endpoints and their loads. Its methods are safe for concurrent use. Subscribe reports changes that the
// Snapshot already shows.
type Pool struct {
	epp.Publisher

	options    Options
	metrics    *metrics
	lanes      lanes
	snapshot   atomic.Pointer[epp.Snapshot]
	byAddr     atomic.Pointer[map[netip.AddrPort]*epp.Endpoint]
	pages      atomic.Pointer[pages]
	configured chan struct{} // holds one: discovery was replaced
	loaded     chan struct{} // holds one: a load has changed since the last snapshot
	synced     chan struct{} // closed once a discovery has reported endpoints
	unseen     atomic.Uint32 // epp.Changes that are not in the snapshot yet

	mu        sync.Mutex // guards the fields below, and changes of snapshot and byAddr
	discovery Discovery
	set       set
	endpoints []*epp.Endpoint // of set, in the same order; never changed, only replaced
	told      map[string]bool // problems that were logged, and are still there
}

// New makes a pool without endpoints. Configure says where they come from.
func New(options Options) *Pool {
	p := &Pool{
		options:    options.withDefaults(),
		lanes:      newLanes(),
		configured: make(chan struct{}, 1),
		loaded:     make(chan struct{}, 1),
		synced:     make(chan struct{}),
	}
	p.set.fell = &p.Publisher
	p.snapshot.Store(&epp.Snapshot{})
	p.byAddr.Store(&map[netip.AddrPort]*epp.Endpoint{})
	p.metrics = newMetrics(p, options.Metrics)
	return p
}

// Configure says where the endpoints come from and how their metrics are read. It may be called before Run or while it runs.
// Known endpoints stay until the new discovery reports, and stay unchanged if it reports them too. If d is nil, the current
// discovery continues. The zero Source reads no metrics: all loads are then unknown, and extractor has no effect. further are
// pages that are read besides. After an error nothing has changed.
func (p *Pool) Configure(d Discovery, source Source, extractor page.Extractor, further ...Further) error {
	next, err := newPages(source, extractor, p.options.Timeout, p.options.Busy)
	if err != nil {
		return err
	}
	for _, f := range further {
		one, err := newFurther(f, p.options.Timeout)
		if err != nil {
			return err
		}
		next.further = append(next.further, one)
	}
	p.pages.Swap(next).closeIdle()
	if d != nil {
		p.mu.Lock()
		p.discovery = d
		p.mu.Unlock()
		wake(p.configured)
	}
	return nil
}

// Snapshot returns the current pool. Version 0 is the empty pool before the first discovery.
func (p *Pool) Snapshot() *epp.Snapshot { return p.snapshot.Load() }

// Find returns the endpoint with an address. It finds an endpoint that has left while requests run on it, for at most an
// hour.
func (p *Pool) Find(addr netip.AddrPort) (*epp.Endpoint, bool) {
	e, ok := (*p.byAddr.Load())[netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())]
	return e, ok
}

// Trouble returns why the list of endpoints may be wrong, if the discovery reports that by a method of this name; nil if it
// knows no problem.
func (p *Pool) Trouble() error {
	p.mu.Lock()
	d, tells := p.discovery.(interface{ Trouble() error })
	p.mu.Unlock()
	if !tells {
		return nil
	}
	return d.Trouble()
}

// Synced returns a channel that is closed once a discovery has reported the endpoints.
func (p *Pool) Synced() <-chan struct{} { return p.synced }

// Run discovers endpoints and reads their metrics until ctx ends. Call it once. The error is that of a discovery which failed
// before it reported endpoints; a later failure is logged, and the endpoints stay.
func (p *Pool) Run(ctx context.Context) error {
	defer p.closeConnections()
	var work sync.WaitGroup
	defer work.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	work.Go(func() { p.upkeep(ctx) })

	current := idle()
	defer func() { current.end() }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.configured:
			current.end()
			current = p.discover(ctx, &work)
		case err := <-current.ended:
			current = idle()
			if err == nil || ctx.Err() != nil {
				continue
			}
			if p.snapshot.Load().Version == 0 {
				return fmt.Errorf("discovering endpoints: %w", err)
			}
			p.options.Log.Error("discovery of endpoints has failed; the pool stays as it is", "error", err)
		}
	}
}

// discovering is a running discovery.
type discovering struct {
	stop  context.CancelFunc
	ended chan error // gets its result; nil if no discovery runs
}

func idle() discovering { return discovering{stop: func() {}} }

// end stops the discovery and waits for it.
func (d discovering) end() {
	d.stop()
	if d.ended != nil {
		<-d.ended
	}
}

// discover starts the discovery. The scrapers of its endpoints run until ctx ends.
func (p *Pool) discover(ctx context.Context, scrapers *sync.WaitGroup) discovering {
	p.mu.Lock()
	discovery := p.discovery
	p.mu.Unlock()
	own, stop := context.WithCancel(ctx)
	d := discovering{stop, make(chan error, 1)}
	go func() {
		d.ended <- discovery.Run(own, func(specs []epp.Spec) { p.apply(ctx, scrapers, specs) })
	}()
	return d
}

// apply makes specs the pool.
func (p *Pool) apply(ctx context.Context, scrapers *sync.WaitGroup, specs []epp.Spec) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	first := p.snapshot.Load().Version == 0
	c, problems := p.set.apply(specs, time.Now())
	p.tell(problems)
	if !c.any() && !first {
		return
	}
	p.endpoints = make([]*epp.Endpoint, len(p.set.members))
	for i, m := range p.set.members {
		p.endpoints[i] = m.Endpoint
	}
	p.index()
	p.unseen.Or(uint32(epp.MembersChanged))
	p.publish()
	p.follow(ctx, scrapers, c)
	if first {
		close(p.synced)
	}
	p.options.Log.Info("endpoints changed", "endpoints", len(p.endpoints), "added", len(c.added)-len(c.renewed),
		"removed", len(c.removed), "relabeled", len(c.renewed))
}

// follow stops the scrapers of endpoints that left, starts those of new ones, and notifies the observer. A new version of an
// endpoint gets a new scraper, because its labels say how to read its page. The observer is not notified that the old version
// left, because the engine did not.
func (p *Pool) follow(ctx context.Context, scrapers *sync.WaitGroup, c change) {
	for _, m := range c.renewed {
		m.stop()
	}
	for _, m := range c.removed {
		m.stop()
		p.options.Observer.EndpointLeft(m.Endpoint)
	}
	for _, m := range c.added {
		p.options.Observer.EndpointJoined(m.Endpoint)
		own, stop := context.WithCancel(ctx)
		m.stop = stop
		s := &scraper{pool: p, member: m}
		scrapers.Go(func() { s.run(own) })
	}
}

// tell logs each problem once, until it is solved.
func (p *Pool) tell(problems []string) {
	still := make(map[string]bool, len(problems))
	for _, problem := range problems {
		if still[problem] = true; !p.told[problem] {
			p.options.Log.Warn("endpoint is not as it should be", "problem", problem)
		}
	}
	p.told = still
}

// upkeep publishes changed loads and drops departed endpoints, until ctx ends.
func (p *Pool) upkeep(ctx context.Context) {
	sweep, pause := time.NewTicker(sweepInterval), time.NewTimer(0)
	defer sweep.Stop()
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sweep.C:
			p.sweep()
			continue
		case <-p.loaded:
		}
		p.mu.Lock()
		p.publish()
		p.mu.Unlock()
		pause.Reset(publishInterval)
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
	}
}

// publish makes a snapshot of the current pool and notifies subscribers of what has changed in it. The caller holds mu.
func (p *Pool) publish() {
	changes := epp.Changes(p.unseen.Swap(0))
	loads := make([]epp.Load, len(p.set.members))
	for i, m := range p.set.members {
		loads[i] = *m.load.Load()
		loads[i].Further = m.further.Load()
	}
	p.snapshot.Store(&epp.Snapshot{Version: p.snapshot.Load().Version + 1, Endpoints: p.endpoints, Loads: loads})
	p.Publish(changes)
}

func (p *Pool) index() {
	byAddr := p.set.index()
	p.byAddr.Store(&byAddr)
}

func (p *Pool) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set.sweep(time.Now(), p.options.Quarantine, p.options.Observer.EndpointLeft) {
		p.index()
	}
}

// store sets an endpoint's load, for the next snapshot.
func (p *Pool) store(m *member, load *epp.Load) {
	before := m.load.Swap(load)
	if !before.At.IsZero() {
		p.metrics.age.Observe(load.At.Sub(before.At).Seconds())
	}
	changes := epp.LoadsChanged
	if before.Unreachable {
		changes |= epp.HealthChanged
	}
	p.loadChanged(changes)
}

// markUnreachable notes that an endpoint is unreachable. The values of its last page stay.
func (p *Pool) markUnreachable(m *member) {
	load := *m.load.Load()
	if load.Unreachable {
		return
	}
	load.Unreachable = true
	m.load.Store(&load)
	p.loadChanged(epp.HealthChanged)
}

// Check has the page of an endpoint read at once, because another picker has found it unreachable, or reachable again. One reading that gets
// no answer then suffices to take it out.
func (p *Pool) Check(e *epp.Endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.set.members {
		if m.Is(e) {
			wake(m.doubted)
			return
		}
	}
}

// forget makes an endpoint's load unknown.
func (p *Pool) forget(m *member) {
	before := m.load.Swap(&epp.Load{})
	changes := epp.LoadsChanged
	if before.Unreachable {
		changes |= epp.HealthChanged
	}
	p.loadChanged(changes)
}

// loadChanged requests the next snapshot, and that subscribers are notified of c with it.
func (p *Pool) loadChanged(c epp.Changes) {
	p.unseen.Or(uint32(c))
	wake(p.loaded)
}

func (p *Pool) closeConnections() { p.pages.Load().closeIdle() }

// wake puts a value into a channel of capacity one, unless it holds one already.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
