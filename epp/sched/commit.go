package sched

import (
	"github.com/tandem-serving/tandem/epp"
)

// tries is how often commit makes a decision. It keeps the last one even if other requests have changed the load of its
// endpoints meanwhile. That is rare: another pick of the same endpoint, or the end of a request there, must fall into the
// same few microseconds.
const tries = 3

// commit makes the decision and reserves its load. A lock serializes the last tries of all picks, so that each sees the
// earlier reservations: without the lock, picks that lost the same race would all choose the same endpoint.
// The error is a *pd.Refusal.
func (k *pick) commit() error {
	if err := k.shed(); err != nil {
		return err
	}
	metrics := k.pipeline.config.Metrics
	for try := 1; ; try++ {
		if try == tries {
			k.pipeline.last.Lock()
			defer k.pipeline.last.Unlock()
		}
		if try > 1 {
			k.refresh()
		}
		if err := k.run(); err != nil {
			return err
		}
		k.claim()
		if k.made == nil {
			k.made = new(made)
		}
		if k.made.reservation.Reserve(k.claims) {
			return nil
		}
		if try == tries {
			metrics.outdated.Inc()
			k.made.reservation.ReserveAnyway(k.claims)
			return nil
		}
		metrics.retries.Inc()
	}
}

// claim collects the claims of a decision, one for each stage that has endpoints.
func (k *pick) claim() {
	k.claims = k.claims[:0]
	computes := k.computes()
	for i := range k.pipeline.stages {
		if len(k.chosen[i]) == 0 {
			continue
		}
		s, c := &k.pipeline.stages[i], &k.chosen[i][0]
		claim := epp.Claim{Endpoint: c.Endpoint, Seen: c.InFlight, Add: epp.InFlight{Requests: 1}}
		if i == computes {
			claim.Add.Tokens = k.uncached(c)
		}
		if s.Generates {
			claim.Add.Tokens += k.output()
			claim.Keep.Requests = 1
			if k.pipeline.config.Charge.Output {
				claim.Keep.Tokens = claim.Add.Tokens
			}
		}
		k.claims = append(k.claims, claim)
	}
}

// computes returns the index of the stage whose endpoint computes the prompt: the last one that can and has an endpoint.
func (k *pick) computes() (last int) {
	for i := range k.pipeline.stages {
		if k.pipeline.stages[i].Computes && len(k.chosen[i]) > 0 {
			last = i
		}
	}
	return last
}

// uncached returns how many tokens of the prompt a candidate would have to compute.
func (k *pick) uncached(c *epp.Candidate) int {
	found := k.round.Found(k.round.Charged)
	return max(0, k.round.Request.Prompt.Tokens-found.Of(c))
}

// maxOutput bounds the estimate of generated tokens; no model has a longer context.
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

// made is a decision with its reservation, in one allocation, with memory for the usual numbers of stages and endpoints of all
// of them; more cost another allocation.
type made struct {
	decision    epp.Decision
	reservation epp.Reservation
	picks       [2]epp.StagePick
	endpoints   [4]*epp.Endpoint
}

// write writes the decision in the form for callers, without its reservation.
func (k *pick) write(m *made) *epp.Decision {
	d := &m.decision
	d.Picks, d.Verdict, d.Reason, d.Strict = m.picks[:0], k.verdict, k.reason, k.strict()
	d.Tokens, d.Costs = k.round.Request.Prompt.Tokens, k.costs
	d.Cached, d.Loads = k.cached()
	d.TokenSource = k.round.Request.Prompt.Source
	d.Origin = k.round.Request.Origin()
	if a := &k.pipeline.config.AnswerPlugins; len(a.Stampers)+len(a.Reporters) > 0 {
		d.AnswerPlugins = a
	}
	total, all := 0, m.endpoints[:0]
	for i := range k.chosen {
		total += len(k.chosen[i])
	}
	if total > len(m.endpoints) {
		all = make([]*epp.Endpoint, 0, total)
	}
	for i := range k.chosen {
		chosen, s := k.chosen[i], &k.pipeline.stages[i]
		if len(chosen) == 0 {
			continue
		}
		begin := len(all)
		for j := range chosen {
			all = append(all, chosen[j].Endpoint)
		}
		pick := epp.StagePick{Row: s.StageRow, Reason: k.reasons[i], Endpoints: all[begin:len(all):len(all)]}
		pick.Ranks = k.ranksOf(chosen)
		if k.noting {
			pick.Seen = seen(&chosen[0])
		}
		d.Picks = append(d.Picks, pick)
	}
	return d
}

// seen copies what the pick knows of a candidate, because observers may keep it: a reference would become invalid with the
// pick, whose memory is reused, or keep a whole snapshot in memory.
func seen(c *epp.Candidate) *epp.Seen {
	return &epp.Seen{Load: *c.Load, InFlight: c.InFlight, Cached: c.Cached, Loads: c.Loads}
}
