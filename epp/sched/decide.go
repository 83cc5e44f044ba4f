package sched

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// decide gives the verdict once the decode endpoint is known: the client's word first, then what the request allows, then
// the decider. The error is a *pd.Refusal.
func (k *pick) decide() error {
	r, stages := k.round.Request, &k.pipeline.config.Stages
	forced := r.Mode == pd.ModeForce || r.Mode == pd.ModeForceFallback
	switch {
	case r.Mode == pd.ModeBypass:
		k.verdict, k.reason = pd.Local, pd.Bypassed
	case r.Fit == request.FitLocal && r.Mode == pd.ModeForce:
		return pd.Refuse(pd.NotSplittable, "Prefill on another pod was forced, but this request cannot be split: "+
			"only chat and completions with one prompt, one choice and no prompt log probabilities can.")
	case r.Fit != request.FitSplit:
		k.verdict, k.reason = pd.Local, pd.NotSplittable
	case forced:
		k.verdict, k.reason = pd.Remote, pd.Forced
	case k.pipeline.prefill == nil:
		k.verdict, k.reason = pd.Local, pd.NoPrefill
	case stages.Decider == nil:
		k.verdict, k.reason = pd.Local, pd.BelowThreshold
	default:
		k.asked = epp.Alternatives{Round: k.round, Tokens: r.Prompt.Tokens, Cached: k.cached(), Local: k.decode}
		k.asked.Stage = epp.StagePrefill
		ruling := stages.Decider.Decide(&k.asked)
		k.verdict, k.reason = ruling.Verdict, ruling.Reason
		if k.trace != nil {
			k.trace.Decider = k.pipeline.config.DeciderName
		}
	}
	return nil
}

// cached is how many tokens of the prompt the first decode choice has cached, 0 before there is one.
func (k *pick) cached() int {
	if len(k.decode) == 0 {
		return 0
	}
	return min(k.decode[0].Cached, k.round.Request.Prompt.Tokens)
}

// strict tells whether the sidecar must not prefill locally. A local plan never says so, even under force: then the
// engine's own error is wanted (request.FitDoubted).
func (k *pick) strict() bool {
	return k.round.Request.Mode == pd.ModeForce && k.verdict == pd.Remote
}

// noPrefill settles a request that was to go remote while there is nobody to prefill it, or nobody who has room. Where prefill
// is full, no more goes to decode than the fallback budget allows, whatever the configuration says: what is too much for prefill
// would be too much for decode as well.
func (k *pick) noPrefill() error {
	policy := k.pipeline.config.Stages.OnNoPrefill
	switch mode := k.round.Request.Mode; {
	case mode == pd.ModeForce && k.pipeline.prefill == nil:
		return pd.Refuse(pd.NoPrefill, "Prefill on another pod was forced, but this pool is not configured for it.")
	case k.full && (mode == pd.ModeForce || mode == pd.ModeAuto && policy == epp.PrefillRefuse || !k.spend()):
		return saturated()
	case k.full:
	case mode == pd.ModeForce:
		return pd.Refuse(pd.NoPrefill, "Prefill on another pod was forced, but there is none now among the %d endpoints "+
			"that this request may go to. Try again, or allow local prefill by \"%s: %s\".",
			len(k.all), pd.HeaderMode, pd.ModeForceFallback)
	case mode == pd.ModeAuto && policy == epp.PrefillRefuse:
		return pd.Refuse(pd.NoPrefill, "The prompt is to be computed on a prefill pod, but there is none now. Try again.")
	case k.pipeline.prefill != nil && policy == epp.PrefillBudget && !k.spend():
		return pd.Refuse(pd.Budget, "The prompt is to be computed on a prefill pod, but there is none now, and decode pods "+
			"have prefilled too many such requests themselves lately. Try again.")
	}
	k.verdict, k.reason = pd.Local, pd.NoPrefill
	return nil
}

// noEndpoint tells why nobody can decode a request.
func (k *pick) noEndpoint() error {
	decoders := 0
	for i := range k.all {
		if k.all[i].Role.Has(pd.RoleDecode) {
			decoders++
		}
	}
	switch {
	case len(k.all)+k.outside == 0:
		return pd.Refuse(pd.NoEndpoint, "The pool has no endpoints.")
	case len(k.all) == 0:
		return pd.Refuse(pd.NoEndpoint, "The gateway's subset for this request names no endpoint of the pool.")
	case len(k.left) > 0:
		return pd.Refuse(pd.NoEndpoint, "None of the %d endpoints that this request may go to was picked.", len(k.all))
	case decoders == 0:
		return pd.Refuse(pd.NoEndpoint, "None of the %d endpoints that this request may go to serves decode.", len(k.all))
	}
	return pd.Refuse(pd.NoEndpoint, "Of the %d endpoints that this request may go to, %d serve decode, "+
		"and filter %q left none of them.", len(k.all), decoders, k.dropper)
}
