package epp

import "sync"

// Reservation is the load one request puts on the endpoints it was sent to, charged at the pick. End takes back all that
// is left of it, exactly once, however often and from wherever it is called.
type Reservation struct {
	mu      sync.Mutex
	decode  held
	prefill held
	// keep leaves the decode endpoint's tokens charged until the end, because they stand for what will be generated.
	keep  bool
	ended bool
}

// held is a charge to one endpoint; to is nil if there is none.
type held struct {
	to     *Endpoint
	charge InFlight
}

func (h *held) drop() {
	if h.to != nil {
		h.to.discharge(h.charge)
		*h = held{}
	}
}

// Claim is one endpoint with the charge that is meant for it.
type Claim struct {
	Endpoint *Endpoint
	Seen     InFlight // the endpoint's load when the pick began
	Add      InFlight
}

// Reserve charges the claims of a pick: decode's, and prefill's if its Endpoint is not nil. It fails, charging nothing, if
// the load of one of them is no longer what the pick saw: then it should be made again, lest a burst of requests that all
// saw the same idle endpoint all go there. keep: see Charge.Output.
func Reserve(decode, prefill Claim, keep bool) (*Reservation, bool) {
	if !decode.Endpoint.chargeIf(decode.Seen, decode.Add) {
		return nil, false
	}
	r := &Reservation{decode: held{decode.Endpoint, decode.Add}, keep: keep}
	if prefill.Endpoint == nil {
		return r, true
	}
	if prefill.Endpoint.Is(decode.Endpoint) {
		prefill.Endpoint.charge(prefill.Add)
	} else if !prefill.Endpoint.chargeIf(prefill.Seen, prefill.Add) {
		r.End()
		return nil, false
	}
	r.prefill = held{prefill.Endpoint, prefill.Add}
	return r, true
}

// Insist charges the claims whatever the endpoints' load is by now.
func Insist(decode, prefill Claim, keep bool) *Reservation {
	r := &Reservation{decode: held{decode.Endpoint, decode.Add}, keep: keep}
	decode.Endpoint.charge(decode.Add)
	if prefill.Endpoint != nil {
		prefill.Endpoint.charge(prefill.Add)
		r.prefill = held{prefill.Endpoint, prefill.Add}
	}
	return r
}

// Decode is the endpoint charged for decoding, nil after End.
func (r *Reservation) Decode() *Endpoint {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.decode.to
}

// Move charges another decode endpoint instead, because it is the one that served. After End it does nothing.
func (r *Reservation) Move(to *Endpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || to.Is(r.decode.to) {
		return
	}
	charge := r.decode.charge
	r.decode.drop()
	to.charge(charge)
	r.decode = held{to, charge}
}

// Answered tells that the answer has begun: the prompt is computed, on whichever endpoint, so prefill's charge ends and
// decode's tokens do.
func (r *Reservation) Answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.prefill.drop()
	if r.decode.to != nil && !r.keep {
		r.decode.to.discharge(InFlight{Tokens: r.decode.charge.Tokens})
		r.decode.charge.Tokens = 0
	}
}

// End takes back everything that is still charged.
func (r *Reservation) End() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.prefill.drop()
	r.decode.drop()
}
