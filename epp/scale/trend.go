package scale

import "math"

// Intervals of the counts that a trend is read from.
const (
	recent  = 4  // latest intervals whose mean is the present rate
	history = 20 // intervals that a trend is read from
)

// trend is what counts of the latest intervals say.
type trend struct {
	level float64 // mean of the most recent intervals
	slope float64 // growth from one interval to the next; 0 unless it is significant
	end   float64 // of the line, at the last interval
	burst float64 // variance from one interval to the next, as a multiple of the mean; at least 1
}

// significant is how many standard errors a slope must be away from 0. Of counts without a trend, one in twenty is.
const significant = 2.1

// trendOf returns the trend of counts, the latest last.
func trendOf(counts []float64) trend {
	t := trend{burst: 1}
	if len(counts) == 0 {
		return t
	}
	last := counts[max(0, len(counts)-recent):]
	for _, c := range last {
		t.level += c / float64(len(last))
	}
	counts = counts[max(0, len(counts)-history):]
	if len(counts) <= recent {
		return t
	}
	n := float64(len(counts))
	mean, middle, squares := 0.0, (n-1)/2, 0.0
	for _, c := range counts {
		mean += c / n
	}
	slope := 0.0
	for i, c := range counts {
		slope += (float64(i) - middle) * (c - mean)
		squares += (float64(i) - middle) * (float64(i) - middle)
	}
	slope /= squares
	off := 0.0
	for i, c := range counts {
		d := c - mean - slope*(float64(i)-middle)
		off += d * d / (n - 2)
	}
	if mean > 0 {
		t.burst = max(1, apart(counts)/mean)
	}
	if math.Abs(slope) > significant*math.Sqrt(off/squares) {
		t.slope, t.end = slope, mean+slope*middle
	}
	return t
}

// apart returns half of the mean square of the differences between neighbours, which is the variance of independent counts whatever
// trend their mean has (von Neumann 1941): around a line, a load that rises ever faster would look as if it came in bursts.
func apart(counts []float64) float64 {
	sum := 0.0
	for i := 1; i < len(counts); i++ {
		sum += (counts[i] - counts[i-1]) * (counts[i] - counts[i-1])
	}
	return sum / 2 / float64(len(counts)-1)
}

// steepest bounds a forecast, as a multiple of the present level: a line through few points says little about far ahead.
const steepest = 3

// ahead returns the count that is expected so many intervals after the last one, at least the present level.
func (t *trend) ahead(intervals float64) float64 {
	if t.slope <= 0 {
		return t.level
	}
	return max(t.level, min(t.end+t.slope*intervals, steepest*t.level))
}
