package scale

import (
	"math"
	"math/rand/v2"
	"testing"
)

// line returns counts that grow evenly.
func line(n int, from, step float64) (counts []float64) {
	for i := range n {
		counts = append(counts, from+step*float64(i))
	}
	return counts
}

func TestTrend(t *testing.T) {
	for _, test := range []struct {
		name   string
		counts []float64
		level  float64
		after  float64 // intervals after the last
		ahead  float64 // what is expected then
	}{
		{"nothing yet", nil, 0, 8, 0},
		{"one interval", []float64{7}, 7, 8, 7},
		{"even", line(20, 100, 0), 100, 8, 100},
		{"grows", line(20, 100, 5), 187.5, 8, 235},
		{"falls: the present counts", line(20, 200, -5), 112.5, 8, 112.5},
		{"too few for a line", line(4, 100, 100), 250, 8, 250},
		{"a steep line is bounded", line(20, 0, 100), 1750, 80, 5250},
		{"older ones do not count", append(line(30, 900, 0), line(20, 100, 0)...), 100, 8, 100},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := trendOf(test.counts)
			if math.Abs(got.level-test.level) > 1e-6 || math.Abs(got.ahead(test.after)-test.ahead) > 1e-6 {
				t.Errorf("level %v, ahead %v; want %v and %v", got.level, got.ahead(test.after), test.level, test.ahead)
			}
		})
	}
}

func TestTrendOfNoise(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	rising, burst := 0, 0.0
	const tries = 400
	for range tries {
		counts := make([]float64, history)
		for i := range counts {
			counts[i] = float64(poisson(random, 80))
		}
		one := trendOf(counts)
		burst += one.burst / tries
		if one.slope > 0 {
			rising++
		}
	}
	if rising > tries/20 {
		t.Errorf("%d of %d steady loads have a rising trend: want 1 in 40", rising, tries)
	}
	if burst > 1.3 {
		t.Errorf("independent arrivals look as if they came in bursts: %.2f", burst)
	}
}

// TestTrendOfCurves: a load that rises ever faster, and one that ends, do not come in bursts; one that alternates does.
func TestTrendOfCurves(t *testing.T) {
	curve := make([]float64, history)
	alternating := make([]float64, history)
	for i := range curve {
		curve[i] = 80 + float64(i*i)
		alternating[i] = 160 * float64(i%2)
	}
	ended := append(line(history-5, 80, 0), line(5, 0, 0)...)
	for name, c := range map[string]struct {
		counts      []float64
		least, most float64
	}{"rises ever faster": {curve, 1, 2}, "ended": {ended, 1, 4}, "alternates": {alternating, 80, 200}} {
		if got := trendOf(c.counts).burst; got < c.least || got > c.most {
			t.Errorf("%s: %.1f, want %v to %v", name, got, c.least, c.most)
		}
	}
}

// poisson returns a random count.
func poisson(random *rand.Rand, mean float64) (n int) {
	for at := random.ExpFloat64(); at < mean; at += random.ExpFloat64() {
		n++
	}
	return n
}

// TestLevelOfManyIntervals: the level is that of as many intervals as tell the same as the latest minute.
func TestLevelOfManyIntervals(t *testing.T) {
	for name, test := range map[string]struct {
		counts []float64
		of     int
		level  float64
	}{
		"steady":             {line(60, 20, 0), longest, 20},
		"few intervals":      {line(6, 20, 0), 6, 20},
		"has risen just now": {append(line(30, 20, 0), line(4, 40, 0)...), recent, 40},
		"a little more":      {append(line(36, 20, 0), line(4, 22, 0)...), longest, 20.2},
	} {
		if got := trendOf(test.counts); got.slope == 0 && (got.of != test.of || math.Abs(got.level-test.level) > 1e-9) {
			t.Errorf("%s: %v of %d intervals, want %v of %d", name, got.level, got.of, test.level, test.of)
		}
	}
}
