package plugin

import (
	"fmt"
	"math"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/prefix"
)

// ApproxPrefixCacheProducer estimates how much of a prompt each endpoint has in its prefix cache, from the prompts that
// were sent there before. It learns them at the pick, so the next of a burst of equal prompts knows already. What engines
// evict of their own, and what other replicas send them, it does not see.
type ApproxPrefixCacheProducer struct {
	// AutoTune takes the size of each endpoint's cache from its metrics page, and follows it. Where the page does not tell
	// it, lruCapacityPerServer counts. Default true.
	AutoTune bool `yaml:"autoTune"`
	// BlockSizeTokens is the length of the blocks that prompts are compared by, in tokens, whatever block size the engines
	// have: what is cached is known to whole blocks. Default 16; llm-d makes 64 of what is less.
	BlockSizeTokens int `yaml:"blockSizeTokens"`
	// MaxPrefixBlocksToMatch is how many blocks of a prompt are compared at most, if maxPrefixTokensToMatch is 0.
	// Default 2048.
	MaxPrefixBlocksToMatch int `yaml:"maxPrefixBlocksToMatch"`
	// MaxPrefixTokensToMatch is how many tokens of a prompt are compared at most. Default 131072; 0 = see
	// maxPrefixBlocksToMatch.
	MaxPrefixTokensToMatch int `yaml:"maxPrefixTokensToMatch"`
	// LRUCapacityPerServer is how many blocks, of blockSizeTokens, are remembered of an endpoint whose cache is of unknown
	// size: some 9 to 30 bytes each. Default 31250.
	LRUCapacityPerServer int `yaml:"lruCapacityPerServer"`
}

// maxCapacity bounds what is remembered of one endpoint, in blocks, whatever its metrics page says: 33 million tokens by
// blocks of 16, more than the memory of a node of eight of the largest accelerators holds of today's most frugal models.
const maxCapacity = 1 << 21

func newApproxPrefixCacheProducer() epp.Plugin {
	return &ApproxPrefixCacheProducer{AutoTune: true, BlockSizeTokens: 16, MaxPrefixBlocksToMatch: 2048,
		MaxPrefixTokensToMatch: 131072, LRUCapacityPerServer: 31250}
}

// Problems implements epp.Plugin.
func (p *ApproxPrefixCacheProducer) Problems(report epp.Report) {
	atLeast(report, "blockSizeTokens", p.BlockSizeTokens, 1)
	atLeast(report, "maxPrefixTokensToMatch", p.MaxPrefixTokensToMatch, 0)
	if p.MaxPrefixTokensToMatch == 0 {
		atLeast(report, "maxPrefixBlocksToMatch", p.MaxPrefixBlocksToMatch, 1)
	} else {
		atLeast(report, "maxPrefixBlocksToMatch", p.MaxPrefixBlocksToMatch, 0)
	}
	if p.MaxPrefixTokensToMatch > 0 && p.MaxPrefixTokensToMatch < p.BlockSizeTokens {
		report("maxPrefixTokensToMatch", "is less than one block of %d tokens, so nothing would match", p.BlockSizeTokens)
	}
	if n := p.LRUCapacityPerServer; n < 1 || n > maxCapacity {
		report("lruCapacityPerServer", "must be from 1 to %d, got %d", maxCapacity, n)
	}
}

// Build implements epp.Plugin.
func (p *ApproxPrefixCacheProducer) Build(b *epp.Builder) (any, error) {
	spec := epp.BlockSpec{Tokens: p.BlockSizeTokens, Max: p.MaxPrefixBlocksToMatch}
	if p.MaxPrefixTokensToMatch > 0 {
		spec.Max = p.MaxPrefixTokensToMatch / p.BlockSizeTokens
	}
	key := fmt.Sprintf("approximate prefix index of blocks of %d tokens", spec.Tokens)
	index := epp.Kept(b.Keep, key, func() *prefix.Index { return new(prefix.Index) })
	return &approxPrefixCache{Index: index, spec: spec, autoTune: p.AutoTune, capacity: p.LRUCapacityPerServer}, nil
}

// approxPrefixCache is an epp.Matcher. What it does when an endpoint leaves, and the metrics, are its index's.
type approxPrefixCache struct {
	*prefix.Index
	spec     epp.BlockSpec
	autoTune bool
	capacity int // blocks of an endpoint of which nothing better is known
}

// Blocks implements epp.Matcher.
func (a *approxPrefixCache) Blocks() epp.BlockSpec { return a.spec }

// Match implements epp.Matcher.
func (a *approxPrefixCache) Match(p *epp.Prompt, c []epp.Candidate) {
	a.Index.Match(a.blocks(p), a.spec.Tokens, c)
	for i := range c {
		c[i].Cached = min(c[i].Cached, p.Tokens)
	}
}

// Learn implements epp.Matcher.
func (a *approxPrefixCache) Learn(p *epp.Prompt, e *epp.Endpoint, load *epp.Load) {
	if blocks := a.blocks(p); len(blocks) > 0 {
		a.Add(e, blocks, a.capacityOf(load.Cache))
	}
}

// blocks gives those of a prompt, none of one that was cut for another configuration.
func (a *approxPrefixCache) blocks(p *epp.Prompt) []uint64 {
	if p.BlockTokens != a.spec.Tokens {
		return nil
	}
	return p.Blocks[:min(len(p.Blocks), a.spec.Max)]
}

// capacityOf is how many of our blocks fit in an engine's cache. Its own blocks may be longer or shorter.
func (a *approxPrefixCache) capacityOf(cache epp.CacheInfo) int {
	if !a.autoTune || cache.Blocks <= 0 || cache.BlockTokens <= 0 {
		return a.capacity
	}
	tokens := float64(cache.Blocks) * float64(cache.BlockTokens) // the page may report anything: integers might overflow
	return int(math.Min(tokens/float64(a.spec.Tokens), maxCapacity))
}
