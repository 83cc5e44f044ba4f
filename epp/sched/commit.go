package sched

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// tries is how often a pick is made before it stands although others have charged its endpoints meanwhile. A lost race is
// rare, since it takes another pick of the same endpoint, or an end there, within a few microseconds.
const tries = 3

// commit makes the decision and charges it. The last tries of all picks are made one after the other: each sees what the
// one before it charged, where all that lose together would choose alike, and insist. The error is a *pd.Refusal.
func (k *pick) commit() (*epp.Reservation, error) {
	if err := k.admit(); err != nil {
		return nil, err
	}
	keep, metrics := k.pipeline.config.Charge.Output, k.pipeline.config.Metrics
	for try := 1; ; try++ {
		if try == tries {
			k.pipeline.last.Lock()
			defer k.pipeline.last.Unlock()
		}
		if try > 1 {
			k.refresh()
		}
		if err := k.run(); err != nil {
			return nil, err
		}
		decode, prefill := k.claims()
		if r, ok := epp.Reserve(decode, prefill, keep); ok {
			return r, nil
		}
		if try == tries {
			metrics.insisted.Inc()
			return epp.Insist(decode, prefill, keep), nil
		}
		metrics.retries.Inc()
	}
}

// claims are the charges of a decision: the prompt's uncached tokens go to who computes them.
func (k *pick) claims() (decode, prefill epp.Claim) {
	d := &k.decode[0]
	decode = epp.Claim{Endpoint: d.Endpoint, Seen: d.InFlight, Add: epp.InFlight{Requests: 1, Tokens: k.output()}}
	if k.verdict != pd.Remote {
		decode.Add.Tokens += k.uncached(d)
		return decode, prefill
	}
	p := &k.prefill[0]
	return decode, epp.Claim{Endpoint: p.Endpoint, Seen: p.InFlight, Add: epp.InFlight{Requests: 1, Tokens: k.uncached(p)}}
}

// uncached is how many tokens of the prompt a candidate would have to compute.
func (k *pick) uncached(c *epp.Candidate) int { return max(0, k.round.Request.Prompt.Tokens-c.Cached) }

// maxOutput bounds the estimate of what a request generates, tokens; no model has a longer context.
const maxOutput = 1 << 24

// output estimates how many tokens will be generated, 0 if they are not charged.
func (k *pick) output() int {
	c := &k.pipeline.config.Charge
	if !c.Output {
		return 0
	}
	tokens := int(min(c.OutputRatio*float64(k.round.Request.Prompt.Tokens), maxOutput))
	if c.MaxOutput > 0 {
		tokens = min(tokens, c.MaxOutput)
	}
	return tokens
}

// learn tells the matcher who will have the prompt's KV cache: the decode endpoint either way.
func (k *pick) learn() {
	if !k.matches() {
		return
	}
	m, prompt := k.pipeline.config.Matcher, &k.round.Request.Prompt
	m.Learn(prompt, k.decode[0].Endpoint, k.decode[0].Load)
	if k.verdict == pd.Remote {
		m.Learn(prompt, k.prefill[0].Endpoint, k.prefill[0].Load)
	}
}

// decision is what was decided, as callers get it.
func (k *pick) decision() *epp.Decision {
	return &epp.Decision{Decode: endpoints(k.decode), Prefill: endpoints(k.prefill), Verdict: k.verdict, Reason: k.reason,
		Strict: k.strict(), Tokens: k.round.Request.Prompt.Tokens, Cached: k.cached()}
}

func endpoints(c []epp.Candidate) []*epp.Endpoint {
	if len(c) == 0 {
		return nil
	}
	all := make([]*epp.Endpoint, len(c))
	for i := range c {
		all[i] = c[i].Endpoint
	}
	return all
}
