package latency

import "github.com/tandem-serving/tandem/epp"

// Rates are the usual times of some engines, for questions about engines that do not exist yet: how long would one take that had so much to
// do. They do not change. All times are in seconds.
type Rates struct{ curves curves }

// Rates returns those of some endpoints: the mean of what is learnt of each, or what is learnt of the whole pool for none.
func (m *Model) Rates(of []*epp.Endpoint) Rates {
	all, now := m.whole.Load(), m.clock.Now()
	if len(of) == 0 {
		return Rates{*all}
	}
	var sum curves
	for _, e := range of {
		one, _ := m.curvesAt(e, now)
		sum.prompt.plus(&one.prompt, len(of))
		sum.handoff.plus(&one.handoff, len(of))
		sum.token.plus(&one.token, len(of))
	}
	return Rates{sum}
}

// plus adds one of n curves to their mean.
func (c *curve) plus(one *curve, n int) {
	for i := range c.w {
		c.w[i] += one.w[i] / float64(n)
	}
}

// Prompt returns how long an engine takes for a prompt of which it computes so many tokens while it generates so many answers: own is the part
// that delays the prompts behind it, and idle all of it if none is before it.
func (r *Rates) Prompt(tokens, answers float64) (own, idle float64) {
	x := promptTerms(part{tokens: int(tokens)}, 0, answers)
	idle = r.curves.prompt.w.dot(&x)
	x = vector{0, x[1], x[2]}
	return r.curves.prompt.w.dot(&x), idle
}

// Handoff returns how long it takes from a computed prompt to the first token that another engine generates beside so many answers, if the
// KV cache of so many tokens moves.
func (r *Rates) Handoff(tokens, answers float64) float64 {
	x := handoffTerms(int(tokens), answers)
	return r.curves.handoff.w.dot(&x)
}

// Token returns the time of a step that generates a token for each of some answers, which have so many tokens before it together, on an engine
// that computes so many prompts in a second. The time that these prompts take is not in it.
func (r *Rates) Token(answers, context, prompts float64) float64 {
	x := tokenTerms(answers, context, prompts)
	return r.curves.token.w.dot(&x)
}
