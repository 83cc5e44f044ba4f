package scorer

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/plugin/producer"
)

// prefixPool is a pool of endpoints, each of which holds 31,250 blocks of prompts of its own.
type prefixPool struct {
	epp.Matcher
	candidates []epp.Candidate
	hashes     rand.PCG
}

func newPrefixPool(tb testing.TB, endpoints int) *prefixPool {
	tb.Helper()
	parameters := producer.NewApproxPrefixCache().(*producer.ApproxPrefixCache)
	parameters.LRUCapacityPerServer = 1 << 18
	index, err := parameters.Build(&epp.Builder{Keep: new(epp.Keep)})
	if err != nil {
		tb.Fatal(err)
	}
	p := &prefixPool{Matcher: index.(epp.Matcher)}
	for i := range endpoints {
		p.candidates = append(p.candidates, epp.Candidate{Endpoint: &epp.Endpoint{Slot: i}, Load: &epp.Load{}})
		for range 31250 / 500 {
			p.learn(p.prompt(500), i)
		}
	}
	return p
}

// prompt makes a new prompt of so many blocks.
func (p *prefixPool) prompt(blocks int) *epp.Prompt {
	prompt := &epp.Prompt{Tokens: blocks * 16, BlockTokens: 16, Blocks: make([]uint64, blocks)}
	for i := range prompt.Blocks {
		prompt.Blocks[i] = p.hashes.Uint64()
	}
	return prompt
}

func (p *prefixPool) learn(prompt *epp.Prompt, endpoint int) {
	p.Learn(nil, prompt, p.candidates[endpoint].Endpoint, p.candidates[endpoint].Load)
}

// beginning returns the first blocks of a prompt.
func beginning(p *epp.Prompt, blocks int) *epp.Prompt {
	return &epp.Prompt{Tokens: blocks * 16, BlockTokens: 16, Blocks: p.Blocks[:blocks]}
}

// check fails if the endpoints hold anything else of a prompt.
func (p *prefixPool) check(tb testing.TB, prompt *epp.Prompt, held func(endpoint int) int) {
	tb.Helper()
	p.Match(nil, prompt, p.candidates)
	for i := range p.candidates {
		if got := p.candidates[i].Cached / 16; got != held(i) {
			tb.Fatalf("endpoint %d holds %d blocks, want %d", i, got, held(i))
		}
	}
}

// BenchmarkPrefix looks a prompt up among 100 endpoints that all hold much else, and scores it: cold, no endpoint knows
// it; staircase, each knows another length of it; mixed, a quarter each knows all, half, the first block and none of it;
// hot, each knows all of it.
// Eight prompts take turns, so that not all of the table that is looked at lies in the processor's cache.
func BenchmarkPrefix(b *testing.B) {
	const endpoints = 100
	instance, err := NewPrefixCache().Build(nil)
	if err != nil {
		b.Fatal(err)
	}
	rate := instance.(epp.Scorer)
	for _, blocks := range []int{128, 512, 8192} {
		pool := newPrefixPool(b, endpoints)
		requests := map[string][]epp.Request{}
		helds := map[string]func(endpoint int) int{ // blocks
			"cold":      func(int) int { return 0 },
			"staircase": func(endpoint int) int { return (endpoint + 1) * blocks / endpoints },
			"mixed":     func(endpoint int) int { return []int{blocks, blocks / 2, 1, 0}[endpoint%4] },
			"hot":       func(int) int { return blocks },
		}
		for range 8 {
			for name, held := range helds {
				prompt := pool.prompt(blocks)
				for i := range endpoints {
					pool.learn(beginning(prompt, held(i)), i)
				}
				requests[name] = append(requests[name], epp.Request{Prompt: *prompt})
			}
		}
		for _, name := range []string{"cold", "staircase", "mixed", "hot"} {
			b.Run(fmt.Sprintf("%d/%s", blocks, name), func(b *testing.B) {
				scores := make([]float64, endpoints)
				r := new(epp.Round)
				pool.check(b, &requests[name][0].Prompt, helds[name])
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					r.Request = &requests[name][i%8]
					pool.Match(nil, &r.Request.Prompt, pool.candidates)
					rate.Score(r, pool.candidates, scores)
				}
			})
		}
	}
}
