package load

import (
	"math"
	"slices"
)

// Distribution summarizes measured values. A percentile that so few values cannot support is missing.
type Distribution struct {
	Count int      `json:"count"`
	Mean  float64  `json:"mean"`
	Min   float64  `json:"min"`
	P50   *float64 `json:"p50,omitempty"`
	P90   *float64 `json:"p90,omitempty"`
	P95   *float64 `json:"p95,omitempty"`
	P99   *float64 `json:"p99,omitempty"`
	Max   float64  `json:"max"`
}

// distribution sorts the values and summarizes them; nil if there are none.
func distribution(values []float64) *Distribution {
	if len(values) == 0 {
		return nil
	}
	slices.Sort(values)
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return &Distribution{Count: len(values), Mean: sum / float64(len(values)), Min: values[0], Max: values[len(values)-1],
		P50: percentile(values, 50), P90: percentile(values, 90), P95: percentile(values, 95), P99: percentile(values, 99)}
}

// confidence is how sure percentiles and verdicts are.
const confidence = 0.95

// supports returns the least number of values from which a percentile is shown: enough that with 95 % confidence the largest of
// them exceeds it. With fewer, what would be printed is most likely too small.
func supports(p int) int { return int(math.Ceil(math.Log(1-confidence) / math.Log(float64(p)/100))) }

// percentile returns the nearest-rank percentile of sorted values, or nil if there are too few.
func percentile(sorted []float64, p int) *float64 {
	if len(sorted) < supports(p) {
		return nil
	}
	v := sorted[(p*len(sorted)+99)/100-1]
	return &v
}

// median returns the middle of some values, or the mean of the two in the middle.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// medianInterval returns an interval that contains the true median with at least 95 % confidence, and false if there are too few
// values for one. It is the interval between two order statistics that belongs to the sign test: it assumes that the values are
// independent, and nothing about their distribution. A bootstrap of so few values would be narrower, and wrong more often than it
// says: see TestIntervalKeepsItsPromise.
func medianInterval(values []float64) (low, high float64, ok bool) {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	// The median lies below the r-th smallest value if fewer than r values are below it: a binomial tail. r is as large as the
	// two tails together allow.
	tail, chance, r := 0.0, math.Pow(0.5, float64(n)), 0
	for r < n/2 && 2*(tail+chance) <= 1-confidence {
		tail += chance
		r++
		chance *= float64(n-r+1) / float64(r)
	}
	if r == 0 {
		return 0, 0, false
	}
	return sorted[r-1], sorted[n-r], true
}

// enoughRounds is the least number of pairs for which medianInterval gives an interval.
const enoughRounds = 6
