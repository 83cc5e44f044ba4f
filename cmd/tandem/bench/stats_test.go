package bench

import (
	"math"
	"testing"
)

func hundred() (values []float64) {
	for i := range 100 {
		values = append(values, float64(100-i))
	}
	return values
}

func TestQuantiles(t *testing.T) {
	for name, c := range map[string]struct{ got, want float64 }{
		"median of none":           {median(nil), 0},
		"median of one":            {median([]float64{7}), 7},
		"median of three":          {median([]float64{9, 1, 2}), 2},
		"median of four":           {median([]float64{4, 1, 3, 2}), 2.5},
		"p99 of none":              {quantile(nil, 0.99), 0},
		"p99 of one":               {quantile([]float64{7}, 0.99), 7},
		"p99 of a hundred":         {quantile(hundred(), 0.99), 99},
		"p50 of a hundred":         {quantile(hundred(), 0.5), 50},
		"all of a hundred":         {quantile(hundred(), 1), 100},
		"none of a hundred":        {quantile(hundred(), 0), 1},
		"p99 of few is their most": {quantile([]float64{3, 1, 2}, 0.99), 3},
	} {
		t.Run(name, func(t *testing.T) {
			if c.got != c.want {
				t.Errorf("%v, want %v", c.got, c.want)
			}
		})
	}
}

func curve(y func(x float64) float64, xs ...float64) (points []Point) {
	for _, x := range xs {
		points = append(points, Point{x, y(x)})
	}
	return points
}

func TestExponent(t *testing.T) {
	for name, c := range map[string]struct {
		points []Point
		want   float64
		words  string
	}{
		"linear": {curve(func(x float64) float64 { return 3 * x }, 1, 10, 100), 1,
			"to the power of 1.00: linear or better"},
		"square": {curve(func(x float64) float64 { return x * x }, 1, 10, 100), 2,
			"to the power of 2.00: WORSE than linear"},
		"constant, then linear": {append(curve(func(float64) float64 { return 10 }, 1, 2, 4),
			curve(func(x float64) float64 { return x }, 10, 20, 40)...), 1, "1.00"},
		"what is there at 0 is no growth": {curve(func(x float64) float64 { return 50 + 2*x }, 0, 10, 100, 1000), 1, "1.00"},
		"two points":                      {curve(math.Sqrt, 4, 16), 0.5, "0.50: linear or better"},
		"one point":                       {curve(math.Sqrt, 4), math.NaN(), "too few points"},
		"nothing grows":                   {curve(func(float64) float64 { return 5 }, 0, 1, 2), math.NaN(), "too few points"},
	} {
		t.Run(name, func(t *testing.T) {
			got := exponent(c.points)
			if math.Abs(got-c.want) > 1e-9 || math.IsNaN(got) != math.IsNaN(c.want) {
				t.Errorf("exponent %v, want %v", got, c.want)
			}
			drawn := newCurve("", "x", "y", c.points)
			mustContain(t, drawn.growth(), c.words)
		})
	}
}
