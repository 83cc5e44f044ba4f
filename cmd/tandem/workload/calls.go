package workload

import (
	"math"
	"math/rand/v2"
	"time"
)

// Call is one request to send.
type Call struct {
	Due           time.Duration // after the beginning of the round; 0 where calls follow one another
	Input, Output int           // tokens of the prompt and of the answer
	// Blocks are the identities of the prompt's first parts, BlockTokens each. Calls whose lists begin alike have prompts that
	// begin alike. The rest of a prompt is shared with none.
	Blocks      []int64
	BlockTokens int
	// Streams are what the prompt consists of, if it has no Blocks; see Shape.
	Streams []Stream
	// After is the number of the turn before this one in its session, counted from 1 among the calls of the round; 0: it is the first.
	After int
	Think time.Duration // between the answer to that turn, and this one
	Class int           // index in the classes of the source

	session int32 // of a trace, from 1; 0: none
}

// Source makes the calls of a round. The same random numbers give the same calls.
type Source interface {
	Calls(r *rand.Rand, bound Bound) []Call
}

// Bound limits the calls of a round.
type Bound struct {
	Requests int           // at most so many
	Span     time.Duration // and none that is due later
}

// Synthetic draws lengths and arrivals at random.
type Synthetic struct {
	Input, Output Lengths
	Rate          float64 // calls in a second; 0: every call is due at once
	Constant      bool    // arrivals are evenly spaced; otherwise they are a Poisson process
	Share         float64 // part of each prompt that it shares with the others of its group, 0 to 1
	Groups        int     // of prompts that begin alike; at least 1
}

// Calls implements Source.
func (s Synthetic) Calls(r *rand.Rand, bound Bound) (all []Call) {
	due := 0.0 // seconds
	for i := range bound.Requests {
		if s.Rate > 0 {
			due = s.arrival(r, i, due)
			if due >= bound.Span.Seconds() {
				break
			}
		}
		c := Call{Due: time.Duration(due * float64(time.Second)), Input: s.Input.draw(r), Output: s.Output.draw(r)}
		if s.Share > 0 {
			// Prompts of one group may differ in length: a shorter beginning is the beginning of a longer one.
			c.Blocks, c.BlockTokens = []int64{int64(r.IntN(s.Groups))}, int(math.Round(s.Share*float64(c.Input)))
		}
		all = append(all, c)
	}
	return all
}

// arrival returns when call i is due, in seconds, if the one before it was due at before.
func (s Synthetic) arrival(r *rand.Rand, i int, before float64) float64 {
	if s.Constant {
		return float64(i) / s.Rate
	}
	return before + r.ExpFloat64()/s.Rate
}
