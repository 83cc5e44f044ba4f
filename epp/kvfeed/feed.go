package kvfeed

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/kvevents"
	"github.com/tandem-serving/tandem/epp/kvhash"
	"github.com/tandem-serving/tandem/epp/kvindex"
	"github.com/tandem-serving/tandem/pd/loglimit"
	"github.com/tandem-serving/tandem/transfer/zmtp"
)

// Options say where engines publish, and what is kept. They are comparable.
type Options struct {
	// Port and ReplayPort are where the first rank of every engine publishes its events, and sends earlier ones again. The second endpoint of
	// a pod uses the next ports, and so on. Port 0 = engines are asked; ReplayPort 0 = with a Port, nothing is replayed.
	Port, ReplayPort int
	// Listen is the host:port to which engines connect; "" = none do.
	Listen string
	// Dial says that engines are connected to. It is false where all of them connect to Listen.
	Dial bool
	// Topic is with what the topics of messages to Listen begin. What follows, up to an @, names the endpoint.
	Topic string
	// Limit is the most blocks that are kept, each counted for each of its holders.
	Limit int64
	// BlockTokens is the length of engines' blocks as it is configured, 0 = it is not: that of their events counts in any case.
	BlockTokens int
	// Names is how engines make the names of blocks, by which they are then looked up; the zero value: they are looked up by their tokens.
	Names kvhash.Algorithm
	// Presume is for how long, at least, a prompt is taken to be where it was sent; 0 = not at all. At most it is twice as long.
	Presume time.Duration
}

const (
	// usualPort is where engines publish unless they are told otherwise: vLLM's and SGLang's default.
	usualPort = 5557
	// usualBlock is vLLM's length of blocks on accelerators (tokens): what prompts are cut into before an engine has told.
	usualBlock = 16
	// problemsEvery is between two warnings about the same kind of problem.
	problemsEvery = 10 * time.Second
)

// Feed follows the engines of one pool. Its methods are safe for concurrent use. It begins to follow when the first endpoint joins, and
// must be closed.
type Feed struct {
	options Options
	log     *slog.Logger
	warn    *loglimit.Limiter
	clock   epp.Clock
	made    time.Time // the feed
	dialer  zmtp.Dialer
	client  *http.Client

	index   *kvindex.Index
	hasher  *kvhash.Hasher  // nil = keys are made from tokens
	shared  *kvindex.Holder // what is in the store that engines share
	roots   kvevents.Roots
	lag     histogram
	checks  checks
	pending [pendings]pending
	bySlot  atomic.Pointer[[]*member] // nil where a slot has no endpoint

	ctx  context.Context // of what follows engines; ends with Close
	stop context.CancelFunc
	work sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	listening bool
	members   []*member
	gone      totals // of sources that are not followed any more
	unknown   atomic.Int64
}

// New returns a feed that follows nothing yet. clock tells for how long prompts are presumed to be where they were sent.
func New(options Options, clock epp.Clock, log *slog.Logger) *Feed {
	ctx, stop := context.WithCancel(context.Background())
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy, transport.DisableKeepAlives = nil, true // engines are pods of the cluster, and are asked rarely
	f := &Feed{options: options, log: log, warn: loglimit.New(log, problemsEvery), clock: clock, made: clock.Now(), dialer: &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive},
		client: &http.Client{Transport: transport, Timeout: askTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		lag:    newHistogram(lagBounds), ctx: ctx, stop: stop}
	if seed := kvindex.Seed(rand.Uint64()); options.Names != (kvhash.Algorithm{}) {
		f.index, f.hasher = kvindex.NewNamed(seed, options.Limit), kvhash.New(options.Names)
	} else {
		f.index = kvindex.New(seed, options.Limit)
	}
	f.shared = f.index.Join()
	f.checks.errors = newHistogram(shareBounds)
	f.bySlot.Store(new([]*member))
	return f
}

// now returns the nanoseconds since the feed was made, and one, so that 0 can mean never. It goes by the monotonic clock: the wall clock
// may be set.
func (f *Feed) now() int64 { return int64(f.clock.Since(f.made)) + 1 }

// member is an endpoint of the pool.
type member struct {
	*epp.Endpoint
	presumed presumed
	stop     context.CancelFunc
	asked    atomic.Pointer[string] // why its sources are not known; nil = they are
	sources  atomic.Pointer[[]*source]
}

// source is one stream of events: of an engine, or of one of its ranks.
type source struct {
	place
	stream  *kvevents.Stream
	pushed  *kvevents.Pushed // nil = the feed connects to it
	push    sync.Mutex       // held while pushed is used
	counts  kvevents.Counts
	heard   atomic.Int64 // when a message was applied last, as Feed.now tells; 0 = never
	checked atomic.Bool  // its first blocks were looked at: see checkFirst
	other   atomic.Bool  // its names of blocks are not those that are computed, which was told
	stop    context.CancelFunc
}

// EndpointJoined implements epp.EndpointObserver. It may be told of an endpoint several times, and of its new versions.
func (f *Feed) EndpointJoined(e *epp.Endpoint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || slices.ContainsFunc(f.members, func(m *member) bool { return m.Is(e) }) {
		return
	}
	ctx, stop := context.WithCancel(f.ctx)
	m := &member{Endpoint: e, stop: stop}
	m.sources.Store(new([]*source))
	if f.options.Presume > 0 {
		m.presumed.generations = [2]*kvindex.Holder{f.index.Join(), f.index.Join()}
		m.presumed.since.Store(longAgo)
	}
	f.members = append(f.members, m)
	f.publish()
	if f.options.Listen != "" && !f.listening {
		f.listening = true
		f.work.Go(f.listen)
	}
	if f.options.Dial {
		f.work.Go(func() { f.follow(ctx, m) })
	}
}

// EndpointLeft implements epp.EndpointObserver. What its engine holds is forgotten.
func (f *Feed) EndpointLeft(e *epp.Endpoint) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.members, func(m *member) bool { return m.Is(e) })
	if i < 0 {
		return
	}
	m := f.members[i]
	f.members = slices.Delete(f.members, i, i+1)
	f.publish()
	f.leave(m)
	if len(f.members) == 0 {
		f.shared.Clear() // no engine would tell what leaves it
	}
	if !f.closed {
		f.work.Go(f.sweep)
	}
}

// leave stops to follow an endpoint. The caller holds mu.
func (f *Feed) leave(m *member) {
	m.stop()
	for _, s := range *m.sources.Swap(new([]*source)) {
		f.drop(s)
	}
	for _, h := range m.presumed.generations {
		if h != nil {
			h.Leave()
		}
	}
}

// drop forgets a source. The caller holds mu.
func (f *Feed) drop(s *source) {
	s.stop()
	s.stream.Holder.Leave()
	f.gone.add(&s.counts)
}

// publish makes the members visible to Match. The caller holds mu.
func (f *Feed) publish() {
	size := 0
	for _, m := range f.members {
		size = max(size, m.Slot+1)
	}
	table := make([]*member, size)
	for _, m := range f.members {
		table[m.Slot] = m
	}
	f.bySlot.Store(&table)
}

// of returns the member that an endpoint is, nil if it is none.
func (f *Feed) of(e *epp.Endpoint) *member {
	table := *f.bySlot.Load()
	if e.Slot >= len(table) || table[e.Slot] == nil || !table[e.Slot].Is(e) {
		return nil
	}
	return table[e.Slot]
}

// add makes a source of a member. It returns nil if the member has left.
func (f *Feed) add(m *member, p place, pushed bool) *source {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.of(m.Endpoint) != m {
		return nil
	}
	s := &source{place: p, stop: func() {}}
	s.stream = kvevents.NewStream(f.index, f.index.Join(), &f.roots, &s.counts)
	s.stream.Shared, s.stream.Hasher = f.shared, f.hasher
	s.stream.Misnamed = func(p kvhash.Prompt, named []uint64) { f.misnamed(m, s, p, named) }
	if pushed {
		s.pushed = kvevents.NewPushed(s.stream)
	}
	if f.options.Presume > 0 {
		s.stream.Restarted = m.presumed.clear
	}
	s.stream.Heard = func(b kvevents.Batch) { f.heard(m, s, b) }
	all := append(slices.Clone(*m.sources.Load()), s)
	slices.SortStableFunc(all, func(a, b *source) int { return a.rank - b.rank })
	m.sources.Store(&all)
	return s
}

// remove forgets a source of a member.
func (f *Feed) remove(m *member, s *source) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := *m.sources.Load()
	i := slices.Index(before, s)
	if i < 0 {
		return
	}
	all := slices.Delete(slices.Clone(before), i, i+1)
	m.sources.Store(&all)
	f.drop(s)
}

// heard notes that a message was applied.
func (f *Feed) heard(m *member, s *source, b kvevents.Batch) {
	s.heard.Store(f.now())
	if !b.Replayed { // it may be as old as the engine
		f.lag.observe(float64(f.clock.Now().UnixMicro())/1e6 - b.At)
	}
	if !s.checked.Load() {
		f.checkFirst(m, s)
	}
}

// sweep frees what an endpoint that left has had.
func (f *Feed) sweep() {
	for f.ctx.Err() == nil && !f.index.Sweep() {
	}
}

// Close stops to follow, and forgets everything.
func (f *Feed) Close() error {
	f.mu.Lock()
	f.closed = true
	f.stop()
	for _, m := range f.members {
		f.leave(m)
	}
	f.members = nil
	f.publish()
	f.mu.Unlock()
	f.work.Wait()
	f.client.CloseIdleConnections()
	return nil
}

// Deliver applies a message of an endpoint's engine that did not come over a network: replays of traces have such engines.
func (f *Feed) Deliver(e *epp.Endpoint, rank int, number, payload []byte) error {
	m := f.of(e)
	if m == nil {
		return nil // it has left
	}
	_, err := f.push(m, place{rank: rank, how: delivered}, false, number, payload)
	return err
}
