package affinity

import (
	"container/list"
	"sync"

	"github.com/tandem-serving/tandem/epp"
)

// Media remembers, by slot, which images, audio and video each endpoint has encoded lately. It is the instance of a MediaProducer,
// and safe for concurrent use.
type Media struct {
	size    int    // most items of an endpoint
	profile string // of the endpoints that encode, where a stage of its own does
	*encoded
}

// encoded is what outlives a reload.
type encoded struct {
	mu     sync.RWMutex
	bySlot map[int]*items
}

// items are the hashes of one endpoint's items, the latest first.
type items struct {
	at    map[uint64]*list.Element
	order list.List // of uint64
}

// rate sets the scores of candidates to the share of a request's items that each has encoded.
func (m *Media) rate(wanted []uint64, c []epp.Candidate, scores []float64) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for i := range c {
		known, n := m.bySlot[c[i].Slot], 0
		if known == nil {
			continue
		}
		for _, item := range wanted {
			if known.at[item] != nil {
				n++
			}
		}
		scores[i] = float64(n) / float64(len(wanted))
	}
}

// Picked implements epp.PickObserver: the endpoints that encode a request's items will have them.
func (m *Media) Picked(r *epp.Round, _ []epp.Candidate, d *epp.Decision) {
	media := r.Request.Prompt.Media
	if len(media) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.encoders(d) {
		m.learn(e, media)
	}
}

// encoders returns the endpoints that encode a request's items: those of the encode profile if it ran, else the one that computes the
// prompt.
func (m *Media) encoders(d *epp.Decision) (encoders []*epp.Endpoint) {
	for i := range d.Picks {
		switch pick := &d.Picks[i]; {
		case pick.Row.Profile == m.profile:
			return pick.Endpoints
		case pick.Row.Computes:
			encoders = pick.Endpoints[:1]
		}
	}
	return encoders
}

func (m *Media) learn(e *epp.Endpoint, media []uint64) {
	known := m.bySlot[e.Slot]
	if known == nil {
		known = &items{at: make(map[uint64]*list.Element)}
		m.bySlot[e.Slot] = known
	}
	for _, item := range media {
		if at := known.at[item]; at != nil {
			known.order.MoveToFront(at)
			continue
		}
		known.at[item] = known.order.PushFront(item)
	}
	for len(known.at) > m.size {
		delete(known.at, known.order.Remove(known.order.Back()).(uint64))
	}
}

// EndpointJoined implements epp.EndpointObserver.
func (*encoded) EndpointJoined(*epp.Endpoint) {}

// EndpointLeft implements epp.EndpointObserver.
func (k *encoded) EndpointLeft(e *epp.Endpoint) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.bySlot, e.Slot)
}
