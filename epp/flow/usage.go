package flow

import "math"

// Usage says up to which saturation of the pool requests of each priority pass. 1 is a full pool. The zero value lets all pass until
// the pool is full.
type Usage struct {
	Policy UsagePolicy
	// Ceiling is the saturation from which requests wait: all of them (StaticUsage), or those of the highest priority (Holdback).
	// 0 = 1.
	Ceiling float64
	// Least is the saturation from which requests of the lowest priority wait (Holdback).
	Least float64
	// ByValue spaces the ceilings between Ceiling and Least as the priorities are spaced; otherwise they are equal steps apart
	// (Holdback).
	ByValue bool
}

// UsagePolicy says how ceilings depend on priorities.
type UsagePolicy uint8

// The usage policies.
const (
	// StaticUsage has one ceiling for all priorities.
	StaticUsage UsagePolicy = iota
	// Holdback has lower ceilings for lower priorities, so that capacity is left for higher ones.
	Holdback
	// SoftReflective lets lower priorities pass at a lower rate the fuller the pool is. The ceiling of the band at index i of n is
	// 1 - i·saturation/(n-1). From it on, one turn in saturation/(1-saturation) is open for the band. A turn is a look for requests
	// that may pass; each request that passes ends it.
	SoftReflective
)

// ranked reports whether ceilings depend on the priorities that have requests.
func (u *Usage) ranked() bool { return u.Policy != StaticUsage }

// ceiling returns the saturation from which requests of the priority at index rank wait. priorities are in descending order; a
// policy that is not ranked does not need them. paused reports that they wait only until a later turn.
func (u *Usage) ceiling(saturation float64, priorities []int, rank int, turn uint64) (ceiling float64, paused bool) {
	top := u.Ceiling
	if top == 0 {
		top = 1
	}
	last := len(priorities) - 1
	switch {
	case last < 1, u.Policy == StaticUsage:
		return top, false
	case u.Policy == SoftReflective:
		return softReflective(saturation, float64(rank)/float64(last), turn)
	case u.ByValue:
		highest, lowest := float64(priorities[0]), float64(priorities[last])
		return u.Least + (float64(priorities[rank])-lowest)/(highest-lowest)*(top-u.Least), false
	}
	return top - float64(rank)/float64(last)*(top-u.Least), false
}

// certain returns a saturation below which requests of the priority at index rank pass in every turn.
func (u *Usage) certain(priorities []int, rank int) float64 {
	if last := len(priorities) - 1; u.Policy == SoftReflective && last >= 1 {
		return 1 / (1 + float64(rank)/float64(last)) // where the saturation meets 1 - place·saturation
	}
	ceiling, _ := u.ceiling(0, priorities, rank, 0)
	return ceiling
}

// softReflective returns the ceiling of a band whose place is between 0, the highest priority, and 1, the lowest.
func softReflective(saturation, place float64, turn uint64) (ceiling float64, paused bool) {
	switch {
	case place == 0 || saturation < 1-place*saturation:
		return 1, false
	case saturation >= 1:
		return 0, false
	}
	if period := uint64(max(1, math.Round(saturation/(1-saturation)))); turn%period != 0 {
		return 0, true
	}
	return 1, false
}
