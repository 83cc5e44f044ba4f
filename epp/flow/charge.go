package flow

import "github.com/tandem-serving/tandem/epp"

// outputWeight is how many tokens of a prompt one token of the answer counts as, as in llm-d.
const outputWeight = 2

// Observe implements epp.Observer: when a request has ended, its flow is charged what it has cost. Answers whose tokens were not
// reported cost what their prompt was estimated at.
func (c *Controller) Observe(o *epp.Outcome) {
	if o.Decision == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	origin := &o.Decision.Origin
	switch fairness := c.current.Load().settings.band(origin.Priority).Fairness; {
	case !fairness.charges(), fairness == ServedTokens && o.Decision.Waited == 0:
		return
	}
	if cost := costOf(o); cost != 0 {
		b, now := c.band(origin.Priority), c.opt.Clock.Now()
		b.forget(now)
		b.settle(origin.Flow, cost, now)
	}
}

// costOf returns what a request has cost, in tokens of a prompt, beyond what it was charged at its dispatch.
func costOf(o *epp.Outcome) int {
	charged, prompt, output := 0, o.Decision.Tokens, 0
	if o.Decision.Waited > 0 {
		charged = max(1, o.Decision.Tokens)
		prompt = charged
	}
	if o.Result != nil {
		if o.Result.Prompt >= 0 {
			prompt = int(o.Result.Prompt)
		}
		output = int(max(0, o.Result.Completion))
	}
	return prompt - charged + outputWeight*output
}
