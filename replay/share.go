package replay

import "github.com/tandem-serving/tandem/epp"

// sharing has the pickers of a run count each other's load in flight, as package epp/replica does in production.
type sharing struct {
	world *world
	told  [][]epp.InFlight // what the others count, by picker and by the slot of the endpoint
}

// share begins to share, if there are several pickers and they do.
func (w *world) share() {
	if w.options.Sync <= 0 || len(w.pickers) < 2 {
		return
	}
	s := &sharing{world: w}
	for range w.pickers {
		s.told = append(s.told, make([]epp.InFlight, len(w.nodes)))
	}
	w.clock.after(w.options.Sync, s.tell)
}

// tell has every picker tell the others what has changed since the last time.
func (s *sharing) tell() {
	fell := false
	for i, p := range s.world.pickers {
		for slot := range s.told[i] {
			before, now := s.told[i][slot], p.loads.pages[slot].endpoint.Own()
			if before == now {
				continue
			}
			s.told[i][slot] = now
			fell = fell || now.Requests < before.Requests || now.Tokens < before.Tokens
			for j, other := range s.world.pickers {
				if j != i {
					other.loads.pages[slot].endpoint.ChargeOthers(before, now)
				}
			}
		}
	}
	if fell {
		for _, p := range s.world.pickers {
			p.capacity()
		}
	}
	if len(s.world.clock.events) > 0 { // else the run is over
		s.world.clock.after(s.world.options.Sync, s.tell)
	}
}
