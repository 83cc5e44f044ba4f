package replay

import (
	"slices"

	"github.com/tandem-serving/tandem/epp"
)

// sharing has the pickers of a run count each other's load in flight, and learn each other's prompts, as package epp/replica does in
// production.
type sharing struct {
	world    *world
	told     [][]epp.InFlight               // what the others count, by picker and by the slot of the endpoint
	matchers []map[string]epp.SharedMatcher // of each picker, by SharedAs
	learned  [][]learned                    // by each picker since it told the others
}

// learned is a prompt that a picker's matcher has learned.
type learned struct {
	by     string // SharedAs of the matcher
	slot   int    // of the endpoint
	blocks []uint64
}

// share begins to share, if there are several pickers and they do.
func (w *world) share() {
	if !w.shares() {
		return
	}
	s := &sharing{world: w, learned: make([][]learned, len(w.pickers))}
	for i, p := range w.pickers {
		s.told = append(s.told, make([]epp.InFlight, len(w.nodes)))
		s.matchers = append(s.matchers, map[string]epp.SharedMatcher{})
		for _, m := range p.shared {
			name := m.SharedAs()
			s.matchers[i][name] = m
			m.Share(func(e *epp.Endpoint, blocks []uint64) {
				s.learned[i] = append(s.learned[i], learned{name, e.Slot, slices.Clone(blocks)})
			})
		}
	}
	w.clock.after(w.options.Sync, s.tell)
}

// shares reports whether the pickers of the run tell each other anything.
func (w *world) shares() bool { return w.options.Sync > 0 && w.options.Replicas > 1 }

// others returns how many other pickers tell a picker their loads; nil: none do.
func (w *world) others() func() int {
	if !w.shares() {
		return nil
	}
	return func() int { return w.options.Replicas - 1 }
}

// tell has every picker tell the others what has changed since the last time.
func (s *sharing) tell() {
	changed := false
	for i, p := range s.world.pickers {
		for slot := range s.told[i] {
			e := p.loads.pages[slot].endpoint
			before, now := s.told[i][slot], e.Own()
			if before == now {
				continue
			}
			s.told[i][slot] = now
			changed = true
			e.SetTold(now)
			for j, other := range s.world.pickers {
				if j != i {
					other.loads.pages[slot].endpoint.ChargeOthers(before, now)
				}
			}
		}
		s.teach(i)
	}
	if changed {
		for _, p := range s.world.pickers {
			p.capacity()
		}
	}
	if len(s.world.clock.events) > 0 { // else the run is over
		s.world.clock.after(s.world.options.Sync, s.tell)
	}
}

// teach has the other pickers learn what one has learned.
func (s *sharing) teach(from int) {
	for _, one := range s.learned[from] {
		for i, p := range s.world.pickers {
			if m := s.matchers[i][one.by]; m != nil && i != from {
				m.LearnShared(p.loads.pages[one.slot].endpoint, one.blocks, &p.loads.loads[one.slot])
			}
		}
	}
	s.learned[from] = s.learned[from][:0]
}
