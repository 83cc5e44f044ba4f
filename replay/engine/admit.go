package engine

import "time"

// admit has waiting requests run, in their order, until the budget, the sequences or the blocks are used up. As in vLLM, requests that would
// need one more adapter than can be loaded are passed by others.
func (e *Engine) admit(now time.Duration, budget *int) {
	defer e.waitOn()
	for e.waiting.len() > 0 && *budget > 0 {
		r := e.waiting.first()
		if !e.fits(r.Adapter) {
			e.waiting.pop()
			e.passed = append(e.passed, r)
			continue
		}
		if len(e.running) >= e.config.Sequences {
			e.blocked = true
			return
		}
		d := e.need(r, *budget)
		if free := e.cache.free(); d.whole > free || d.whole+e.unused(d.hits)*e.cache.each > free {
			e.blocked = true
			return
		}
		e.waiting.pop()
		if !r.arrived {
			e.cache.use(d.hits)
			e.host.touch(r.Parts)
			r.parts = append(r.parts[:0], d.hits...)
			r.computed = len(d.hits)*e.config.PartTokens + d.loaded
			e.loads += d.loaded
			if r.Preempted == 0 {
				r.Cached, r.Loaded, r.Waited = r.computed, d.loaded, now-r.added
			}
		}
		if r.remote && !r.arrived {
			e.grow(r, d.now)
			e.pending++
			r.coming = true
			e.listen.Reserved(now, r, r.Prompt-r.computed)
			continue
		}
		if r.arrived && e.config.TokenArrives && e.begin(now, r) {
			continue
		}
		e.running = append(e.running, r)
		if r.arrived && e.config.PrefillFirst {
			e.grow(r, d.now)
			r.arrived = false // it joins the next step that computes answers
			continue
		}
		r.arrived = false
		e.schedule(r, d.step, d.now)
		*budget -= d.step
	}
}

// begin notes that the first token of a request came with its KV cache, and reports whether that is all.
func (e *Engine) begin(now time.Duration, r *Request) (done bool) {
	r.generated = 1
	e.listen.First(now, r)
	if r.Output > 1 {
		return false
	}
	e.drop(r)
	e.listen.Done(now, r)
	return true
}

// demand is what a waiting request needs to run.
type demand struct {
	hits   []*part // that the prefix cache has
	loaded int     // tokens behind these, which are loaded from the host's memory
	whole  int     // blocks for all its tokens, without which it does not run
	now    int     // blocks of these that it needs now
	step   int     // tokens that it computes in this step
}

// need returns what a waiting request needs. What comes from another engine is not loaded from the host's memory.
func (e *Engine) need(r *Request, budget int) (d demand) {
	if r.arrived {
		blocks := e.blocks(r, r.computed+1)
		return demand{whole: blocks, now: blocks, step: 1}
	}
	computed := 0
	if e.cache.each > 0 {
		most := min(len(r.Parts), (r.tokens()-1)/e.config.PartTokens) // the last token is always computed
		if e.sought != r {
			e.sought, e.found = r, e.found[:0]
		}
		e.found = e.cache.find(r.Parts[:most], e.found)
		if d.hits = e.found; !r.remote {
			d.loaded = e.host.find(r.Parts[len(d.hits):most]) * e.config.PartTokens
		}
		computed = len(d.hits)*e.config.PartTokens + d.loaded
	}
	if d.step = min(r.tokens()-computed, budget); r.remote {
		d.step = r.Prompt - computed
	}
	of := func(tokens int) int {
		return (tokens+e.config.BlockTokens-1)/e.config.BlockTokens - len(d.hits)*e.cache.each
	}
	d.whole, d.now = of(r.tokens()), of(computed+d.step)
	return d
}

// unused returns how many of the parts no request uses: they are among the free blocks.
func (e *Engine) unused(parts []*part) (n int) {
	for _, p := range parts {
		if p.requests == 0 {
			n++
		}
	}
	return n
}
