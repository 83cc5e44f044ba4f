package replay

import (
	"math"
	"time"

	"github.com/tandem-serving/tandem/replay/engine"
)

// With Options.Oracle requests go where what no picker knows says: how long all answers will be, the exact state of every engine, and the very times
// of its steps. For each choice, foresee goes through what becomes of every request that is on its way, as if no more came, and it takes the choice that
// costs least: so it does not know the future, but all that follows from the present. It refuses no request. A pick takes milliseconds.

// late is what a request costs that misses what its client wants. Besides, times cost as much as they are of what is wanted, at most 1, on average of
// TTFT and TPOT.
const late = 1

// course is what becomes of the requests on their way after a choice, in copies of all engines.
type course struct {
	world   *world
	clock   clock
	engines []*engine.Engine // by slot; nil: it has left
	of      []func(*engine.Request) *engine.Request
	sending []time.Duration // by slot: until when the port is in use
	ways    []*way
	left    int // ways that have not ended
}

// way is a request in a course.
type way struct {
	course          *course
	flight          *flight
	prefill, decode int // slots; prefill is -1 of a request that decode computes
	held, leg       *engine.Request
	record          Record
}

// foresee sends a request to the engines with which all requests on their way cost least.
func (w *world) foresee(f *flight) {
	best := math.Inf(1)
	var decode, prefill *node
	for _, d := range w.nodes {
		if d.gone || d.leaving || d.role == "prefill" {
			continue
		}
		for _, p := range append([]*node{nil}, w.nodes...) {
			if p != nil && (p.gone || p.leaving || p.role == "decode" || p == d) {
				continue
			}
			f.decode, f.prefill = d, p
			if cost := w.course().cost(); decode == nil || cost < best {
				best, decode, prefill = cost, d, p
			}
		}
	}
	f.decode, f.prefill = decode, prefill
}

// course begins a course with all requests on their way.
func (w *world) course() *course {
	c := &course{world: w, clock: clock{now: w.clock.now}, engines: make([]*engine.Engine, len(w.nodes)), of: make([]func(*engine.Request) *engine.Request, len(w.nodes)),
		sending: make([]time.Duration, len(w.nodes))}
	for i, n := range w.nodes {
		if !n.gone {
			c.engines[i], c.of[i] = n.engine.Clone(courseNode{c, i})
		}
	}
	for _, f := range w.flying {
		c.join(f)
	}
	return c
}

// join has a request go on from where it is.
func (c *course) join(f *flight) {
	p := &way{course: c, flight: f, prefill: -1, decode: f.decode.slot, record: *f.of}
	if f.prefill != nil {
		p.prefill = f.prefill.slot
	}
	c.ways, c.left = append(c.ways, p), c.left+1
	if f.held != nil && !f.freed {
		p.held = c.of[p.prefill](f.held)
		p.held.Of = p
	}
	if f.leg != nil {
		p.leg = c.of[p.decode](f.leg)
		p.leg.Of = p
	}
	w := c.world
	switch {
	case p.leg != nil && f.sending && !f.freed:
		c.send(p, max(0, f.moving+c.wire(f.of.Moved)-w.clock.now))
	case p.leg != nil:
	case f.computed:
		c.at(f.done+w.options.Hop+w.options.Request, p.read)
	case p.held != nil:
	default:
		c.at(f.picked+w.options.Hop+w.options.Request, p.begin)
	}
}

// at runs f at a time, or now if that has passed.
func (c *course) at(when time.Duration, f func()) { c.clock.after(when-c.clock.now, f) }

// wire is how long the KV cache of so many tokens takes, on a link that nothing else uses.
func (c *course) wire(tokens int) time.Duration {
	o := c.world.options
	return o.Link.Latency + time.Duration(float64(tokens)*float64(o.Hardware.KVBytes)/o.Link.Bandwidth*1e9)
}

// begin begins the first leg.
func (p *way) begin() {
	r := p.flight.request
	if p.prefill < 0 {
		p.leg = &engine.Request{Prompt: r.Input, Output: r.Output, Parts: p.flight.parts, Of: p}
		p.course.engines[p.decode].Add(p.course.clock.now, p.leg)
		return
	}
	p.held = &engine.Request{Prompt: r.Input, Output: 1, Parts: p.flight.parts, Hold: true, Of: p}
	p.course.engines[p.prefill].Add(p.course.clock.now, p.held)
}

// read begins the leg at decode of a hand-off.
func (p *way) read() {
	r := p.flight.request
	p.leg = &engine.Request{Prompt: r.Input, Output: r.Output, Parts: p.flight.parts, Remote: true, Of: p}
	p.course.engines[p.decode].Add(p.course.clock.now, p.leg)
}

// send has a KV cache arrive after a time.
func (c *course) send(p *way, after time.Duration) {
	c.clock.after(after, func() {
		c.engines[p.decode].Arrived(c.clock.now, p.leg)
		c.engines[p.prefill].Release(c.clock.now, p.held)
	})
}

// courseNode is told what becomes of the requests of one engine.
type courseNode struct {
	course *course
	slot   int
}

// First implements engine.Listener.
func (n courseNode) First(now time.Duration, r *engine.Request) {
	if p := r.Of.(*way); r == p.leg && p.record.TTFT == 0 {
		p.record.TTFT = now - p.record.Due
	}
}

// Done implements engine.Listener.
func (n courseNode) Done(now time.Duration, r *engine.Request) {
	switch p := r.Of.(*way); r {
	case p.held:
		o := n.course.world.options
		n.course.clock.after(now-n.course.clock.now+o.Hop+o.Request, p.read)
	case p.leg:
		p.record.E2E = now - p.record.Due
		n.course.left--
	}
}

// Reserved implements engine.Listener. Transfers of one engine follow each other.
func (n courseNode) Reserved(now time.Duration, r *engine.Request, missing int) {
	p, c := r.Of.(*way), n.course
	begin := max(now, c.sending[p.prefill], c.sending[p.decode])
	end := begin + c.wire(missing)
	c.sending[p.prefill], c.sending[p.decode] = end, end
	c.send(p, end-c.clock.now)
}

// Ran implements engine.Listener.
func (courseNode) Ran(int, int, time.Duration) {}

// run goes through the course. It reports whether all its requests end: some may wait for blocks that are kept for each other.
func (c *course) run() bool {
	for c.left > 0 {
		next, at := -1, time.Duration(math.MaxInt64)
		if len(c.clock.events) > 0 {
			at = c.clock.events[0].at
		}
		for i, e := range c.engines {
			if e == nil {
				continue
			}
			if due, busy := e.Next(); busy && due < at {
				at, next = due, i
			}
		}
		if next >= 0 {
			c.clock.now = at
			c.engines[next].Advance(at)
			continue
		}
		e, ok := c.clock.next()
		if !ok {
			return false
		}
		e.run()
	}
	return true
}

// cost goes through the course, and returns what all its requests cost.
func (c *course) cost() (sum float64) {
	if !c.run() {
		return math.Inf(1)
	}
	slo := c.world.trace.Wanted
	for _, p := range c.ways {
		if !slo.Met(&p.record) {
			sum += late
		}
		tpot, _ := p.record.TPOT()
		sum += (part(p.record.TTFT, slo.TTFT) + part(tpot, slo.TPOT)) / 2
	}
	return sum
}

// part returns a time as a share of what is wanted, at most 1; 0 if nothing is. Were it more for those that are too late anyhow, others would be for
// their sake.
func part(d, wanted time.Duration) float64 {
	if wanted == 0 {
		return 0
	}
	return min(1, float64(d)/float64(wanted))
}
