package replay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/config"
	"github.com/tandem-serving/tandem/epp/pool"
	"github.com/tandem-serving/tandem/epp/sched"
	"github.com/tandem-serving/tandem/epp/setup"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/replay/engine"
)

// Options are the settings of a run.
type Options struct {
	Config   *config.Config
	Pool     Pool
	Engine   engine.Config // of every engine; PartTokens is set by Run
	Table    *engine.Table
	Hardware engine.Hardware
	Link     Link
	Scrape   time.Duration // between two readings of a busy engine's metrics page
	Stale    time.Duration // age from which loads are trusted less
	Hop      time.Duration // from the pick to the engine, and from one leg to the next
	Request  time.Duration // of a leg, besides the steps of its engine
	Seed     uint64
	Explain  int           // number of a request, from 1, whose Story is wanted; 0: none
	Ended    *atomic.Int64 // counts the requests that have ended, so that progress can be shown; may be nil
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
		return errors.New("it has a plugin that lets requests wait before the pick by itself, which cannot be replayed")
	case b.Queues != nil && b.Queues.Eviction.On:
		return errors.New("it ends running requests for more important ones (enableEviction), which cannot be replayed yet")
	case len(config.Of[epp.SnapshotObserver](b)) > 0:
		return errors.New("it has a plugin that follows changes of the pool, which cannot be replayed yet")
	}
	for _, p := range b.Preparers {
		if _, ok := p.Preparer.(epp.LocalPreparer); !ok {
			return fmt.Errorf("its plugin %s waits for something outside the picker, which cannot be replayed", p.Name)
		}
		if o.Explain > 0 {
			return fmt.Errorf("its plugin %s waits for other requests, so that none can be explained", p.Name)
		}
	}
	return nil
}

// node is one engine of the pool.
type node struct {
	world    *world
	role     string
	endpoint *epp.Endpoint
	engine   *engine.Engine
	cache    epp.CacheInfo

	due  time.Duration // of its next event
	busy bool          // it has one
	turn int

	readAt, readNext   time.Duration // of its metrics page
	reading            int
	sending, receiving int // transfers
}

// world is one run.
type world struct {
	options   *Options
	trace     *Trace
	clock     clock
	sched     *sched.Scheduler
	observers []epp.Observer
	loads     loads
	network   network
	nodes     []*node // by slot
	spec      epp.BlockSpec
	asks      []asked // by class
	next      []int32 // turns: see Trace.turns
	upcoming  int     // where the next session is looked for
	coming    int     // requests that have not arrived
	left      int     // requests that have not ended
	waiting   waiting
	timeline  timeline
	result    *Result
}

// flight is a request on its way.
type flight struct {
	of              *Record
	request         *Request
	parts           []uint64
	decision        *epp.Decision
	prefill, decode *node
	held            *engine.Request // at prefill
	reserved        *engine.Request // at decode, until its KV cache has arrived
	story           *Story          // nil unless it is wanted
}

// Run replays a trace. It ends early, with the error of ctx, if ctx ends.
func Run(ctx context.Context, o Options, t *Trace) (*Result, error) {
	if err := o.Check(t); err != nil {
		return nil, err
	}
	w := &world{}
	keep := &epp.Keep{Clock: &w.clock}
	built, err := o.Config.Build(slog.New(slog.DiscardHandler), keep)
	if err != nil {
		return nil, err
	}
	defer built.Close() // of a run that is over, it has nothing left to lose
	if err := o.supported(built); err != nil {
		return nil, err
	}
	if err := w.fill(&o, t, built, keep); err != nil {
		return nil, err
	}
	for range max(1, t.Concurrency) {
		w.begin(0)
	}
	for n := 0; w.left > 0; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		e, ok := w.clock.next()
		w.timeline.until(w.clock.now, w.nodes)
		switch {
		case !ok:
			return nil, fmt.Errorf("%d requests wait for nothing", w.left) // the model would be wrong
		case e.node == nil:
			e.run()
		case e.turn == e.node.turn:
			e.node.busy = false
			e.node.engine.Advance(w.clock.now)
			e.node.follow()
		}
	}
	return w.finish(), nil
}

// fill makes the pool, the picker and the network.
func (w *world) fill(o *Options, t *Trace, built *config.Built, keep *epp.Keep) error {
	o.Engine.PartTokens = t.BlockTokens
	*w = world{clock: w.clock, options: o, trace: t, asks: t.asks(), next: t.turns(),
		coming: len(t.Requests), left: len(t.Requests), timeline: timeline{each: firstInterval},
		result: &Result{Records: make([]Record, len(t.Requests)), Classes: t.Classes, GPUs: o.Pool.Engines() * o.Hardware.GPUs}}
	w.loads = loads{clock: &w.clock, random: rand.New(rand.NewPCG(o.Seed, 1)), current: &epp.Snapshot{}, changed: true}
	w.network = network{clock: &w.clock, link: o.Link, met: map[[2]*node]bool{}}
	for _, group := range []struct {
		n    int
		role string
	}{{o.Pool.Prefill, "prefill"}, {o.Pool.Decode, "decode"}, {o.Pool.Both, "both"}} {
		for i := range group.n {
			w.join(fmt.Sprintf("%s-%d", group.role, i), group.role)
		}
	}
	w.loads.nodes, w.loads.loads = w.nodes, make([]epp.Load, len(w.nodes))
	observers := append(config.Of[epp.EndpointObserver](built), keep)
	for _, n := range w.nodes {
		w.loads.current.Endpoints = append(w.loads.current.Endpoints, n.endpoint)
		for _, observer := range observers {
			observer.EndpointJoined(n.endpoint)
		}
	}
	interval, reads := scraping(built, o.Scrape)
	if reads {
		w.loads.busy, w.loads.idle = interval, max(interval, idleScrape)
		for _, n := range w.nodes {
			w.loads.schedule(n, time.Duration(w.loads.random.Float64()*float64(interval)))
		}
	}
	picking := setup.Scheduler(built, o.Stale, o.Seed+1, nil) // 0 would be another seed each time
	w.waiting.preparers = built.Preparers
	if w.waiting.queue = w.newQueue(built, interval); w.waiting.queue != nil {
		setup.Queueing(&picking, built, w.waiting.queue)
	}
	w.observers = picking.Observers
	pipeline, err := sched.NewPipeline(picking)
	if err != nil {
		return err
	}
	w.sched = sched.New(&w.loads, &w.clock)
	w.sched.Swap(pipeline)
	w.spec = w.sched.Blocks()
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

// join adds an engine to the pool.
func (w *world) join(name, role string) {
	slot := len(w.nodes)
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(slot >> 8), byte(slot)}), 8000)
	n := &node{world: w, role: role, endpoint: epp.NewEndpoint("replay", name, addr, "", map[string]string{pd.RoleLabel: role})}
	n.endpoint.Slot = slot
	n.engine = engine.New(w.options.Engine, w.options.Table, n)
	n.cache = epp.CacheInfo{BlockTokens: w.options.Engine.BlockTokens, Blocks: n.engine.Blocks()}
	w.nodes = append(w.nodes, n)
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
			Blocks: text.blocks(w.spec.Tokens, w.spec.Max)}}
	(&arrival{world: w, of: record, asked: asked}).prepare()
}

// choose asks the scheduler, and sends the request to the engines.
func (a *arrival) choose(pass epp.Pass) {
	w, i, record := a.world, a.of.Index, a.of
	r := &w.trace.Requests[i]
	story := w.story(i, a.asked)
	d, err := w.sched.Choose(a.asked, pass)
	if err != nil {
		a.refuse(err)
		return
	}
	w.retry()
	f := &flight{of: record, request: r, decision: d, story: story, decode: w.nodes[d.First()[0].Slot]}
	text := w.prompt(i, w.next != nil && w.next[i] > 0)
	f.parts = text.shared()
	record.Reason, record.Decode = d.Reason, f.decode.endpoint.Name
	if to := d.Endpoints(epp.StagePrefill); d.Verdict == pd.Remote && len(to) > 0 {
		f.prefill = w.nodes[to[0].Slot]
		record.Remote, record.Prefill = true, f.prefill.endpoint.Name
		w.loads.woken(f.prefill)
	}
	w.loads.woken(f.decode)
	w.clock.after(w.options.Hop+w.options.Request, f.send)
}

// send begins the first leg, or both if the first token comes with the KV cache: then prefill waits until decode has reserved blocks.
func (f *flight) send() {
	switch {
	case f.prefill == nil:
		f.add(f.decode, &engine.Request{Prompt: f.request.Input, Output: f.request.Output, Parts: f.parts, Of: f})
	case f.prefill.world.options.Engine.TokenArrives:
		f.addDecode()
	default:
		f.addPrefill()
	}
}

func (f *flight) addPrefill() {
	f.held = &engine.Request{Prompt: f.request.Input, Output: 1, Parts: f.parts, Hold: true, Of: f}
	f.add(f.prefill, f.held)
}

func (f *flight) addDecode() {
	f.add(f.decode, &engine.Request{Prompt: f.request.Input, Output: f.request.Output, Parts: f.parts, Remote: true, Of: f})
}

func (f *flight) add(n *node, r *engine.Request) {
	waiting, _ := n.engine.Waiting()
	f.story.add(n, "queued: %d requests wait there, %d run", waiting, n.engine.Running())
	r.Traced = f.story != nil
	n.engine.Add(n.world.clock.now, r)
	n.follow()
}

// First implements engine.Listener.
func (n *node) First(now time.Duration, r *engine.Request) {
	f := r.Of.(*flight)
	if r == f.held {
		return
	}
	f.of.TTFT = now - f.of.Due
	f.story.computed(n, r, "the first token")
	f.decision.Reservation.Answered()
	n.world.capacity()
}

// Done implements engine.Listener.
func (n *node) Done(now time.Duration, r *engine.Request) {
	f, w := r.Of.(*flight), n.world
	f.of.Preempted += r.Preempted
	f.of.Waited += r.Waited
	f.of.Cached = max(f.of.Cached, r.Cached)
	if r == f.held {
		f.story.computed(n, r, "the prompt is computed, with one token; its blocks are kept for decode")
		if w.options.Engine.TokenArrives {
			f.transfer()
			return
		}
		w.clock.after(w.options.Hop+w.options.Request, f.addDecode)
		return
	}
	f.of.E2E = now - f.of.Due
	f.story.computed(n, r, "the last token")
	w.result.End = now
	w.ended(f.of)
	f.decision.Reservation.End()
	w.capacity()
	if len(w.observers) == 0 {
		return
	}
	o := &epp.Outcome{Request: fmt.Sprint(f.of.Index), API: pd.APICompletions, Status: 200, Plan: f.decision.Plan(), Decision: f.decision,
		Result: &pd.AnswerSummary{End: pd.EndDone, Prompt: int64(f.of.Input), Cached: int64(f.of.Cached), Completion: int64(f.of.Output)},
		Served: f.decode.endpoint.Address, Duration: f.of.E2E}
	for _, observer := range w.observers {
		observer.Observe(o)
	}
}

// Reserved implements engine.Listener.
func (n *node) Reserved(_ time.Duration, r *engine.Request, missing int) {
	f := r.Of.(*flight)
	f.of.Moved, f.reserved = missing, r
	f.story.add(n, "blocks are reserved, after %v in the queue; %d of %d tokens are not cached here", rounded(r.Waited), missing, r.Prompt)
	if n.world.options.Engine.TokenArrives {
		n.world.clock.after(0, f.addPrefill)
		return
	}
	f.transfer()
}

// transfer sends the KV cache to the decode engine.
func (f *flight) transfer() {
	w, n := f.decode.world, f.decode
	bytes := float64(f.of.Moved) * float64(w.options.Hardware.KVBytes)
	f.story.add(n, "%.1f MB are sent from %s", bytes/1e6, f.prefill.endpoint.Name)
	w.network.send(f.prefill, n, bytes, func() {
		f.story.add(n, "the KV cache has arrived, and %s frees its blocks", f.prefill.endpoint.Name)
		f.prefill.engine.Release(w.clock.now, f.held)
		f.prefill.follow()
		n.engine.Arrived(w.clock.now, f.reserved)
		n.follow()
	})
}

// Ran implements engine.Listener.
func (n *node) Ran(steps, batch int, took time.Duration) { n.world.result.itl.add(took, steps*batch) }

// finish completes the result.
func (w *world) finish() *Result {
	w.result.KVBytes = w.network.moved
	w.result.Timeline = slices.Concat(w.timeline.moments...)
	return w.result
}
