package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"time"
)

// Config are the settings of an engine.
type Config struct {
	StepTokens   int           // most tokens of a step (vLLM: max_num_batched_tokens)
	Sequences    int           // most requests that run (vLLM: max_num_seqs)
	BlockTokens  int           // tokens of a block
	KVTokens     int           // tokens that the KV cache holds
	PartTokens   int           // tokens of one of a request's Parts; 0: prompts share nothing
	Overhead     time.Duration // of every step, besides the table
	Factor       float64       // by which the table's times are multiplied; 0 is 1
	PrefillFirst bool          // prompts are computed in steps of their own
	// TokenArrives says that the first token of a Remote request comes with its KV cache; otherwise it is computed here.
	TokenArrives bool
	// ForgetsRemote says that an engine keeps nothing of Remote requests in its prefix cache, and finds nothing there for them.
	ForgetsRemote bool
	// ArrivalSteps is how many steps end before a request runs whose KV cache has arrived, while others run: the engine looks for
	// arrivals between steps, and has scheduled the next one already.
	ArrivalSteps int
	Adapters     int           // LoRA adapters of the requests that run at most, which are also those kept loaded (vLLM: max_loras); 0: adapters cost nothing
	Load         time.Duration // of an adapter that is not loaded: the step waits for it
	Slowdown     float64       // by which steps with adapters take longer; 0 is 1
	// HostTokens is how many tokens the host's memory holds, to which the prefix cache is copied (vLLM: OffloadingConnector); 0: nothing is.
	HostTokens int
	HostLoad   time.Duration // of each token that is loaded from there: the step waits for it
}

// VLLM returns vLLM's defaults on large GPUs.
func VLLM() Config {
	return Config{StepTokens: 8192, Sequences: 256, BlockTokens: 16, Overhead: 2 * time.Millisecond}
}

// SGLang returns SGLang's defaults on large GPUs. Its decode engines keep no prefixes (--disaggregation-decode-enable-radix-cache is off).
func SGLang() Config {
	return Config{StepTokens: 8192, Sequences: 256, BlockTokens: 1, Overhead: 2 * time.Millisecond, PrefillFirst: true, TokenArrives: true, ForgetsRemote: true}
}

// Request is one request to one engine. The fields above the line are the caller's.
type Request struct {
	Prompt, Output int      // tokens; both at least 1
	Parts          []uint64 // chained identities of the whole parts of the prompt, and of the answer if later prompts may continue it
	// Remote says that the prompt's KV cache comes from another engine: see Listener.Reserved.
	Remote bool
	// Hold keeps the blocks after the request is done, until Release: another engine reads them.
	Hold    bool
	Adapter string // LoRA; "": none
	Of      any    // the caller's
	// Traced has the request note the steps that it takes part in, which takes memory.
	Traced bool

	Preempted int           // times
	Cached    int           // tokens of the prompt that were in the prefix cache, or the host's memory, when the request was first scheduled
	Loaded    int           // how many of these were loaded from the host's memory
	Waited    time.Duration // from Add until it was first scheduled; of a Remote one, until its blocks were reserved
	Took      []Part        // the steps that it took part in, if Traced

	added               time.Duration
	computed, generated int
	own                 int     // blocks
	parts               []*part // that it uses
	remote              bool    // its prompt is not computed here: false after a preemption
	coming              bool    // its blocks are reserved, and the remote KV cache is on its way
	arrived             bool    // the remote KV cache is there
	aborted             bool
	late                int  // steps that end before it runs, once arrived
	step                int  // tokens in this step
	doubled             bool // its next part is in the cache already, and was when so many parts had been removed
	removed             int
}

// Part is a number of equal steps that a request took part in.
type Part struct {
	From, To time.Duration
	Steps    int
	Tokens   int // of the request that each step computed
	New      int // tokens of prompts that each step computed, of all requests
	Batch    int // requests that got a token in each step
}

// tokens returns how many tokens the request has now.
func (r *Request) tokens() int { return r.Prompt + r.generated }

// Listener is told what becomes of requests. It must not call the engine: what it does has to wait until Add, Arrived, Release or
// Advance has returned.
type Listener interface {
	// First is called when a request has its first token.
	First(now time.Duration, r *Request)
	// Done is called when a request has all its tokens, after First.
	Done(now time.Duration, r *Request)
	// Reserved is called when the blocks of a Remote request are reserved. Its KV cache, missing tokens of it, may now be sent; then
	// the caller calls Arrived.
	Reserved(now time.Duration, r *Request, missing int)
	// Ran is called after steps in which each of batch requests got a token that is not its first. took is the mean of the steps.
	Ran(steps, batch int, took time.Duration)
}

// CacheListener is a Listener that is told too what enters and leaves the prefix cache, as engines publish it. Listener's rule holds.
type CacheListener interface {
	CacheChanged(c CacheChange)
}

// CacheChange is that a part of prompts has entered or left the prefix cache or the host's memory.
type CacheChange struct {
	ID      uint64
	Removed bool   // it has left
	Host    bool   // the host's memory is meant
	First   bool   // it is the first one of its prompts; not told of the host's memory
	Before  uint64 // the part before it, if it entered the prefix cache and is not the first
}

// Engine is one engine. It is not safe for concurrent use.
type Engine struct {
	config  Config
	table   *Table
	listen  Listener
	cache   *cache
	host    *host
	waiting queue
	running []*Request // the oldest first
	pending int        // Remote requests whose blocks are reserved
	late    []*Request // of these, those whose KV cache is there, but not noticed yet
	blocked bool       // the first waiting request cannot run before another ends
	found   []*part    // the cached parts of the prompt of a waiting request, sought
	sought  *Request

	loaded []string // adapters, the least recently used first
	passed []*Request

	loads int // tokens that the next step loads from the host's memory

	run  run
	step Step // what each step of the run computes; Context is that of the first
	busy bool
}

// run is a number of equal steps that are one event.
type run struct {
	start       time.Duration
	steps       int
	batch       int
	first, each float64 // ms: time of the first step, and by how much each is longer than the one before
}

// end returns when n steps of the run have ended.
func (r *run) end(n int) time.Duration {
	steps := float64(n)
	return r.start + time.Duration(math.Round((r.first*steps+r.each*steps*(steps-1)/2)*1e6))
}

// ended returns how many steps have ended before now.
func (r *run) ended(now time.Duration) int {
	return sort.Search(r.steps, func(i int) bool { return r.end(i+1) >= now })
}

// New makes an engine without requests.
func New(c Config, t *Table, l Listener) *Engine {
	each := 0
	if c.PartTokens > 0 {
		each = c.PartTokens / c.BlockTokens
	}
	e := &Engine{config: c, table: t, listen: l, cache: newCache(c.KVTokens/c.BlockTokens, each)}
	e.cache.told, _ = l.(CacheListener)
	parts := 0
	if c.PartTokens > 0 {
		parts = c.HostTokens / c.PartTokens
	}
	e.host = newHost(parts, e.cache.told)
	return e
}

// AdapterProblem returns why adapters cannot be so; nil if they can.
func (c *Config) AdapterProblem() error {
	switch {
	case c.Adapters < 0 || c.Load < 0:
		return fmt.Errorf("%d adapters that take %v to load cannot be", c.Adapters, c.Load)
	case !(c.Slowdown == 0 || c.Slowdown >= 1 && c.Slowdown <= 100):
		return fmt.Errorf("steps with adapters that take %v times as long cannot be: want 1 to 100", c.Slowdown)
	case c.Adapters == 0 && (c.Load > 0 || c.Slowdown > 0):
		return errors.New("adapters have a cost, but it is not said how many are loaded at a time")
	}
	return nil
}

// Problem returns why the engine could never serve a request of these lengths; nil if it can.
func (c *Config) Problem(prompt, output int) error {
	if prompt+output > c.KVTokens/c.BlockTokens*c.BlockTokens {
		return fmt.Errorf("a request of %d and %d tokens does not fit into a KV cache of %d", prompt, output, c.KVTokens)
	}
	return nil
}

// Add queues a request.
func (e *Engine) Add(now time.Duration, r *Request) {
	r.remote, r.added = r.Remote, now
	if r.Remote && e.config.ForgetsRemote {
		r.Parts = nil
	}
	e.waiting.push(r)
	e.wake(now)
}

// Arrived says that the KV cache of a Remote request is there.
func (e *Engine) Arrived(now time.Duration, r *Request) {
	r.coming = false
	if r.aborted {
		e.Release(now, r)
		return
	}
	if r.arrived, r.computed = true, r.Prompt-1; e.config.TokenArrives {
		r.computed++
	}
	if r.late = e.config.ArrivalSteps; r.late > 0 && e.busy {
		r.late += e.run.ended(now) // they count as ended when the run has
	}
	e.late = append(e.late, r)
	e.notice(0)
	e.wake(now)
}

// Abort ends a request that is not done: its client has left. One that runs ends with the step. The blocks of a Remote one whose KV cache is
// on its way are freed when it has arrived: until then the other engine writes into them.
func (e *Engine) Abort(now time.Duration, r *Request) {
	r.aborted = true
	switch i := slices.Index(e.late, r); {
	case r.coming:
		e.pending--
	case i >= 0:
		e.late = slices.Delete(e.late, i, i+1)
		e.pending--
		e.drop(r)
	case e.waiting.remove(r):
		e.drop(r)
	}
	e.wake(now)
}

// notice has late requests wait for the next step, if enough steps have ended, or if none runs.
func (e *Engine) notice(steps int) {
	left := e.late[:0]
	for _, r := range e.late {
		if r.late -= steps; r.late > 0 && len(e.running) > 0 {
			left = append(left, r)
			continue
		}
		e.pending--
		e.share(r, r.computed)
		e.waiting.pushFront(r)
	}
	clear(e.late[len(left):])
	e.late = left
}

// Release frees the blocks of a request with Hold.
func (e *Engine) Release(now time.Duration, r *Request) {
	e.drop(r)
	e.wake(now)
}

// wake has the engine schedule at the end of the step that runs now, or at once if none runs.
func (e *Engine) wake(now time.Duration) {
	if !e.busy {
		e.start(now)
		return
	}
	e.run.steps = min(e.run.steps, e.run.ended(now)+1)
}

// Next returns when the engine must be advanced; ok is false while it has nothing to compute.
func (e *Engine) Next() (at time.Duration, ok bool) { return e.run.end(e.run.steps), e.busy }

// Advance ends the steps that end at now, which Next returned, and starts the next ones.
func (e *Engine) Advance(now time.Duration) {
	n := e.run.steps
	if e.run.batch > 0 {
		e.listen.Ran(n, e.run.batch, (now-e.run.start)/time.Duration(n))
	}
	if n > 1 { // otherwise the blocks were taken when the step was scheduled
		for _, r := range e.running {
			e.grow(r, e.blocks(r, r.computed+n))
		}
	}
	left := e.running[:0]
	for _, r := range e.running {
		if r.step > 0 {
			e.ran(now, r, n)
		}
		switch {
		case r.aborted:
			e.drop(r)
			continue
		case r.generated < r.Output:
			left = append(left, r)
			continue
		}
		if !r.Hold {
			e.drop(r)
		}
		e.listen.Done(now, r)
	}
	clear(e.running[len(left):])
	e.running, e.busy = left, false
	e.notice(n)
	e.start(now)
}

// ran notes that a request took part in n steps.
func (e *Engine) ran(now time.Duration, r *Request, n int) {
	r.computed += r.step * n
	if r.Traced {
		r.Took = append(r.Took, Part{e.run.start, now, n, r.step, e.step.New, e.step.Batch})
	}
	e.share(r, r.computed)
	r.step = 0
	if r.computed < r.tokens()+n-1 {
		return // a chunk of its prompt
	}
	if r.generated += n; r.generated == n && n == 1 && !r.aborted {
		e.listen.First(now, r)
	}
}

// schedule has a request compute n tokens in the next step. As in vLLM, requests that are scheduled after it for the same step share
// its blocks already. In SGLang blocks are shared when they are computed.
func (e *Engine) schedule(r *Request, n, blocks int) {
	e.grow(r, blocks)
	if r.step = n; !e.config.PrefillFirst {
		e.share(r, r.computed+n)
	}
}

// share puts the parts within the first n tokens of a request into the prefix cache.
func (e *Engine) share(r *Request, n int) {
	if e.cache.each == 0 || r.doubled && r.removed == e.cache.removed {
		return
	}
	r.doubled = false
	for i := len(r.parts); i < len(r.Parts) && (i+1)*e.config.PartTokens <= n; i++ {
		p, ok := e.cache.put(r.Parts[i])
		if ok && e.cache.told != nil {
			e.cache.told.CacheChanged(CacheChange{ID: r.Parts[i], Before: r.Parts[max(0, i-1)], First: i == 0})
		}
		if !ok { // another request computed it in the meantime: the blocks stay this request's own
			r.doubled, r.removed = true, e.cache.removed
			return
		}
		r.own -= e.cache.each
		r.parts = append(r.parts, p)
		e.host.put(p.id)
	}
}

// drop frees the blocks of a request.
func (e *Engine) drop(r *Request) {
	e.cache.own -= r.own
	e.cache.leave(r.parts)
	e.host.touch(r.Parts)
	r.own, r.parts, r.doubled = 0, r.parts[:0], false
}

// blocks returns how many more blocks a request needs to have computed n tokens.
func (e *Engine) blocks(r *Request, n int) int {
	return max(0, (n+e.config.BlockTokens-1)/e.config.BlockTokens-r.own-len(r.parts)*e.cache.each)
}

// start schedules the next step, and starts it if it computes anything.
func (e *Engine) start(now time.Duration) {
	budget, running := e.config.StepTokens, len(e.running)
	e.blocked = false
	if e.config.PrefillFirst {
		left := e.chunks(budget)
		if e.admit(now, &left); left == budget { // no prompt is computed
			e.advance(&budget)
		}
	} else if e.advance(&budget) {
		e.admit(now, &budget)
	}
	var s Step
	before, context, later := 0.0, 0, 0
	for _, r := range e.running {
		switch {
		case r.step == 0:
		case r.step == 1 && r.computed+1 == r.tokens():
			s.Batch++
			context += r.computed
			if r.generated > 0 {
				later++
			}
		default:
			s.New += r.step
			before += float64(r.computed) * float64(r.step)
		}
	}
	if s.New+s.Batch == 0 {
		if running > 0 && len(e.running) == 0 {
			e.start(now) // the last running request was preempted: those that wait for nothing more may run
		}
		return
	}
	if s.New > 0 {
		s.Before = before / float64(s.New)
	}
	if s.Batch > 0 {
		s.Context = float64(context) / float64(s.Batch)
	}
	overhead := float64(e.config.Overhead) / 1e6
	slowdown, loads := e.adapt()
	slowdown *= cmp.Or(e.config.Factor, 1)
	waits := float64(loads)*float64(e.config.Load) + float64(e.loads)*float64(e.config.HostLoad)
	e.run = run{start: now, steps: 1, batch: later, first: e.table.Milliseconds(s)*slowdown + overhead + waits/1e6}
	e.loads = 0
	e.step, e.busy = s, true
	if later == len(e.running) && (e.waiting.len() == 0 || e.blocked) && loads == 0 {
		e.extend(s, slowdown, overhead)
	}
}

// extend makes one event of the steps in which the same requests run: until one of them ends, or blocks are missing. Their time grows
// evenly from the first to the last, as between two rows of the table. The blocks are taken when the run ends: until then no other
// request takes any.
func (e *Engine) extend(s Step, slowdown, overhead float64) {
	n := math.MaxInt
	for _, r := range e.running {
		n = min(n, r.Output-r.generated)
	}
	for _, r := range e.late {
		n = min(n, r.late)
	}
	for n = min(n, maxRun); n > 1 && e.growth(n) > e.cache.free(); n /= 2 {
	}
	if n <= 1 {
		return
	}
	last := s
	last.Context += float64(n - 1)
	e.run.steps, e.run.each = n, (e.table.Milliseconds(last)*slowdown+overhead-e.run.first)/float64(n-1)
}

// maxRun bounds the steps of one event, so that the change of their time is even.
const maxRun = 256

// growth returns how many blocks n steps of the running requests need.
func (e *Engine) growth(n int) (blocks int) {
	for _, r := range e.running {
		blocks += e.blocks(r, r.computed+n)
	}
	return blocks
}

func (e *Engine) grow(r *Request, blocks int) {
	e.cache.take(blocks)
	r.own += blocks
}

// advance schedules the running requests. It reports whether waiting ones may follow: not after a preemption.
func (e *Engine) advance(budget *int) bool {
	preempted := false
	for i := 0; i < len(e.running) && *budget > 0; i++ {
		r := e.running[i]
		n := min(r.tokens()-r.computed, *budget)
		need := e.blocks(r, r.computed+n)
		for need > e.cache.free() {
			preempted = true
			if e.preempt() == r {
				return false
			}
		}
		e.schedule(r, n, need)
		*budget -= n
	}
	return !preempted
}

// preempt frees the blocks of the youngest running request. It waits again, behind those whose KV cache has arrived: they hold blocks, for
// which it would wait forever.
func (e *Engine) preempt() *Request {
	last := len(e.running) - 1
	r := e.running[last]
	e.running[last] = nil
	e.running = e.running[:last]
	e.drop(r)
	r.computed, r.remote = 0, false
	r.Preempted++
	e.waiting.pushFront(r)
	e.waiting.letPass()
	return r
}

// chunks schedules the next chunks of the prompts that run, and returns what is left of the budget.
func (e *Engine) chunks(budget int) int {
	for _, r := range e.running {
		n := min(r.tokens()-r.computed, budget)
		if r.computed+1 == r.tokens() || n <= 0 {
			continue
		}
		need := e.blocks(r, r.computed+n)
		if need > e.cache.free() {
			continue
		}
		e.schedule(r, n, need)
		budget -= n
	}
	return budget
}

// Waiting returns how many requests wait; delayed: how many of these wait only for their KV cache.
func (e *Engine) Waiting() (all, delayed int) { return e.waiting.len() + e.pending, e.pending }

// Running returns how many requests run.
func (e *Engine) Running() int { return len(e.running) }

// Usage returns the used share of the KV cache.
func (e *Engine) Usage(now time.Duration) float64 {
	free := e.cache.free()
	if e.busy && e.run.steps > 1 {
		free -= e.growth(e.run.ended(now)) // blocks are taken when the run ends
	}
	return 1 - float64(free)/float64(e.cache.total)
}

// Blocks returns how many blocks the KV cache has.
func (e *Engine) Blocks() int { return e.cache.total }
