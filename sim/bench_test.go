package sim_test

import (
	"fmt"
	"testing"

	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/model"
	"github.com/tandem-serving/tandem/sim/simtest"
)

func startBenchEngine(b *testing.B) *sim.Engine {
	b.Helper()
	e, err := sim.New(sim.Config{KV: sim.KVConfig{Blocks: 4096}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(e.Close)
	return e
}

// BenchmarkDecodeStep measures a step with so many running answers. One operation is one step.
func BenchmarkDecodeStep(b *testing.B) {
	for _, batch := range []int{1, 32} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			e := startBenchEngine(b)
			b.ReportAllocs()
			for n := 0; n < b.N; {
				steps := min(b.N-n, 1000)
				requests := make([]sim.Request, batch)
				for i := range requests {
					requests[i] = decodeRequest(simtest.Prompt(i, 100), steps)
				}
				finish(b, e, requests)
				n += steps
			}
		})
	}
}

// finish runs requests to their ends.
func finish(b *testing.B, e *sim.Engine, requests []sim.Request) {
	b.Helper()
	g, err := e.Submit(requests)
	if err != nil {
		b.Fatal(err)
	}
	for open := len(requests); open > 0; {
		out, err := g.Next(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if out.Finish != "" {
			open--
		}
	}
}

// BenchmarkPrefill computes the KV of 2048 tokens that no cache has.
func BenchmarkPrefill(b *testing.B) {
	e := startBenchEngine(b)
	b.SetBytes(2048 * 512)
	b.ReportAllocs()
	for i := range b.N {
		ids := simtest.Prompt(i, 2048)
		ids[0] = model.FirstByte + i%1000
		ids[1] = model.FirstByte + i/1000%1000
		finish(b, e, []sim.Request{decodeRequest(ids, 1)})
	}
}
