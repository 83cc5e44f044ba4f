package producer

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/param"
	"github.com/tandem-serving/tandem/epp/prefix"
)

// BurstPrefixCache places requests together that come in a burst with the same prompt, such as the samples of one prompt in
// reinforcement learning: each is sent where the one before it went. For plugins that name it, the endpoint that a request should go to
// has all of its prompt cached, and the others nothing. A prompt that no other of its window has is left to the other plugins.
//
// llm-d holds every request until its window ends, and then places all of them, the longest prompts first; here a request waits only
// while one with the same prompt is being picked for, which takes microseconds and at most the length of the window, so the first of
// them goes where the other plugins send it, and fair shares count what has come so far.
type BurstPrefixCache struct {
	// WindowDurationMs is the length, in milliseconds, of the windows in which prompts are compared. A window begins with the first
	// request after the one before. Default 100.
	WindowDurationMs int `yaml:"windowDurationMs"`
	// MaxPerReplica is how many requests with the same prompt an endpoint gets in one window. The next ones go to the endpoint that has
	// got least in the window. Default -1: no limit.
	MaxPerReplica int `yaml:"maxPerReplica"`
	// BlockSizeTokens is the length, in tokens, of the blocks in which prompts are compared. A tail shorter than a block does not count.
	// Default 64.
	BlockSizeTokens int `yaml:"blockSizeTokens"`
	// MaxPrefixTokensToMatch is the largest number of tokens of a prompt that are compared. Default 0: 2048 blocks.
	MaxPrefixTokensToMatch int `yaml:"maxPrefixTokensToMatch"`
	// MinColocateBlocks is how many leading blocks different prompts must share to be placed together, as long as the endpoint has not got
	// more than its share of the window. Default 0: only equal prompts are.
	MinColocateBlocks int `yaml:"minColocateBlocks"`
	// MaxBatchSize is how many requests of a window are remembered; -1 = all. Default 1000.
	MaxBatchSize int `yaml:"maxBatchSize"`
	// BalanceBy is requests or tokens: what endpoints have got in a window is counted in requests, or in tokens of their prompts. Default
	// requests.
	BalanceBy string `yaml:"balanceBy"`
}

const (
	unlimited       = -1
	byRequests      = "requests"
	byTokens        = "tokens"
	burstPrefixSize = 2048 // blocks
)

// NewBurstPrefixCache returns the parameters with their defaults.
func NewBurstPrefixCache() epp.Plugin {
	return &BurstPrefixCache{WindowDurationMs: 100, MaxPerReplica: unlimited, BlockSizeTokens: 64, MaxBatchSize: 1000, BalanceBy: byRequests}
}

// Problems implements epp.Plugin.
func (p *BurstPrefixCache) Problems(report epp.Report) {
	param.AtLeast(report, "windowDurationMs", p.WindowDurationMs, 1)
	param.AtLeast(report, "blockSizeTokens", p.BlockSizeTokens, 1)
	param.AtLeast(report, "maxPrefixTokensToMatch", p.MaxPrefixTokensToMatch, 0)
	param.AtLeast(report, "minColocateBlocks", p.MinColocateBlocks, 0)
	for _, limit := range []struct {
		field string
		n     int
	}{{"maxPerReplica", p.MaxPerReplica}, {"maxBatchSize", p.MaxBatchSize}} {
		if limit.n != unlimited && limit.n < 1 {
			report(limit.field, "must be -1, for no limit, or at least 1, got %d", limit.n)
		}
	}
	if n := p.MaxPrefixTokensToMatch; n > 0 && n < p.BlockSizeTokens {
		report("maxPrefixTokensToMatch", "is less than one block of %d tokens, so nothing would match", p.BlockSizeTokens)
	}
	if p.BalanceBy != byRequests && p.BalanceBy != byTokens {
		report("balanceBy", "must be %s or %s, got %q", byRequests, byTokens, p.BalanceBy)
	}
}

// Build implements epp.Plugin.
func (p *BurstPrefixCache) Build(with *epp.Builder) (any, error) {
	b := &burstPrefixCache{clock: with.Clock(), window: time.Duration(p.WindowDurationMs) * time.Millisecond, colocate: p.MinColocateBlocks,
		spec: epp.PromptSpec{Tokens: p.BlockSizeTokens, Max: burstPrefixSize}, byTokens: p.BalanceBy == byTokens,
		perEndpoint: noLimit(p.MaxPerReplica), size: noLimit(p.MaxBatchSize)}
	if p.MaxPrefixTokensToMatch > 0 {
		b.spec.Max = p.MaxPrefixTokensToMatch / p.BlockSizeTokens
	}
	return b, nil
}

// noLimit returns a limit as a number that can be compared.
func noLimit(n int) int {
	if n == unlimited {
		return math.MaxInt
	}
	return n
}

// burstPrefixCache is an epp.Assigner, and a preparer, by which requests with equal prompts are picked for one after the other.
type burstPrefixCache struct {
	clock             epp.Clock
	window            time.Duration
	spec              epp.PromptSpec
	perEndpoint, size int
	colocate          int // blocks, 0 = only equal prompts are placed together
	byTokens          bool

	mu    sync.Mutex
	burst *burst // the latest window; nil: there was none
}

// burst is the requests of one window.
type burst struct {
	ends     time.Time
	requests int
	groups   map[promptKey]*group
	got      map[int]int // by the endpoint's slot: requests, or tokens
	prompts  *prefix.Index
}

// promptKey identifies the part of a prompt that is compared: the hash of its last block stands for all of them.
type promptKey struct {
	last   uint64
	blocks int
}

func keyOf(blocks []uint64) promptKey { return promptKey{blocks[len(blocks)-1], len(blocks)} }

// group is the requests with one prompt.
type group struct {
	got     map[int]int   // requests by the endpoint's slot
	picking chan struct{} // closed when the request that is being picked for has been placed; nil: there is none
}

// Assigns implements epp.Assigner.
func (*burstPrefixCache) Assigns() {}

// Needs implements epp.Matcher.
func (b *burstPrefixCache) Needs() epp.PromptSpec { return b.spec }

// EndpointJoined implements epp.EndpointObserver.
func (*burstPrefixCache) EndpointJoined(*epp.Endpoint) {}

// EndpointLeft implements epp.EndpointObserver. A window is over long before another endpoint gets the slot.
func (*burstPrefixCache) EndpointLeft(*epp.Endpoint) {}

// Timeout implements epp.Preparer.
func (b *burstPrefixCache) Timeout() time.Duration { return b.window }

// Local implements epp.LocalPreparer.
func (*burstPrefixCache) Local() {}

// current returns the window that runs now. The caller holds mu.
func (b *burstPrefixCache) current() *burst {
	now := b.clock.Now()
	if b.burst == nil || !now.Before(b.burst.ends) {
		if b.burst != nil {
			for _, g := range b.burst.groups {
				g.release()
			}
		}
		b.burst = &burst{ends: now.Add(b.window), groups: map[promptKey]*group{}, got: map[int]int{}, prompts: new(prefix.Index)}
	}
	return b.burst
}

// release lets the next request of the group be picked for.
func (g *group) release() {
	if g.picking != nil {
		close(g.picking)
		g.picking = nil
	}
}

// Prepare implements epp.Preparer: it returns when no other request with the prompt is being picked for.
func (b *burstPrefixCache) Prepare(ctx context.Context, r *epp.Request) (add func(*epp.Request), err error) {
	key, ok := b.keyOfRequest(&r.Prompt)
	if !ok {
		return nil, nil
	}
	for {
		b.mu.Lock()
		w := b.current()
		g := w.groups[key]
		if g == nil && w.requests < b.size {
			g = &group{got: map[int]int{}}
			w.groups[key] = g
		}
		if g == nil || g.picking == nil {
			if g != nil {
				g.picking = make(chan struct{})
			}
			b.mu.Unlock()
			return nil, nil
		}
		before := g.picking
		b.mu.Unlock()
		select {
		case <-before:
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for a request with the same prompt: %w", ctx.Err())
		}
	}
}

// keyOfRequest returns the key of a prompt that may have been cut into shorter blocks, for other matchers too.
func (b *burstPrefixCache) keyOfRequest(p *epp.Prompt) (key promptKey, ok bool) {
	if p.BlockTokens == 0 || b.spec.Tokens%p.BlockTokens != 0 {
		return key, false
	}
	each := b.spec.Tokens / p.BlockTokens
	blocks := min(len(p.Blocks)/each, b.spec.Max)
	if blocks == 0 {
		return key, false
	}
	return promptKey{p.Blocks[blocks*each-1], blocks}, true
}

// Learn implements epp.Matcher.
func (b *burstPrefixCache) Learn(_ *epp.Request, p *epp.Prompt, e *epp.Endpoint, _ *epp.Load) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.current()
	g := w.groups[keyOf(p.Blocks)]
	if g == nil {
		return
	}
	w.requests++
	w.got[e.Slot] += b.cost(p)
	g.got[e.Slot]++
	if b.colocate > 0 {
		w.prompts.Add(e, p.Blocks, math.MaxInt32)
	}
	g.release()
}

// cost returns what a request adds to the count of its endpoint.
func (b *burstPrefixCache) cost(p *epp.Prompt) int {
	if b.byTokens {
		return p.Tokens
	}
	return 1
}

// Match implements epp.Matcher. It chooses one candidate of each role, because each stage asks for its own. In a role that no related
// request has been placed in, it chooses none.
func (b *burstPrefixCache) Match(_ *epp.Request, p *epp.Prompt, c []epp.Candidate) (whole int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.current()
	place := placing{burstPrefixCache: b, window: w, group: w.groups[keyOf(p.Blocks)], cost: b.cost(p)}
	place.isEqual = place.group != nil && len(place.group.got) > 0
	if !place.isEqual && b.colocate > 0 {
		w.prompts.Match(p.Blocks, b.spec.Tokens, c) // sets Cached
	} else {
		clearCached(c)
	}
	for i := range c {
		place.count(&c[i])
	}
	for i := range c {
		place.consider(&c[i], i)
	}
	clearCached(c)
	for _, r := range place.roles {
		if r.related {
			c[r.chosen].Cached = p.Matchable()
		}
	}
	return p.Matchable()
}

func clearCached(c []epp.Candidate) {
	for i := range c {
		c[i].Cached = 0
	}
}

// placing chooses the endpoints of one request.
type placing struct {
	*burstPrefixCache
	window  *burst
	group   *group // nil: there is none
	isEqual bool   // a request with the same prompt has been placed; otherwise one that shares its beginning may have been
	cost    int
	roles   [1 << 3]choice // by role
}

// choice is the choice among the candidates of one role.
type choice struct {
	candidates, got int
	related         bool // a related request has been placed at one of them
	chosen          int  // index; valid if seen
	seen            bool
	tier, value     int // of the chosen one: the lowest wins
	inFlight        int
}

// relatedTo reports whether a related request has been placed at a candidate.
func (p *placing) relatedTo(c *epp.Candidate) bool {
	if p.isEqual {
		return p.group.got[c.Slot] > 0
	}
	return p.colocate > 0 && c.Cached >= p.colocate*p.spec.Tokens
}

// count counts a candidate, before any is considered.
func (p *placing) count(c *epp.Candidate) {
	r := &p.roles[c.Role%8]
	r.candidates++
	r.got += p.window.got[c.Slot]
	r.related = r.related || p.relatedTo(c)
}

// consider chooses a candidate if it is better than those before it: one with related requests that has not got too many, or else the
// one that has got least.
func (p *placing) consider(c *epp.Candidate, index int) {
	r := &p.roles[c.Role%8]
	tier, value := 1, p.window.got[c.Slot]
	switch {
	case p.isEqual && p.group.got[c.Slot] >= p.perEndpoint:
		tier = 2
	case p.isEqual && p.relatedTo(c):
		tier, value = 0, -p.group.got[c.Slot]
	case !p.isEqual && p.relatedTo(c) && value*r.candidates < r.got+p.cost: // below its share, rounded up
		tier, value = 0, -c.Cached
	}
	if better := cmp.Or(cmp.Compare(tier, r.tier), cmp.Compare(value, r.value), cmp.Compare(c.InFlight.Requests, r.inFlight)) < 0; r.seen && !better {
		return
	}
	r.seen, r.chosen, r.tier, r.value, r.inFlight = true, index, tier, value, c.InFlight.Requests
}
