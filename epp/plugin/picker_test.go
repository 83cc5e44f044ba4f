package plugin

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// TestMaxScoreOrder compares with sorting.
func TestMaxScoreOrder(t *testing.T) {
	p := build[epp.Picker](t, "max-score-picker", "maxNumOfEndpoints: 2")
	if p.Endpoints() != 2 {
		t.Errorf("picks %d", p.Endpoints())
	}
	rng := source(7)
	for range 500 {
		totals := someTotals(rng, rng.IntN(30))
		sorted := slices.SortedFunc(slices.Values(totals), func(a, b float64) int { return cmp.Compare(b, a) })
		n := rng.IntN(30)
		for place, i := range p.Pick(round(rng), totals, n, nil) {
			if cmp.Compare(totals[i], sorted[place]) != 0 {
				t.Fatalf("place %d of %d has %v, want %v", place, n, totals[i], sorted[place])
			}
		}
	}
}

// TestDrawers: explanations must know whether totals decide.
func TestDrawers(t *testing.T) {
	for typ, want := range map[string]bool{"max-score-picker": false, "random-picker": true, "weighted-random-picker": true} {
		if _, draws := build[epp.Picker](t, typ, "").(epp.Drawer); draws != want {
			t.Errorf("%s draws: %t", typ, draws)
		}
	}
}

// TestFair counts how often each candidate comes out on each place. Under a fixed seed the counts are always the same;
// they must lie within 5 standard deviations of what the chances say.
func TestFair(t *testing.T) {
	for _, test := range []struct {
		name, typ string
		totals    []float64
		first     []float64 // chance of each to be the first
		second    []float64 // and to be the second
	}{
		{"ties", "max-score-picker", []float64{2, 1, 2, 2, 2}, []float64{.25, 0, .25, .25, .25}, []float64{.25, 0, .25, .25, .25}},
		{"the second best tie", "max-score-picker", []float64{1, 3, 1, 0}, []float64{0, 1, 0, 0}, []float64{.5, 0, .5, 0}},
		{"no totals", "max-score-picker", []float64{0, 0, 0}, []float64{1. / 3, 1. / 3, 1. / 3}, []float64{1. / 3, 1. / 3, 1. / 3}},
		{"any", "random-picker", []float64{9, 1, 0, 0}, []float64{.25, .25, .25, .25}, []float64{.25, .25, .25, .25}},
		{"weights", "weighted-random-picker", []float64{1, 2, 1}, []float64{.25, .5, .25},
			[]float64{1. / 3, 1. / 3, 1. / 3}},
		{"small weights", "weighted-random-picker", []float64{1e-300, 3e-300}, []float64{.25, .75}, []float64{.75, .25}},
		{"zero comes last", "weighted-random-picker", []float64{0, 1, 0}, []float64{0, 1, 0}, []float64{.5, 0, .5}},
		{"nothing but zeros", "weighted-random-picker", []float64{0, 0}, []float64{.5, .5}, []float64{.5, .5}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := build[epp.Picker](t, test.typ, "")
			r := round(source(8))
			const runs = 20_000
			first, second := make([]int, len(test.totals)), make([]int, len(test.totals))
			for range runs {
				picked := p.Pick(r, test.totals, 2, nil)
				first[picked[0]]++
				second[picked[1]]++
				if one := p.Pick(r, test.totals, 1, nil); test.first[one[0]] == 0 {
					t.Fatalf("%d was picked", one[0])
				}
			}
			for i := range test.totals {
				for _, place := range []struct {
					name   string
					got    int
					chance float64
				}{{"first", first[i], test.first[i]}, {"second", second[i], test.second[i]}} {
					want, off := place.chance*runs, 5*math.Sqrt(place.chance*(1-place.chance)*runs)
					if math.Abs(float64(place.got)-want) > off {
						t.Errorf("%d was %s %d times, want %.0f ± %.0f", i, place.name, place.got, want, off)
					}
				}
			}
		})
	}
}

func BenchmarkPickers(b *testing.B) {
	for _, row := range Table {
		p, ok := build[any](b, row.Type, required[row.Type]).(epp.Picker)
		if !ok {
			continue
		}
		b.Run(row.Type, func(b *testing.B) {
			rng := source(5)
			r, totals, dst := round(rng), make([]float64, 100), make([]int, 0, 3)
			for i := range totals {
				totals[i] = rng.Float64()
			}
			b.ReportAllocs()
			for b.Loop() {
				dst = p.Pick(r, totals, 3, dst[:0])
			}
		})
	}
}
