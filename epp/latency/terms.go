package latency

import (
	"github.com/tandem-serving/tandem/epp"
)

// The terms of the time to compute a prompt, in seconds each:
//
//   - what every prompt takes: a step, a request;
//   - for each 1,000 tokens to be computed;
//   - for each 100,000 pairs of 1,000 tokens that attention compares: those to be computed with what is before them;
//   - for each 1,000 tokens of other prompts that are computed before;
//   - for each 16 answers that the engine generates meanwhile;
//   - for each 1,000 cached tokens that are loaded from the host's memory, from disks and from a shared store, which are three terms.
//
// The prior is between the engines whose step times are published: 7 to 28 ms for the shortest prompt, 11 to 66 ms for 1,000 tokens, 0.3
// to 3.4 ms for the square of 1,000 tokens. What loading takes is that of 320 KiB a token, as of a model with 70 billion parameters, at 50 GB/s over
// PCIe, 6 GB/s from an SSD and 12 GB/s over a network of 100 Gbit/s.
var promptPrior = usual(vector{0.020, 0.050, 0.05, 0.050, 0.005, 0.007, 0.055, 0.027}, vector{0.020, 0.050, 0.10, 0.050, 0.010, 0.010, 0.100, 0.100})

// loadTerm is the index of the first of the terms about loading.
const loadTerm = 5

func promptTerms(p part, ahead int, answers float64) vector {
	n := kilo(p.own())
	x := vector{1, n, n * (kilo(p.cached) + n/2) / 100, kilo(ahead), answers / 16}
	for i, tokens := range p.loads {
		x[loadTerm+i] = kilo(int(tokens))
	}
	return x
}

// part is the tokens of a prompt, and how many of them are cached where it is computed.
type part struct {
	tokens, cached int
	loads          epp.Loads // of the cached ones
}

// own returns how many are computed.
func (p *part) own() int { return max(0, p.tokens-p.cached) }

// The terms of the time from a computed prompt to the first token that another engine generates: what every hand-off takes, each 1,000
// tokens whose KV cache moves, and each 16 answers that the engine generates meanwhile. 320 KiB a token at 50 GB/s are 7 ms for 1,000.
var handoffPrior = usual(vector{0.030, 0.007, 0.005}, vector{0.030, 0.010, 0.010})

// movedTerm is the index of the term about the tokens that move.
const movedTerm = 1

func handoffTerms(moved int, answers float64) vector { return vector{1, kilo(moved), answers / 16} }

// The terms of the time of a step that generates a token for each answer, besides the tokens of prompts that the engine computes meanwhile: what
// every step takes, each 16 answers, each 100,000 tokens of their contexts, and 10 prompts that the engine computes in a second, however short they
// are: a step with a few tokens of a prompt takes longer than one without. The prior is between the engines whose step times are published: 6 to
// 28 ms, 0.01 to 0.07 ms for an answer, 0.03 to 0.2 ms for 1,000 tokens of context.
var tokenPrior = usual(vector{0.015, 0.0005, 0.004, 0.0005}, vector{0.015, 0.001, 0.004, 0.0005})

func tokenTerms(answers, context, prompts float64) vector {
	return vector{1, answers / 16, context / 100_000, prompts / 10}
}

// usual returns a prior of which nothing is known but that engines of its kind exist.
func usual(w, scale vector) prior { return prior{usual: w, w: w, scale: scale, trust: 1} }

// inPool is how well the weights of the whole pool are taken to fit one of its engines, or pairs of engines, as a share of each weight.
const inPool = 0.3

// of returns the prior of one engine, given the weights of the pool.
func (p *prior) of(pool *vector) prior {
	one := prior{usual: p.usual, w: *pool, trust: inPool}
	for i, scale := range p.scale {
		if scale > 0 {
			one.scale[i] = max(pool[i], scale/10)
		}
	}
	return one
}

func kilo(tokens int) float64 { return float64(max(0, tokens)) / 1000 }

// contextOf returns how many tokens the answers have before them that an engine generates, 0 if its page does not tell.
func contextOf(l *epp.Load) float64 {
	return usageOf(l) * float64(l.Cache.Blocks) * float64(l.Cache.BlockTokens)
}

// usageOf returns the used share of the KV cache, from 0 to 1; 0 if the page does not tell.
func usageOf(l *epp.Load) float64 {
	usage, _ := l.Signals.Value(epp.KVUsage)
	if !(usage > 0) {
		return 0
	}
	return min(usage, 1)
}

// answersOf returns how many answers the engine generates or waits to: those on its page and those sent since, without the one whose
// time is asked for.
func answersOf(l *epp.Load, sent epp.InFlight) float64 {
	c := epp.Candidate{Load: l, InFlight: sent}
	running, _ := c.Running()
	return running
}

// Computing returns how many of the requests in flight to an endpoint still need its engine's time until their first token: those that wait or run by its
// page, and those that were sent since. The others' prompts are computed, and wait for a decode engine that is full.
func Computing(l *epp.Load, sent epp.InFlight) float64 {
	running, known := l.Signals.Value(epp.Running)
	waiting, also := l.Signals.Value(epp.Waiting)
	if !known || !also {
		return float64(sent.Requests)
	}
	return min(float64(sent.Requests), max(0, running)+max(0, waiting)+float64(max(0, sent.Requests-l.Sent.Requests)))
}

// aheadOf returns how many tokens of prompts the engine computes before another one: the part of those in flight that Computing says.
func aheadOf(l *epp.Load, sent epp.InFlight) int {
	if sent.Requests <= 0 {
		return sent.Tokens
	}
	return int(float64(sent.Tokens) * Computing(l, sent) / float64(sent.Requests))
}
