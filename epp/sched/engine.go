package sched

import (
	"slices"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/request"
)

// part is the part of a request that the endpoint of a stage is to compute. Some engines compute only one of them, whatever their
// role: see epp.EngineMode.
type part uint8

const (
	anyPart    part = iota // not decided yet, or the request computes nothing
	wholePart              // prompt and answer
	answerPart             // the answer, from a KV cache that another endpoint hands over
	promptPart             // the prompt, for another endpoint
	otherPart              // what a stage besides decode and prefill does
)

// can reports whether an engine computes a part.
func (p part) can(m epp.EngineMode) bool {
	switch p {
	case wholePart:
		return m.Whole()
	case answerPart:
		return m.Receives()
	case promptPart:
		return m.Offers()
	case anyPart:
		return m != epp.EnginePrefill // which generates nothing
	}
	return true
}

// foreseen returns the part that the first stage's endpoint will compute, as far as the request alone tells.
func (k *pick) foreseen() part {
	switch r := k.round.Request; {
	case r.Mode == pd.ModeBypass, k.pipeline.split < 0:
		return wholePart
	case r.Fit != request.FitSplit && !(r.SGLangSplits && r.Mode != pd.ModeAuto):
		return wholePart
	case r.Mode != pd.ModeAuto:
		return answerPart
	}
	return anyPart
}

// fit says whether the request can be split, given the endpoint that was chosen for the first stage. The hand-offs of SGLang carry
// several prompts, and the sidecar before a decode engine sends several choices of a prompt one by one.
func (k *pick) fit() request.Fit {
	if k.round.Request.SGLangSplits && k.chosen[0][0].Mode() == epp.EngineDecode {
		return request.FitSplit
	}
	return k.round.Request.Fit
}

// chooseFirst chooses the endpoint of the first stage: one that can do what is foreseen, or else any, so that divide can tell what
// is missing.
func (k *pick) chooseFirst() {
	k.part = k.foreseen()
	k.choose(0)
	if len(k.chosen[0]) == 0 && k.part != anyPart && k.unable {
		k.part = anyPart
		k.choose(0)
	}
}

// settle makes the first stage's endpoint one that can compute a part: the one that was chosen, or else the best of those that can.
// It reports whether there is any. If there is none, nothing changes but full.
func (k *pick) settle(p part) bool {
	if !k.partial {
		return true
	}
	cannot := func(c epp.Candidate) bool { return !p.can(c.Mode()) }
	first := k.chosen[0]
	if len(first) > 0 && !cannot(first[0]) {
		k.chosen[0] = slices.DeleteFunc(first, cannot) // of the others, to which the gateway turns if the first fails
		return true
	}
	k.before = append(k.before[:0], first...)
	k.part = p
	k.choose(0)
	if len(k.chosen[0]) == 0 {
		k.chosen[0] = append(k.chosen[0], k.before...)
		return false
	}
	k.round.Before[0].Endpoint = k.chosen[0][0].Endpoint
	if i := k.pipeline.split; i >= 0 {
		k.ruled, k.chosen[i] = -1, k.chosen[i][:0] // what was chosen for a decider, beside the other endpoint
	}
	return true
}

// instead decides about a request that is to be computed on one endpoint while no endpoint computes whole requests. It is prefilled
// remotely if client and request allow that.
func (k *pick) instead() error {
	switch r := k.round.Request; {
	case !r.API.Generates():
		return nil
	case r.Mode != pd.ModeBypass && k.fit() == request.FitSplit && k.pipeline.splits():
		k.verdict, k.reason = pd.Remote, pd.DecodeOnly
		return nil
	case k.full:
		return saturated()
	case r.Mode != pd.ModeBypass && k.fit() != request.FitSplit:
		return pd.Refuse(pd.NotSplittable, "This request cannot be split, and the model servers of this pool compute only a part of a request: "+
			"it needs one prompt, no prompt log probabilities, and nothing that only one engine has.")
	}
	return decodeOnly()
}

func decodeOnly() error {
	return pd.Refuse(pd.DecodeOnly, "The prompt would have to be computed where its answer is generated, but the decode pods of this pool compute no "+
		"prompts (their engines run in SGLang's mode decode), and there is no pod that computes whole requests. Try again.")
}

// uncache removes what a matcher found on engines that keep no prefixes: what was sent there is gone.
func (k *pick) uncache() {
	if !k.partial {
		return
	}
	for i := range k.all {
		if !k.all[i].KeepsPrefixes() {
			k.all[i].Cached, k.all[i].Loads = 0, epp.Loads{}
		}
	}
}
