package kvindex

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	benchBlock = 16
	longBlocks = 8192 // a prompt of 128k tokens
	event      = 16   // blocks that one message stores
)

func randomTokens(n int) []uint32 {
	random := rand.New(rand.NewPCG(uint64(n), 7))
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = random.Uint32N(150_000)
	}
	return tokens
}

// writer stores new prompts of 64 blocks, four messages each, whose names and tokens are made up as fast as possible.
type writer struct {
	h      *Holder
	tokens []uint32
	names  [event]uint64
	next   uint64
}

func newWriter(h *Holder, kind uint64) *writer {
	return &writer{h: h, next: kind << 40, tokens: randomTokens(event * benchBlock)}
}

// name returns the name of a block. Where names are keys, their bits are spread.
func (w *writer) name(n uint64) uint64 {
	if w.h.index.Named() {
		return n * mix1
	}
	return n
}

// store stores the next message.
func (w *writer) store(tb testing.TB) {
	first := w.next/event%4 == 0
	parent := w.name(w.next)
	for i := range w.names {
		w.next++
		w.names[i] = w.name(w.next)
	}
	w.tokens[0], w.tokens[1] = uint32(w.next), uint32(w.next>>32)
	s := Stored{Names: w.names[:], First: first, Parent: parent, Root: 1, Tokens: w.tokens}
	if err := w.h.Store(&s); err != nil {
		tb.Fatal(err)
	}
}

// remove removes the blocks of a message that was stored n messages ago.
func (w *writer) remove(n uint64) {
	for i := range uint64(event) {
		w.h.Remove(GPU, w.name(w.next-n*event-i))
	}
}

// fleet makes an index in which pods have the beginning of a prompt, ragged ones each another length, and others others' blocks.
func fleet(tb testing.TB, pods, beside int, ragged bool) (x *Index, hot []*Holder, tokens []uint32) {
	x = New(testSeed, 1<<40)
	hot, tokens = fleetOf(tb, x, pods, beside, ragged)
	return x, hot, tokens
}

// fleetOf does the same to an empty index.
func fleetOf(tb testing.TB, x *Index, pods, beside int, ragged bool) (hot []*Holder, tokens []uint32) {
	tokens = randomTokens(longBlocks * benchBlock)
	own := Seed(99).Append(nil, 1, 0, benchBlock, tokens)
	for i := range pods {
		n := longBlocks
		if ragged {
			n = longBlocks * (i + 1) / pods
		}
		h := x.Join()
		hot = append(hot, h)
		if err := h.Store(&Stored{Names: own[:n], First: true, Root: x.seed.Root(benchBlock, nil), Tokens: tokens[:n*benchBlock]}); err != nil {
			tb.Fatal(err)
		}
	}
	for i := range pods {
		w := newWriter(hot[i], uint64(i+1))
		for range beside / pods / event {
			w.store(tb)
		}
	}
	runtime.GC()
	return hot, tokens
}

// percentiles reports the least of durations, which on a busy machine was interrupted least, the median and the 99th percentile.
func percentiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	b.ReportMetric(float64(took[0].Nanoseconds()), "least-ns")
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns")
}

// BenchmarkMeasure looks up and scores 128k tokens over 100 pods which have 4 million other blocks. The cases differ in whether all
// pods have the whole prompt, or each another part of it, and whether another goroutine stores and removes a million blocks a second
// meanwhile.
func BenchmarkMeasure(b *testing.B) {
	for _, ragged := range []bool{false, true} {
		x, hot, tokens := fleet(b, 100, 4_000_000, ragged)
		keys := x.seed.Append(nil, x.seed.Root(benchBlock, nil), 0, benchBlock, tokens)
		for _, blocks := range []int{512, longBlocks} {
			for _, busy := range []bool{false, true} {
				b.Run(fmt.Sprintf("ragged=%v/blocks=%d/busy=%v", ragged, blocks, busy), func(b *testing.B) {
					var stop atomic.Bool
					var writing sync.WaitGroup
					var stored atomic.Int64
					if busy {
						writing.Go(func() {
							w := newWriter(x.Join(), 1000)
							began := time.Now()
							for n := 0; !stop.Load(); n++ {
								if w.store(b); n >= 1000 {
									w.remove(1000)
								}
								stored.Add(2 * event)
								for time.Since(began).Seconds()*1e6 < float64(stored.Load()) && !stop.Load() {
									runtime.Gosched()
								}
							}
							w.h.Leave()
						})
					}
					var d Depths
					took := make([]time.Duration, 0, 1<<20)
					b.ReportAllocs()
					sum := 0
					for b.Loop() {
						began := time.Now()
						x.Measure(keys[:blocks], &d)
						for _, h := range hot {
							sum += d.Of(h)
						}
						if len(took) < cap(took) {
							took = append(took, time.Since(began))
						}
					}
					if sum == 0 {
						b.Fatal("nothing was found")
					}
					stop.Store(true)
					writing.Wait()
					percentiles(b, took)
					b.ReportMetric(float64(stored.Load())/b.Elapsed().Seconds(), "changes/s")
				})
			}
		}
	}
}

// BenchmarkTiers looks up 128k tokens over 100 pods which have 4 million other blocks. Each has another part of the prompt in the accelerator's
// memory, and all of it in the host's. An operation of offload is what an engine tells of 16 blocks that move: they are in the host's memory
// too, leave the accelerator's, and then the host's.
func BenchmarkTiers(b *testing.B) {
	b.Run("measure", func(b *testing.B) {
		x, hot, tokens := fleet(b, 100, 4_000_000, true)
		all := Seed(99).Append(nil, 1, 0, benchBlock, tokens)
		root := x.seed.Root(benchBlock, nil)
		for _, h := range hot {
			if err := h.Store(&Stored{Tier: CPU, Names: all, First: true, Root: root, Tokens: tokens}); err != nil {
				b.Fatal(err)
			}
		}
		keys := x.seed.Append(nil, root, 0, benchBlock, tokens)
		var d Depths
		took := make([]time.Duration, 0, 1<<20)
		b.ReportAllocs()
		for b.Loop() {
			began, sum := time.Now(), 0
			x.Measure(keys, &d)
			for _, h := range hot {
				sum += d.UpTo(h, CPU)
			}
			if sum != len(hot)*longBlocks {
				b.Fatal("not all is found")
			}
			if len(took) < cap(took) {
				took = append(took, time.Since(began))
			}
		}
		percentiles(b, took)
	})
	b.Run("offload", func(b *testing.B) {
		x, _, _ := fleet(b, 10, 1_000_000, false)
		w := newWriter(x.Join(), 1000)
		store := func() {
			w.store(b)
			for _, name := range w.names {
				if err := w.h.Keep(CPU, name, w.h); err != nil {
					b.Fatal(err)
				}
			}
		}
		for range 2000 {
			store()
		}
		b.ReportAllocs()
		for b.Loop() {
			store()
			w.remove(1000)
			for i := range uint64(event) {
				w.h.Remove(CPU, w.next-2000*event-i)
			}
		}
		b.ReportMetric(4*event*float64(b.N)/b.Elapsed().Seconds(), "changes/s")
	})
	b.Run("memory", func(b *testing.B) {
		for b.Loop() {
			before := live()
			x, hot, _ := fleet(b, 8, 4_000_000, false)
			for i, h := range hot {
				for name := range uint64(4_000_000 / len(hot) / event * event) {
					if err := h.Keep(CPU, uint64(i+1)<<40+name+1, h); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(live()-before)/float64(x.Blocks()), "B/block")
			runtime.KeepAlive(hot) // and with them the index
		}
	})
}

// BenchmarkKeys hashes 128k tokens.
func BenchmarkKeys(b *testing.B) {
	tokens := randomTokens(longBlocks * benchBlock)
	var keys []Key
	took := make([]time.Duration, 0, 1<<20)
	b.ReportAllocs()
	for b.Loop() {
		began := time.Now()
		keys = testSeed.Append(keys[:0], 1, 0, benchBlock, tokens)
		if len(took) < cap(took) {
			took = append(took, time.Since(began))
		}
	}
	percentiles(b, took)
}

// BenchmarkStore stores and removes blocks of one pod beside a million others. An operation stores a message of 16 blocks, and
// removes another one.
func BenchmarkStore(b *testing.B) { benchmarkStore(b, New(testSeed, 1<<40)) }

func benchmarkStore(b *testing.B, x *Index) {
	fleetOf(b, x, 10, 1_000_000, false)
	w := newWriter(x.Join(), 1000)
	for range 2000 {
		w.store(b)
	}
	b.ReportAllocs()
	for b.Loop() {
		w.store(b)
		w.remove(2000)
	}
	b.ReportMetric(2*event*float64(b.N)/b.Elapsed().Seconds(), "changes/s")
}

// BenchmarkClear stores a million blocks of a pod, clears it, and cleans up after it. The metrics are the latter two.
func BenchmarkClear(b *testing.B) {
	x := New(testSeed, 1<<40)
	h := x.Join()
	var cleared, swept time.Duration
	for i := uint64(0); b.Loop(); i++ {
		for w := newWriter(h, i); h.Len() < 1_000_000; {
			w.store(b)
		}
		began := time.Now()
		h.Clear()
		cleared += time.Since(began)
		for began = time.Now(); !x.Sweep(); {
		}
		swept += time.Since(began)
	}
	b.ReportMetric(float64(cleared.Nanoseconds())/float64(b.N), "clear-ns")
	b.ReportMetric(float64(swept.Nanoseconds())/float64(b.N), "sweep-ns")
}

// BenchmarkClaim claims 128k tokens for a pod, of which the pods have all but the last 64 blocks, and in turn all of them.
func BenchmarkClaim(b *testing.B) {
	x, _, tokens := fleet(b, 100, 0, false)
	keys := x.seed.Append(nil, x.seed.Root(benchBlock, nil), 0, benchBlock, tokens)
	h := x.Join()
	b.ReportAllocs()
	for i := uint64(0); b.Loop(); i++ {
		for j := range keys[longBlocks-64:] {
			keys[longBlocks-64+j] = i<<20 + uint64(j) + 1
		}
		h.Claim(keys)
		h.Clear()
	}
}

// BenchmarkMemory reports the bytes of a block at a pod.
func BenchmarkMemory(b *testing.B) {
	for _, blocks := range []int{4_000_000, 33_000_000} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			benchmarkMemory(b, blocks, func() *Index { return New(testSeed, 1<<40) })
		})
	}
}

func benchmarkMemory(b *testing.B, blocks int, empty func() *Index) {
	for b.Loop() {
		before := live()
		x := empty()
		hot, _ := fleetOf(b, x, 8, blocks, false)
		b.ReportMetric(float64(live()-before)/float64(x.Blocks()), "B/block")
		runtime.KeepAlive(hot) // and with them the index
	}
}

// BenchmarkNamed does what BenchmarkStore and BenchmarkMemory do where keys are the engines' names.
func BenchmarkNamed(b *testing.B) {
	b.Run("store", func(b *testing.B) { benchmarkStore(b, NewNamed(testSeed, 1<<40)) })
	for _, blocks := range []int{4_000_000, 33_000_000} {
		b.Run(fmt.Sprintf("memory/blocks=%d", blocks), func(b *testing.B) {
			benchmarkMemory(b, blocks, func() *Index { return NewNamed(testSeed, 1<<40) })
		})
	}
}

func live() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
