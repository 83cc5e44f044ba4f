package prefix

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
)

// chains makes new chains of block hashes, no block of which is in another.
type chains struct{ rand.PCG }

func (c *chains) next(n int) []uint64 {
	chain := make([]uint64, n)
	for i := range chain {
		chain[i] = c.Uint64()
	}
	return chain
}

func endpoints(n int) []*epp.Endpoint {
	all := make([]*epp.Endpoint, n)
	for i := range all {
		all[i] = &epp.Endpoint{Slot: i}
	}
	return all
}

const capacity = 31250 // blocks, llm-d's default

// fill makes an index in which each endpoint's cache is full of chains that only it has.
func fill(c *chains, to []*epp.Endpoint) *Index {
	x := new(Index)
	for _, e := range to {
		for held := 0; held < capacity; held += 500 {
			x.Add(e, c.next(500), capacity)
		}
	}
	return x
}

// BenchmarkAdd adds prompts to the full index of 64 endpoints, so that each new block makes an old one go. Of each prompt a
// part is known before, as of one with a long system prompt, and the rest new, which includes the time to make it up.
func BenchmarkAdd(b *testing.B) {
	for _, bench := range []struct{ known, fresh int }{{0, 512}, {0, 8192}, {448, 64}, {8128, 64}, {512, 0}, {8192, 0}} {
		b.Run(fmt.Sprintf("known=%d/new=%d", bench.known, bench.fresh), func(b *testing.B) {
			c := new(chains)
			to := endpoints(64)
			x := fill(c, to)
			prompt := c.next(bench.known + bench.fresh)
			for _, e := range to {
				x.Add(e, prompt[:bench.known], capacity)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				for j := range prompt[bench.known:] {
					prompt[bench.known+j] = c.Uint64()
				}
				x.Add(to[i%len(to)], prompt, capacity)
			}
		})
	}
}

// BenchmarkMatch looks a prompt up that 100 endpoints hold to different lengths: in one piece, with other prompts leaving it
// every so many blocks, and while prompts of 8,192 blocks are added without a pause. p99 is of the single lookups.
func BenchmarkMatch(b *testing.B) {
	for _, bench := range []struct{ blocks, every, writers int }{
		{512, 512, 0}, {512, 512, 1}, {512, 16, 0}, {8192, 64, 0}, {8192, 1, 0},
	} {
		b.Run(fmt.Sprintf("blocks=%d/branch-every=%d/writers=%d", bench.blocks, bench.every, bench.writers), func(b *testing.B) {
			c := new(chains)
			to := endpoints(101)
			x := fill(c, to)
			prompt, pool := c.next(bench.blocks), make([]epp.Candidate, 100)
			for at := bench.every; at < len(prompt); at += bench.every {
				x.Add(to[at/bench.every%len(to)], append(prompt[:at:at], c.next(1)...), capacity)
			}
			for i := range pool {
				pool[i].Endpoint = to[i]
				x.Add(to[i], prompt[:bench.blocks*i/99], capacity)
			}
			var done atomic.Bool
			var wg sync.WaitGroup
			for range bench.writers {
				wg.Go(func() {
					for !done.Load() {
						x.Add(to[100], c.next(8192), capacity)
					}
				})
			}
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				x.Match(prompt, 16, pool)
				took = append(took, time.Since(start))
			}
			done.Store(true)
			wg.Wait()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
		})
	}
}

// BenchmarkForget clears an endpoint that holds 50,000 blocks beside 63 others.
func BenchmarkForget(b *testing.B) {
	c := new(chains)
	to := endpoints(64)
	x := fill(c, to)
	for b.Loop() {
		b.StopTimer()
		for range 100 {
			x.Add(to[0], c.next(500), 50_000)
		}
		b.StartTimer()
		x.EndpointLeft(to[0])
	}
}

// BenchmarkMemory reports the bytes for one block at one endpoint, in a full index.
func BenchmarkMemory(b *testing.B) {
	for _, bench := range []struct {
		name   string
		prompt int // blocks
		shared bool
	}{
		{"alone/500", 500, false},
		{"alone/30", 30, false},
		{"alone/8", 8, false},
		{"alone/1", 1, false},
		{"shared/500", 500, true},
	} {
		b.Run(bench.name, func(b *testing.B) {
			to := endpoints(64)
			var before, after runtime.MemStats
			for b.Loop() {
				runtime.GC()
				runtime.ReadMemStats(&before)
				x, c := new(Index), new(chains)
				for _, e := range to {
					if bench.shared {
						*c = chains{}
					}
					for held := 0; held < capacity*5/4; held += bench.prompt {
						x.Add(e, c.next(bench.prompt), capacity)
					}
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(x.blocks.Load()), "B/membership")
			}
		})
	}
}
