package plugin

import "github.com/tandem-serving/tandem/epp"

// middle rates what is not known.
const middle = 0.5

// trusted mixes a score that was made of an endpoint's load with the middle, as far as the load is too old to be believed.
func trusted(c *epp.Candidate, score float64) float64 {
	return middle + c.Trust*(score-middle)
}

// fewestFirst replaces values by scores: 1 for the lowest, 0 for the highest, and 1 for all if they are the same. Only
// values that are known and still say something count; the others are in the middle. field tells whether a value is known.
func fewestFirst(c []epp.Candidate, values []float64, field epp.LoadField) {
	var low, high float64
	seen := false
	for i := range c {
		switch v := values[i]; {
		case c[i].Trust <= 0 || !c[i].Load.Has(field):
		case !seen:
			low, high, seen = v, v, true
		default:
			low, high = min(low, v), max(high, v)
		}
	}
	for i := range c {
		switch v := values[i]; {
		case c[i].Trust <= 0 || !c[i].Load.Has(field):
			values[i] = middle
		case low == high:
			values[i] = trusted(&c[i], 1)
		default:
			values[i] = trusted(&c[i], (high-v)/(high-low))
		}
	}
}
