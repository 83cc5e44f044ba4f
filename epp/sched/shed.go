package sched

import (
	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// shed refuses requests for the load of the pool: what cannot generate costs nothing, and is never refused. The error is a
// *pd.Refusal.
func (k *pick) shed() error {
	if !k.round.Request.API.Generates() {
		return nil
	}
	if err := k.detect(); err != nil {
		return err
	}
	k.round.Stage = k.pipeline.stages[0].Stage
	for i := range k.pipeline.config.Admitters {
		a := &k.pipeline.config.Admitters[i]
		if len(k.all) > 0 && !a.Admits(&k.round, k.all) {
			return pd.Refuse(pd.Saturated, "The admitter %q has refused this request for the load of the %d endpoints that it may go to. "+
				"Try again.", a.Name, len(k.all))
		}
	}
	return nil
}

// detect refuses requests of negative priority while the pool's endpoints of some role are full. The error is a *pd.Refusal.
func (k *pick) detect() error {
	detector := k.pipeline.config.Detector
	if detector == nil || k.round.Request.Priority >= 0 {
		return nil
	}
	for _, role := range k.pipeline.roles {
		k.left, k.round.Stage = k.left[:0], epp.Stage(role.String())
		for i := range k.all {
			if k.all[i].Role.Has(role) {
				k.left = append(k.left, k.all[i])
			}
		}
		if len(k.left) > 0 && detector.Saturation(k.round.Now, k.left) >= 1 {
			return pd.Refuse(pd.Saturated, "The endpoints of this pool have all that they can do, and this request's priority is "+
				"negative. Try again.")
		}
	}
	return nil
}

func saturated() error {
	return pd.Refuse(pd.Saturated, "All endpoints that could serve this request have long queues. Try again.")
}

// spend takes a token for the request from the fallback budget, once, and reports whether there was one. An explained pick
// takes none.
func (k *pick) spend() bool {
	switch {
	case k.spent:
	case k.trace != nil:
		return k.pipeline.fallback.Has()
	default:
		k.spent = k.pipeline.fallback.Take()
	}
	return k.spent
}

// earn adds a request's share to the fallback budget. A request that was shed adds nothing: it is no load.
func (k *pick) earn(refused error) {
	if refused != nil && pd.AsRefusal(refused).Reason == pd.Saturated {
		return
	}
	if k.pipeline.splits() {
		k.pipeline.fallback.Earn()
	}
}
