package latency

import (
	"math"
	"math/bits"
	"sync/atomic"
)

// A fit is a sum of a few terms, so it misses what comes in steps: an engine whose KV cache is full, a queue that has just begun, prompts
// that wait for each other. A correction learns what remains, as factors by coarse classes of the load, and turns the expected time into
// quantiles. It is shared by the engines of a pool, whose differences the fits know.

// levels are the quantiles that are learnt, and the smallest steps of learning them. The higher one moves less often, so it needs longer ones to follow
// a load that rises and falls within the length of an answer.
var levels = [...]struct{ of, step float64 }{{0.5, 0.01}, {0.9, 0.03}}

// Classes of the load. Those of counts double.
const (
	waitClasses   = 6  // 0, 1, 2–3, 4–7, 8–15, more waiting requests
	usageClasses  = 10 // tenths of the KV cache
	ownClasses    = 10 // 0–63, 64–127, … 16,384 and more tokens to be computed
	aheadClasses  = 10 // 0–255, 256–511, … 65,536 and more tokens of other prompts before them
	answerClasses = 10 // 0, 1, 2–3, … 256 and more answers
	ownUnit       = 64
	aheadUnit     = 256
)

// place is where the load of a prediction is in the tables of a correction.
type place [3]uint8

// placeOf returns the place of a load: waiting requests, used share of the KV cache (0..1), tokens of the prompt to be computed and before it, and answers.
func placeOf(waiting, usage float64, own, ahead int, answers float64) place {
	return place{
		uint8(class(waiting, waitClasses)*usageClasses + min(usageClasses-1, int(usage*usageClasses))),
		uint8(class(float64(own)/ownUnit, ownClasses)*aheadClasses + class(float64(ahead)/aheadUnit, aheadClasses)),
		uint8(class(answers, answerClasses)),
	}
}

// class returns 0 below 1, and from there one more each time that n doubles.
func class(n float64, classes int) int {
	if !(n >= 1) {
		return 0
	}
	return min(classes-1, bits.Len32(uint32(min(n, 1<<30))))
}

// cells of the largest table.
const cells = 100

// correction has tables of factors. Reading them needs no lock; learn must not be called concurrently.
type correction struct {
	tables [len(levels)][len(place{})][cells]atomic.Uint64 // bits of a float64; 0: the factor is 1
	seen   [len(place{})][cells]float64                    // outcomes
}

// factor returns by what an expected time is multiplied to get a quantile.
func (c *correction) factor(level int, at *place) float64 {
	product := 1.0
	for i := range at {
		if bits := c.tables[level][i][at[i]].Load(); bits != 0 {
			product *= math.Float64frombits(bits)
		}
	}
	return product
}

// Steps of learning: a cell's first outcomes move it far, later ones less, but never so little that it could not follow a change: see levels.
const (
	firstStep = 0.3
	slowing   = 10.0 // outcomes after which steps are half of the first
	// farthest is the largest factor of one table.
	farthest = 20.0
)

// learn moves the quantiles towards an outcome that took ratio times as long as the fit expected. A step upwards and a step downwards are in
// the proportion in which outcomes are to lie above and below the quantile, so it comes to rest where they do.
func (c *correction) learn(at *place, ratio float64) {
	for i := range at {
		c.seen[i][at[i]]++
	}
	for l, level := range levels {
		way := level.of
		if ratio < c.factor(l, at) {
			way = level.of - 1
		}
		for i := range at {
			step := max(level.step, firstStep/(1+c.seen[i][at[i]]/slowing))
			cell, before := &c.tables[l][i][at[i]], 1.0
			if bits := cell.Load(); bits != 0 {
				before = math.Float64frombits(bits)
			}
			cell.Store(math.Float64bits(max(1/farthest, min(before*math.Exp(step*way), farthest))))
		}
	}
}
