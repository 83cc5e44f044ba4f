package kvfeed

import (
	"sync"
	"sync/atomic"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/kvevents"
	"github.com/tandem-serving/tandem/epp/kvhash"
)

// Mismatch is what does not fit together.
type Mismatch uint8

// The mismatches.
const (
	// OtherBlocks: an engine's blocks have another length than is configured. The engine's counts.
	OtherBlocks Mismatch = iota
	// NoParents: most blocks that an engine tells of follow ones that are not known, so they are not known either.
	NoParents
	// Unusable: most of what an engine tells cannot be used.
	Unusable
	// OtherCounts: engines report other numbers of cached tokens than were predicted.
	OtherCounts
	// OtherNames: an engine names blocks in another way than is configured, so nothing of what it has is found.
	OtherNames
	mismatches
)

// String returns the mismatch as metrics have it.
func (m Mismatch) String() string {
	return [mismatches]string{"block-size", "parents", "unusable", "cached-tokens", "hashes"}[m]
}

const (
	// looked is after how many blocks it is judged whether things fit together.
	looked = 100
	// tolerated is the part of the cached tokens by which predictions may be wrong: blocks are dropped while requests are on their way.
	tolerated = 0.2
	// predictions is the most requests whose answers are waited for. Outcomes may be dropped, so when there are as many, all are forgotten.
	predictions = 1 << 14
)

// checks compare what is known with what engines do.
type checks struct {
	found                [mismatches]atomic.Int64
	known, unknown       atomic.Int64 // prompts by whether their token ids are known
	predicted, reported  atomic.Int64 // cached tokens, of requests of which both are known
	compared             [hits]atomic.Int64
	errors               histogram   // of predictions, as shares of prompts
	lengthTold, noneTold atomic.Bool // they were logged

	mu      sync.Mutex
	waiting map[*epp.Decision]prediction
	window  struct{ blocks, difference, most int } // of the latest answers: blocks of their prompts, tokens
}

// hit says how a prediction of cached tokens compares with what the engine reports.
type hit uint8

const (
	exactHit hit = iota
	moreHit      // more were predicted
	fewerHit
	hits
)

// String returns the hit as metrics have it.
func (h hit) String() string { return [hits]string{"exact", "more", "fewer"}[h] }

// shareBounds are the upper bounds of differences, as shares of the prompt. The first one is for equal counts.
var shareBounds = []float64{0, 0.01, 0.05, 0.1, 0.25, 0.5, 1}

// compare counts a prediction by how far it is from what the engine reports.
func (c *checks) compare(p prediction, reported int) {
	c.predicted.Add(int64(p.cached))
	c.reported.Add(int64(reported))
	result := exactHit
	switch {
	case p.cached > reported:
		result = moreHit
	case p.cached < reported:
		result = fewerHit
	}
	c.compared[result].Add(1)
	c.errors.observe(float64(max(p.cached-reported, reported-p.cached)) / float64(max(p.prompt, 1)))
}

// prediction is what was predicted for a request.
type prediction struct{ cached, prompt int }

// checkFirst looks at the first blocks that a source tells of.
func (f *Feed) checkFirst(m *member, s *source) {
	c := &s.counts
	stored, orphans := c.Stored.Load(), c.Orphans.Load()
	useless := c.Skipped[kvevents.Malformed].Load() + c.Skipped[kvevents.Layers].Load() + c.Skipped[kvevents.Elsewhere].Load()
	f.checkLengths(m)
	all := stored + orphans + useless
	if all < looked {
		return
	}
	s.checked.Store(true)
	switch {
	case 2*orphans > all:
		f.checks.found[NoParents].Add(1)
		advice := "give the engine a replay_endpoint in --kv-events-config"
		if s.from.Replay != "" {
			advice = "the engine keeps too few messages for its replays: raise buffer_steps in --kv-events-config"
		}
		f.warn.Warn("most blocks that the engine tells of follow blocks from before the picker listened, so the picker does not know them",
			"endpoint", m.String(), "rank", s.rank, "blocks", all, "unknown", orphans, "earlier_messages", c.Earlier.Load(), "advice", advice)
	case 2*useless > all:
		f.checks.found[Unusable].Add(1)
		f.warn.Warn("most of what the engine tells of its KV cache cannot be used", "endpoint", m.String(), "rank", s.rank, "blocks", stored,
			"malformed", c.Skipped[kvevents.Malformed].Load(), "other_layers", c.Skipped[kvevents.Layers].Load(), "other_memory", c.Skipped[kvevents.Elsewhere].Load())
	}
}

// misnamed notes that a source names blocks in another way than is configured. It is told of the first one.
func (f *Feed) misnamed(m *member, s *source, p kvhash.Prompt, named []uint64) {
	if s.other.Swap(true) {
		return
	}
	f.checks.found[OtherNames].Add(1)
	advice := "leave out tokenProcessorConfig.hashAlgorithm, so that blocks are looked up by their tokens"
	if a := kvhash.Guess(p, named, f.options.Names.Seed()); a != (kvhash.Algorithm{}) {
		advice = "set tokenProcessorConfig.hashAlgorithm to " + a.String()
	}
	f.log.Warn("the engine names blocks in another way than is configured, so none of its blocks are found", "endpoint", m.String(), "rank", s.rank,
		"configured", f.options.Names.String(), "advice", advice)
}

// checkLengths compares the configured length of blocks with those that engines have.
func (f *Feed) checkLengths(m *member) {
	if f.options.BlockTokens == 0 || f.checks.lengthTold.Load() {
		return
	}
	for _, root := range f.roots.Of("") {
		if root.BlockTokens != f.options.BlockTokens && f.checks.lengthTold.CompareAndSwap(false, true) {
			f.checks.found[OtherBlocks].Add(1)
			f.log.Warn("the engine's blocks have another length than tokenProcessorConfig.blockSizeTokens says; the engine's counts",
				"endpoint", m.String(), "tokens", root.BlockTokens, "configured", f.options.BlockTokens)
		}
	}
}

// Picked notes what was predicted for a request that is sent on now, of whose prompt cached tokens are expected to be cached where it is
// computed.
func (f *Feed) Picked(r *epp.Request, d *epp.Decision, cached int) {
	c := &f.checks
	if len(r.Prompt.IDs) == 0 {
		if c.unknown.Add(1) >= looked && c.known.Load() == 0 && !c.noneTold.Swap(true) {
			f.log.Warn("no request had token ids, so the picker cannot tell what engines have cached of prompts: give token-producer a tokenizer")
		}
		return
	}
	c.known.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting == nil {
		c.waiting = make(map[*epp.Decision]prediction)
	}
	if len(c.waiting) >= predictions {
		clear(c.waiting)
	}
	c.waiting[d] = prediction{cached, r.Prompt.Tokens}
}

// Observe compares what was predicted for a request with what its engine reports.
func (f *Feed) Observe(o *epp.Outcome) {
	c := &f.checks
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.waiting[o.Decision]
	if !ok {
		return
	}
	delete(c.waiting, o.Decision)
	if o.Result == nil || o.Result.Cached < 0 || o.Happened != nil && o.Happened.Verdict != o.Decision.Verdict {
		return
	}
	reported := int(o.Result.Cached)
	c.compare(p, reported)
	w := &c.window
	w.blocks += p.prompt / f.blockTokens()
	w.difference += max(p.cached-reported, reported-p.cached)
	w.most += max(p.cached, reported)
	if w.blocks < looked {
		return
	}
	if float64(w.difference) > tolerated*float64(w.most) {
		c.found[OtherCounts].Add(1)
		f.warn.Warn("engines report other numbers of cached tokens than the picker predicted: see tandem_prefix_cached_tokens_total and /debug/prefix",
			"wrong_tokens", w.difference, "of", w.most)
	}
	*w = struct{ blocks, difference, most int }{}
}

// Predicted returns the sums of the cached tokens that were predicted, and that engines reported for the same requests.
func (f *Feed) Predicted() (predicted, reported int64) {
	return f.checks.predicted.Load(), f.checks.reported.Load()
}

// blockTokens returns the length of engines' blocks, or one that they may have.
func (f *Feed) blockTokens() int {
	if roots := f.roots.Of(""); len(roots) > 0 {
		return roots[0].BlockTokens
	}
	return usualBlock
}
