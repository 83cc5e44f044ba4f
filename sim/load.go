package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/kv"
	"github.com/tandem-serving/tandem/sim/metrics"
	"github.com/tandem-serving/tandem/transfer"
)

// load is one transfer of KV into blocks of this engine.
type load struct {
	seq    *core.Sequence
	from   source
	remote []int // block ids at the owner, one for each local block
	local  []*kv.Block
	tokens []int // of the prompt, to verify the KV
	start  int   // position of the first token that is transferred
	data   []byte
	good   bool // data is the KV of tokens
	err    error
}

// Load implements core.Protocol. The sequence holds its blocks meanwhile.
func (c *connector) Load(s *core.Sequence) {
	if c.cfg.KV.Push {
		c.register(s)
		return
	}
	if c.declines(s) {
		return
	}
	ids, err := legOf(s).params.blockIDs()
	if err != nil {
		c.core.Die(fmt.Errorf("loading KV for %s: %w", s.ID, err))
		return
	}
	from, ok := legOf(s).params.source()
	if !ok {
		legOf(s).stuck = true
		c.log.Warn("hand-off lacks remote_* members, so its request waits for ever", "request", s.ID)
		return
	}
	tokens := c.toLoad(s)
	local := s.Blocks[s.Computed/c.cfg.KV.BlockSize : kv.BlocksFor(tokens, c.cfg.KV.BlockSize)]
	if len(ids) < len(local) {
		c.core.Die(fmt.Errorf("loading KV for %s: %d remote blocks for %d local ones", s.ID, len(ids), len(local)))
		return
	}
	l := &load{seq: s, from: from, local: local, start: s.Computed, tokens: slices.Clone(s.Tokens[:tokens])}
	l.remote = ids[len(ids)-len(local):] // the first ones are cut off if there are too many: the local prefix has them
	c.core.Spawn(func(ctx context.Context) {
		l.err = c.transferKV(ctx, l)
		c.core.Post(func() { c.loadEnded(l) })
	})
}

// transferKV reads the KV. It runs outside of the loop. There is no deadline once the peer is known: if the peer hangs, the
// request hangs.
func (c *connector) transferKV(ctx context.Context, l *load) error {
	owner, err := c.peers.meet(ctx, l.from)
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := core.Sleep(ctx, c.core.Scaled(c.cfg.Model.TransferTime(len(l.tokens)-l.start))); err != nil {
		return err
	}
	blockBytes := c.kv.BlockBytes()
	l.data = make([]byte, len(l.remote)*blockBytes)
	spans, into := make([]transfer.Span, len(l.remote)), make([][]byte, len(l.remote))
	for i, id := range l.remote {
		if id < 0 {
			return fmt.Errorf("reading remote block %d: %w", id, transfer.ErrRange)
		}
		spans[i] = transfer.Span{Offset: uint64(id) * uint64(blockBytes), Length: uint64(blockBytes)}
		into[i] = l.data[i*blockBytes : (i+1)*blockBytes]
	}
	if err := c.transport.Read(ctx, owner.name, spans, into, []byte(l.from.requestID+":1")); err != nil {
		c.peers.forgetLost(owner, err)
		return fmt.Errorf("reading KV from %s: %w", l.from.engineID, err)
	}
	l.good = c.kv.Verify(l.tokens, l.start, l.data)
	c.countTransfer(time.Since(begun), len(l.data), descriptors(l.remote))
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

// loadEnded takes the result of a transfer, in the loop.
func (c *connector) loadEnded(l *load) {
	s := l.seq
	if l.err != nil {
		c.metrics.Add(metrics.FailedTransfers, 1)
		c.log.Warn("loading KV failed", "request", s.ID, "error", l.err)
	}
	if s.Done { // its client has left; the read has released the hand-off, or its lease will expire
		c.core.Free(s)
		return
	}
	if l.err != nil {
		c.loadFailed(s)
		return
	}
	if err := c.storeKV(l); err != nil {
		c.core.Die(err)
		return
	}
	tokens := len(l.tokens)
	legOf(s).external = tokens - l.start
	s.Usage.Cached = tokens // of a prefill leg, which has read back
	if p := legOf(s).params; p.RemotePrefill {
		s.Usage.Cached = p.cachedTokens(s.Prompt)
	}
	c.core.Arrived(s, tokens)
}

func (c *connector) storeKV(l *load) error {
	n := c.kv.BlockBytes()
	for i, b := range l.local {
		if err := c.kv.Store(b, l.data[i*n:(i+1)*n]); err != nil {
			return err
		}
	}
	c.counts.kvBytesRead += int64(len(l.data))
	if !l.good {
		c.counts.foreign++
	}
	return nil
}

// loadFailed applies the kv_load_failure_policy.
func (c *connector) loadFailed(s *core.Sequence) {
	if c.cfg.KV.LoadFailure == RecomputeLoad {
		c.core.Recompute(s)
		return
	}
	c.countFinished(s, "error", time.Now())
	c.core.Fail(s, ErrLoadFailed)
	c.core.Free(s)
}
