package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/metrics"
	"github.com/tandem-serving/tandem/transfer"
)

// load is one transfer of KV into blocks of this engine.
type load struct {
	seq    *sequence
	from   source
	remote []int // block ids at the owner, one for each local block
	local  []*kv.Block
	tokens []int // of the prompt, to verify the KV
	start  int   // position of the first token that is transferred
	data   []byte
	good   bool // data is the KV of tokens
	err    error
}

// startLoad starts the transfer of the KV that a sequence's blocks lack. The sequence holds its blocks meanwhile.
func (e *Engine) startLoad(s *sequence) {
	ids, err := s.params.blockIDs()
	if err != nil {
		e.die(fmt.Errorf("loading KV for %s: %w", s.id, err))
		return
	}
	from, ok := s.params.source()
	if !ok {
		s.load = loadStuck
		e.log.Warn("hand-off lacks remote_* members, so its request waits for ever", "request", s.id)
		return
	}
	local := s.blocks[s.computed/e.cfg.KV.BlockSize:]
	if len(ids) < len(local) {
		e.die(fmt.Errorf("loading KV for %s: %d remote blocks for %d local ones", s.id, len(ids), len(local)))
		return
	}
	s.load = loadRunning
	l := &load{seq: s, from: from, local: local, start: s.computed, tokens: slices.Clone(s.tokens[:s.prompt])}
	l.remote = ids[len(ids)-len(local):] // the first ones are cut off if there are too many: the local prefix has them
	e.spawn(func(ctx context.Context) {
		l.err = e.transferKV(ctx, l)
		e.post(func() { e.loadEnded(l) })
	})
}

// transferKV reads the KV. It runs outside of the loop. There is no deadline once the peer is known: if the peer hangs, the
// request hangs.
func (e *Engine) transferKV(ctx context.Context, l *load) error {
	owner, err := e.peers.meet(ctx, l.from)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := sleep(ctx, e.scaled(e.cfg.Model.TransferTime(len(l.tokens)-l.start))); err != nil {
		return err
	}
	blockBytes := e.kv.BlockBytes()
	l.data = make([]byte, len(l.remote)*blockBytes)
	spans, into := make([]transfer.Span, len(l.remote)), make([][]byte, len(l.remote))
	for i, id := range l.remote {
		if id < 0 {
			return fmt.Errorf("reading remote block %d: %w", id, transfer.ErrRange)
		}
		spans[i] = transfer.Span{Offset: uint64(id) * uint64(blockBytes), Length: uint64(blockBytes)}
		into[i] = l.data[i*blockBytes : (i+1)*blockBytes]
	}
	if err := e.transport.Read(ctx, owner.name, spans, into, []byte(l.from.requestID+":1")); err != nil {
		e.peers.forgetLost(owner, err)
		return fmt.Errorf("reading KV from %s: %w", l.from.engineID, err)
	}
	l.good = e.kv.Verify(l.tokens, l.start, l.data)
	e.countTransfer(time.Since(begun), len(l.data), descriptors(l.remote))
	return nil
}

// descriptors counts the runs of consecutive blocks. A transfer has one descriptor for each run.
func descriptors(ids []int) int {
	n := 0
	for i, id := range ids {
		if i == 0 || id != ids[i-1]+1 {
			n++
		}
	}
	return n
}

// sleep waits for a time, and returns the context's error if that ends first.
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

// loadEnded takes the result of a transfer, in the loop.
func (e *Engine) loadEnded(l *load) {
	s := l.seq
	if l.err != nil {
		e.metrics.Add(metrics.FailedTransfers, 1)
		e.log.Warn("loading KV failed", "request", s.id, "error", l.err)
	}
	if s.done { // its client has left; the read has released the hand-off, or its lease will expire
		e.free(s)
		return
	}
	if l.err != nil {
		e.loadFailed(s)
		return
	}
	if err := e.storeKV(l); err != nil {
		e.die(err)
		return
	}
	s.external = s.prompt - l.start
	s.usage.Cached = s.params.cachedTokens(s.prompt)
	s.load = loaded
	s.computed = s.prompt
	e.cacheBlocks(s)
	s.computed = s.prompt - 1 // the last token is computed here, because the next one is drawn from it
	e.waiting = slices.Insert(e.waiting, 0, s)
}

func (e *Engine) storeKV(l *load) error {
	n := e.kv.BlockBytes()
	for i, b := range l.local {
		if err := e.kv.Store(b, l.data[i*n:(i+1)*n]); err != nil {
			return err
		}
	}
	e.counts.kvBytesRead += int64(len(l.data))
	if !l.good {
		e.counts.foreign++
	}
	return nil
}

// loadFailed applies the kv_load_failure_policy.
func (e *Engine) loadFailed(s *sequence) {
	s.load = noLoad
	if e.cfg.KV.LoadFailure == RecomputeLoad {
		e.pool.Release(s.blocks)
		s.blocks, s.computed = nil, 0
		e.waiting = slices.Insert(e.waiting, 0, s)
		return
	}
	s.done = true
	e.countFinished(s, "error", time.Now())
	s.out.put(Output{Index: s.index, Token: -1, Err: ErrLoadFailed})
	e.free(s)
}
