package bench

import (
	"math"
	"slices"
	"time"
)

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// mebibytes are what memory is shown in.
func mebibytes(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// median is the middle one, or between the two in the middle; 0 of none.
func median(values []float64) float64 {
	n := len(values)
	if n == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// quantile is by nearest rank: the smallest of the values that at least so large a part of them do not exceed; 0 of none.
func quantile(values []float64, part float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(part*float64(len(sorted)) - 1e-9))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// fitted is how many of the last points of a curve tell how it grows: before them, what does not grow hides what does.
const fitted = 3

// exponent is the power of x with which the end of a curve grows, by least squares over the logarithms: 1 is linear. What
// there is at x = 0 is taken off first. It is not a number if there are too few points.
func exponent(points []Point) float64 {
	var x, y []float64
	base := 0.0
	for _, p := range points {
		switch {
		case p.X == 0:
			base = p.Y
		case p.Y > base:
			x, y = append(x, math.Log(p.X)), append(y, math.Log(p.Y-base))
		}
	}
	if len(x) < 2 {
		return math.NaN()
	}
	x, y = x[max(0, len(x)-fitted):], y[max(0, len(y)-fitted):]
	var meanX, meanY, xy, xx float64
	for i := range x {
		meanX, meanY = meanX+x[i]/float64(len(x)), meanY+y[i]/float64(len(y))
	}
	for i := range x {
		xy += (x[i] - meanX) * (y[i] - meanY)
		xx += (x[i] - meanX) * (x[i] - meanX)
	}
	return xy / xx
}
