package flow

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Gate measures how full the pool is. It is safe for concurrent use, and must return quickly: it is called for every request.
type Gate interface {
	// Saturation returns how full the endpoints of the first stage, or of the stage that splits requests, are: 1 is full. It
	// counts pending as load of the stage that shows at no endpoint yet. asked numbers the requests that ask about the stage, from before
	// pending was read. If the result is below a value that the caller gives, it may be an upper bound, as long as that is below the value as well.
	Saturation(split bool, asked int64, pending epp.InFlight, below float64) float64
	// Splits reports whether a request may need the stage that splits requests.
	Splits(r *epp.Request) bool
	// Empty reports whether the pool has no endpoints.
	Empty() bool
}

// Options are what a Controller needs besides its settings.
type Options struct {
	Clock epp.Clock
	// Waiting is called when the first request begins to wait, and when none waits any more: only in between does the
	// controller need SnapshotChanged. It is called with the controller locked. nil: it is not called.
	Waiting func(any bool)
	Metrics *Metrics // nil: none
	Running *Running // knows the requests that Eviction may end; nil: none
	// Others returns what waits at other replicas of the picker, which counts for the limits of all queues and of bands; nil: nothing does.
	Others func() []epp.Queued
}

// Controller is an epp.Admission whose requests wait while the pool is full. It is safe for concurrent use.
type Controller struct {
	opt     Options
	current atomic.Pointer[configured]
	waiting atomic.Int64 // requests that wait
	tokens  atomic.Int64 // of their prompts
	closed  atomic.Bool
	pending [lanes]pending
	asked   [lanes]atomic.Int64 // requests that have asked the gate about a stage
	ranking atomic.Pointer[ranking]
	turn    atomic.Uint64 // of SoftReflective
	queued  tally

	mu       sync.Mutex
	bands    []*band // of descending priority
	bytes    int64   // of all waiting bodies
	seq      uint64
	departed pace
	next     epp.Timer // of the next look for requests that may pass though nothing changes; nil: there is none
	nextAt   time.Time
}

// turnTime is how long requests that wait for a later turn wait for it at most. Most turns come earlier, with other requests.
const turnTime = time.Millisecond

// configured is replaced as a whole.
type configured struct {
	settings Settings
	gate     Gate
}

// pending is the load of requests that were let pass, but whose pick has not ended.
type pending struct {
	requests, tokens atomic.Int64
}

func (p *pending) add(load epp.InFlight, n int) {
	p.requests.Add(int64(n))
	p.tokens.Add(int64(n * load.Tokens))
}

// New makes a controller.
func New(s Settings, gate Gate, opt Options) *Controller {
	c := &Controller{opt: opt}
	c.use(s, gate)
	c.ranking.Store(newRanking(&s))
	return c
}

func (c *Controller) use(s Settings, gate Gate) {
	c.current.Store(&configured{s, gate})
	if _, off := gate.(OpenGate); c.opt.Running != nil {
		c.opt.Running.NameClients(!off)
	}
}

// Configure replaces the settings and the gate. Requests that wait keep their arrival and their time to live, and are not
// refused if the new limits are lower.
func (c *Controller) Configure(s Settings, gate Gate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.use(s, gate)
	ranking, before := newRanking(&s), c.ranking.Load()
	for i, used := range before.used {
		if used != nil {
			ranking = ranking.with(before.priorities[i], used)
		}
	}
	c.ranking.Store(ranking)
	var all []*item
	priorities := make(map[*item]int)
	for _, b := range c.bands {
		for it := b.oldest; it != nil; it = it.newer {
			all = append(all, it)
			priorities[it] = b.priority
		}
	}
	c.bands = nil
	slices.SortFunc(all, func(a, b *item) int { return int(int64(a.seq) - int64(b.seq)) })
	for _, it := range all {
		b := c.band(priorities[it])
		it.flow = b.flow(it.flow.id)
		b.add(it)
	}
	c.dispatch()
}

// Admit implements epp.Admission. The error is a *pd.Refusal.
func (c *Controller) Admit(ctx context.Context, r *epp.Request) (epp.Pass, error) {
	pass, it, err := c.begin(r, nil)
	if it == nil {
		return pass, err
	}
	return c.left(r.Priority, it, c.await(ctx, it))
}

// Begin is Admit for callers that have no goroutine to wait on, such as a replay in virtual time. It calls told once with what Admit would
// return, maybe before it returns itself. told must return at once and must not call the controller, which may be locked. No client leaves
// while its request waits.
func (c *Controller) Begin(r *epp.Request, told func(epp.Pass, error)) {
	pass, it, err := c.begin(r, func(it *item, err error) { told(c.left(r.Priority, it, err)) })
	if it == nil {
		told(pass, err)
	}
}

// begin lets a request pass, refuses it, or has it wait as the item that it returns. told is called with its result; nil: await gets it.
func (c *Controller) begin(r *epp.Request, told func(*item, error)) (epp.Pass, *item, error) {
	if !r.API.Generates() { // a list of models costs no engine any work
		return epp.Pass{}, nil, nil
	}
	if c.closed.Load() {
		return epp.Pass{}, nil, shuttingDown()
	}
	in, load := c.current.Load(), loadOf(r)
	l := in.lane(r)
	c.rank(in, r.Priority)
	if c.waiting.Load() == 0 {
		// It is pending before it asks, so that of two requests that ask at the same time each counts the other. dispatch asks first, but only
		// while requests wait: a request that sees none wait after it has asked is counted there, or counts what was dispatched.
		c.pending[l].add(load, 1)
		if asked := c.ask(l); c.waiting.Load() == 0 && c.look(in, l, r.Priority, asked, load) == open {
			c.opt.Metrics.passed(r.Priority)
			return l.pass(), nil, nil
		}
		c.pending[l].add(load, -1)
	}
	it, err := c.enqueue(r, l, load, told)
	if err != nil {
		c.opt.Metrics.left(r.Priority, 0, err)
		return epp.Pass{}, nil, err
	}
	return epp.Pass{}, it, nil
}

// left returns what Admit returns for a request that has waited.
func (c *Controller) left(priority int, it *item, err error) (epp.Pass, error) {
	waited := c.opt.Clock.Since(it.at)
	c.opt.Metrics.left(priority, waited, err)
	if err != nil {
		return epp.Pass{}, err
	}
	pass := it.lane.pass()
	pass.Waited, pass.Charged = max(1, waited), it.charged // it waited even if it was no time on a coarse clock
	return pass, nil
}

// Settled implements epp.Admission: the load of a request that was let pass is charged to its endpoints now, or never will be.
func (c *Controller) Settled(r *epp.Request, p epp.Pass) {
	if p.Note > 0 {
		c.settle(laneOf(p), loadOf(r))
	}
}

// settle ends the time in which a request is pending. Only a request that was refused, or that was charged less than it was
// pending with, leaves capacity.
func (c *Controller) settle(l lane, load epp.InFlight) {
	c.pending[l].add(load, -1)
	if c.waiting.Load() > 0 {
		c.tryDispatch()
	}
}

// Backlog implements epp.Backlog.
func (c *Controller) Backlog() epp.InFlight {
	return epp.InFlight{Requests: int(c.waiting.Load()), Tokens: int(c.tokens.Load())}
}

// SnapshotChanged tells the controller that the pool may have capacity.
func (c *Controller) SnapshotChanged() {
	if c.waiting.Load() > 0 {
		c.tryDispatch()
	}
}

func (c *Controller) tryDispatch() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dispatch()
}

// Close refuses the requests that wait, and all to come.
func (c *Controller) Close() {
	c.closed.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.opt.Clock.Now()
	for _, b := range c.bands {
		for b.newest != nil {
			c.finish(b, b.newest, now, shuttingDown())
		}
	}
	if c.next != nil {
		c.next.Stop()
	}
}

func (in *configured) lane(r *epp.Request) lane {
	if in.gate.Splits(r) {
		return laneSplit
	}
	return laneFirst
}

// opening is what requests of a band and a lane find.
type opening uint8

const (
	closed opening = iota
	paused         // closed until a later turn, even if nothing changes
	open
)

// numbers are those of a request among the ones that have asked about each stage.
type numbers [lanes]int64

// ask numbers a request that asks about the stages of a lane.
func (c *Controller) ask(l lane) (asked numbers) {
	for stage := laneFirst; stage <= l; stage++ {
		asked[stage] = c.asked[stage].Add(1)
	}
	return asked
}

// look returns whether the gate has capacity for a request of a lane. own is the part of the pending load that is the request's own.
func (c *Controller) look(in *configured, l lane, priority int, asked numbers, own epp.InFlight) opening {
	load := epp.InFlight{Requests: -own.Requests, Tokens: -own.Tokens}
	for stage := laneSplit; ; stage-- {
		load = c.pendingAt(stage, load)
		if stage <= l {
			saturation := in.gate.Saturation(stage == laneSplit, asked[stage], load, c.certain(in, priority))
			if ceiling, later := c.ceiling(in, priority, saturation); !isBelow(saturation, ceiling) {
				if later {
					return paused
				}
				return closed
			}
		}
		if stage == laneFirst {
			return open
		}
	}
}

// pendingAt adds the pending load of a stage to that of the later ones, whose requests are pending there as well.
func (c *Controller) pendingAt(stage lane, later epp.InFlight) epp.InFlight {
	later.Requests += int(c.pending[stage].requests.Load())
	later.Tokens += int(c.pending[stage].tokens.Load())
	return later
}

// ceiling returns the saturation from which requests of a priority wait. later reports that they do so only in this turn.
func (c *Controller) ceiling(in *configured, priority int, saturation float64) (ceiling float64, later bool) {
	priorities, rank := c.rankOf(in, priority)
	return in.settings.Usage.ceiling(saturation, priorities, rank, c.turn.Load())
}

// certain returns a saturation below which requests of a priority pass in every turn.
func (c *Controller) certain(in *configured, priority int) float64 {
	priorities, rank := c.rankOf(in, priority)
	return in.settings.Usage.certain(priorities, rank)
}

// find returns where the band of a priority is, or belongs. The caller holds mu.
func (c *Controller) find(priority int) (i int, found bool) {
	return slices.BinarySearchFunc(c.bands, priority, func(b *band, p int) int { return cmp.Compare(p, b.priority) })
}

// band returns the band of a priority, a new one if there is none. The caller holds mu.
func (c *Controller) band(priority int) *band {
	i, found := c.find(priority)
	if !found {
		in := c.current.Load()
		c.bands = slices.Insert(c.bands, i, newBand(priority, in.settings.band(priority), c.opt.Clock.Now()))
	}
	return c.bands[i]
}

// enqueue has a request wait. The error is a *pd.Refusal.
func (c *Controller) enqueue(r *epp.Request, l lane, load epp.InFlight, told func(*item, error)) (*item, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() { // Close has emptied the queues
		return nil, shuttingDown()
	}
	now, in := c.opt.Clock.Now(), c.current.Load()
	b := c.band(r.Priority)
	b.forget(now)
	c.rerank(in, now)
	origin := r.Origin()
	f := b.flow(origin.Flow)
	if err := c.fit(in, b, f, r, now); err != nil {
		if f.requests == 0 && f.resting == nil {
			delete(b.flows, f.id)
		}
		c.dispatch() // others may wait because this request was pending for a moment
		return nil, err
	}
	c.seq++
	it := &item{flow: f, lane: l, load: load, bytes: r.Bytes, at: now, ttl: in.ttl(b.settings), slo: ttftOf(r), seq: c.seq,
		series: c.queued.of(origin), told: told}
	if told == nil {
		it.done = make(chan error, 1)
	}
	b.add(it)
	it.series.add(1, it.bytes)
	c.bytes += it.bytes
	c.tokens.Add(int64(it.load.Tokens))
	if c.waiting.Add(1) == 1 && c.opt.Waiting != nil {
		c.opt.Waiting(true)
	}
	c.dispatch()
	if it.index >= 0 && it.ttl > 0 {
		it.timer = c.opt.Clock.AfterFunc(it.ttl, func() { c.expire(it) })
	}
	return it, nil
}

// ttl returns how long a request of a band that arrives now may wait.
func (in *configured) ttl(b *Band) time.Duration {
	if in.gate.Empty() {
		return in.settings.EmptyTTL
	}
	return in.settings.ttl(b)
}

// fit checks the limits for a request, and evicts others if it may. The error is a *pd.Refusal.
func (c *Controller) fit(in *configured, b *band, f *flow, r *epp.Request, now time.Time) error {
	s := &in.settings
	all, band := c.elsewhere(b.priority)
	switch {
	case s.Flow.exceeded(f.requests+1, f.bytes+r.Bytes):
		return c.full("this client's requests", b)
	case b.settings.Limits.exceeded(band.Requests+b.requests+1, band.Bytes+b.bytes+r.Bytes):
		return c.full("requests of this priority", b)
	}
	requests, bytes := all.Requests+int(c.waiting.Load())+1, all.Bytes+c.bytes+r.Bytes
	if !s.All.exceeded(requests, bytes) {
		return nil
	}
	sheddable := c.sheddable(r.Priority)
	left, leftBytes := requests, bytes
	for _, victim := range sheddable {
		left, leftBytes = left-victim.requests, leftBytes-victim.bytes
	}
	if s.All.exceeded(left, leftBytes) {
		return c.full("requests", b)
	}
	for _, victim := range slices.Backward(sheddable) {
		for victim.newest != nil && s.All.exceeded(all.Requests+int(c.waiting.Load())+1, all.Bytes+c.bytes+r.Bytes) {
			c.finish(victim, victim.newest, now, evicted())
		}
	}
	return nil
}

// elsewhere returns what waits at other replicas of the picker: all of it, and that of one priority.
func (c *Controller) elsewhere(priority int) (all, band epp.Queued) {
	if c.opt.Others == nil {
		return all, band
	}
	for _, w := range c.opt.Others() {
		all.Requests += w.Requests
		all.Bytes += w.Bytes
		if w.Priority == priority {
			band = w
		}
	}
	return all, band
}

// Waiting returns what waits, by priority in descending order.
func (c *Controller) Waiting() (all []epp.Queued) {
	if c.waiting.Load() == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.bands {
		if b.requests > 0 {
			all = append(all, epp.Queued{Priority: b.priority, Requests: b.requests, Bytes: b.bytes})
		}
	}
	return all
}

// sheddable returns the bands whose requests may be evicted for a request of a priority.
func (c *Controller) sheddable(priority int) []*band {
	i := slices.IndexFunc(c.bands, func(b *band) bool { return b.priority < min(0, priority) })
	if i < 0 {
		return nil
	}
	return c.bands[i:]
}

// dispatch lets requests pass while there is capacity. The caller holds mu.
func (c *Controller) dispatch() {
	if c.waiting.Load() == 0 {
		return
	}
	in, now := c.current.Load(), c.opt.Clock.Now()
	may := [lanes]bool{laneFirst: true, laneSplit: true}
	later := false // requests wait for a later turn
	c.turn.Add(1)
	for _, b := range c.bands {
		for b.requests > 0 {
			for l := range lanes {
				if may[l] && b.ready[l].len() > 0 { // a lane that is closed for a band stays closed for lower ones
					found := c.look(in, l, b.priority, c.ask(l), epp.InFlight{})
					may[l], later = found == open, later || found == paused
				}
			}
			it := b.next(may)
			if it == nil {
				break
			}
			c.turn.Add(1)
			c.pending[it.lane].add(it.load, 1)
			c.departed.note(now)
			b.dispatched(it, now) // before the request goes on with its pass
			c.finish(b, it, now, nil)
		}
	}
	if later {
		c.lookAt(now.Add(turnTime), now)
	}
	c.evictFor(in, now)
}

// lookAt has dispatch run at a time, unless it is to run earlier. The caller holds mu.
func (c *Controller) lookAt(at, now time.Time) {
	if c.next != nil {
		if !at.Before(c.nextAt) {
			return
		}
		c.next.Stop()
	}
	c.nextAt = at
	c.next = c.opt.Clock.AfterFunc(at.Sub(now), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.next = nil
		c.dispatch()
	})
}

// finish removes an item and tells the request that waits. The caller holds mu.
func (c *Controller) finish(b *band, it *item, now time.Time, result error) {
	b.remove(it, now)
	it.series.add(-1, -it.bytes)
	c.bytes -= it.bytes
	c.tokens.Add(-int64(it.load.Tokens))
	if it.timer != nil {
		it.timer.Stop()
	}
	if it.told != nil {
		it.told(it, result)
	} else {
		it.done <- result
	}
	if c.waiting.Add(-1) == 0 {
		c.departed.stop()
		if c.opt.Waiting != nil {
			c.opt.Waiting(false)
		}
	}
}

// await returns the result of an item. The error is a *pd.Refusal.
func (c *Controller) await(ctx context.Context, it *item) error {
	select {
	case err := <-it.done:
		return err
	case <-ctx.Done():
	}
	left := pd.Refuse(pd.Deadline, "The request ended while it waited for capacity.")
	left.Cause = context.Cause(ctx)
	if c.leave(it, left) {
		return left
	}
	err := <-it.done
	if err != nil {
		return err
	}
	c.settle(it.lane, it.load) // it was dispatched at the same moment, and will not be picked for
	return left
}

// leave removes an item, and reports false if it does not wait any more.
func (c *Controller) leave(it *item, why error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drop(it, why)
}

// drop removes an item if it waits. The requests behind it may go where it could not. The caller holds mu.
func (c *Controller) drop(it *item, why error) bool {
	if it.index < 0 {
		return false
	}
	c.finish(it.flow.band, it, c.opt.Clock.Now(), why)
	c.dispatch()
	return true
}

// expire ends the wait of an item whose time to live has ended.
func (c *Controller) expire(it *item) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if it.index < 0 {
		return
	}
	c.drop(it, c.expired(it))
}
