package sched

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// steer returns the verdict on splitting the request when the first endpoint is known: the client's P/D mode comes first,
// then what the request allows, then the decider. The error is a *pd.Refusal.
func (k *pick) steer() error {
	r, i, fit := k.round.Request, k.pipeline.split, k.fit()
	forced := r.Mode == pd.ModeForce || r.Mode == pd.ModeForceFallback
	switch {
	case r.Mode == pd.ModeBypass:
		k.verdict, k.reason = pd.Local, pd.Bypassed
	case fit == request.FitLocal && r.Mode == pd.ModeForce:
		return pd.Refuse(pd.NotSplittable, "Prefill on another pod was forced, but this request cannot be split: "+
			"it needs one prompt, one choice, no prompt log probabilities, and nothing that only one engine has.")
	case fit != request.FitSplit:
		k.verdict, k.reason = pd.Local, pd.NotSplittable
	case forced:
		k.verdict, k.reason = pd.Remote, pd.Forced
	case i < 0:
		k.verdict, k.reason = pd.Local, pd.NoPrefill
	case k.pipeline.stages[i].Decider.Decider == nil:
		k.verdict, k.reason = pd.Local, pd.BelowThreshold
	default:
		ruling := k.rule(i)
		k.verdict, k.reason, k.costs = ruling.Verdict, ruling.Reason, ruling.Costs
	}
	return nil
}

// rule calls the decider of a stage. For a Comparer it chooses the stage's endpoints first; they stay chosen if the stage
// runs.
func (k *pick) rule(i int) epp.Ruling {
	s := &k.pipeline.stages[i]
	k.round.Stage, k.ruled = s.Stage, i
	k.asked.Tokens, k.asked.Local = k.round.Request.Prompt.Tokens, k.chosen[0]
	k.asked.Cached, k.asked.Loads = k.cached()
	k.asked.Remote, k.asked.Links, k.asked.Pairs = nil, nil, k.pairing(i)
	if s.compares {
		k.choose(i)
		k.asked.Remote, k.asked.Links = k.chosen[i], k.linksOf(i)
	}
	ruling := s.Decider.Decide(&k.asked)
	if k.asked.Pairs {
		k.pair(i, &ruling)
	}
	if ruling.Verdict != pd.Remote {
		k.chosen[i] = k.chosen[i][:0]
	}
	if k.trace != nil {
		k.trace.ruled(s, &ruling)
	}
	return ruling
}

// pairing reports whether the decider of a stage chooses the endpoints. Where engines compute only a part of a request, those that it could
// choose depend on what it rules, so there it does not.
func (k *pick) pairing(i int) bool { return k.pipeline.stages[i].pairs && !k.partial }

// pair makes the endpoints that a decider has chosen the first ones. The others stay behind them, for when these cannot be reached.
func (k *pick) pair(i int, r *epp.Ruling) {
	s := &k.pipeline.stages[i]
	advance(k.chosen[0], r.Local)
	k.round.Before[0].Endpoint = k.chosen[0][0].Endpoint
	if len(k.chosen[i]) > 0 {
		advance(k.chosen[i], r.Remote)
		k.left = append(k.left[:0], k.chosen[i]...)
		k.dropMismatched(&k.chosen[0][0])
		k.chosen[i] = append(k.chosen[i][:0], k.left[:min(len(k.left), s.wanted)]...)
	}
	if k.trace != nil {
		first := &k.pipeline.stages[0]
		k.trace.paired(first.Stage, s.Decider.Name, k.chosen[0][:min(len(k.chosen[0]), first.wanted)])
		k.trace.paired(s.Stage, s.Decider.Name, k.chosen[i])
	}
}

// advance moves an element to the front.
func advance[T any](all []T, at int) {
	first := all[at]
	copy(all[1:at+1], all[:at])
	all[0] = first
}

// linksOf estimates the links from the candidates of a stage to the first endpoint.
func (k *pick) linksOf(i int) []epp.Link {
	k.links = k.links[:0]
	for j := range k.chosen[i] {
		var l epp.Link
		if estimator := k.pipeline.config.Links; estimator != nil {
			l = estimator.Link(k.chosen[i][j].Endpoint, k.chosen[0][0].Endpoint)
		}
		k.links = append(k.links, l)
	}
	return k.links
}

// requireCached refuses a request that is to be served only from a cache, if the first endpoint has nothing of it.
func (k *pick) requireCached() error {
	if cached, _ := k.cached(); !k.round.Request.IfAvailable || cached > 0 {
		return nil
	}
	return pd.Refuse(pd.NotCached, "No part of the prompt is cached on the model server that was chosen. Send the request without Prefer: if-available to have it computed.")
}

// cached returns how many tokens of the prompt the first endpoint has cached, by the matcher that the decider reads, and how many of them it
// must load; 0 if there is no endpoint yet.
func (k *pick) cached() (tokens int, loads epp.Loads) {
	if len(k.chosen[0]) == 0 {
		return 0, loads
	}
	found := k.round.Found(k.pipeline.reads)
	return min(found.Of(&k.chosen[0][0]), k.round.Request.Prompt.Tokens), found.LoadsOf(&k.chosen[0][0])
}

// strict reports whether the sidecar must not prefill locally. It is false for local plans, even under force, because then
// the client is to get the engine's own error (request.FitDoubted).
func (k *pick) strict() bool {
	return k.round.Request.Mode == pd.ModeForce && k.verdict == pd.Remote
}

// noPrefill decides about a request that should be prefilled remotely while no prefill endpoint is available, or all are
// full. If they are full, decode gets no more than the fallback budget allows, whatever the configuration says: what is too
// much for prefill would be too much for decode as well.
func (k *pick) noPrefill() error {
	split, policy := k.pipeline.splits(), epp.NoneSkips
	if split {
		policy = k.pipeline.stages[k.pipeline.split].OnNone
	}
	full, stage := k.full, k.round.Stage
	whole := k.settle(wholePart)
	if full {
		k.round.Stage = stage // that is full
	}
	switch mode := k.round.Request.Mode; {
	case mode == pd.ModeForce && !split:
		return pd.Refuse(pd.NoPrefill, "Prefill on another pod was forced, but this pool is not configured for it.")
	case full && (mode == pd.ModeForce || mode == pd.ModeAuto && policy == epp.NoneRefuses || !whole || !k.spend()):
		return saturated()
	case full:
	case mode == pd.ModeForce:
		return pd.Refuse(pd.NoPrefill, "Prefill on another pod was forced, but there is none now among the %d endpoints "+
			"that this request may go to. Try again, or allow local prefill by \"%s: %s\".",
			len(k.all), pd.HeaderMode, pd.ModeForceFallback)
	case mode == pd.ModeAuto && policy == epp.NoneRefuses:
		return pd.Refuse(pd.NoPrefill, "The prompt is to be computed on a prefill pod, but there is none now. Try again.")
	case !whole && k.full:
		return saturated()
	case !whole:
		return decodeOnly()
	case split && policy == epp.NoneSkipsWithinBudget && !k.spend():
		return pd.Refuse(pd.Budget, "The prompt is to be computed on a prefill pod, but there is none now, and decode pods "+
			"have prefilled too many such requests themselves lately. Try again.")
	}
	k.verdict, k.reason = pd.Local, pd.NoPrefill
	return nil
}

// without decides about a request if a stage that is neither the first nor splits has no endpoint.
func (k *pick) without(s *stage) error {
	switch {
	case s.OnNone == epp.NoneSkips, s.OnNone == epp.NoneSkipsWithinBudget && k.spend():
		return nil
	case k.full:
		return saturated()
	}
	return pd.Refuse(pd.NoEndpoint, "None of the %d endpoints that this request may go to serves its %s stage now. Try again.",
		len(k.all), s.Stage)
}

// noEndpoint returns why no endpoint serves the first stage of a request.
func (k *pick) noEndpoint() error {
	first, serving := &k.pipeline.stages[0], 0
	for i := range k.all {
		if k.all[i].Role.Has(first.Role) {
			serving++
		}
	}
	switch {
	case k.screener != "":
		return pd.Refuse(pd.NoEndpoint, "The screener %q has left no endpoint that this request may go to. Try again.", k.screener)
	case len(k.all)+k.outside == 0:
		return pd.Refuse(pd.NoEndpoint, "The pool has no endpoints.")
	case len(k.all) == 0:
		return pd.Refuse(pd.NoEndpoint, "The gateway's subset for this request names no endpoint of the pool.")
	case len(k.left) > 0:
		return pd.Refuse(pd.NoEndpoint, "None of the %d endpoints that this request may go to was picked.", len(k.all))
	case serving == 0:
		return pd.Refuse(pd.NoEndpoint, "None of the %d endpoints that this request may go to serves %s.", len(k.all), first.Stage)
	}
	return pd.Refuse(pd.NoEndpoint, "Of the %d endpoints that this request may go to, %d serve %s, "+
		"and filter %q left none of them.", len(k.all), serving, first.Stage, k.dropper)
}
