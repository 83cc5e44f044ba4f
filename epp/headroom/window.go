package headroom

import (
	"math"
	"time"
)

// Ratios of a time to its goal are counted in classes that differ by 2 %, from a twentieth to twenty times the goal.
const (
	classes     = 304
	lowestRatio = 0.05
	classFactor = 1.02
)

// slots is how many parts a window has: what is older than the window is forgotten a slot at a time.
const slots = 16

// window counts the ratios of the latest requests. It is for one goroutine at a time.
type window struct {
	width time.Duration // of a slot
	parts [slots][classes]uint16
	total [classes]uint32 // of all parts
	n     uint32
	at    int64 // number of the newest slot since the epoch
}

// class returns that of a ratio.
func class(ratio float64) int {
	if !(ratio > lowestRatio) {
		return 0
	}
	return min(classes-1, int(math.Ceil(math.Log(ratio/lowestRatio)/math.Log(classFactor))))
}

// top returns the largest ratio of a class, but for the last one, which has no bound.
func top(class int) float64 { return lowestRatio * math.Pow(classFactor, float64(class)) }

// add counts a ratio. A slot takes no more than 65,535 of a class: by then one more or less is nothing.
func (w *window) add(now time.Time, ratio float64) {
	w.forget(now)
	c := class(ratio)
	if part := &w.parts[w.at%slots][c]; *part < math.MaxUint16 {
		*part++
		w.total[c]++
		w.n++
	}
}

// forget empties the slots that are too old. If the clock was set back by more than the window, that is all of them.
func (w *window) forget(now time.Time) {
	at := now.UnixNano() / int64(w.width)
	if at < w.at-slots {
		*w = window{width: w.width, at: at}
	}
	for range min(slots, at-w.at) {
		w.at++
		w.empty(&w.parts[w.at%slots])
	}
	w.at = max(w.at, at)
}

func (w *window) empty(part *[classes]uint16) {
	if w.n == 0 {
		return
	}
	for c, n := range part {
		w.total[c] -= uint32(n)
		w.n -= uint32(n)
	}
	*part = [classes]uint16{}
}

// quantile returns the ratio that the share of the latest requests has not exceeded; false if there were none.
func (w *window) quantile(now time.Time, share float64) (ratio float64, ok bool) {
	if w.forget(now); w.n == 0 {
		return 0, false
	}
	longer := uint32(float64(w.n) * (1 - share)) // requests that may exceed it
	for c := classes - 1; c > 0; c-- {
		if w.total[c] > longer {
			return top(c), true
		}
		longer -= w.total[c]
	}
	return top(0), true
}
