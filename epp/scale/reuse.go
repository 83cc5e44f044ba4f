package scale

import (
	"math"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// reuseHalfLife is the age at which a token that was found in a cache has half its weight. Conversations pause for minutes.
const reuseHalfLife = 10 * time.Minute

// reuse is how many tokens requests have found in the caches of replicas, by replica, as sums that fade. The zero value knows none.
type reuse map[string]float64

// add adds what the engines of a decision have of its prompt.
func (r *reuse) add(d *epp.Decision) {
	if d == nil {
		return
	}
	for i := range d.Picks {
		if s := &d.Picks[i]; s.Seen != nil && s.Seen.Cached > 0 && len(s.Endpoints) > 0 {
			if *r == nil {
				*r = reuse{}
			}
			(*r)[replicaOf(s.Endpoints[0])] += float64(s.Seen.Cached)
		}
	}
}

// fade has all sums lose weight, and forgets replicas whose sums have become nothing.
func (r reuse) fade(after time.Duration) {
	keep := math.Exp2(-after.Seconds() / reuseHalfLife.Seconds())
	for replica, tokens := range r {
		if tokens *= keep; tokens < 1 {
			delete(r, replica)
			continue
		}
		r[replica] = tokens
	}
}

// Reused returns how many tokens requests have lately found in the cache of an endpoint's replica.
func (s *Sizer) Reused(e *epp.Endpoint) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reused[replicaOf(e)]
}
