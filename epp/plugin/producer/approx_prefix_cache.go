package producer

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
	"github.com/tandem-serving/tandem/epp/prefix"
)

// ApproxPrefixCache estimates how much of a prompt each endpoint has in its prefix cache, from the prompts that this
// picker sent there, and from those of its replicas if --share-key-file lets them tell each other. It learns a prompt at the pick, so the
// second of two equal prompts in a burst already finds it. It does not see what engines evict. llm-d compares the first 131,072 tokens, and also the last
// part of a prompt that is shorter than a block. Several such producers have an index each. A plugin that names none reads the one that is named after its
// type, as in llm-d, or else the first of the file, where llm-d adds one of that name.
type ApproxPrefixCache struct {
	// AutoTune takes the size of each endpoint's cache from its metrics page, and the length of its blocks. Where the page does not
	// report them, lruCapacityPerServer is the size. Default true.
	AutoTune bool `yaml:"autoTune"`
	// BlockSizeTokens is the length, in tokens, of the blocks in which prompts are compared. It need not be the engines'
	// block size. Cached tokens are counted in whole blocks, and in whole blocks of the engine where its page says that these are
	// longer. Several producers cost least if their lengths divide each other.
	// Default 16; llm-d raises smaller values to 64.
	BlockSizeTokens int `yaml:"blockSizeTokens"`
	// BlockSize is accepted and ignored, as in llm-d: it was the length of blocks in characters.
	BlockSize *int `yaml:"blockSize"`
	// MaxPrefixBlocksToMatch is the largest number of blocks of a prompt that are compared, if maxPrefixTokensToMatch is 0.
	// Default 2048; 0 = no limit.
	MaxPrefixBlocksToMatch int `yaml:"maxPrefixBlocksToMatch"`
	// MaxPrefixTokensToMatch is the largest number of tokens of a prompt that are compared; with 0, maxPrefixBlocksToMatch applies.
	// What is longer counts as not cached. Default 1048576, where llm-d compares 131072: of conversations longer than that, every turn would
	// seem to need the computing of all that is beyond.
	MaxPrefixTokensToMatch int `yaml:"maxPrefixTokensToMatch"`
	// LRUCapacityPerServer is how many blocks the picker remembers for an endpoint whose cache size is unknown, at most
	// 16777216. A block takes 9 to 30 bytes of the picker's memory. Default 31250.
	LRUCapacityPerServer int `yaml:"lruCapacityPerServer"`
}

const (
	// maxReported bounds the blocks remembered for one endpoint, whatever its metrics page reports: 33 million tokens in
	// blocks of 16, more than a node of eight large accelerators holds of today's models with the smallest KV caches.
	maxReported = 1 << 21
	// maxCapacity bounds what an operator may ask for: half a gigabyte for each endpoint.
	maxCapacity = 1 << 24
	// allBlocks stands for no limit of the blocks that are compared: more than a request body can hold.
	allBlocks = math.MaxInt32
)

// NewApproxPrefixCache returns the parameters with their defaults.
func NewApproxPrefixCache() epp.Plugin {
	return &ApproxPrefixCache{AutoTune: true, BlockSizeTokens: 16, MaxPrefixBlocksToMatch: 2048,
		MaxPrefixTokensToMatch: 1 << 20, LRUCapacityPerServer: 31250}
}

// Problems implements epp.Plugin.
func (p *ApproxPrefixCache) Problems(report epp.Report) {
	param.AtLeast(report, "blockSizeTokens", p.BlockSizeTokens, 1)
	param.AtLeast(report, "maxPrefixTokensToMatch", p.MaxPrefixTokensToMatch, 0)
	param.AtLeast(report, "maxPrefixBlocksToMatch", p.MaxPrefixBlocksToMatch, 0)
	if p.MaxPrefixTokensToMatch > 0 && p.MaxPrefixTokensToMatch < p.BlockSizeTokens {
		report("maxPrefixTokensToMatch", "is less than one block of %d tokens, so nothing would match", p.BlockSizeTokens)
	}
	if n := p.LRUCapacityPerServer; n < 1 || n > maxCapacity {
		report("lruCapacityPerServer", "must be from 1 to %d, got %d", maxCapacity, n)
	}
}

// Build implements epp.Plugin.
func (p *ApproxPrefixCache) Build(b *epp.Builder) (any, error) {
	spec := epp.PromptSpec{Tokens: p.BlockSizeTokens, Max: cmp.Or(p.MaxPrefixBlocksToMatch, allBlocks)}
	if p.MaxPrefixTokensToMatch > 0 {
		spec.Max = p.MaxPrefixTokensToMatch / p.BlockSizeTokens
	}
	key := fmt.Sprintf("approximate prefix index of blocks of %d tokens, by plugin %s", spec.Tokens, b.Name)
	index := epp.Kept(b.Keep, key, func() *prefix.Index { return new(prefix.Index) })
	return &approxPrefixCache{Index: index, name: b.Name, spec: spec, autoTune: p.AutoTune, capacity: p.LRUCapacityPerServer}, nil
}

// approxPrefixCache is an epp.Matcher. Its Index observes endpoints.
type approxPrefixCache struct {
	*prefix.Index
	name     string
	spec     epp.PromptSpec
	autoTune bool
	capacity int                                           // blocks of an endpoint whose page reports no cache size
	told     atomic.Pointer[func(*epp.Endpoint, []uint64)] // nil: no other replica is told what is learned
}

// Collect implements prometheus.Collector.
func (a *approxPrefixCache) Collect(ch chan<- prometheus.Metric) { a.CollectAs(a.name, ch) }

// Needs implements epp.Matcher.
func (a *approxPrefixCache) Needs() epp.PromptSpec { return a.spec }

// Match implements epp.Matcher.
func (a *approxPrefixCache) Match(_ *epp.Request, p *epp.Prompt, c []epp.Candidate) (whole int) {
	a.Index.Match(a.blocks(p), a.spec.Tokens, c)
	for i := range c {
		c[i].Cached = min(c[i].Cached, p.Tokens)
		if block := c[i].Load.Cache.BlockTokens; a.autoTune && block > a.spec.Tokens {
			c[i].Cached -= c[i].Cached % block // engines reuse whole blocks of their own
		}
	}
	return p.Matchable()
}

// Learn implements epp.Matcher.
func (a *approxPrefixCache) Learn(_ *epp.Request, p *epp.Prompt, e *epp.Endpoint, load *epp.Load) {
	blocks := a.blocks(p)
	if len(blocks) == 0 {
		return
	}
	a.Add(e, blocks, a.capacityOf(load.Cache))
	if told := a.told.Load(); told != nil {
		(*told)(e, blocks)
	}
}

// SharedAs implements epp.SharedMatcher.
func (a *approxPrefixCache) SharedAs() string { return a.name + "/" + strconv.Itoa(a.spec.Tokens) }

// Share implements epp.SharedMatcher.
func (a *approxPrefixCache) Share(told func(*epp.Endpoint, []uint64)) {
	if told == nil {
		a.told.Store(nil)
		return
	}
	a.told.Store(&told)
}

// LearnShared implements epp.SharedMatcher. A configuration of this picker may compare fewer blocks than the other's.
func (a *approxPrefixCache) LearnShared(e *epp.Endpoint, blocks []uint64, load *epp.Load) {
	if blocks = blocks[:min(len(blocks), a.spec.Max)]; len(blocks) > 0 {
		a.Add(e, blocks, a.capacityOf(load.Cache))
	}
}

// blocks returns the hashes of a prompt's blocks, or none if they were computed for another block size.
func (a *approxPrefixCache) blocks(p *epp.Prompt) []uint64 {
	if p.BlockTokens != a.spec.Tokens {
		return nil
	}
	return p.Blocks[:min(len(p.Blocks), a.spec.Max)]
}

// capacityOf returns how many blocks of blockSizeTokens fit in an engine's cache, whose own blocks may have another length.
func (a *approxPrefixCache) capacityOf(cache epp.CacheInfo) int {
	if !a.autoTune || cache.Blocks <= 0 || cache.BlockTokens <= 0 {
		return a.capacity
	}
	tokens := float64(cache.Blocks) * float64(cache.BlockTokens) // the page may report anything: integers might overflow
	return int(math.Min(tokens/float64(a.spec.Tokens), maxReported))
}
