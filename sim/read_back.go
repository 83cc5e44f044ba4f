package sim

import (
	"context"
	"encoding/json"
	"time"

	"github.com/tandem-serving/tandem/sim/core"
	"github.com/tandem-serving/tandem/sim/metrics"
	"github.com/tandem-serving/tandem/sim/pyjson"
)

const (
	// recomputeThreshold is the engine's default of kv_recompute_threshold: fewer tokens are computed, rather than read back.
	recomputeThreshold = 64
	// expiryMargin is how long before their expiry blocks are not read back any more.
	expiryMargin = 5 * time.Second
)

// readsBack reports whether a prefill leg names blocks at another engine of the beginning of its prompt, and this engine reads them.
func (c *connector) readsBack(p TransferParams) bool {
	_, named := p.source()
	return c.cfg.KV.Bidirectional && p.RemoteDecode && !p.RemotePrefill && named && pyjson.Truthy(p.members["remote_block_ids"])
}

// remoteTokens returns how many tokens of a prompt the other engine has.
func (p TransferParams) remoteTokens(prompt int) int {
	number, _ := p.members["remote_num_tokens"].(json.Number)
	n, err := number.Int64()
	if err != nil {
		return 0
	}
	return min(int(n), prompt)
}

// expired reports whether the blocks are too near to their expiry, by the clock of this machine. Without a time they never are.
func (p TransferParams) expired() bool {
	number, _ := p.members["remote_blocks_expiry_time"].(json.Number)
	seconds, err := number.Float64()
	now, ok := monotonic()
	return err == nil && ok && now+expiryMargin >= time.Duration(seconds*float64(time.Second))
}

// toLoad returns how many tokens of a prompt come from another engine, with those that this one has already.
func (c *connector) toLoad(s *core.Sequence) int {
	if p := legOf(s).params; c.readsBack(p) {
		return p.remoteTokens(s.Prompt)
	}
	return s.Prompt
}

// declines reports whether a prefill leg computes, or fails, rather than read back, and has that happen after this step was scheduled.
func (c *connector) declines(s *core.Sequence) bool {
	p := legOf(s).params
	if !c.readsBack(p) {
		return false
	}
	var then func()
	from, _ := p.source()
	switch {
	case c.toLoad(s)-s.Computed < recomputeThreshold:
		c.notify(from, from.requestID+":1", func() {})
		then = func() { c.core.Arrived(s, s.Computed) }
	case p.expired():
		c.metrics.Add(metrics.KVExpired, 1)
		c.log.Warn("declined to read blocks that have expired", "request", s.ID)
		then = func() { c.loadFailed(s) }
	default:
		return false
	}
	c.core.Spawn(func(context.Context) {
		c.core.Post(func() {
			if s.Done { // its client has left
				c.core.Free(s)
				return
			}
			then()
		})
	})
	return true
}
