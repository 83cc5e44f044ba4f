package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/metrics"
	"github.com/tandem-serving/tandem/sim/model"
)

// batch is the work of one step.
type batch struct {
	model.Step
	parts []part
}

// part is what one sequence does in a step.
type part struct {
	seq    *sequence
	tokens int
}

func (b *batch) add(s *sequence, tokens int) {
	b.parts = append(b.parts, part{s, tokens})
	b.Sequences++
	b.ContextTokens += s.computed + tokens
	if s.computed+tokens < len(s.tokens) || tokens > 1 {
		b.PrefillTokens += tokens
	}
}

// refuses returns ErrBusy if n more sequences would exceed the queue's limit.
func (e *Engine) refuses(n int) error {
	limit := e.cfg.Schedule.MaxQueuedRequests
	if limit > 0 && e.queued()+n > limit {
		e.metrics.AddTo(metrics.AdmissionRejections, "max_num_queued_reqs", 1)
		return ErrBusy
	}
	return nil
}

// queued returns how many sequences wait or run.
func (e *Engine) queued() int {
	n := 0
	for s := range e.live {
		if !s.done {
			n++
		}
	}
	return n
}

// enqueue puts a new sequence at the end of the queue.
func (e *Engine) enqueue(s *sequence, now time.Time) {
	s.times.queued = now
	if s.params.RemotePrefill {
		s.load = loadWanted
		if len(e.waiting) > 0 {
			e.renewRemote([]*sequence{s}) // it will wait, and its lease must not end before the next heartbeat
		}
	}
	e.live[s] = struct{}{}
	e.waiting = append(e.waiting, s)
}

// abort ends a sequence whose client has left.
func (e *Engine) abort(s *sequence) {
	s.done = true
	e.running = remove(e.running, s)
	e.waiting = remove(e.waiting, s)
	switch s.load {
	case loadRunning: // the transfer still writes to the blocks; loadEnded frees them
		return
	case loadStuck:
		e.die(fmt.Errorf("aborting %s: its hand-off lacks remote_* members", s.id))
		return
	case loadWanted:
		e.releaseUnread(s.params)
	}
	e.free(s)
}

// Refused releases the hand-off of a request that was refused before it was submitted, as the real engine does.
func (e *Engine) Refused(p TransferParams) {
	e.post(func() { e.releaseUnread(p) })
}

// releaseUnread tells the owner of KV that this engine will not read it. Params that name no owner kill the engine, because
// the real one looks their members up unchecked.
func (e *Engine) releaseUnread(p TransferParams) {
	if !p.RemotePrefill {
		return
	}
	from, ok := p.source()
	if !ok {
		e.die(errors.New("releasing a hand-off that lacks remote_* members"))
		return
	}
	e.notify(from, from.requestID+":1", func() {})
}

// schedule fills the next step: running sequences first, in order of arrival, then waiting ones while tokens, places and
// blocks last. A request that does not fit waits at the head of the queue, so that none is overtaken for ever.
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

// grow takes the blocks that a sequence lacks for so many tokens. It returns false if there are too few.
func (e *Engine) grow(s *sequence, tokens int) bool {
	blocks, ok := e.pool.Take(kv.BlocksFor(tokens, e.cfg.KV.BlockSize) - len(s.blocks))
	if ok {
		s.blocks = append(s.blocks, blocks...)
	}
	return ok
}

// preemptLast takes the blocks of the youngest running sequence, which will compute its KV again later.
func (e *Engine) preemptLast() *sequence {
	s := e.running[len(e.running)-1]
	e.running = e.running[:len(e.running)-1]
	e.pool.Release(s.blocks)
	s.blocks, s.computed, s.folded, s.digest, s.load = nil, 0, 0, kv.Digest{}, noLoad
	e.waiting = slices.Insert(e.waiting, 0, s)
	e.metrics.Add(metrics.Preemptions, 1)
	return s
}

// admit gives a waiting sequence its blocks. n is the number of its tokens for this step; 0 if it left the queue to have
// its KV loaded. ok is false if there are too few blocks now.
func (e *Engine) admit(s *sequence, budget int) (n int, ok bool) {
	if s.load == loaded {
		return min(len(s.tokens)-s.computed, budget), true
	}
	hit := e.findPrefix(s)
	wanted := len(s.tokens)
	if s.load != loadWanted {
		wanted = min(wanted, len(hit)*e.cfg.KV.BlockSize+budget)
	}
	fresh := kv.BlocksFor(wanted, e.cfg.KV.BlockSize) - len(hit)
	if !e.pool.Fits(fresh, hit) {
		return 0, false
	}
	e.pool.Share(hit) // first: Take could reuse the blocks that were found
	blocks, _ := e.pool.Take(fresh)
	s.blocks = append(hit, blocks...)
	s.computed = len(hit) * e.cfg.KV.BlockSize
	e.countAdmission(s)
	if s.load == loadWanted {
		e.startLoad(s)
		return 0, true
	}
	return wanted - s.computed, true
}

// findPrefix looks the beginning of a sequence up in the prefix cache. At least one token is always left to compute,
// because the next one is drawn from its KV.
func (e *Engine) findPrefix(s *sequence) []*kv.Block {
	s.hashes = kv.AppendHashes(s.hashes, s.tokens, e.cfg.KV.BlockSize, s.salt)
	return e.pool.Find(s.hashes[:min(len(s.hashes), (len(s.tokens)-1)/e.cfg.KV.BlockSize)])
}

// apply computes a step that was scheduled. Sequences that were aborted since are left out.
func (e *Engine) apply(b batch) {
	tokens := 0
	for _, p := range b.parts {
		s := p.seq
		if s.done {
			continue
		}
		if err := e.kv.Compute(s.blocks, s.tokens[s.computed:s.computed+p.tokens], s.computed); err != nil {
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
	e.metrics.Observe(metrics.IterationTokens, float64(tokens))
}

// cacheBlocks puts the full blocks of a sequence into the prefix cache, under the hash of the tokens that the engine believes
// they hold. If KV of another prompt was read into them, later requests with this prompt find that KV.
func (e *Engine) cacheBlocks(s *sequence) {
	s.hashes = kv.AppendHashes(s.hashes, s.tokens[:s.computed], e.cfg.KV.BlockSize, s.salt)
	for i := range s.computed / e.cfg.KV.BlockSize {
		e.pool.Cache(s.blocks[i], s.hashes[i])
	}
}

// sample draws the next token of a sequence whose KV is complete.
func (e *Engine) sample(s *sequence) {
	s.digest = e.kv.Fold(s.digest, s.blocks, s.folded, s.computed)
	s.folded = s.computed
	out := s.accept(s.draw(e.cfg.Model.Vocabulary, e.cfg.Model.EOSEvery), e.cfg.MaxModelLen)
	e.countToken(s, time.Now())
	if out.Finish != "" {
		out.Handoff = e.finish(s, out.Finish)
	}
	s.out.put(out)
}

// finish ends a sequence that has its answer. The blocks of a prefill leg stay, for the decode engine to read.
func (e *Engine) finish(s *sequence, reason string) *Handoff {
	e.running = remove(e.running, s)
	s.done = true
	e.countFinished(s, reason, time.Now())
	if s.params.RemoteDecode {
		return e.handOff(s)
	}
	e.free(s)
	return nil
}

// free releases the blocks of a sequence that has ended.
func (e *Engine) free(s *sequence) {
	e.pool.Release(s.blocks)
	s.blocks = nil
	delete(e.live, s)
}

func remove(list []*sequence, s *sequence) []*sequence {
	if i := slices.Index(list, s); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
