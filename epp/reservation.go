package epp

import (
	"slices"
	"sync"

	"github.com/tandem-serving/tandem/pd"
)

// Reservation is the load that one request adds to its endpoints, from the pick on. End subtracts all that is left of it,
// once, however often and from wherever it is called. The zero value charges nothing.
type Reservation struct {
	mu      sync.Mutex
	charges []charge // one for each claim, in their order; a charge that has ended has no endpoint
	usual   [2]charge
	ender   Ender // nil if there is none, or if it was told
	evict   func(*pd.Refusal)
}

// Ender is told when a reservation has ended.
type Ender interface{ Ended() }

// OnEnd has e told, once, when the reservation has ended. It must be called before the reservation can end, and at most once.
func (r *Reservation) OnEnd(e Ender) { r.ender = e }

// charge is what one stage of a request adds to the load in flight of an endpoint, packed as it is there.
type charge struct {
	to        *Endpoint // nil: the charge has ended
	now, keep word
}

// shrink leaves only a part of the charge.
func (c *charge) shrink(left word) {
	if c.to == nil {
		return
	}
	c.to.inFlight.add(left - c.now)
	if c.now = left; left == 0 {
		c.to = nil
	}
}

// Claim is one endpoint with the charge that is meant for it. The claims of a request are in the order of its stages.
type Claim struct {
	Endpoint *Endpoint
	Seen     InFlight // the endpoint's load when the pick began
	Add      InFlight
	Keep     InFlight // the part of Add that stays charged after the answer has begun
}

// Reserve charges the claims of a pick to a reservation that has none. It fails, and charges nothing, if the load of one of
// the endpoints is no longer what the pick saw. The pick must then be made again: otherwise a burst of requests that all saw
// the same idle endpoint would all go there.
func (r *Reservation) Reserve(claims []Claim) bool {
	for i := range claims {
		c := &claims[i]
		if claimed(claims[:i], c.Endpoint) {
			c.Endpoint.inFlight.add(c.Add.pack())
		} else if !c.Endpoint.inFlight.addIf(c.Seen.word(), c.Add.pack()) {
			for j := range claims[:i] {
				claims[j].Endpoint.inFlight.add(-claims[j].Add.pack())
			}
			return false
		}
	}
	r.note(claims)
	return true
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

// ReserveAnyway charges the claims even if the load of their endpoints has changed since the pick saw it.
func (r *Reservation) ReserveAnyway(claims []Claim) {
	for i := range claims {
		claims[i].Endpoint.inFlight.add(claims[i].Add.pack())
	}
	r.note(claims)
}

// ReserveAnyway makes a reservation of the claims, whatever the load of their endpoints.
func ReserveAnyway(claims ...Claim) *Reservation {
	r := &Reservation{}
	r.ReserveAnyway(claims)
	return r
}

// note takes over claims that have been charged.
func (r *Reservation) note(claims []Claim) {
	r.charges = r.usual[:0]
	for i := range claims {
		c := &claims[i]
		r.charges = append(r.charges, charge{c.Endpoint, c.Add.pack(), c.Keep.pack()})
	}
}

// Served charges the endpoint that served the request instead of the one of the first claim. It does nothing if that is not
// charged any more.
func (r *Reservation) Served(by *Endpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.charges) == 0 {
		return
	}
	c := &r.charges[0]
	if c.to == nil || by.Is(c.to) {
		return
	}
	c.to.inFlight.add(-c.now)
	by.inFlight.add(c.now)
	c.to = by
}

// Answered records that the answer has begun, so that the prompt is computed. Only what the claims keep stays charged.
func (r *Reservation) Answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.charges {
		r.charges[i].shrink(r.charges[i].keep)
	}
}

// End subtracts everything that is still charged.
func (r *Reservation) End() {
	if e := r.end(); e != nil {
		e.Ended()
	}
}

// Over reports whether nothing is charged any more.
func (r *Reservation) Over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !slices.ContainsFunc(r.charges, func(c charge) bool { return c.to != nil })
}

// OnEvict has f called if the request is to end early. f is called at most once, not after the reservation has ended, and ends the
// request soon. A later f replaces an earlier one.
func (r *Reservation) OnEvict(f func(*pd.Refusal)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.evict = f
}

// Evict ends the request early: its client gets the refusal if its answer has not begun, and else a broken answer. It reports false
// if the request cannot be ended now.
func (r *Reservation) Evict(why *pd.Refusal) bool {
	r.mu.Lock()
	evict := r.evict
	r.evict = nil
	r.mu.Unlock()
	if evict == nil {
		return false
	}
	evict(why)
	return true
}

// end returns what is to be told of it.
func (r *Reservation) end() (e Ender) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.charges {
		r.charges[i].shrink(0)
	}
	e, r.ender, r.evict = r.ender, nil, nil
	return e
}
