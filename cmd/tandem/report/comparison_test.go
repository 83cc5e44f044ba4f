package report

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// sampleComparison returns six pairs of rounds in which local prefill makes streams wait, and P/D long prompts.
func sampleComparison(seed uint64) *Comparison {
	rnd := rand.New(rand.NewPCG(seed, 2))
	c := &Comparison{On: "the same engines", About: []string{"4 engines", "10 streams and 4 long prompts a second"}, Goal: Goal{1000, 100}, Step: 14.8,
		Sides: [2]Side{{Name: "all local", About: "each engine prefills and decodes"}, {Name: "P/D, 2+2", About: "2 engines prefill for the other 2"}}}
	for range enoughPairs {
		for i := range c.Sides {
			r := Round{Seconds: 2}
			for n := range 24 {
				x := Sample{Kind: "streams", Late: rnd.Float64(), TTFT: 30 + 10*rnd.Float64()}
				if n%4 == 3 {
					x.Kind, x.TTFT = "long prompts", 330+110*float64(i)+20*rnd.Float64()
				}
				for range 40 {
					gap := 15 + rnd.Float64()
					if i == 0 && rnd.IntN(30) == 0 {
						gap += 150
					}
					x.ITL = append(x.ITL, gap)
				}
				r.Samples = append(r.Samples, x)
			}
			c.Sides[i].Rounds = append(c.Sides[i].Rounds, r)
		}
	}
	return c
}

// comparisonOf returns a comparison of TTFTs: one request of each round, of all local and then of P/D.
func comparisonOf(local, split []float64) *Comparison {
	c := &Comparison{Goal: Goal{1000, 100}, Step: 15}
	for i, ttfts := range [][]float64{local, split} {
		for _, ttft := range ttfts {
			c.Sides[i].Rounds = append(c.Sides[i].Rounds, Round{1, []Sample{{Kind: "x", TTFT: ttft, ITL: []float64{15}}}})
		}
	}
	return c
}

func TestVerdictsOfComparison(t *testing.T) {
	for _, c := range []struct {
		name         string
		local, split []float64
		want         string
	}{
		{"less in every pair", []float64{100, 110, 120, 130, 140, 150}, []float64{60, 70, 80, 90, 100, 110}, better},
		{"more in every pair", []float64{60, 70, 80, 90, 100, 110}, []float64{100, 110, 120, 130, 140, 150}, worse},
		{"less in all pairs but one", []float64{100, 110, 120, 130, 140, 150}, []float64{60, 70, 80, 90, 100, 151}, same},
		{"hardly less", []float64{100, 100, 100, 100, 100, 100}, []float64{98, 98, 98, 98, 98, 98}, same},
		{"five pairs", []float64{100, 110, 120, 130, 140}, []float64{60, 70, 80, 90, 100}, unclear},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := comparisonOf(c.local, c.split).compared()
			i := slices.IndexFunc(all, func(d difference) bool { return d.name == "TTFT p50 of x, ms" })
			if i < 0 || all[i].verdict != c.want {
				t.Errorf("got %+v, want %s", all, c.want)
			}
		})
	}
}

// More is better of goodput alone.
func TestGoodput(t *testing.T) {
	slow, fast := []float64{2000, 2000, 2000, 2000, 2000, 2000}, []float64{60, 60, 60, 60, 60, 60}
	all := comparisonOf(slow, fast).compared()
	d := all[len(all)-1]
	if d.name != "goodput, requests/s" || d.local != 0 || d.split != 1 || d.verdict != better {
		t.Errorf("%+v", d)
	}
	for _, c := range []struct {
		name  string
		given Sample
		want  bool
	}{
		{"in time", Sample{TTFT: 1000, ITL: []float64{100, 15}}, true},
		{"begins late", Sample{TTFT: 1001}, false},
		{"halts once", Sample{TTFT: 10, ITL: []float64{15, 101, 15}}, false},
		{"failed", Sample{Failure: "status 500"}, false},
	} {
		if got := c.given.meets(Goal{TTFT: 1000, Gap: 100}); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

// A percentile that a round cannot support is not compared.
func TestFewGapsHaveNoPercentile(t *testing.T) {
	for _, d := range comparisonOf([]float64{1}, []float64{1}).compared() {
		if strings.Contains(d.name, "p99") {
			t.Errorf("%+v of one gap", d)
		}
	}
	if !slices.ContainsFunc(sampleComparison(1).compared(), func(d difference) bool { return d.name == "ITL p99, ms" }) {
		t.Error("960 gaps have no 99th percentile")
	}
}

func TestSummaryOfComparison(t *testing.T) {
	gain := comparisonOf([]float64{100, 100, 100, 100, 100, 100}, []float64{60, 60, 60, 60, 60, 60})
	loss := comparisonOf([]float64{60, 60, 60, 60, 60, 60}, []float64{100, 100, 100, 100, 100, 100})
	few := comparisonOf([]float64{100}, []float64{60})
	for _, c := range []struct{ name, got, want string }{
		{"gain", gain.summary(), "P/D pays here in TTFT p50 of x (60.0 instead of 100.0 ms)."},
		{"loss", loss.summary(), "P/D does not pay here: no figure is better in every pair of rounds. It costs TTFT p50 of x (100.0 instead of 60.0 ms)."},
		{"one pair", few.summary(), "A verdict takes 6 pairs of rounds."},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q, want %q", c.name, c.got, c.want)
		}
	}
}

func TestSummaryTellsASlowMachine(t *testing.T) {
	const warning = "too slow or too busy"
	for _, c := range []struct {
		name  string
		spoil func(x *Sample)
		want  bool
	}{
		{"quiet", func(*Sample) {}, false},
		{"late sends", func(x *Sample) { x.Late = 50 }, true},
		{"slow steps", func(x *Sample) { x.ITL[0] = 25 }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			given := comparisonOf([]float64{1, 2}, []float64{1, 2})
			for i := range given.Sides {
				for _, r := range given.Sides[i].Rounds {
					c.spoil(&r.Samples[0])
				}
			}
			if got := given.summary(); strings.Contains(got, warning) != c.want {
				t.Errorf("%s", got)
			}
		})
	}
}
