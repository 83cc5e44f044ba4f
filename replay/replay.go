package replay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/flow"
	"github.com/tandem-serving/tandem/epp/kvfeed"
	"github.com/tandem-serving/tandem/epp/pool"
	"github.com/tandem-serving/tandem/epp/scale"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/epp/setup"
	"github.com/tandem-serving/tandem/epp/shadow"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/replay/engine"
)

// Options are the settings of a run.
type Options struct {
	Config    *config.Config
	Shadow    *config.Config // that decides about the same requests without effect; nil: none
	Pool      Pool
	Replicas  int           // pickers, which know of each other's requests what Sync says; 0 is 1
	Sync      time.Duration // how often pickers tell each other their load in flight; 0: they do not
	Engine    engine.Config // of every engine; PartTokens is set by Run
	Table     *engine.Table
	Hardware  engine.Hardware
	Variants  []Variant // which each engine is one of, in place of Engine, Table, Hardware and Request; none: all are alike
	Link      Link
	Pairs     []Pair        // whose link is another one; of several that match, the first counts
	Zones     []Zone        // of the engines: an engine is in the first one that names it
	First     time.Duration // longest wait of the sidecar for the first token of a remote request, from the decode leg on; 0: no bound
	Scrape    time.Duration // between two readings of a busy engine's metrics page
	Stale     time.Duration // age from which loads are trusted less
	Hop       time.Duration // from the pick to the engine, and from one leg to the next
	Events    time.Duration // from a change of an engine's prefix cache until pickers that listen to KV events know of it
	Request   time.Duration // of a leg, besides the steps of its engine
	Seed      uint64
	Scaling   *Scaling           // has the pool follow an autoscaler; nil: it stays as it is
	Oracle    bool               // it chooses in place of the scheduler, which admits: see oracle.go. Not with Engine.TokenArrives
	Explain   int                // number of a request, from 1, whose Story is wanted; 0: none
	listening func(*kvfeed.Feed) // is called for each plugin that listens to KV events; nil = none is
	Ended     *atomic.Int64      // counts the requests that have ended, so that progress can be shown; may be nil
}

// idleScrape is how often the picker reads the page of an engine without requests.
const idleScrape = time.Second

// Supported returns why the configuration cannot be replayed; nil if it can.
func (o *Options) Supported() error {
	built, err := o.Config.Build(slog.New(slog.DiscardHandler), &epp.Keep{})
	if err != nil {
		return err
	}
	return errors.Join(o.supported(built), built.Close())
}

func (o *Options) supported(b *config.Built) error {
	switch {
	case b.Admission != nil:
		return fmt.Errorf("its plugin %s lets requests wait before the pick by itself, which takes real time: leave it out, and use flowControl", named[epp.Admission](b))
	case len(config.Of[epp.SnapshotObserver](b)) > 0:
		return fmt.Errorf("its plugin %s follows changes of the pool, which a replay does not tell: leave it out", named[epp.SnapshotObserver](b))
	}
	for _, p := range b.Preparers {
		if _, ok := p.Preparer.(epp.LocalPreparer); !ok {
			return fmt.Errorf("its plugin %s asks something outside the picker, which a replay has not: leave it out, as prompts have the tokens of the trace", p.Name)
		}
		if o.Explain > 0 {
			return fmt.Errorf("its plugin %s waits for other requests, so that none can be explained", p.Name)
		}
	}
	return nil
}

// named returns the names of the plugins that are a T.
func named[T any](b *config.Built) string {
	var all []string
	for _, i := range b.Instances {
		if _, ok := i.Value.(T); ok {
			all = append(all, i.Name)
		}
	}
	return strings.Join(all, ", ")
}

// node is one engine of the pool.
type node struct {
	world  *world
	name   string
	role   string
	kind   Kind
	slot   int
	engine *engine.Engine
	cache  epp.CacheInfo
	zone   string
	budget *pd.FallbackBudget // of its sidecar

	joined  time.Duration // when the decision for it was made: since then it has its GPUs
	leaving bool          // it gets no new requests
	gone    bool          // it has left, and another engine may have its slot
	flights int           // requests that are on their way to it, or in it

	due  time.Duration // of its next event
	busy bool          // it has one
	turn int

	sending, receiving int // transfers
	readTokens         int // by the transfers that have ended
	readTime           time.Duration
	events             events
}

// world is one run.
type world struct {
	options  *Options
	trace    *Trace
	clock    clock
	pickers  []*picker
	network  network
	nodes    []*node // by slot
	spec     epp.PromptSpec
	asks     []asked   // by class
	tokens   []uint32  // memory for those of one part
	next     []int32   // turns: see Trace.turns
	upcoming int       // where the next session is looked for
	coming   int       // requests that have not arrived
	arrived  int       // the others
	left     int       // requests that have not ended
	flying   []*flight // requests on their way, if there is an Oracle
	timeline timeline
	scaled   scaled // what Options.Scaling has done
	result   *Result
}

// picker is one endpoint picker of the replicas.
type picker struct {
	world     *world
	sched     *sched.Scheduler
	observers []epp.Observer
	members   []epp.EndpointObserver // what learns which endpoints there are
	sizer     sizer                  // the plugin replica-sizer; nil if there is none
	sizes     func() []scale.Size    // of variants, that the plugin wants; none unless it is told of variants
	asked     scale.Requests         // what requests were like, if there is one
	loads     loads
	waiting   waiting
	feeds     []*kvfeed.Feed // of plugins that listen to KV events
	shared    []epp.SharedMatcher
	shadow    *config.Built  // nil: there is none
	compared  *shadow.Report // nil likewise
}

// Run replays a trace. It ends early, with the error of ctx, if ctx ends.
func Run(ctx context.Context, o Options, t *Trace) (*Result, error) {
	if err := o.Check(t); err != nil {
		return nil, err
	}
	w := newWorld(&o, t)
	for i := range max(1, o.Replicas) {
		p := &picker{world: w}
		built, err := p.build(i)
		if err != nil {
			return nil, err
		}
		defer built.Close() // of a run that is over, it has nothing left to lose
		if p.shadow != nil {
			defer p.shadow.Close()
		}
		w.pickers = append(w.pickers, p)
	}
	w.spec = w.pickers[0].sched.Needs()
	w.share()
	w.scale()
	for range max(1, t.Concurrency) {
		w.begin(0)
	}
	for n := 0; w.left > 0; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !w.step() {
			return nil, fmt.Errorf("%d requests wait for nothing", w.left) // the model would be wrong
		}
	}
	return w.finish(), nil
}

// step runs the next event. It returns false if there is none.
func (w *world) step() bool {
	e, ok := w.clock.next()
	w.timeline.until(w.clock.now, w.nodes)
	switch {
	case !ok:
		return false
	case e.node == nil:
		e.run()
	case e.turn == e.node.turn:
		e.node.busy = false
		e.node.engine.Advance(w.clock.now)
		e.node.follow()
	}
	return true
}

// newWorld makes the pool and the network.
func newWorld(o *Options, t *Trace) *world {
	o.Engine.PartTokens, o.Variants = t.BlockTokens, slices.Clone(o.Variants)
	for i := range o.Variants {
		o.Variants[i].Engine.PartTokens = t.BlockTokens
	}
	w := &world{options: o, trace: t, asks: t.asks(), next: t.turns(),
		coming: len(t.Requests), left: len(t.Requests), timeline: timeline{each: firstInterval},
		result: &Result{Records: make([]Record, len(t.Requests)), Classes: t.Classes}}
	w.network = network{clock: &w.clock, random: rand.New(rand.NewPCG(o.Seed, 2)), link: o.Link, others: o.Pairs, pairs: map[[2]*node]*pair{}}
	o.Pool.each(func(name, role string) { w.result.GPUs += w.join(name, role).kind.Hardware.GPUs })
	w.priced()
	return w
}

// build makes the picker number i from the configuration. The caller closes what was built.
func (p *picker) build(i int) (*config.Built, error) {
	w, o := p.world, p.world.options
	keep := &epp.Keep{Clock: &w.clock, Offline: true}
	built, err := o.Config.Build(slog.New(slog.DiscardHandler), keep)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(o.supported(built), p.begin(i, built, append(config.Of[epp.EndpointObserver](built), keep))); err != nil {
		return nil, errors.Join(err, built.Close())
	}
	if o.Shadow != nil {
		if err := p.startShadow(o.Shadow); err != nil {
			return nil, errors.Join(err, built.Close())
		}
	}
	return built, nil
}

// begin has the picker see the pool.
func (p *picker) begin(i int, built *config.Built, observers []epp.EndpointObserver) error {
	w, o, of := p.world, p.world.options, uint64(i)<<32 // which random numbers
	p.loads = loads{picker: p, clock: &w.clock, random: rand.New(rand.NewPCG(o.Seed, 1+of)), current: &epp.Snapshot{}}
	p.members = observers
	for _, n := range w.nodes {
		p.loads.join(n)
	}
	for _, s := range config.Of[sizer](built) {
		p.sizer = s
	}
	p.sizes = func() []scale.Size { return nil }
	for _, v := range config.Of[*scale.Variants](built) {
		p.sizes = v.Sizes
	}
	for _, l := range config.Of[listener](built) {
		_, feed := l.Events()
		p.feeds = append(p.feeds, feed)
		if o.listening != nil {
			o.listening(feed)
		}
	}
	p.shared = config.Of[epp.SharedMatcher](built)
	interval, reads := scraping(built, o.Scrape)
	if reads {
		p.loads.busy, p.loads.idle = interval, max(interval, idleScrape)
		for _, page := range p.loads.pages {
			p.loads.readFirst(page)
		}
	}
	picking := setup.Scheduler(built, o.Stale, o.Seed+1+of, nil) // 0 would be another seed each time
	p.waiting.preparers = built.Preparers
	running := flow.NewRunning(&w.clock)
	if p.waiting.queue = p.newQueue(built, interval, running); p.waiting.queue != nil {
		setup.Queueing(&picking, built, p.waiting.queue)
		if built.Queues.Eviction.On {
			picking.Picked = append(picking.Picked, running)
		}
	}
	p.observers = picking.Observers
	if p.sizer != nil {
		p.observers = append(p.observers, &p.asked)
	}
	pipeline, err := sched.NewPipeline(picking)
	if err != nil {
		return err
	}
	p.sched = sched.New(&p.loads, &w.clock)
	p.sched.Swap(pipeline)
	return nil
}

// scraping returns how often pages are read, and whether they are: a source of the configuration may say so.
func scraping(b *config.Built, usual time.Duration) (interval time.Duration, reads bool) {
	for _, configured := range b.Sources {
		if s, ok := configured.Source.(pool.Source); ok && len(configured.Extractors) > 0 {
			if usual, reads = max(usual, 50*time.Millisecond), true; s.Interval > 0 {
				usual = max(s.Interval, 50*time.Millisecond)
			}
		}
	}
	return usual, reads
}

// join adds an engine to the pool, in the first slot that is free.
func (w *world) join(name, role string) *node {
	slot := slices.IndexFunc(w.nodes, func(n *node) bool { return n.gone })
	if slot < 0 {
		slot, w.nodes = len(w.nodes), append(w.nodes, nil)
	}
	n := &node{world: w, name: name, role: role, kind: w.options.kindOf(name), slot: slot, zone: zoneOf(w.options.Zones, name), budget: pd.NewFallbackBudget(pd.FallbackRatio, pd.FallbackBurst)}
	n.engine = engine.New(n.kind.Engine, n.kind.Table, n)
	n.cache = epp.CacheInfo{BlockTokens: n.kind.Engine.BlockTokens, Blocks: n.engine.Blocks()}
	w.nodes[slot] = n
	return n
}

// newEndpoint returns what a picker knows the engine by.
func (n *node) newEndpoint() *epp.Endpoint {
	labels := map[string]string{pd.RoleLabel: n.role}
	if n.zone != "" {
		labels[zoneLabel] = n.zone
	}
	if i := n.world.options.variantOf(n.name); i >= 0 {
		labels[epp.VariantLabel] = n.world.options.Variants[i].Name
	}
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n.slot >> 8), byte(n.slot)}), 8000)
	e := epp.NewEndpoint("replay", n.name, addr, "", labels)
	e.Slot = n.slot
	return e
}

// follow has the next event of the node's engine run.
func (n *node) follow() {
	at, busy := n.engine.Next()
	if busy == n.busy && at == n.due {
		return
	}
	n.turn++
	if n.due, n.busy = at, busy; busy {
		n.world.clock.add(event{at: at, node: n, turn: n.turn})
	}
}

// begin has the next session begin: when it is due, or after a pause if so many sessions run at a time.
func (w *world) begin(pause time.Duration) {
	all := w.trace.Requests
	for w.upcoming < len(all) && all[w.upcoming].After > 0 {
		w.upcoming++
	}
	if w.upcoming == len(all) {
		return
	}
	i := w.upcoming
	w.upcoming++
	if w.trace.Concurrency > 0 {
		w.clock.after(pause, func() { w.pick(i) })
		return
	}
	w.clock.after(all[i].Due-w.clock.now, func() {
		w.pick(i)
		w.begin(0)
	})
}

// ended has the session of a request go on, or another one begin in its place.
func (w *world) ended(record *Record) {
	w.left--
	if w.options.Ended != nil {
		w.options.Ended.Add(1)
	}
	if i := record.Index; w.next != nil && w.next[i] > 0 {
		turn := int(w.next[i])
		w.clock.after(w.trace.Requests[turn].Due, func() { w.pick(turn) })
		return
	}
	switch {
	case w.trace.Concurrency == 0:
	case record.Refused:
		w.begin(refusalPause)
	default:
		w.begin(0)
	}
}

// bytesOfToken is how many bytes of a body a token of a prompt takes, as the picker estimates text.
const bytesOfToken = 4

// pick has a request arrive at the picker.
func (w *world) pick(i int) {
	r, record := &w.trace.Requests[i], &w.result.Records[i]
	if w.coming--; w.coming == 0 {
		w.result.Unfinished = w.left - 1
	}
	record.Index, record.Due, record.Input, record.Output, record.Class = i, w.clock.now, r.Input, r.Output, r.Class
	class, text := &w.asks[r.Class], w.prompt(i, false)
	asked := &epp.Request{ID: fmt.Sprint(i), Path: "/v1/completions", API: pd.APICompletions, Model: class.Model, Stream: true,
		Priority: class.Priority, Headers: class.headers, Bytes: int64(bytesOfToken * r.Input),
		Prompt: epp.Prompt{Tokens: r.Input, BlockTokens: w.spec.Tokens,
			Blocks: text.blocks(w.spec.Tokens, w.spec.Max), IDs: text.ids(w.spec.IDs)}}
	(&arrival{picker: w.pickers[w.arrived%len(w.pickers)], of: record, asked: asked}).prepare() // gateways ask the replicas in turn
	w.arrived++
}

// Ran implements engine.Listener.
func (n *node) Ran(steps, batch int, took time.Duration) { n.world.result.itl.add(took, steps*batch) }

// finish completes the result.
func (w *world) finish() *Result {
	w.result.KVBytes = w.network.moved
	w.account()
	w.sized()
	if p := w.pickers[0]; p.compared != nil {
		view := p.compared.View()
		w.result.Shadow = &view
	}
	if p := w.pickers[0]; p.sizer != nil {
		load := p.asked.Load(w.result.Load())
		needed := p.sizer.Need(&load)
		w.result.Needed = &needed
	}
	w.result.Timeline = slices.Concat(w.timeline.moments...)
	return w.result
}
