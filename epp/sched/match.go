package sched

import (
	"slices"

	"github.com/tandem-serving/tandem/epp"
)

// blocksFor returns how prompts are cut so that every matcher can read them: into the longest blocks of which those of each
// matcher are made, and as many as the one that compares most needs.
func blocksFor(matchers []epp.Matcher) (all epp.BlockSpec) {
	tokens := 0
	for _, m := range matchers {
		one := m.Blocks()
		all.Tokens, tokens = commonLength(all.Tokens, one.Tokens), max(tokens, one.Tokens*one.Max)
	}
	if all.Tokens > 0 {
		all.Max = tokens / all.Tokens
	}
	return all
}

// commonLength returns the greatest common divisor.
func commonLength(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// cutPrompt is a request's prompt in the blocks that one matcher compares.
type cutPrompt struct {
	epp.Prompt
	own []uint64 // memory for blocks that are not those of the request
}

// cut cuts a prompt as a matcher wants it. A chained hash stands for everything before it, so the last hash of several blocks
// is that of the longer block which they form. The result has no blocks if the prompt was cut for other matchers, before the
// configuration changed.
func (c *cutPrompt) cut(p *epp.Prompt, spec epp.BlockSpec) {
	c.Prompt = epp.Prompt{Tokens: p.Tokens, BlockTokens: spec.Tokens}
	if p.BlockTokens == 0 || spec.Tokens%p.BlockTokens != 0 {
		return
	}
	each := spec.Tokens / p.BlockTokens
	n := min(len(p.Blocks)/max(each, 1), spec.Max)
	if each <= 1 {
		c.Blocks = p.Blocks[:n]
		return
	}
	c.own = c.own[:0]
	for i := range n {
		c.own = append(c.own, p.Blocks[(i+1)*each-1])
	}
	c.Blocks = c.own
}

// match has all matchers find out what the candidates have cached. The first one is called last, because its result stays in
// the candidates.
func (k *pick) match() {
	matchers, prompt := k.pipeline.config.Matchers, &k.round.Request.Prompt
	if len(prompt.Blocks) == 0 {
		matchers = nil
	}
	k.prompts = slices.Grow(k.prompts[:0], len(matchers))[:len(matchers)]
	k.round.Matches = slices.Grow(k.round.Matches[:0], len(matchers))[:len(matchers)]
	for i, m := range slices.Backward(matchers) {
		cut, found := &k.prompts[i], &k.round.Matches[i]
		cut.cut(prompt, m.Blocks())
		if len(cut.Blocks) > 0 {
			m.Match(&cut.Prompt, k.all)
			k.uncache()
		} else {
			forget(k.all)
		}
		found.Matcher, found.Whole = m, cut.Matchable()
		if i > 0 {
			found.Cached = bySlot(k.all, found.Cached)
		} else {
			found.Cached = nil
		}
	}
}

// forget removes what another matcher has found.
func forget(c []epp.Candidate) {
	for i := range c {
		c[i].Cached = 0
	}
}

// bySlot copies what a matcher has found into a table, which is not nil then.
func bySlot(c []epp.Candidate, table []int) []int {
	if table == nil {
		table = make([]int, 0, len(c))
	}
	for i := range c {
		slot := c[i].Slot
		if slot >= len(table) {
			table = slices.Grow(table, slot+1-len(table))[:slot+1]
		}
		table[slot] = c[i].Cached
	}
	return table
}

// learn has the matchers learn which endpoints get the prompt's KV cache: the decode endpoint too, which computes the prompt
// or receives the cache from prefill.
func (k *pick) learn() {
	for i := range k.prompts {
		if len(k.prompts[i].Blocks) == 0 {
			continue
		}
		for j := range k.pipeline.stages {
			if k.pipeline.stages[j].Computes && len(k.chosen[j]) > 0 && k.chosen[j][0].KeepsPrefixes() {
				k.pipeline.config.Matchers[i].Learn(&k.prompts[i].Prompt, k.chosen[j][0].Endpoint, k.chosen[j][0].Load)
			}
		}
	}
}
