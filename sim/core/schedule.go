package core

import (
	"slices"
	"time"

	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/model"
)

// batch is the work of one step.
type batch struct {
	model.Step
	parts []part
}

// part is what one sequence does in a step.
type part struct {
	seq    *Sequence
	tokens int
}

func (b *batch) add(s *Sequence, tokens int) {
	b.parts = append(b.parts, part{s, tokens})
	b.Sequences++
	b.LoadedTokens += s.Loaded
	s.Loaded = 0
	b.ContextTokens += s.Computed + tokens
	if s.Computed+tokens < len(s.Tokens) || tokens > 1 {
		b.PrefillTokens += tokens
	}
}

// refuses returns ErrBusy if n more sequences would exceed the queue's limit.
func (e *Engine) refuses(n int) error {
	limit := e.cfg.Schedule.MaxQueuedRequests
	if limit > 0 && e.queued()+n > limit {
		return ErrBusy
	}
	return nil
}

// queued returns how many sequences wait or run.
func (e *Engine) queued() int {
	n := 0
	for s := range e.live {
		if !s.Done {
			n++
		}
	}
	return n
}

// abort ends a sequence whose caller has left.
func (e *Engine) abort(s *Sequence) {
	s.Done = true
	e.unqueue(s)
	e.protocol.Aborted(s)
}

// unqueue takes a sequence out of the queues.
func (e *Engine) unqueue(s *Sequence) {
	e.running = remove(e.running, s)
	e.waiting = remove(e.waiting, s)
}

// schedule fills the next step: running sequences first, in order of arrival, then waiting ones while tokens, places and
// blocks last. A request that does not fit waits at the head of the queue, so that none is overtaken for ever.
func (e *Engine) schedule() batch {
	var b batch
	if e.stalls > 0 {
		return b
	}
	budget := e.cfg.Schedule.MaxBatchedTokens
	preempted := false
	for i := 0; i < len(e.running) && budget > 0; i++ {
		s := e.running[i]
		n := min(len(s.Tokens)-s.Computed, budget)
		for !e.grow(s, s.Computed+n) {
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
func (e *Engine) grow(s *Sequence, tokens int) bool {
	blocks, ok := e.pool.Take(max(0, kv.BlocksFor(tokens, e.cfg.BlockSize)-len(s.Blocks)))
	if ok {
		s.Blocks = append(s.Blocks, blocks...)
	}
	return ok
}

// preemptLast takes the blocks of the youngest running sequence, which will compute its KV again later.
func (e *Engine) preemptLast() *Sequence {
	s := e.running[len(e.running)-1]
	e.running = e.running[:len(e.running)-1]
	e.releaseBlocks(s)
	e.WaitAgain(s)
	e.protocol.Preempted(s)
	return s
}

// releaseBlocks takes the blocks of a sequence, which will compute its KV again.
func (e *Engine) releaseBlocks(s *Sequence) {
	e.pool.Release(s.Blocks)
	s.Blocks, s.Computed, s.folded, s.digest, s.KV = nil, 0, 0, kv.Digest{}, Local
}

// admit gives a waiting sequence its blocks. n is the number of its tokens for this step; 0 if it left the queue to have
// its KV loaded. ok is false if there are too few blocks now.
func (e *Engine) admit(s *Sequence, budget int) (n int, ok bool) {
	if s.KV == Here {
		n = min(len(s.Tokens)-s.Computed, budget)
		return n, e.grow(s, s.Computed+n)
	}
	hit := e.findPrefix(s)
	wanted := len(s.Tokens)
	var offloaded [][]byte
	if s.KV != Wanted {
		offloaded = e.findOffloaded(s, len(hit))
		wanted = min(wanted, (len(hit)+len(offloaded))*e.cfg.BlockSize+budget)
	}
	fresh := kv.BlocksFor(wanted, e.cfg.BlockSize) - len(hit)
	if !e.pool.Fits(fresh+e.reserved(s), hit) {
		return 0, false
	}
	e.pool.Share(hit) // first: Take could reuse the blocks that were found
	blocks, _ := e.pool.Take(fresh)
	for i, data := range offloaded {
		if err := e.kv.Store(blocks[i], data); err != nil {
			e.Die(err)
			return 0, false
		}
	}
	s.Blocks = append(hit, blocks...)
	s.Loaded = len(offloaded) * e.cfg.BlockSize
	s.Computed = len(hit)*e.cfg.BlockSize + s.Loaded
	if s.Times.Started.IsZero() {
		s.Times.Started, s.Hit = time.Now(), s.Computed
		e.protocol.Admitted(s)
	}
	if s.KV == Wanted {
		s.KV = Arriving
		e.protocol.Load(s)
		return 0, true
	}
	return wanted - s.Computed, true
}

// reserved returns how many blocks have to stay free when a sequence is admitted.
func (e *Engine) reserved(s *Sequence) int {
	if e.cfg.ReservedTokens == 0 || s.KV != Wanted {
		return 0
	}
	n := 0
	for other := range e.live {
		if !other.Done && other.Blocks != nil {
			n++
		}
	}
	return kv.BlocksFor(n*e.cfg.ReservedTokens, e.cfg.BlockSize)
}

// findPrefix looks the beginning of a sequence up in the prefix cache. At least one token is always left to compute,
// because the next one is drawn from its KV.
func (e *Engine) findPrefix(s *Sequence) []*kv.Block {
	if e.cfg.NoPrefixCache {
		return nil
	}
	s.hashes = kv.AppendHashes(s.hashes, s.Tokens, e.cfg.BlockSize, s.Salt)
	return e.pool.Find(s.hashes[:min(len(s.hashes), (len(s.Tokens)-1)/e.cfg.BlockSize)])
}

// findOffloaded looks up in the host's memory what follows the cached blocks of a sequence.
func (e *Engine) findOffloaded(s *Sequence, cached int) [][]byte {
	if e.cfg.NoPrefixCache || e.cfg.HostBlocks == 0 {
		return nil
	}
	whole := s.hashes[:min(len(s.hashes), (len(s.Tokens)-1)/e.cfg.BlockSize)]
	e.host.Touch(whole)
	return e.host.Find(whole[cached:])
}

// apply computes a step that was scheduled. Sequences that were aborted since are left out.
func (e *Engine) apply(b batch) {
	tokens := 0
	for _, p := range b.parts {
		s := p.seq
		if s.Done {
			continue
		}
		if err := e.kv.Compute(s.Blocks, s.Tokens[s.Computed:s.Computed+p.tokens], s.Computed); err != nil {
			e.Die(err)
			return
		}
		s.Computed += p.tokens
		tokens += p.tokens
		e.cacheBlocks(s)
		if s.Computed == len(s.Tokens) {
			e.sample(s)
		}
	}
	e.protocol.Stepped(tokens)
}

// cacheBlocks puts the full blocks of a sequence into the prefix cache, under the hash of the tokens that the engine believes
// they hold. If KV of another prompt was read into them, later requests with this prompt find that KV.
func (e *Engine) cacheBlocks(s *Sequence) {
	if e.cfg.NoPrefixCache {
		return
	}
	s.hashes = kv.AppendHashes(s.hashes, s.Tokens[:s.Computed], e.cfg.BlockSize, s.Salt)
	first, n := 0, s.Computed/e.cfg.BlockSize
	for i := range n {
		if !e.pool.Cache(s.Blocks[i], s.hashes[i]) {
			e.cached(s, first, i)
			first = i + 1
		}
	}
	e.cached(s, first, n)
}

// cached tells of the blocks from first up to end of a sequence.
func (e *Engine) cached(s *Sequence, first, end int) {
	if first < end && e.cfg.Cached != nil {
		e.cfg.Cached(s, first, s.hashes[:end])
	}
	for i := first; i < end; i++ {
		e.host.Put(s.hashes[i], e.kv.Block(s.Blocks[i]))
	}
}

// sample draws the next token of a sequence whose KV is complete.
func (e *Engine) sample(s *Sequence) {
	s.digest = e.kv.Fold(s.digest, s.Blocks, s.folded, s.Computed)
	s.folded = s.Computed
	e.Accept(s, s.draw(e.cfg.Model.Vocabulary, e.cfg.Model.EOSEvery))
}

func remove(list []*Sequence, s *Sequence) []*Sequence {
	if i := slices.Index(list, s); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
