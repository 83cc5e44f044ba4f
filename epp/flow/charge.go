package flow

import "github.com/tandem-serving/tandem/epp"

// outputWeight is how many tokens of a prompt one token of the answer counts as, as in llm-d.
const outputWeight = 2

// Observe implements epp.Observer: when a request has ended, its flow is charged what it has cost instead of what was estimated. Answers
// whose tokens were not reported cost their prompt.
func (c *Controller) Observe(o *epp.Outcome) {
	if o.Decision == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	origin := &o.Decision.Origin
	fairness := c.current.Load().settings.band(origin.Priority).Fairness
	if !fairness.charges() || fairness == ServedTokens && o.Decision.Pass.Waited == 0 {
		return
	}
	b, now, answer := c.band(origin.Priority), c.opt.Clock.Now(), int64(-1)
	if o.Result != nil {
		answer = o.Result.Completion
	}
	b.forget(now)
	cost := costOf(o)
	if fairness == DeepestFirst {
		cost = turnsOf(o)
	}
	b.settle(origin.Flow, cost, answer, now)
}

// turnsOf returns what a request moves the turn of its flow by: one that has waited did so when it was dispatched.
func turnsOf(o *epp.Outcome) int {
	if o.Decision.Pass.Waited > 0 {
		return 0
	}
	return -1
}

// costOf returns what a request has cost, in tokens of a prompt, beyond what it was charged at its dispatch.
func costOf(o *epp.Outcome) int {
	prompt, output := max(1, o.Decision.Tokens), 0
	if o.Result != nil {
		if o.Result.Prompt >= 0 {
			prompt = int(o.Result.Prompt)
		}
		output = int(max(0, o.Result.Completion))
	}
	return prompt + outputWeight*output - o.Decision.Pass.Charged
}
