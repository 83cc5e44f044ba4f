package sched

import (
	"slices"

	"github.com/tandem-serving/tandem/epp"
)

// needsOf returns what is needed of prompts so that every matcher can read them: the longest blocks of which those of each matcher are
// made, as many as the one that compares most needs, and as many token ids.
func needsOf(matchers []epp.Matcher) (all epp.PromptSpec) {
	for _, m := range matchers {
		all = union(all, m.Needs())
	}
	return all
}

// union returns what two specifications need together.
func union(a, b epp.PromptSpec) (all epp.PromptSpec) {
	all.Tokens, all.IDs = commonLength(a.Tokens, b.Tokens), max(a.IDs, b.IDs)
	if all.Tokens > 0 {
		all.Max = max(a.Tokens*a.Max, b.Tokens*b.Max) / all.Tokens
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
	asks bool     // it has something that the matcher needs
	own  []uint64 // memory for blocks that are not those of the request
}

// cut cuts a prompt as a matcher wants it. A chained hash stands for everything before it, so the last hash of several blocks
// is that of the longer block which they form. The result has no blocks if the prompt was cut for other matchers, before the
// configuration changed.
func (c *cutPrompt) cut(p *epp.Prompt, spec epp.PromptSpec) {
	c.Prompt = *p
	c.Blocks, c.BlockTokens = nil, spec.Tokens
	c.cutBlocks(p, spec)
	c.asks = len(c.Blocks) > 0 || spec.IDs > 0 && len(p.IDs) > 0
}

func (c *cutPrompt) cutBlocks(p *epp.Prompt, spec epp.PromptSpec) {
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
	matchers, r := k.pipeline.config.Matchers, k.round.Request
	if len(r.Prompt.Blocks)+len(r.Prompt.IDs) == 0 {
		matchers = nil
	}
	k.prompts = slices.Grow(k.prompts[:0], len(matchers))[:len(matchers)]
	k.round.Matches = slices.Grow(k.round.Matches[:0], len(matchers))[:len(matchers)]
	for i, m := range slices.Backward(matchers) {
		cut, found := &k.prompts[i], &k.round.Matches[i]
		cut.cut(&r.Prompt, m.Needs())
		found.Matcher, found.Whole = m, cut.Matchable()
		forget(k.all)
		if cut.asks {
			found.Whole = m.Match(r, &cut.Prompt, k.all)
			k.uncache()
		}
		if i > 0 {
			found.Cached, found.Loads = bySlot(k.all, found.Cached, found.Loads)
		} else {
			found.Cached, found.Loads = nil, nil
		}
	}
}

// forget removes what another matcher has found.
func forget(c []epp.Candidate) {
	for i := range c {
		c[i].Cached, c[i].Loads = 0, epp.Loads{}
	}
}

// bySlot copies what a matcher has found into tables, which are not nil then.
func bySlot(c []epp.Candidate, cached []int, loads []epp.Loads) ([]int, []epp.Loads) {
	size := 1
	for i := range c {
		size = max(size, c[i].Slot+1)
	}
	cached, loads = slices.Grow(cached[:0], size)[:size], slices.Grow(loads[:0], size)[:size]
	for i := range c {
		cached[c[i].Slot], loads[c[i].Slot] = c[i].Cached, c[i].Loads
	}
	return cached, loads
}

// learn has the matchers learn which endpoints get the prompt's KV cache: the decode endpoint too, which computes the prompt
// or receives the cache from prefill. They are those of a pick: of this one, unless this is a shadow's.
func (k *pick) learn(by *pick) {
	for i := range k.prompts {
		if !k.prompts[i].asks {
			continue
		}
		for j := range by.pipeline.stages {
			if by.pipeline.stages[j].Computes && len(by.chosen[j]) > 0 && by.chosen[j][0].KeepsPrefixes() {
				k.pipeline.config.Matchers[i].Learn(k.round.Request, &k.prompts[i].Prompt, by.chosen[j][0].Endpoint, by.chosen[j][0].Load)
			}
		}
	}
}
