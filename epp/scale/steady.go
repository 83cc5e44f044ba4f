package scale

import "time"

// reversal is how long after a change of direction no other one is made that takes replicas away.
const reversal = 10 * time.Minute

// steady turns what a role needs into a size that does not follow every movement of the load. The zero value has no size yet.
type steady struct {
	size     int
	soon     int // the size at the next moment, if no more is needed than before; counts only after the first call of follow
	begun    time.Time
	needed   []need // within the window, the earliest first
	grew     bool   // the last change was an increase
	reversed time.Time
}

// need is what was needed at a time if there were a little more load.
type need struct {
	at       time.Time
	replicas int
}

// follow returns the size after a moment at which so many replicas were needed, and so many with a little more load. Before the first call
// there are as many as now. window is how long fewer must have been enough before the size falls.
func (s *steady) follow(now time.Time, needed, withMore, current int, limits Limits) int {
	if s.begun.IsZero() {
		s.begun, s.size = now, current
	}
	s.needed = append(s.needed, need{now, withMore})
	most, kept := 0, s.needed[:0]
	for _, n := range s.needed {
		if now.Sub(n.at) <= limits.Window {
			kept, most = append(kept, n), max(most, n.replicas)
		}
	}
	s.needed = kept
	switch {
	case needed > s.size:
		s.turn(now, true)
		s.size = needed
	case most < s.size && s.mayFall(now, limits):
		s.turn(now, false)
		s.size = most
	}
	s.size = max(limits.Min, min(s.size, limits.Max))
	s.soon = s.foresee(now.Add(Interval), limits)
	return s.size
}

// foresee returns the size at the next moment, if no more is needed then than was within the window.
func (s *steady) foresee(next time.Time, limits Limits) int {
	most := 0
	for _, n := range s.needed {
		if next.Sub(n.at) <= limits.Window {
			most = max(most, n.replicas)
		}
	}
	if most >= s.size || !s.mayFall(next, limits) {
		return s.size
	}
	return max(limits.Min, most)
}

// mayFall reports whether the size may fall at a moment, if fewer were enough until then.
func (s *steady) mayFall(now time.Time, limits Limits) bool {
	return now.Sub(s.begun) >= limits.Window && !(s.grew && now.Sub(s.reversed) < reversal)
}

// wake makes the size 1 if it is 0.
func (s *steady) wake(now time.Time) (woken bool) {
	if s.size > 0 {
		return false
	}
	if s.begun.IsZero() {
		s.begun = now
	}
	s.turn(now, true)
	s.size, s.soon = 1, 1
	return true
}

func (s *steady) turn(now time.Time, grow bool) {
	if grow != s.grew {
		s.grew, s.reversed = grow, now
	}
}
