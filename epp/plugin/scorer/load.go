package scorer

import "github.com/tandem-serving/tandem/epp"

// middle is the score of a candidate about which nothing is known.
const middle = 0.5

// trusted moves a score that was computed from an endpoint's load towards the middle, further the older the load is.
func trusted(c *epp.Candidate, score float64) float64 {
	return middle + c.Trust*(score-middle)
}

// unknown marks a candidate without a value in fewestFirst; values are not negative.
const unknown = -1

// fewestFirst scores candidates by how many requests they have: 1 for the lowest value, 0 for the highest, 1 for all if all are
// equal. A candidate whose value is unknown or too old gets the middle, and does not count for the lowest and highest.
func fewestFirst(c []epp.Candidate, scores []float64, value func(*epp.Candidate) (float64, bool)) {
	var low, high float64
	seen := false
	for i := range c {
		v, known := value(&c[i])
		switch {
		case c[i].Trust <= 0 || !known:
			v = unknown
		case !seen:
			low, high, seen = v, v, true
		default:
			low, high = min(low, v), max(high, v)
		}
		scores[i] = v
	}
	for i, v := range scores {
		switch {
		case v == unknown:
			scores[i] = middle
		case low == high:
			scores[i] = trusted(&c[i], 1)
		default:
			scores[i] = trusted(&c[i], (high-v)/(high-low))
		}
	}
}
