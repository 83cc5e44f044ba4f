package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/transfer"
)

// pull is one transfer of KV into blocks of this engine.
type pull struct {
	seq    *sequence
	from   source
	remote []int // block ids at the owner, as many as local ones are to be filled
	local  []*block
	tokens []int // of the prompt, for verifying
	start  int   // first token to arrive
	data   []byte
	good   bool // data is the KV of tokens
	err    error
}

// startLoad begins the transfer of what a sequence's blocks lack. It has its blocks, and holds them meanwhile.
func (e *Engine) startLoad(s *sequence) {
	ids, err := s.params.blockIDs()
	if err != nil {
		e.die(fmt.Errorf("loading KV for %s: %w", s.id, err))
		return
	}
	from, ok := s.params.source()
	if !ok {
		s.load = loadStuck
		e.log.Warn("hand-off lacks remote_* members: its request will wait for ever", "request", s.id)
		return
	}
	local := s.blocks[s.computed/e.cfg.KV.BlockSize:]
	if len(ids) < len(local) {
		e.die(fmt.Errorf("loading KV for %s: %d remote blocks for %d local ones", s.id, len(ids), len(local)))
		return
	}
	s.load = loadRunning
	p := &pull{seq: s, from: from, local: local, start: s.computed, tokens: slices.Clone(s.tokens[:s.prompt])}
	p.remote = ids[len(ids)-len(local):] // what is too many is cut off in front, where the local prefix is
	e.spawn(func(ctx context.Context) {
		p.err = e.transferKV(ctx, p)
		e.post(func() { e.loaded(p) })
	})
}

// transferKV runs beside the loop. There is no deadline once the peer is known: a peer that hangs, hangs the request.
func (e *Engine) transferKV(ctx context.Context, p *pull) error {
	owner, err := e.peers.meet(ctx, p.from)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := sleep(ctx, e.scaled(e.cfg.Model.transferTime(len(p.tokens)-p.start))); err != nil {
		return err
	}
	blockBytes := e.kv.blockBytes()
	p.data = make([]byte, len(p.remote)*blockBytes)
	spans, into := make([]transfer.Span, len(p.remote)), make([][]byte, len(p.remote))
	for i, id := range p.remote {
		if id < 0 {
			return fmt.Errorf("reading remote block %d: %w", id, transfer.ErrRange)
		}
		spans[i] = transfer.Span{Offset: uint64(id) * uint64(blockBytes), Length: uint64(blockBytes)}
		into[i] = p.data[i*blockBytes : (i+1)*blockBytes]
	}
	if err := e.transport.Read(ctx, owner.name, spans, into, []byte(p.from.requestID+":1")); err != nil {
		e.peers.forgetLost(owner, err)
		return fmt.Errorf("reading KV from %s: %w", p.from.engineID, err)
	}
	p.good = verifyKV(e.kv.seed, e.kv.slot, p.tokens, p.start, p.data)
	e.metrics.transferred(time.Since(begun), len(p.data), descriptors(p.remote))
	return nil
}

// descriptors counts the runs of consecutive blocks, which a transfer merges into one.
func descriptors(ids []int) int {
	n := 0
	for i, id := range ids {
		if i == 0 || id != ids[i-1]+1 {
			n++
		}
	}
	return n
}

// sleep returns the context's error if it ends first. The link stays busy even if the client leaves.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// loaded takes the result of a transfer, in the loop.
func (e *Engine) loaded(p *pull) {
	s := p.seq
	if p.err != nil {
		e.metrics.add(failedTransfers, 1)
		e.log.Warn("loading KV failed", "request", s.id, "error", p.err)
	}
	if s.done { // its client has left; the owner has been told by the read, or keeps its lease
		e.free(s)
		return
	}
	if p.err != nil {
		e.loadFailed(s)
		return
	}
	if err := e.storeKV(p); err != nil {
		e.die(err)
		return
	}
	s.external = s.prompt - p.start
	s.usage.cached = s.params.cachedTokens(s.prompt)
	s.load = loaded
	s.computed = s.prompt
	e.cacheBlocks(s)
	s.computed = s.prompt - 1 // the last token is computed here, because the next one is drawn from it
	e.waiting = slices.Insert(e.waiting, 0, s)
}

func (e *Engine) storeKV(p *pull) error {
	n := e.kv.blockBytes()
	for i, b := range p.local {
		if err := e.kv.store(b, p.data[i*n:(i+1)*n]); err != nil {
			return err
		}
	}
	e.counts.kvBytesRead += int64(len(p.data))
	if !p.good {
		e.counts.foreign++
	}
	return nil
}

// loadFailed applies the kv_load_failure_policy.
func (e *Engine) loadFailed(s *sequence) {
	s.load = noLoad
	if e.cfg.KV.LoadFailure == RecomputeLoad {
		e.pool.release(s.blocks)
		s.blocks, s.computed = nil, 0
		e.waiting = slices.Insert(e.waiting, 0, s)
		return
	}
	s.done = true
	e.metrics.finished(s, "error", time.Now())
	s.out.put(output{index: s.index, token: -1, err: errInternal})
	e.free(s)
}
