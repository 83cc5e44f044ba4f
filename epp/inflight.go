package epp

import "sync/atomic"

// InFlight is the load that was sent to an endpoint and has not ended.
type InFlight struct {
	Requests int
	Tokens   int // prompt tokens still to be computed, as estimated at the pick
}

// word is an InFlight in one word, so that a pick sees both counts of the same moment and can reserve only if they still
// hold: the upper 24 bits count requests, the lower 40 tokens. Charges are words too, and are added and subtracted as
// numbers.
type word uint64

const (
	tokenBits = 40
	maxTokens = 1 << 24 // of one charge: 2^16 requests of that size fit
)

// pack returns the word of one charge, capped so that it never reaches into the count of requests.
func (f InFlight) pack() word {
	return InFlight{Requests: f.Requests, Tokens: max(0, min(f.Tokens, maxTokens))}.word()
}

func (f InFlight) word() word { return word(f.Requests)<<tokenBits + word(f.Tokens) }

func (w word) requests() int { return int(w >> tokenBits) }

// meter counts the load in flight of an endpoint, and tells of its changes. It fills a cache line, so that picks of one
// endpoint do not slow those of another down.
type meter struct {
	count atomic.Uint64
	armed atomic.Bool // turned gets a value with the next request that finds the endpoint idle
	// They are set before the endpoint is used, or never.
	fell   *Publisher
	turned chan<- struct{}
	others atomic.Uint64 // the part of count that is of other pickers
	told   atomic.Uint64 // what other pickers certainly know of the rest
	_      [16]byte
}

// add adds a charge, or a negative one, to the count.
func (m *meter) add(change word) {
	now := word(m.count.Add(uint64(change)))
	m.tell(now-change, now)
}

// addIf adds a charge if the count still is what the caller saw.
func (m *meter) addIf(seen, charge word) bool {
	if !m.count.CompareAndSwap(uint64(seen), uint64(seen+charge)) {
		return false
	}
	m.tell(seen, seen+charge)
	return true
}

// tell tells those who wait for a change.
func (m *meter) tell(before, now word) {
	switch {
	case now < before:
		if m.fell != nil {
			m.fell.Publish(InFlightFell)
		}
	case before.requests() == 0 && m.armed.Load():
		m.turn()
	}
}

// turn tells that an endpoint that was idle has a request.
func (m *meter) turn() {
	if !m.armed.CompareAndSwap(true, false) {
		return
	}
	select {
	case m.turned <- struct{}{}:
	default:
	}
}

// inFlight is the reverse of InFlight.word.
func (w word) inFlight() InFlight {
	return InFlight{Requests: w.requests(), Tokens: int(w & (1<<tokenBits - 1))}
}

// InFlight returns the endpoint's load in flight now: of this picker, and of its replicas as far as they tell it.
func (e *Endpoint) InFlight() InFlight { return word(e.inFlight.count.Load()).inFlight() }

// Own returns the part of InFlight that this picker has sent.
func (e *Endpoint) Own() InFlight {
	for {
		others := e.inFlight.others.Load()
		count := e.inFlight.count.Load()
		// While ChargeOthers changes both, others has a value that is not taken.
		if others&changing == 0 && e.inFlight.others.Load() == others {
			return (word(count) - word(others)).inFlight()
		}
	}
}

// changing is a bit of meter.others, above all that requests fill: the count does not yet have what others has.
const changing = 1 << 63

// ChargeOthers has another load of another picker count, in place of the one that counted for it before. It must not be called at the
// same time for one endpoint.
func (e *Endpoint) ChargeOthers(before, now InFlight) {
	change := now.word() - before.word()
	if change == 0 {
		return
	}
	others := e.inFlight.others.Load()
	e.inFlight.others.Store(others | changing)
	e.inFlight.add(change)
	e.inFlight.others.Store(others + uint64(change))
}

// SetTold notes that other pickers know of a load that this one has in flight on the endpoint.
func (e *Endpoint) SetTold(own InFlight) { e.inFlight.told.Store(uint64(own.word())) }

// Untold returns by how much Own exceeds what other pickers know of it. What they do not know, they may have taken to be free.
func (e *Endpoint) Untold() InFlight {
	own, told := e.Own(), word(e.inFlight.told.Load()).inFlight()
	return InFlight{Requests: max(0, own.Requests-told.Requests), Tokens: max(0, own.Tokens-told.Tokens)}
}

// Watch has all versions of the endpoint publish InFlightFell, and turned, which holds one value, get one as Arm says. Both
// may be nil. It must be called before the endpoint is used.
func (e *Endpoint) Watch(fell *Publisher, turned chan<- struct{}) {
	e.inFlight.fell, e.inFlight.turned = fell, turned
}

// Arm has the next request that is charged to the endpoint while it has none in flight put a value into the channel of Watch,
// once. A caller that reads InFlight after Arm misses no request. Picks pay for the value only once for each Arm.
func (e *Endpoint) Arm() { e.inFlight.armed.Store(true) }
