package replay

import (
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/replay/engine"
)

// flight is a request on its way.
type flight struct {
	world           *world
	picker          *picker
	of              *Record
	request         *Request
	parts           []uint64
	decision        *epp.Decision
	prefill, decode *node
	held            *engine.Request // at prefill, which keeps its blocks when it is done
	reserved        *engine.Request // at decode, when it has blocks for the KV cache
	leg             *engine.Request // at decode; nil: none runs, or its result does not count any more
	story           *Story          // nil unless it is wanted

	// When its parts began, in virtual time; 0: not yet.
	picked, sent, done, reading, moving, first time.Duration

	computed bool // prefill is done
	sending  bool // the transfer from prefill has begun
	left     bool // prefill has nothing more to compute
	freed    bool // prefill keeps nothing any more
	answered bool // the client has the first token
	over     bool // the client has all that it gets
}

// choose asks the scheduler, and sends the request to the engines.
func (a *arrival) choose(pass epp.Pass) {
	p, i, record := a.picker, a.of.Index, a.of
	w := p.world
	r := &w.trace.Requests[i]
	story := p.story(i, a.asked)
	d, err := p.sched.Choose(a.asked, pass)
	if err != nil {
		a.refuse(err)
		return
	}
	p.retry()
	f := &flight{world: w, picker: p, of: record, request: r, decision: d, story: story, decode: w.nodes[d.First()[0].Slot]}
	text := w.prompt(i, w.next != nil && w.next[i] > 0)
	f.parts = text.shared()
	if to := d.Endpoints(epp.StagePrefill); d.Verdict == pd.Remote && len(to) > 0 {
		f.prefill = w.nodes[to[0].Slot]
	}
	if f.picked = w.clock.now; w.options.Oracle {
		w.flying = append(w.flying, f)
		w.foresee(f)
	}
	record.Reason, record.Decode = d.Reason, f.decode.name
	if f.prefill != nil {
		record.Remote, record.Prefill = true, f.prefill.name
		p.loads.woken(f.prefill)
		f.prefill.flights++
	}
	p.loads.woken(f.decode)
	f.decode.flights++
	d.Reservation.OnEvict(func(why *pd.Refusal) { w.clock.after(0, func() { f.evict(why) }) })
	first := f.decode
	if f.prefill != nil && !first.kind.Engine.TokenArrives {
		first = f.prefill
	}
	w.clock.after(w.options.Hop+first.kind.Request, f.send)
}

// send begins the first leg, or both if the first token comes with the KV cache: then prefill waits until decode has reserved blocks.
func (f *flight) send() {
	if f.over {
		return
	}
	f.decode.budget.Earn()
	f.sent = f.world.clock.now
	switch {
	case f.prefill == nil:
		f.local()
	case f.decode.kind.Engine.TokenArrives:
		f.read()
	default:
		f.compute()
	}
}

// local has decode compute the prompt.
func (f *flight) local() {
	f.reading = f.world.clock.now
	f.leg = &engine.Request{Prompt: f.request.Input, Output: f.request.Output, Parts: f.parts, Of: f}
	f.add(f.decode, f.leg)
}

// compute has prefill compute the prompt.
func (f *flight) compute() {
	if f.over {
		return
	}
	f.held = &engine.Request{Prompt: f.request.Input, Output: 1, Parts: f.parts, Hold: true, Of: f}
	f.add(f.prefill, f.held)
}

// read has decode reserve blocks for the hand-off, and read it.
func (f *flight) read() {
	if f.over {
		f.free()
		return
	}
	f.reading = f.world.clock.now
	f.leg = &engine.Request{Prompt: f.request.Input, Output: f.request.Output, Parts: f.parts, Remote: true, Of: f}
	f.add(f.decode, f.leg)
	if f.computed {
		f.wait()
	}
}

// wait gives decode so long for the first token as the sidecar does.
func (f *flight) wait() {
	leg, w := f.leg, f.world
	if w.options.First == 0 {
		return
	}
	w.clock.after(w.options.First, func() {
		if f.leg == leg && !f.answered && !f.over {
			f.story.add(f.decode, "no first token came within %v", w.options.First)
			f.abort(f.decode, leg)
			if !f.sending {
				f.free()
			}
			f.redo()
		}
	})
}

// redo has decode compute a prompt whose hand-off it could not read, if the fallback budget has something left, as the sidecar does.
func (f *flight) redo() {
	f.leg, f.of.Remote, f.of.Reason = nil, false, pd.TransferFailed
	if !f.decode.budget.Take() {
		f.story.add(f.decode, "the fallback budget is spent: the request is refused")
		f.refuse(pd.Refuse(pd.Budget, "The fallback budget is spent (%s).", pd.TransferFailed))
		return
	}
	f.story.add(f.decode, "the hand-off cannot be used: the prompt is computed here")
	f.of.FellBack = true
	f.local()
}

// evict ends the request for a more important one. Its client gets a refusal, or a broken answer. That it has left reaches the engines later;
// the sidecar has a prefill leg go on for a second, because a hand-off that has just been made would be lost.
func (f *flight) evict(why *pd.Refusal) {
	if f.over {
		return
	}
	f.of.Evicted = true
	f.story.add(f.decode, "evicted for a more important request")
	f.refuse(why)
	w := f.world
	switch leg := f.leg; {
	case leg != nil:
		w.clock.after(w.options.Hop, func() {
			if f.leg == leg {
				f.leave(leg)
			}
		})
	case f.held != nil && !f.computed:
		w.clock.after(w.options.Hop+hangUp, func() {
			if !f.computed {
				f.abort(f.prefill, f.held)
			}
		})
	}
}

// leave ends the leg at decode of a client that has left, and what prefill does for it.
func (f *flight) leave(leg *engine.Request) {
	f.abort(f.decode, leg)
	switch {
	case f.sending: // prefill frees its blocks when the transfer has ended
	case f.reserved == leg: // nothing is written into its blocks
		f.arrived(leg)
		if f.held != nil && !f.computed {
			f.abort(f.prefill, f.held)
		}
	case f.computed:
		f.free()
	}
}

// arrived says that nothing more is written into the blocks that a leg has reserved.
func (f *flight) arrived(leg *engine.Request) {
	f.decode.engine.Arrived(f.world.clock.now, leg)
	f.decode.follow()
}

// hangUp is how long the sidecar has a prefill leg go on whose client has left.
const hangUp = time.Second

// refuse ends a request that was picked for.
func (f *flight) refuse(why *pd.Refusal) {
	f.over, f.of.Refused, f.of.Reason = true, true, why.Reason
	happened := why.Result()
	o := f.outcome()
	o.Status, o.Happened, o.Immediate = why.Status(), &happened, why.Reason == pd.Evicted
	f.end(o)
}

// end ends the load of a request, and tells plugins its outcome.
func (f *flight) end(o *epp.Outcome) {
	w := f.world
	w.result.End = w.clock.now
	w.ended(f.of)
	if i := slices.Index(w.flying, f); i >= 0 {
		w.flying = slices.Delete(w.flying, i, i+1)
	}
	f.decode.flights--
	f.leavePrefill()
	f.decision.Reservation.End()
	f.picker.capacity()
	for _, observer := range f.picker.observers {
		observer.Observe(o)
	}
}

// leavePrefill says that prefill has nothing more to compute for the request. It may still keep blocks.
func (f *flight) leavePrefill() {
	if f.prefill != nil && !f.left {
		f.left = true
		f.prefill.flights--
	}
}

// outcome returns what is known of every request that has ended.
func (f *flight) outcome() *epp.Outcome {
	return &epp.Outcome{Request: fmt.Sprint(f.of.Index), API: pd.APICompletions, Plan: f.decision.Plan(), Decision: f.decision,
		Served: f.picker.loads.pages[f.decode.slot].endpoint.Address, Duration: f.world.clock.now - f.of.Due}
}

// phases returns how long each part of a request took that has ended, as its sidecar would report.
func (f *flight) phases(now time.Duration) *pd.Phases {
	p := &pd.Phases{}
	p.Set(pd.PhaseFirst, f.first-f.reading)
	p.Set(pd.PhaseDecode, now-f.first)
	switch {
	case f.prefill == nil:
		p.Set(pd.PhaseRecv, f.reading-f.sent)
	case f.decode.kind.Engine.TokenArrives: // both legs are sent at once
		p.Set(pd.PhaseRecv, 0)
		p.Set(pd.PhasePrefill, f.done-f.sent)
		p.Set(pd.PhaseOverlap, min(f.done, f.first)-f.sent)
	default:
		p.Set(pd.PhaseRecv, 0)
		p.Set(pd.PhasePrefill, f.done-f.sent)
		p.Set(pd.PhaseHandoff, f.reading-f.done)
	}
	return p
}

func (f *flight) add(n *node, r *engine.Request) {
	waiting, _ := n.engine.Waiting()
	f.story.add(n, "queued: %d requests wait there, %d run", waiting, n.engine.Running())
	r.Traced, r.Adapter = f.story != nil, f.world.adapter(f.request.Class)
	n.engine.Add(n.world.clock.now, r)
	n.follow()
}

func (f *flight) abort(n *node, r *engine.Request) {
	n.engine.Abort(n.world.clock.now, r)
	n.follow()
}

// free has prefill free the blocks that it keeps, if it does.
func (f *flight) free() {
	if f.freed {
		return
	}
	f.freed = true
	f.prefill.engine.Release(f.world.clock.now, f.held)
	f.prefill.follow()
}

// First implements engine.Listener.
func (n *node) First(now time.Duration, r *engine.Request) {
	f := r.Of.(*flight)
	if r != f.leg || f.over {
		return
	}
	f.answered = true
	f.of.TTFT, f.first = now-f.of.Due, now
	f.story.computed(n, r, "the first token")
	f.decision.Reservation.Answered()
	f.picker.capacity()
}

// Done implements engine.Listener.
func (n *node) Done(now time.Duration, r *engine.Request) {
	f, w := r.Of.(*flight), n.world
	f.of.Preempted += r.Preempted
	f.of.Waited += r.Waited
	if r.Cached > f.of.Cached {
		f.of.Cached, f.of.Loaded = r.Cached, r.Loaded
	}
	switch {
	case r == f.held:
		f.computed, f.done = true, now
		f.leavePrefill()
		f.story.computed(n, r, "the prompt is computed, with one token; its blocks are kept for decode")
		if f.decode.kind.Engine.TokenArrives {
			f.transfer()
		} else {
			w.clock.after(w.options.Hop+f.decode.kind.Request, f.read)
		}
		return
	case r != f.leg:
		return
	}
	f.leg = nil
	if f.over {
		return
	}
	f.over = true
	f.of.E2E = now - f.of.Due
	f.story.computed(n, r, "the last token")
	o := f.outcome()
	o.Status = 200
	o.Result = &pd.AnswerSummary{End: pd.EndDone, Prompt: int64(f.of.Input), Cached: int64(f.of.Cached), Completion: int64(f.of.Output)}
	o.Answered, o.Phases = f.of.TTFT, f.phases(now)
	if f.of.FellBack {
		o.Happened = &pd.Result{Verdict: pd.Local, Reason: f.of.Reason, Attempts: 1}
	}
	f.end(o)
}

// Reserved implements engine.Listener.
func (n *node) Reserved(_ time.Duration, r *engine.Request, missing int) {
	f := r.Of.(*flight)
	f.of.Moved, f.reserved = missing, r
	f.story.add(n, "blocks are reserved, after %v in the queue; %d of %d tokens are not cached here", rounded(r.Waited), missing, r.Prompt)
	if n.kind.Engine.TokenArrives {
		n.world.clock.after(0, f.compute)
		return
	}
	f.transfer()
}

// transfer sends the KV cache to the decode engine.
func (f *flight) transfer() {
	w, n, leg := f.world, f.decode, f.reserved
	if f.over && f.decode.kind.Engine.TokenArrives {
		w.clock.after(0, f.free)
		return
	}
	f.sending, f.moving = true, w.clock.now
	if f.decode.kind.Engine.TokenArrives {
		f.wait()
	}
	begun, tokens := w.clock.now, f.of.Moved
	bytes := float64(tokens) * float64(f.prefill.kind.Hardware.KVBytes)
	f.story.add(n, "%.1f MB are sent from %s", bytes/1e6, f.prefill.name)
	w.network.send(f.prefill, n, bytes, func(ok bool) {
		what := "the KV cache has arrived"
		if ok {
			n.readTokens, n.readTime = n.readTokens+tokens, n.readTime+w.clock.now-begun
		} else {
			what = "the transfer has failed"
		}
		f.story.add(n, "%s, and %s frees its blocks", what, f.prefill.name)
		f.free()
		failed := !ok && leg == f.leg && !f.over
		if failed {
			f.abort(n, leg)
		}
		f.arrived(leg) // frees the blocks of an aborted one
		if failed {
			f.redo()
		}
	})
}
