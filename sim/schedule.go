package sim

import (
	"slices"
	"time"
)

// batch is the work of one step.
type batch struct {
	parts         []part
	prefillTokens int // of prompts, or of answers recomputed after a preemption
	sequences     int
	contextTokens int // KV read by all sequences together
}

// part is what one sequence does in a step.
type part struct {
	seq    *sequence
	tokens int
}

func (b *batch) add(s *sequence, tokens int) {
	b.parts = append(b.parts, part{s, tokens})
	b.sequences++
	b.contextTokens += s.computed + tokens
	if s.computed+tokens < len(s.tokens) || tokens > 1 {
		b.prefillTokens += tokens
	}
}

// schedule fills the next step: running sequences first, in order of arrival, then waiting ones while tokens, places and
// blocks last. A request that does not fit waits at the head of the queue, so none is overtaken for ever.
func (e *Engine) schedule() batch {
	var b batch
	budget := e.cfg.Schedule.MaxBatchedTokens
	preempted := false
	for i := 0; i < len(e.running) && budget > 0; i++ {
		s := e.running[i]
		n := min(len(s.tokens)-s.computed, budget)
		for !e.grow(s, s.computed+n) {
			preempted = true
			if e.preemptLast() == s {
				n = 0
				break
			}
		}
		if n > 0 {
			b.add(s, n)
			budget -= n
		}
	}
	for !preempted && budget > 0 && len(e.waiting) > 0 && len(e.running) < e.cfg.Schedule.MaxSequences {
		s := e.waiting[0]
		n, ok := e.admit(s, budget)
		if !ok {
			break
		}
		e.waiting = e.waiting[1:]
		if n == 0 { // its KV is being loaded, or never will be
			continue
		}
		e.running = append(e.running, s)
		b.add(s, n)
		budget -= n
	}
	return b
}

// grow makes sure that a sequence has blocks for so many tokens.
func (e *Engine) grow(s *sequence, tokens int) bool {
	blocks, ok := e.pool.take(blocksFor(tokens, e.cfg.KV.BlockSize) - len(s.blocks))
	if ok {
		s.blocks = append(s.blocks, blocks...)
	}
	return ok
}

func blocksFor(tokens, blockSize int) int { return (tokens + blockSize - 1) / blockSize }

// preemptLast takes the blocks of the youngest running sequence, which will compute its KV again later.
func (e *Engine) preemptLast() *sequence {
	s := e.running[len(e.running)-1]
	e.running = e.running[:len(e.running)-1]
	e.pool.release(s.blocks)
	s.blocks, s.computed, s.folded, s.digest, s.load = nil, 0, 0, digest{}, noLoad
	e.waiting = slices.Insert(e.waiting, 0, s)
	e.metrics.add(preemptions, 1)
	return s
}

// admit gives a waiting sequence its blocks. n is the number of its tokens for this step; 0 if it left the queue to have
// its KV loaded. Not ok: there are no blocks for it now.
func (e *Engine) admit(s *sequence, budget int) (n int, ok bool) {
	if s.load == loaded {
		return min(len(s.tokens)-s.computed, budget), true
	}
	hit := e.findPrefix(s)
	wanted := len(s.tokens)
	if s.load != loadWanted {
		wanted = min(wanted, len(hit)*e.cfg.KV.BlockSize+budget)
	}
	fresh := blocksFor(wanted, e.cfg.KV.BlockSize) - len(hit)
	if !e.pool.fits(fresh, hit) {
		return 0, false
	}
	e.pool.share(hit) // first: taking fresh blocks must not evict the very blocks that were found
	blocks, _ := e.pool.take(fresh)
	s.blocks = append(hit, blocks...)
	s.computed = len(hit) * e.cfg.KV.BlockSize
	e.countPrefix(s)
	if s.load == loadWanted {
		e.startLoad(s)
		return 0, true
	}
	return wanted - s.computed, true
}

// findPrefix looks the beginning of a sequence up in the prefix cache. At least one token is always left to compute,
// because the next one is drawn from what it computes.
func (e *Engine) findPrefix(s *sequence) []*block {
	s.hashes = appendHashes(s.hashes, s.tokens, e.cfg.KV.BlockSize, s.salt)
	return e.pool.find(s.hashes[:min(len(s.hashes), (len(s.tokens)-1)/e.cfg.KV.BlockSize)])
}

// countPrefix is the accounting of an admission; a sequence that was preempted has been counted before.
func (e *Engine) countPrefix(s *sequence) {
	if !s.times.started.IsZero() {
		return
	}
	s.times.started = time.Now()
	s.hit = s.computed
	s.usage.cached = s.computed
	s.usage.created = s.prompt/e.cfg.KV.BlockSize*e.cfg.KV.BlockSize - s.computed
	m := e.metrics
	m.add(prefixQueries, float64(s.prompt))
	m.add(prefixHits, float64(s.computed))
	m.add(externalQueries, float64(s.prompt-s.computed))
	m.addTo(cachedBySource, "device", float64(s.computed))
	if s.load == loadWanted {
		s.usage.created = 0
		m.add(externalHits, float64(s.prompt-s.computed))
		m.addTo(cachedBySource, "p2p", float64(s.prompt-s.computed))
	}
}

// apply computes a step that was scheduled. A sequence that was aborted since is passed over.
func (e *Engine) apply(b batch) {
	tokens := 0
	for _, p := range b.parts {
		s := p.seq
		if s.done {
			continue
		}
		if err := e.kv.compute(s.blocks, s.tokens[s.computed:s.computed+p.tokens], s.computed); err != nil {
			e.die(err)
			return
		}
		s.computed += p.tokens
		tokens += p.tokens
		e.cacheBlocks(s)
		if s.computed == len(s.tokens) {
			e.sample(s)
		}
	}
	e.metrics.observe(iterationTokens, float64(tokens))
}

// cacheBlocks puts the full blocks of a sequence into the prefix cache, under the hash of the tokens the engine believes
// they hold: KV of another prompt that was read into them is found again under this one.
func (e *Engine) cacheBlocks(s *sequence) {
	s.hashes = appendHashes(s.hashes, s.tokens[:s.computed], e.cfg.KV.BlockSize, s.salt)
	for i := range s.computed / e.cfg.KV.BlockSize {
		e.pool.cache(s.blocks[i], s.hashes[i])
	}
}

// sample draws the next token of a sequence whose KV is complete.
func (e *Engine) sample(s *sequence) {
	s.digest = e.kv.fold(s.digest, s.blocks, s.folded, s.computed)
	s.folded = s.computed
	out := s.accept(s.draw(e.cfg.Model.Vocabulary, e.cfg.Model.EOSEvery), e.cfg.MaxModelLen)
	e.metrics.token(s, time.Now())
	if out.finish != "" {
		out.handoff = e.finish(s, out.finish)
	}
	s.out.put(out)
}

// finish ends a sequence that has its answer. The blocks of a prefill leg stay, for the decode engine to read.
func (e *Engine) finish(s *sequence, reason string) *handoff {
	e.running = remove(e.running, s)
	s.done = true
	e.metrics.finished(s, reason, time.Now())
	if s.params.remoteDecode {
		return e.handOff(s)
	}
	e.free(s)
	return nil
}

// free gives up whatever a sequence holds.
func (e *Engine) free(s *sequence) {
	e.pool.release(s.blocks)
	s.blocks = nil
	delete(e.live, s)
}

func remove(list []*sequence, s *sequence) []*sequence {
	if i := slices.Index(list, s); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
