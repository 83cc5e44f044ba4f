package scale

import "math"

// Intervals of the counts that a trend is read from.
const (
	recent  = 4  // latest intervals whose mean is the present rate at least
	history = 20 // intervals that a trend is read from
	longest = 40 // latest intervals whose mean is the present rate at most
)

// trend is what counts of the latest intervals say.
type trend struct {
	level float64 // mean of the most recent intervals: of as many as tell the same
	of    int     // how many these are
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
	all := counts
	t.of = min(recent, len(all))
	t.level = mean(all, t.of)
	counts = counts[max(0, len(counts)-history):]
	if len(counts) <= recent {
		return t
	}
	n := float64(len(counts))
	mean, middle, squares := mean(counts, len(counts)), (n-1)/2, 0.0
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
		return t
	}
	t.widen(all)
	return t
}

// mean returns that of the latest n counts.
func mean(counts []float64, n int) (sum float64) {
	for _, c := range counts[len(counts)-n:] {
		sum += c
	}
	return sum / float64(n)
}

// contradicts is how many standard errors the mean of the most recent intervals must be away from that of more intervals, so that the load has
// changed.
const contradicts = 1.7

// widen has the level be the mean of more intervals, as long as the most recent ones do not contradict it: of a few hundred requests, a minute
// tells the rate worse than ten.
func (t *trend) widen(counts []float64) {
	now := mean(counts, recent)
	for n := 2 * recent; ; n *= 2 {
		n = min(n, len(counts), longest)
		if n <= t.of {
			return
		}
		wider := mean(counts, n)
		if math.Abs(now-wider) > contradicts*math.Sqrt(t.burst*max(wider, 1)*(1.0/recent-1/float64(n))) {
			return
		}
		t.level, t.of = wider, n
	}
}

// unsure returns the standard error of the level, as a share of it.
func (t *trend) unsure() float64 {
	if t.level <= 0 {
		return 0
	}
	return math.Sqrt(t.burst / t.level / float64(t.of))
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
