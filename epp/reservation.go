package epp

import "sync"

// Reservation is the load that one request puts on the endpoints it was sent to, charged at the pick. End takes back all
// that is left of it, exactly once, however often and from wherever it is called.
type Reservation struct {
	mu      sync.Mutex
	charges []charge // one for each claim, in their order; those that ended have no endpoint
	usual   [2]charge
	ended   bool
}

// charge is what one stage of a request adds to the load in flight of an endpoint.
type charge struct {
	stage     Stage
	to        *Endpoint // nil: the charge has ended
	now, keep InFlight
}

// shrink leaves only a part of the charge.
func (c *charge) shrink(left InFlight) {
	if c.to == nil {
		return
	}
	c.to.recharge(c.now, left)
	if c.now = left; left == (InFlight{}) {
		c.to = nil
	}
}

// Claim is one endpoint with the charge that is meant for it.
type Claim struct {
	Stage    Stage
	Endpoint *Endpoint
	Seen     InFlight // the endpoint's load when the pick began
	Add      InFlight
	Keep     InFlight // the part of Add that stays charged after the answer has begun
}

// Reserve charges the claims of a pick. It fails, charging nothing, if the load of one of the endpoints is no longer what
// the pick saw: then the pick has to be made again, because a burst of requests that all saw the same idle endpoint would
// otherwise all go there.
func Reserve(claims []Claim) (*Reservation, bool) {
	for i := range claims {
		c := &claims[i]
		if claimed(claims[:i], c.Endpoint) {
			c.Endpoint.charge(c.Add)
		} else if !c.Endpoint.chargeIf(c.Seen, c.Add) {
			for j := range claims[:i] {
				claims[j].Endpoint.discharge(claims[j].Add)
			}
			return nil, false
		}
	}
	return reserved(claims), true
}

// claimed reports whether there is a claim on an endpoint.
func claimed(claims []Claim, e *Endpoint) bool {
	for i := range claims {
		if claims[i].Endpoint.Is(e) {
			return true
		}
	}
	return false
}

// ReserveAnyway reserves the claims even if the load of their endpoints has changed since the pick saw it.
func ReserveAnyway(claims ...Claim) *Reservation {
	for i := range claims {
		claims[i].Endpoint.charge(claims[i].Add)
	}
	return reserved(claims)
}

// reserved makes the reservation of claims that have been charged.
func reserved(claims []Claim) *Reservation {
	r := &Reservation{}
	r.charges = r.usual[:0]
	for i := range claims {
		c := &claims[i]
		r.charges = append(r.charges, charge{c.Stage, c.Endpoint, c.Add, c.Keep})
	}
	return r
}

// At is the endpoint charged for a stage, nil if there is none, or none any more.
func (r *Reservation) At(stage Stage) *Endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.of(stage); c != nil {
		return c.to
	}
	return nil
}

func (r *Reservation) of(stage Stage) *charge {
	for i := range r.charges {
		if r.charges[i].stage == stage {
			return &r.charges[i]
		}
	}
	return nil
}

// Move charges another endpoint for a stage instead, because it is the one that served. It does nothing if the stage is not
// charged any more.
func (r *Reservation) Move(stage Stage, to *Endpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.of(stage)
	if c == nil || c.to == nil || to.Is(c.to) {
		return
	}
	c.to.discharge(c.now)
	to.charge(c.now)
	c.to = to
}

// Answered tells that the answer has begun: the prompt is computed, on whichever endpoint. Only what the claims keep stays
// charged.
func (r *Reservation) Answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	for i := range r.charges {
		r.charges[i].shrink(r.charges[i].keep)
	}
}

// End takes back everything that is still charged.
func (r *Reservation) End() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for i := range r.charges {
		r.charges[i].shrink(InFlight{})
	}
}
